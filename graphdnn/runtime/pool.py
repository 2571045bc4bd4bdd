"""Memory that is lent again and again: to whom, and on which stream it may be used next.

Memory goes back to the pool of the stream that it was used on, as in every stream-ordered allocator: what its last
holder still has to do there comes before whatever its next holder does.  Nothing else would do, since no event of ours
stands behind work that other libraries put on the stream.
"""

from __future__ import annotations

from collections import OrderedDict

from graphdnn.runtime.buffers import Memory
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.driver import LEGACY_STREAM, PER_THREAD_STREAM

STREAMS_KEPT = 8
"""Streams beside the default one whose free blocks a pool keeps; the one that was used longest ago goes first."""

SPARES_KEPT = 4
"""Free blocks that a pool keeps for each stream."""


class Lease:
    """Device memory lent for work on `stream` to whoever holds this; it goes back to its pool afterwards.

    Memory that was handed to work on another stream does not go back: its next user would not wait for that work.
    Nobody refers to it then, and it is freed, which waits for the whole device.  So is what the pool has no room for.
    """

    __slots__ = ("__weakref__", "_spare", "memory", "stream", "travelled")

    def __init__(self, memory: Memory, stream: int, spare: list[Memory]) -> None:
        self.memory = memory
        self.stream = stream
        self.travelled = False
        self._spare = spare

    def __del__(self) -> None:
        if not self.travelled and len(self._spare) < SPARES_KEPT:
            self._spare.append(self.memory)


class OutputPool:
    """Blocks of `nbytes`.  One thread at a time lends; blocks come back from any."""

    def __init__(self, device: CudaDevice, nbytes: int) -> None:
        self._device = device
        self._nbytes = nbytes
        self._last = LEGACY_STREAM
        self._current: list[Memory] = []  # the free blocks of the last stream
        self._spare = OrderedDict({LEGACY_STREAM: self._current})  # by stream, the one used last at the end

    def lend(self, stream: int) -> Lease:
        """A block for work on a stream.  Raises ExecutionError when there is no memory."""
        if stream == self._last:
            spare = self._current
        elif (known := self._spare.get(stream)) is not None:
            spare = self._current = known
            self._last = stream
            self._spare.move_to_end(stream)
        else:
            spare = self._opened(stream)
        if spare:
            return Lease(spare.pop(), stream, spare)
        return Lease(self._device.allocate(self._nbytes), stream, spare)

    def _opened(self, stream: int) -> list[Memory]:
        """The free blocks of a stream that was not used lately: none yet."""
        if stream == PER_THREAD_STREAM:
            return []  # the same handle is another stream in another thread
        if len(self._spare) > STREAMS_KEPT:
            del self._spare[next(s for s in self._spare if s != LEGACY_STREAM)]
        self._last = stream
        self._current = self._spare[stream] = []
        return self._current

    def clear(self) -> None:
        """Lets go of the blocks that nobody holds."""
        for spare in self._spare.values():
            spare.clear()

    def free(self) -> list[Memory]:
        """The blocks that nobody holds."""
        return [memory for spare in self._spare.values() for memory in spare]
