"""Builds that nobody waits for: one thread, one at a time, so that what is timed is not disturbed by its like."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable

from graphdnn.forking import renew_in_children


class Background:
    """A queue of work and the daemon thread that does it; the thread ends when nothing is left.

    What has begun when the process exits is given up, and what has not does not begin.
    """

    def __init__(self) -> None:
        self._is_over = False
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes the lock anew; what waits is not begun."""
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_working = False

    def put(self, work: Callable[[], None]) -> None:
        """Has `work`, which must not raise, done at some time."""
        with self._lock:
            self._waiting.append(work)
            if not self._is_working and not self._is_over:
                self._is_working = True
                threading.Thread(target=self._run, name="graphdnn-tuning", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._is_over:
                    self._is_working = False
                    return
                work = self._waiting.popleft()
            try:
                work()
            except BaseException:
                with self._lock:
                    self._is_working = False
                raise

    def end(self) -> None:
        """Lets nothing more begin."""
        self._is_over = True


BACKGROUND = Background()
atexit.register(BACKGROUND.end)
