"""Arrays that the runtime hands out on a device: when they are ready, and who holds their memory."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from graphdnn.ir.types import Array, DType, TensorType
from graphdnn.runtime import dlpack
from graphdnn.runtime.buffers import Memory
from graphdnn.runtime.device import CudaDevice, Event
from graphdnn.runtime.driver import LEGACY_STREAM, PER_THREAD_STREAM
from graphdnn.runtime.pool import Lease

UNORDERED = -1
"""The stream by which a DLPack consumer says that it takes care of the order itself."""


class StreamOrder:
    """The place in stream order up to which one context's work has been put: who uses its results waits for that.

    The last stream is remembered, and an event recorded on it when somebody asks.  A stream given as a bare number may
    be gone by then, and the per-thread stream means another one in the thread that asks, so behind work on such a
    stream the event is recorded at once.

    `leave` is called by one thread at a time and takes no lock, since it is part of every call: `count` counts what was
    put, and an event stands for the count that was read before it was recorded.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._event: Event | None = None
        self._recorded = 0
        self._owner: object | None = None
        self._lock = threading.Lock()
        self.last: int | None = None
        self.count = 0

    def enter(self, stream: int) -> None:
        """Makes a stream wait for the work so far, where that was put on another one."""
        if self.last is not None and not self.is_at(stream):
            self.join(stream)

    def is_at(self, stream: int) -> bool:
        """Whether work put on a stream now comes after the work so far."""
        return stream == self.last and stream != PER_THREAD_STREAM

    def leave(self, stream: int, owner: object | None) -> None:
        """Work was put on `stream`; `owner` is the caller's stream object, or its number."""
        self.last = stream
        self._owner = owner
        self.count += 1
        if stream != LEGACY_STREAM and (isinstance(owner, int) or stream == PER_THREAD_STREAM):
            with self._lock:
                self._point()

    def join(self, stream: int) -> None:
        """Makes a stream wait for the work so far.

        A stream that is being captured waits for nothing: a graph cannot depend on work outside it, and whoever replays
        it sees to the order.
        """
        with self._lock:
            if self.last is None or self.is_at(stream):
                return
            if stream != LEGACY_STREAM and self._device.is_capturing(stream):
                return
            self._device.wait(stream, self._point())

    def finish(self) -> None:
        """Waits on the host for the work so far."""
        with self._lock:
            if self.last is None:
                return
            event = self._point()
        self._device.wait_on_host(event)

    def _point(self) -> Event:
        """The event behind the work so far."""
        if self._event is None:
            self._event = self._device.event()
        count = self.count
        if self._recorded != count:
            assert self.last is not None
            self._device.record(self._event, self.last)
            self._recorded = count
        return self._event


class DeviceArray:
    """A tensor on the device, ready behind the call that made it.

    `shape`, `dtype` (a graphdnn DType) and `strides` (in elements) say what it is; `numpy()` copies it to the host;
    `__dlpack__` and `__cuda_array_interface__` hand it to other libraries without a copy.  Its memory is its own for as
    long as somebody holds it or what was made from it.
    """

    __slots__ = ("__weakref__", "_address", "_device", "_memory", "_order", "_type")

    def __init__(self, type: TensorType, memory: Lease | Memory, order: StreamOrder, device: CudaDevice) -> None:
        self._type = type
        self._address = memory.memory.handle if isinstance(memory, Lease) else memory.handle
        self._memory = memory
        self._order = order
        self._device = device

    @property
    def shape(self) -> tuple[int, ...]:
        return self._type.shape

    @property
    def dtype(self) -> DType:
        return self._type.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each axis."""
        return self._type.layout

    @property
    def nbytes(self) -> int:
        return self._type.nbytes

    def numpy(self) -> Array:
        """A copy in host memory, with the same strides, once the work before it is done."""
        device, type = self._device, self._type
        host = empty(type)
        with device:
            self._order.join(device.stream)
            device.download(host.ctypes.data, self._address, type.span_bytes, device.stream)
            device.synchronize()
        return host

    def viewed(self, type: TensorType) -> DeviceArray:
        """The same memory from its first element on, seen as another type."""
        return DeviceArray(type, self._memory, self._order, self._device)

    def go(self, stream: int) -> None:
        """Makes a stream wait for this array, and remembers that it is used there."""
        if not self._order.is_at(stream):
            self._order.join(stream)
        memory = self._memory
        # Where the context's last work was put says nothing of that: it may have moved to this stream since.
        if isinstance(memory, Lease) and memory.stream != stream:
            memory.travelled = True

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CUDA, self._device.ordinal)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule.  `stream` is the consumer's and waits for this array: None and 1 are the legacy default
        stream, 2 the per-thread default one, -1 asks for no waiting.  With `dl_device` the CPU it is copied there.
        """
        here = self.__dlpack_device__()
        if dl_device is not None and tuple(dl_device) != here:
            if dl_device[0] != dlpack.CPU or copy is False:
                raise BufferError(f"array is on {self._device}; it can be handed out there, or copied to the CPU")
            host = self.numpy()
            return self._capsule(host.ctypes.data, (dlpack.CPU, 0), host, max_version)
        if stream == 0:
            raise BufferError("stream 0 is ambiguous in DLPack; 1 is the legacy default stream, 2 the per-thread one")
        consumer = LEGACY_STREAM if stream is None else stream
        owner: object = self._memory
        address = self._address
        with self._device as device:
            if copy:
                nbytes = self._type.span_bytes
                owner = fresh = device.allocate(nbytes)
                ordered_on = device.stream if consumer == UNORDERED else consumer
                self.go(ordered_on)
                device.copy(fresh.handle, address, nbytes, ordered_on)
                if consumer == UNORDERED:
                    device.synchronize()
                address = fresh.handle
            elif consumer != UNORDERED:
                self.go(consumer)
            elif isinstance(self._memory, Lease):
                self._memory.travelled = True
        return self._capsule(address, here, owner, max_version)

    def _capsule(
        self, address: int, where: tuple[int, int], owner: object, max_version: tuple[int, int] | None
    ) -> object:
        versioned = max_version is not None and max_version[0] >= dlpack.VERSION[0]
        return dlpack.export(address, self.shape, self.strides, self.dtype, where, owner, versioned)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the interface, ordered on the legacy default stream.  bfloat16 has no name there."""
        if self.dtype.name == "bfloat16":
            raise AttributeError("__cuda_array_interface__ has no bfloat16; use DLPack")
        with self._device:
            self.go(LEGACY_STREAM)
        size = self.dtype.itemsize
        strides = None if self._type.is_row_major else tuple(s * size for s in self.strides)
        return {
            "shape": self.shape,
            "typestr": self.dtype.numpy.str,
            "data": (self._address, False),
            "strides": strides,
            "stream": LEGACY_STREAM,
            "version": 3,
        }

    def __repr__(self) -> str:
        return f"DeviceArray({self._type}, {self._device})"


def empty(type: TensorType) -> Array:
    """Host memory of this type, strides included."""
    return type.strided(np.empty(type.extent, type.dtype.numpy))


def in_memory_order(array: Array, type: TensorType) -> Array:
    """The array where its elements lie as the type's strides say; a copy where they do not."""
    strides = tuple(s * type.dtype.itemsize for s in type.layout)
    wanted = [s for s, n in zip(strides, type.shape, strict=True) if n > 1]
    if [s for s, n in zip(array.strides, type.shape, strict=True) if n > 1] == wanted:
        return array
    copied = empty(type)
    np.copyto(copied, array)
    return copied
