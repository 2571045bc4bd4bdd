"""Threads that build plans; results keep the order in which they were asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")


class Pool:
    """Threads that build plans; with one thread the work is done at once, by whoever asks for it."""

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, "graphdnn-build") if threads > 1 else None

    def start(self, work: Callable[[], T]) -> Future[T]:
        if self._executor is not None:
            return self._executor.submit(work)
        return Lazy(work)

    def all(self, works: Iterable[Callable[[], T]]) -> list[T]:
        """Results in the order of the works; the first error is raised once all have ended."""
        futures = [self.start(work) for work in works]
        errors = [e for f in futures if (e := f.exception()) is not None]
        if errors:
            raise errors[0]
        return [f.result() for f in futures]

    def settle(self, futures: Sequence[Future[T]]) -> None:
        """Waits until no thread works on any of these."""
        if self._executor is not None:
            wait(futures)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)


class Lazy(Future[T]):
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
        try:
            self.result(timeout)
        except CancelledError:
            raise
        except BaseException as error:
            return error
        return None
