"""Work that several threads ask for at the same time is done by one of them, and all get what it gave: with nothing
remembered afterwards, or with a bounded number of results."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from graphdnn.errors import ExecutionError
from graphdnn.forking import renew_in_children

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Waits:
    """Which thread waits for which, in all of the process: work that waits for itself through others never ends."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes the lock anew; other threads are no more."""
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Future[Any], int]] = {}

    def begin(self, theirs: Future[Any], worker: int) -> bool:
        """Notes that this thread waits for what `worker` does; False where that one waits for this thread already."""
        me = threading.get_ident()
        with self._lock:
            last = worker
            while last != me:
                waited = self._waiting.get(last)
                if waited is None or waited[0].done():  # it has what it waited for, and goes on once it is its turn
                    self._waiting[me] = theirs, worker
                    return True
                last = waited[1]
        return False

    def end(self) -> None:
        """This thread waits no longer."""
        with self._lock:
            self._waiting.pop(threading.get_ident(), None)


WAITS = Waits()


class Once:
    """Work in progress, by key.  Nothing is remembered once it is done.

    `circular` says of a key what is wrong with work under it that asks for its own result, itself or through work of
    other threads, which would never come.
    """

    def __init__(
        self, circular: Callable[[Any], str] = lambda key: f"work on {key!r} asked for its own result"
    ) -> None:
        self._circular = circular
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes the lock anew; what other threads were doing is done again by whoever asks for it."""
        self._lock = threading.Lock()
        self._running: dict[Hashable, tuple[Future[Any], int]] = {}

    def __call__(self, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` gives, or what another thread's work under the same key gives.  Raises what that raised, and
        ExecutionError where `work` asks for its own key or waits for work that does."""
        while True:
            with self._lock:
                running = self._running.get(key)
                if running is None:
                    mine: Future[T] = Future()
                    self._running[key] = mine, threading.get_ident()
                    break
            theirs, worker = running
            if not WAITS.begin(theirs, worker):
                raise ExecutionError(self._circular(key))
            try:
                found: T = theirs.result()
            except CancelledError:  # whoever did it was interrupted, which is no answer for us
                continue
            finally:
                WAITS.end()
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


class MakeOnce(Generic[K, V]):
    """Entries by key, the least recently used dropped beyond `max_entries`.  A failed make leaves nothing behind.

    Threads that want the same entry wait for it, others go on meanwhile.  `circular` is as for `Once`.
    """

    def __init__(
        self,
        max_entries: int,
        circular: Callable[[K], str] = lambda key: f"the entry for {key!r} asked for itself while it was made",
    ) -> None:
        self._max = max_entries
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._making = Once(circular)
        self.renew()
        renew_in_children(self)
        self.hits = 0
        self.evictions = 0

    def renew(self) -> None:
        """Makes the lock anew."""
        self._lock = threading.Lock()

    def find(self, key: K) -> V | None:
        """The entry, which counts as used; None where there is none."""
        with self._lock:
            return self._used(key)

    def reuse(self, key: K, entry: V) -> bool:
        """Whether this very entry is still there, which then counts as used."""
        with self._lock:
            return self._entries.get(key) is entry and self._used(key) is entry

    def holds(self, key: K, entry: V) -> bool:
        """Whether this very entry is still there; it does not count as used."""
        with self._lock:
            return self._entries.get(key) is entry

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The entry, made where there is none.  What `make` raises reaches everybody who waited for it.

        Raises ExecutionError where `make` asks for the entry that it is making, or waits for others that do.
        """
        known = self.find(key)
        if known is not None:
            return known
        is_ours = False

        def work() -> V:
            nonlocal is_ours
            is_ours = True
            known = self.find(key)  # made by another thread since we looked
            if known is not None:
                return known
            entry = make()
            self.put(key, entry)
            return entry

        entry = self._making(key, work)
        if not is_ours:
            with self._lock:
                self.hits += 1
        return entry

    def remake(self, key: K, old: V, make: Callable[[], V]) -> V:
        """An entry in the place of `old`, made where no other has taken it yet."""

        def work() -> V:
            with self._lock:
                known = self._entries.get(key)
            if known is not None and known is not old:
                return known
            entry = make()
            self.put(key, entry)
            return entry

        return self._making(key, work)

    def put(self, key: K, entry: V) -> None:
        """Keeps an entry that was made elsewhere."""
        with self._lock:
            self._entries[key] = entry
            self._entries.move_to_end(key)
            if len(self._entries) > self._max:
                self._entries.popitem(last=False)
                self.evictions += 1

    def items(self) -> list[tuple[K, V]]:
        """What is there now, least recently used first."""
        with self._lock:
            return list(self._entries.items())

    def _used(self, key: K) -> V | None:
        """The entry where there is one, which is a hit."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            self.hits += 1
        return entry
