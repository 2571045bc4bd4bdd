"""Other processes and threads of tests: what they find, and what they ran into."""

import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]


def said_by_every_process(script: str) -> str:
    """What `script` prints under each of two hash seeds, which order sets otherwise; fails where it is not the same."""
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    return said.pop()


def child_environment() -> dict[str, str]:
    """The environment of a Python that finds what this one does, this checkout's packages first."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Runs `work` in so many threads at once, each with its number; fails with all that they raised."""
    errors: list[str] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException:
            errors.append(traceback.format_exc())

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, "\n".join(errors)
