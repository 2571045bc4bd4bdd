"""Work that several threads ask for at the same time is done by one of them, and all get what it gave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from graphdnn.forking import renew_in_children

T = TypeVar("T")


class Once:
    """Work in progress, by key.  Nothing is remembered once it is done."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes the lock anew; what other threads were doing is done again by whoever asks for it."""
        self._lock = threading.Lock()
        self._running: dict[Hashable, Future[Any]] = {}

    def __call__(self, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` gives, or what another thread's work under the same key gives.  Raises what that raised."""
        while True:
            with self._lock:
                running = self._running.get(key)
                if running is None:
                    mine: Future[T] = Future()
                    self._running[key] = mine
                    break
            try:
                found: T = running.result()
            except CancelledError:  # whoever did it was interrupted, which is no answer for us
                continue
            return found
        try:
            result = work()
        except BaseException as error:
            self._end(key)
            if isinstance(error, Exception):
                mine.set_exception(error)
            else:
                mine.cancel()
            raise
        self._end(key)
        mine.set_result(result)
        return result

    def _end(self, key: Hashable) -> None:
        with self._lock:
            self._running.pop(key, None)
