"""Processor time of pure Python, for tests of how it grows: the least of several runs without collections."""

import gc
import time
from collections.abc import Callable


def least_seconds(prepare: Callable[[], Callable[[], None]], runs: int = 3) -> float:
    """Of what `prepare` gives, each time anew, since graphs remember what was found out about them.

    What earlier tests left alive is walked through by a collection, which falls into the longest run first.
    """
    found = []
    for _ in range(runs):
        run = prepare()
        gc.collect()
        gc.disable()
        try:
            start = time.process_time()
            run()
            found.append(time.process_time() - start)
        finally:
            gc.enable()
    return min(found)
