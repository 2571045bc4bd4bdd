"""Threads that build plans; results keep the order in which they were asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")

LOOK_S = 0.05
"""Seconds between two looks of a waiting thread at whether its wait is to end."""


def never() -> bool:
    """Nothing ends before it is done."""
    return False


class ThreadPool:
    """Threads that build plans; with one thread the work is done at once, by whoever asks for it.

    What no thread has begun when `is_over` comes true is given up: its result is a CancelledError.  Each thread looks
    for itself, since whoever waits for it may not get Python's lock between two builds that hold it.
    """

    def __init__(self, threads: int, is_over: Callable[[], bool] = never) -> None:
        self._executor = ThreadPoolExecutor(threads, "graphdnn-build") if threads > 1 else None
        self._is_over = is_over

    def start(self, work: Callable[[], T]) -> Future[T]:
        if self._executor is not None:
            return self._executor.submit(partial(self._in_time, work))
        return LazyFuture(work)

    def _in_time(self, work: Callable[[], T]) -> T:
        if self._is_over():
            raise CancelledError
        return work()

    def all(self, works: Iterable[Callable[[], T]]) -> list[T]:
        """Results in the order of the works; the first error is raised once all have ended."""
        futures = [self.start(work) for work in works]
        errors = [e for f in futures if (e := f.exception()) is not None]
        if errors:
            raise errors[0]
        return [f.result() for f in futures]

    def settle(self, futures: Sequence[Future[T]]) -> None:
        """Waits until no thread works on any of these, nor will.

        It wakes now and then: a Ctrl-C that comes just before a wait without end is heard after it.
        """
        while self._executor is not None and wait(futures, LOOK_S).not_done:
            pass

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)


def is_done(future: Future[T]) -> bool:
    """Whether the work was done, well or badly, and not given up."""
    return future.done() and not future.cancelled() and not isinstance(future.exception(), CancelledError)


class LazyFuture(Future[T]):
    """Work that is done when its result is asked for."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__()
        self._work = work

    def result(self, timeout: float | None = None) -> T:
        if not self.done():
            self.set_running_or_notify_cancel()
            try:
                self.set_result(self._work())
            except BaseException as error:
                self.set_exception(error)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done():
            with suppress(Exception):  # but not Ctrl-C, which is meant for whoever asks
                self.result(timeout)
        return super().exception(timeout)
