"""How long choosing may go on: until a number of seconds is spent or somebody presses Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


class Budget:
    """Seconds that timing plans may take in all; without a number it never runs out.

    Inside `with budget:` the first Ctrl-C ends the timing and nothing else; the second one is Python's own again.
    """

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._interrupted_s: float | None = None
        self._clock = clock
        self._start = clock()
        self._previous: Any = None

    @property
    def interrupted(self) -> bool:
        """Whether somebody pressed Ctrl-C."""
        return self._interrupted_s is not None

    @property
    def spent_s(self) -> float:
        return self._clock() - self._start

    @property
    def left_s(self) -> float | None:
        """Seconds left, none of them negative; None without a limit."""
        return None if self.seconds is None else max(0.0, self.seconds - self.spent_s)

    def is_over(self) -> bool:
        """Whether no more may be timed."""
        return self.interrupted or self.left_s == 0

    @property
    def ending(self) -> str:
        """Why timing ended before everything was timed, in words; empty where it did not."""
        if self._interrupted_s is not None:
            return f"timing was interrupted after {self._interrupted_s:.1f} s"
        return f"tuning_budget_s={self.seconds:g} was spent" if self.is_over() else ""

    def interrupt(self, *_: int | FrameType | None) -> None:
        """Ends the timing after the plan that is being timed."""
        self._interrupted_s = self.spent_s
        self._restore()

    def __enter__(self) -> Budget:
        # Handlers belong to the main thread, in others a Ctrl-C never arrives; one that Python did not set it cannot
        # put back.  What runs in the background of a script ignores a Ctrl-C that is meant for the script.
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) not in (None, signal.SIG_IGN):
            self._previous = signal.signal(signal.SIGINT, self.interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _restore(self) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None
