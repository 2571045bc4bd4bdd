"""Work that several threads ask for at the same time is done by one of them, and all get what it gave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Once:
    """Work in progress, by key.  Nothing is remembered once it is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, Future[Any]] = {}

    def __call__(self, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` gives, or what another thread's work under the same key gives.  Raises what that raised."""
        with self._lock:
            running = self._running.get(key)
            mine: Future[Any] = Future()
            if running is None:
                self._running[key] = mine
        if running is not None:
            found: T = running.result()
            return found
        try:
            result = work()
            mine.set_result(result)
            return result
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._running[key]
