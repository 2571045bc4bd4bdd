"""A machine without a device, on which suites of benchmarks are tested."""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.timing import Machine


class Replay:
    """What a captured graph is to a suite: its results, and a call."""

    def __init__(self, issue: Callable[[], Any]) -> None:
        self.issue = issue
        self()

    def __call__(self) -> None:
        with torch.inference_mode():
            self.results = self.issue()


class Processor(Machine):
    """A machine without a device; each run takes 10 us more than the one before."""

    device = "cpu"

    def __init__(self) -> None:
        self.taken = 0.0

    def clock(self, run: Callable[[], object]) -> float:
        run()
        self.taken += 10
        return self.taken

    def capture(self, issue: Callable[[], object]) -> Replay:
        return Replay(issue)

    def cold_clock(self) -> Callable[..., float]:
        return self.clock

    warm_clock = cold_clock

    def stream(self) -> None:
        return None

    def synchronize(self) -> None:
        pass
