"""Arrays at the edge: how callers' arrays are read without copies, and what is handed back on a device."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphdnn.errors import ExecutionError, GraphError
from graphdnn.ir.graph import Graph
from graphdnn.ir.types import Array, DType, TensorType, as_dtype
from graphdnn.runtime import dlpack
from graphdnn.runtime.device import (
    LEGACY_STREAM,
    PER_THREAD_STREAM,
    CudaDevice,
    Event,
    Memory,
    host_view,
    stream_handle,
)

UNORDERED = -1
"""The stream by which a DLPack consumer says that it takes care of the order itself."""


class Order:
    """The place in stream order up to which one context's work has been put: who uses its results waits for that.

    The last stream is remembered, and an event recorded on it when somebody asks.  A stream given as a bare number may
    be gone by then, so behind work on such a stream the event is recorded at once.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._event: Event | None = None
        self._recorded = False
        self._owner: object | None = None
        self._lock = threading.Lock()
        self.last: int | None = None

    def enter(self, stream: int) -> None:
        """Makes a stream wait for the work so far, where that was put on another one."""
        if self.last is not None and not self.is_at(stream):
            self.join(stream)

    def is_at(self, stream: int) -> bool:
        """Whether work put on a stream now comes after the work so far."""
        return stream == self.last and stream != PER_THREAD_STREAM

    def leave(self, stream: int, owner: object | None) -> None:
        """Work was put on `stream`; `owner` is the caller's stream object, or its number."""
        with self._lock:
            self.last = stream
            self._owner = owner
            self._recorded = False
            if stream != LEGACY_STREAM and isinstance(owner, int):
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
        if not self._recorded:
            assert self.last is not None
            self._device.record(self._event, self.last)
            self._recorded = True
        return self._event


class Lease:
    """Device memory lent to whoever holds this; it goes back to its pool afterwards.

    Memory that was handed to work on another stream does not go back: its next user would not wait for that work.
    Nobody refers to it then, and it is freed, which waits for the whole device.
    """

    __slots__ = ("__weakref__", "_pool", "memory", "travelled")

    def __init__(self, memory: Memory, pool: list[Memory]) -> None:
        self.memory = memory
        self.travelled = False
        self._pool = pool

    def __del__(self) -> None:
        if not self.travelled:
            self._pool.append(self.memory)


class DeviceArray:
    """A tensor on the device, ready behind the call that made it.

    `shape`, `dtype` (a graphdnn DType) and `strides` (in elements) say what it is; `numpy()` copies it to the host;
    `__dlpack__` and `__cuda_array_interface__` hand it to other libraries without a copy.  Its memory is its own for as
    long as somebody holds it or what was made from it.
    """

    def __init__(self, type: TensorType, memory: Lease | Memory, order: Order, device: CudaDevice) -> None:
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

    def go(self, stream: int) -> None:
        """Makes a stream wait for this array, and remembers that it is used there."""
        if not self._order.is_at(stream):
            self._order.join(stream)
            if isinstance(self._memory, Lease):
                self._memory.travelled = True

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
                self._order.join(ordered_on)
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
    flat = np.empty(type.extent, type.dtype.numpy)
    return np.lib.stride_tricks.as_strided(flat, type.shape, [s * flat.itemsize for s in type.layout])


class Source:
    """A caller's array as the runtime sees it: `array` for host memory, else an address on device `ordinal`.

    `strides` on a device are in elements, None for row-major; `dtype` is None when graphdnn has no such type, which
    `element` names then.  `owner` keeps the memory alive.
    """

    __slots__ = ("address", "array", "dtype", "element", "ordinal", "owner", "read_only", "shape", "strides")

    def __init__(self, description: dlpack.Description, owner: object, array: Array | None = None) -> None:
        self.address = description.address
        self.shape = description.shape
        self.strides = description.strides
        self.dtype = description.dtype
        self.element = description.element
        self.ordinal = None if description.kind in dlpack.ON_HOST else description.ordinal
        self.read_only = description.read_only
        self.owner = owner
        self.array = array

    @property
    def on_host(self) -> bool:
        return self.ordinal is None

    def lies_as(self, type: TensorType) -> bool:
        """Whether the elements are where `type`, of this shape, has them."""
        if self.strides is None:
            return type.is_row_major
        return self.strides == type.layout or self.type(type.dtype).layout == type.with_strides(type.layout).layout

    def type(self, dtype: DType) -> TensorType:
        return TensorType(self.shape, dtype, self.strides)


def read(array: Any, stream: int, device: CudaDevice | None) -> Source:
    """Looks at a caller's array: numpy, DeviceArray, __dlpack__ or __cuda_array_interface__, on the host or a device.

    What its producer still has to do for it is ordered before later work on `stream`.
    Raises TypeError for anything else.
    """
    if isinstance(array, np.ndarray | np.generic):
        return read_numpy(np.asarray(array))
    if isinstance(array, DeviceArray):
        array.go(stream)
        type = array._type
        where = dlpack.Description(
            array._address, type.shape, type.layout, type.dtype, type.dtype.name, dlpack.CUDA, array._device.ordinal
        )
        return Source(where, array._memory)
    if hasattr(array, "__dlpack__"):
        return read_dlpack(array, stream)
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return read_interface(array, interface, stream, device)
    raise TypeError(
        f"a {type_name(array)}; a numpy array, or one with __dlpack__ or __cuda_array_interface__, is needed"
    )


def read_numpy(array: Array) -> Source:
    try:
        dtype: DType | None = as_dtype(array.dtype)
    except GraphError:
        dtype = None
    size = array.itemsize
    whole = all(s % size == 0 for s in array.strides)  # a field of a structured array may step by parts of an element
    strides = tuple(s // size for s in array.strides) if whole else None
    name, read_only = str(array.dtype), not array.flags.writeable
    where = dlpack.Description(array.ctypes.data, array.shape, strides, dtype, name, dlpack.CPU, 0, read_only)
    return Source(where, array, array)


def read_dlpack(array: Any, stream: int) -> Source:
    kind, _ = array.__dlpack_device__()
    wanted = stream if kind in dlpack.ON_CUDA else None
    try:
        capsule = array.__dlpack__(stream=wanted, max_version=dlpack.VERSION)
    except TypeError:  # a producer from before version 1.0 knows no max_version
        capsule = array.__dlpack__(stream=wanted)
    where = dlpack.describe(capsule)
    if where.kind not in dlpack.ON_HOST and where.kind not in dlpack.ON_CUDA:
        raise TypeError(f"a {type_name(array)} in DLPack memory of kind {where.kind}; CPU or CUDA memory is needed")
    if where.kind in dlpack.ON_CUDA or where.dtype is None:
        return Source(where, capsule)
    view = host_view(where.address, TensorType(where.shape, where.dtype, where.strides), capsule)
    return Source(where, capsule, view)


def read_interface(array: Any, interface: Mapping[str, Any], stream: int, device: CudaDevice | None) -> Source:
    """Version 2 and 3 of the CUDA array interface; version 3 names the stream that the data is ready on."""
    if interface.get("mask") is not None:
        raise TypeError(f"a {type_name(array)} with a mask; a plain array is needed")
    producer = interface.get("stream")
    if producer is not None and device is not None and stream_handle(producer) != stream:
        ready = device.event()
        device.record(ready, stream_handle(producer))
        device.wait(stream, ready)
    name = np.dtype(interface["typestr"])
    try:
        dtype: DType | None = as_dtype(name)
    except GraphError:
        dtype = None
    strides = interface.get("strides")
    steps = None if strides is None else tuple(s // name.itemsize for s in strides)
    ordinal = device.ordinal_of(interface["data"][0]) if device is not None else 0
    address, read_only = interface["data"]
    where = dlpack.Description(
        address, tuple(interface["shape"]), steps, dtype, str(name), dlpack.CUDA, ordinal, read_only
    )
    return Source(where, array)


def read_writable(who: str, array: Any, type: TensorType, stream: int, device: CudaDevice | None) -> Source:
    """As `read_checked`, for an array that is going to be written."""
    source = read_checked(who, array, type, stream, device)
    if source.read_only:
        raise ExecutionError(f"{who} is a read-only array; one that can be written is needed")
    return source


def type_name(array: object) -> str:
    return f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")


def read_inputs(graph: Graph, inputs: Mapping[str, Any], stream: int, device: CudaDevice | None) -> dict[str, Source]:
    """Every input of a graph by name, read and checked.

    Raises ExecutionError, in one sentence, for the first that is extra, missing, of another type or shape, or that lies
    elsewhere than the graph runs.
    """
    if not isinstance(inputs, Mapping):
        raise ExecutionError(
            f"inputs of graph {graph.name} are a {type(inputs).__name__}; a mapping from name to array is needed"
        )
    for name in inputs:
        if name not in graph.inputs:
            known = ", ".join(graph.inputs) or "none"
            raise ExecutionError(f"{name} is not an input of graph {graph.name}; its inputs are {known}")
    for name, value in graph.inputs.items():
        if name not in inputs:
            raise ExecutionError(f"input {name} ({value.type}) of graph {graph.name} is missing")
    return {
        name: read_checked(f"input {name}", inputs[name], value.type, stream, device)
        for name, value in graph.inputs.items()
    }


def read_checked(who: str, array: Any, type: TensorType, stream: int, device: CudaDevice | None) -> Source:
    """An array that must have this type and shape and lie on `device` or the host.  Raises ExecutionError."""
    try:
        source = read(array, stream, device)
    except (TypeError, ValueError) as error:
        raise ExecutionError(f"{who} is {error}") from None
    except (BufferError, RuntimeError) as error:
        raise ExecutionError(f"{who} is a {type_name(array)} that cannot be read: {error}") from None
    if source.dtype != type.dtype:
        raise ExecutionError(f"{who} is {source.element}; {type.dtype} is needed")
    if source.shape != type.shape:
        raise ExecutionError(f"{who} has shape {source.shape}; {type.shape} is needed")
    if not source.on_host and (device is None or source.ordinal != device.ordinal):
        raise ExecutionError(f"{who} lies on cuda:{source.ordinal}; an array on {device or 'the CPU'} is needed")
    return source
