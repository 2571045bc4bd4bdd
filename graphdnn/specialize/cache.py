"""A bounded cache whose entries are made once: threads that want the same one wait for it, others go on meanwhile."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import CancelledError, Future
from typing import Generic, TypeVar

from graphdnn.errors import ExecutionError
from graphdnn.forking import renew_in_children

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class MakeOnce(Generic[K, V]):
    """Entries by key, the least recently used dropped beyond `max_entries`.  A failed make leaves nothing behind."""

    def __init__(self, max_entries: int) -> None:
        self._max = max_entries
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.renew()
        renew_in_children(self)
        self.hits = 0
        self.evictions = 0

    def renew(self) -> None:
        """Makes the lock anew; what other threads were making is made again by whoever asks for it."""
        self._lock = threading.Lock()
        self._making: dict[K, tuple[Future[V], int]] = {}

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

        Raises ExecutionError where `make` asks for the entry that it is making.
        """
        while True:
            with self._lock:
                entry = self._used(key)
                if entry is not None:
                    return entry
                known = self._making.get(key)
                if known is None:
                    future: Future[V] = Future()
                    self._making[key] = (future, threading.get_ident())
                    break
            found, maker = known
            if maker == threading.get_ident():
                raise ExecutionError("a jitted function was called by itself with the signature that is being built")
            try:
                entry = found.result()
            except CancelledError:  # whoever made it was interrupted, which is no answer for us
                continue
            with self._lock:
                self.hits += 1
            return entry
        return self._make(key, make, future)

    def put(self, key: K, entry: V) -> None:
        """Keeps an entry that was made elsewhere."""
        with self._lock:
            self._keep(key, entry)

    def _make(self, key: K, make: Callable[[], V], future: Future[V]) -> V:
        try:
            entry = make()
        except BaseException as error:
            with self._lock:
                del self._making[key]
            if isinstance(error, Exception):
                future.set_exception(error)
            else:
                future.cancel()
            raise
        with self._lock:
            del self._making[key]
            self._keep(key, entry)
        future.set_result(entry)
        return entry

    def _used(self, key: K) -> V | None:
        """The entry where there is one, which is a hit."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            self.hits += 1
        return entry

    def _keep(self, key: K, entry: V) -> None:
        self._entries[key] = entry
        self._entries.move_to_end(key)
        if len(self._entries) > self._max:
            self._entries.popitem(last=False)
            self.evictions += 1

    def items(self) -> list[tuple[K, V]]:
        """What is there now, least recently used first."""
        with self._lock:
            return list(self._entries.items())
