"""Bringing arrays to where plans read them and from where plans write them, in stream order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphdnn.ir.region import ALIGNMENT
from graphdnn.ir.types import Array, TensorType
from graphdnn.lazy import cached_property
from graphdnn.runtime.buffers import Memory, Pinned
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.loaded import LoadedGraph, laid_out
from graphdnn.runtime.reading import Source

Command = Callable[[int], None]
"""Puts one piece of work on a stream."""


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
    """A staging buffer in pinned memory through which one output reaches the host."""

    def __init__(self, type: TensorType, device: CudaDevice) -> None:
        self._type = type
        self._device = device
        self._nbytes = type.span_bytes
        self._pinned = device.pinned(self._nbytes)
        self._done = device.event()

    def fetch(self, address: int) -> Command:
        """The command that copies the output from `address` on the device to pinned memory."""
        device, pinned, nbytes = self._device, self._pinned.handle, self._nbytes
        return lambda stream: device.download(pinned, address, nbytes, stream)

    def mark(self, stream: int) -> None:
        """Records that the output is in pinned memory once the work so far on a stream is done."""
        self._device.record(self._done, stream)

    def deliver(self, target: Array) -> None:
        """Copies what was fetched to the caller's array once it is there."""
        self._device.wait_on_host(self._done)
        np.copyto(target, self._pinned.array(self._type))
