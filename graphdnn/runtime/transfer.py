"""Bringing arrays to where plans read them and from where plans write them, in stream order."""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import NamedTuple

import numpy as np

from graphdnn.ir.region import ALIGNMENT
from graphdnn.ir.types import Array, TensorType
from graphdnn.lazy import cached_property
from graphdnn.runtime.buffers import Memory, Pinned
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.loaded_graph import LoadedGraph, laid_out
from graphdnn.runtime.reading import Source

Command = Callable[[int], None]
"""Puts one piece of work on a stream."""

PART_BYTES = 2 << 20
"""Least bytes of a part: the host copies so many in the time of some hundred calls of the driver."""

PARTS = 16
"""Parts of one array at most.  Copying on the host takes several times as long as on the device, so that what is left
of the latter's time is that of one part."""


class Part(NamedTuple):
    """A part of a tensor that lies in one piece: its slices, and its bytes from the tensor's first one on."""

    place: tuple[slice | EllipsisType, ...]
    start: int
    nbytes: int


def parts_of(type: TensorType) -> list[Part]:
    """Parts along the axis that is outermost in memory; all at once where gaps or shared elements are in the way."""
    axes = [a for a, n in enumerate(type.shape) if n > 1]
    least = max(PART_BYTES, -(-type.nbytes // PARTS))
    if not axes or not type.is_dense:
        return [Part((...,), 0, type.span_bytes)]  # without the dots a tensor without axes would give a number
    axis = max(axes, key=lambda a: type.layout[a])
    step, extent = type.layout[axis] * type.dtype.itemsize, type.shape[axis]
    rows = -(-least // step)
    before = (slice(None),) * axis
    return [
        Part((*before, slice(first, first + rows)), first * step, min(rows, extent - first) * step)
        for first in range(0, extent, rows)
    ]


def reads_in_place(source: Source, type: TensorType) -> bool:
    """Whether plans can read an array where it is."""
    return not source.on_host and source.address % ALIGNMENT == 0 and source.lies_as(type)


class InputStaging:
    """A staging buffer for an array that plans cannot read in place: it is on the host, or lies in another layout."""

    def __init__(self, who: str, type: TensorType, loaded: LoadedGraph, memory: Memory | None = None) -> None:
        self._who = who
        self._type = laid_out(type)
        self._loaded = loaded
        self._nbytes = type.span_bytes
        self.memory = memory or loaded.device.allocate(self._nbytes)

    def stage(self, array: Array) -> None:
        """Copies a host array to pinned memory, from where the device fetches it.  Earlier fetches must be over."""
        np.copyto(self._pinned.array(self._type), array)

    def send(self, array: Array, stream: int) -> None:
        """Copies a host array to `memory`, each part on its way to the device while the host copies the next one to
        pinned memory.  Earlier fetches from there must be over."""
        pinned = self._pinned.array(self._type)
        for place, start, nbytes in self._parts:
            np.copyto(pinned[place], array[place])
            self._loaded.device.upload(self.memory.handle + start, self._pinned.handle + start, nbytes, stream)

    @cached_property
    def _parts(self) -> list[Part]:
        return parts_of(self._type)

    @cached_property
    def _pinned(self) -> Pinned:
        return self._loaded.device.pinned(self._nbytes)

    def prepare(self, source: Source) -> Command:
        """The command that copies a source into `memory`; a host array must have been staged before it runs."""
        device, target, nbytes = self._loaded.device, self.memory.handle, self._nbytes
        if source.on_host:
            pinned = self._pinned.handle
            return lambda stream: device.upload(target, pinned, nbytes, stream)
        address = source.address
        if source.lies_as(self._type):
            return lambda stream: device.copy(target, address, nbytes, stream)
        plan = self._loaded.conversion(self._who, source.type(self._type.dtype), self._type)
        return lambda stream: plan.enqueue([address, target], stream, 0)


class OutputStaging:
    """A staging buffer in pinned memory through which one output reaches the host, each part for itself."""

    def __init__(self, type: TensorType, device: CudaDevice) -> None:
        self._type = type
        self._device = device
        self._nbytes = type.span_bytes
        self._pinned = device.pinned(self._nbytes)
        self._parts = [(part, device.event()) for part in parts_of(type)]

    def fetch(self, address: int) -> Command:
        """The command that copies the output from `address` on the device to pinned memory, in one piece."""
        device, pinned, nbytes = self._device, self._pinned.handle, self._nbytes
        return lambda stream: device.download(pinned, address, nbytes, stream)

    def mark(self, stream: int) -> None:
        """Records that the output is in pinned memory once the work so far on a stream is done."""
        for _, done in self._parts:
            self._device.record(done, stream)

    def receive(self, address: int, stream: int) -> None:
        """Puts the copies to pinned memory on a stream, with a record behind each part's."""
        for part, done in self._parts:
            self._device.download(self._pinned.handle + part.start, address + part.start, part.nbytes, stream)
            self._device.record(done, stream)

    def deliver(self, target: Array) -> None:
        """Copies what was fetched to the caller's array, each part once it is there."""
        pinned = self._pinned.array(self._type)
        for part, done in self._parts:
            self._device.wait_on_host(done)
            np.copyto(target[part.place], pinned[part.place])
