"""How callers' arrays are read without a copy: what each is, where it lies, and whether it is what a graph needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import index
from typing import Any, NamedTuple, TypeVar

import numpy as np

from graphdnn.errors import ExecutionError, GraphError, in_words
from graphdnn.ir.graph import Graph
from graphdnn.ir.types import Array, DType, TensorType, are_apart, as_dtype
from graphdnn.runtime import dlpack
from graphdnn.runtime.arrays import DeviceArray
from graphdnn.runtime.buffers import host_view
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.driver import LEGACY_STREAM, PER_THREAD_STREAM, stream_handle
from graphdnn.spelling import quoted

Answer = TypeVar("Answer")


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

    def placed(self) -> Array:
        """An array that lies where this one does, for its place alone: what a device has there cannot be read so."""
        if self.array is not None:
            return self.array
        assert self.dtype is not None
        return host_view(self.address, self.type(self.dtype), None)


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
    if offered(array, "__dlpack__") is not None:
        return read_dlpack(array, stream)
    interface = offered(array, "__cuda_array_interface__")
    if interface is not None:
        return read_interface(array, interface, stream, device)
    raise TypeError(
        f"a {type_name(array)}; a numpy array, or one with __dlpack__ or __cuda_array_interface__, is needed"
    )


def asked(array: Any, protocol: str, question: Callable[[], Answer]) -> Answer:
    """What a producer answers.  Raises TypeError with whatever it raises instead: its code is anybody's."""
    try:
        return question()
    except Exception as error:
        who = f"a {type_name(array)} that cannot be read"
        raise TypeError(f"{who}; one that gives its memory by {protocol} is needed: {in_words(error)}") from error


def offered(array: Any, attribute: str) -> Any:
    """The attribute by which an array speaks a protocol, None where it does not."""
    return asked(array, attribute, lambda: getattr(array, attribute, None))


def read_numpy(array: Array) -> Source:
    try:
        dtype: DType | None = as_dtype(array.dtype)
    except GraphError:
        dtype = None
    size = array.itemsize or 1  # elements of no bytes are of no type of ours, whatever their strides
    whole = all(s % size == 0 for s in array.strides)  # a field of a structured array may step by parts of an element
    strides = tuple(s // size for s in array.strides) if whole else None
    name, read_only = str(array.dtype), not array.flags.writeable
    where = dlpack.Description(array.ctypes.data, array.shape, strides, dtype, name, dlpack.CPU, 0, read_only)
    return Source(where, array, array)


def read_dlpack(array: Any, stream: int) -> Source:
    device_of = offered(array, "__dlpack_device__")
    if device_of is None:
        raise TypeError(f"a {type_name(array)} with __dlpack__ and no __dlpack_device__; both are needed")
    found = asked(array, "DLPack", device_of)
    if not isinstance(found, tuple | list) or len(found) != 2 or not all(hasattr(n, "__index__") for n in found):
        raise TypeError(
            f"a {type_name(array)} whose __dlpack_device__ gives {quoted(found)}; a pair of whole numbers is needed"
        )
    wanted = stream if found[0] in dlpack.ON_CUDA else None

    def exported(stream: int | None) -> object:
        try:
            return array.__dlpack__(stream=stream, max_version=dlpack.VERSION)
        except TypeError:  # a producer from before version 1.0 knows no max_version
            return array.__dlpack__(stream=stream)

    def answer() -> object:
        try:
            return exported(wanted)
        except BufferError:
            if wanted != PER_THREAD_STREAM:
                raise
            # PyTorch orders nothing before the per-thread default stream, which waits by itself for what is ordered
            # before the legacy one.
            return exported(LEGACY_STREAM)

    capsule = asked(array, "DLPack", answer)
    try:
        where = dlpack.describe(capsule)
    except ValueError as error:
        raise TypeError(f"a {type_name(array)} whose __dlpack__ gives {error}") from None
    if where.kind not in dlpack.ON_HOST and where.kind not in dlpack.ON_CUDA:
        raise TypeError(f"a {type_name(array)} in DLPack memory of kind {where.kind}; CPU or CUDA memory is needed")
    if where.kind in dlpack.ON_CUDA or where.dtype is None:
        return Source(where, capsule)
    view = host_view(where.address, TensorType(where.shape, where.dtype, where.strides), capsule)
    return Source(where, capsule, view)


class Entries(NamedTuple):
    """What a CUDA array interface says, as Python's numbers; strides in bytes."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    element: np.dtype[Any]
    address: int
    read_only: bool
    producer: int | None

    @staticmethod
    def of(interface: Mapping[str, Any]) -> Entries:
        """Raises whatever the first entry that is missing or none of its kind leads to."""
        for name in ("shape", "typestr", "data"):
            if name not in interface:
                raise ValueError(f"there is no entry {name}")
        strides, producer = interface.get("strides"), interface.get("stream")
        address, read_only = interface["data"]
        return Entries(
            tuple(index(n) for n in interface["shape"]),
            None if strides is None else tuple(index(s) for s in strides),
            np.dtype(interface["typestr"]),
            index(address),
            bool(read_only),
            None if producer is None else index(producer),
        )


def read_interface(array: Any, interface: Mapping[str, Any], stream: int, device: CudaDevice | None) -> Source:
    """Version 2 and 3 of the CUDA array interface; version 3 names the stream that the data is ready on."""
    if not isinstance(interface, Mapping):
        raise TypeError(
            f"a {type_name(array)} whose __cuda_array_interface__ is a {type_name(interface)}; a mapping is needed"
        )
    if interface.get("mask") is not None:
        raise TypeError(f"a {type_name(array)} with a mask; a plain array is needed")
    found = asked(array, "__cuda_array_interface__", lambda: Entries.of(interface))
    size = found.element.itemsize or 1
    if found.strides is not None and any(s % size for s in found.strides):
        raise TypeError(
            f"a {type_name(array)} with strides of {found.strides} bytes; whole elements of {size} are needed"
        )
    try:
        dtype = as_dtype(found.element) if found.element.isnative else None  # no kernel turns bytes around
    except GraphError:
        dtype = None
    if found.producer is not None and device is not None and stream_handle(found.producer) != stream:
        ready = device.event()
        device.record(ready, stream_handle(found.producer))
        device.wait(stream, ready)
    steps = None if found.strides is None else tuple(s // size for s in found.strides)
    ordinal = device.ordinal_of(found.address) if device is not None else 0
    where = dlpack.Description(
        found.address, found.shape, steps, dtype, str(found.element), dlpack.CUDA, ordinal, found.read_only
    )
    return Source(where, array)


def read_writable(who: str, given: Any, type: TensorType, stream: int, device: CudaDevice | None) -> Source:
    """As `read_checked`, for an array that is going to be written."""
    source = read_checked(who, given, type, stream, device)
    if source.read_only:
        raise ExecutionError(f"{who} is a read-only array; one that can be written is needed")
    array = source.array
    if array is not None and not are_apart(array.shape, array.strides, array.itemsize):
        raise ExecutionError(
            f"{who} has strides of {array.strides} bytes, which make its elements share memory; memory of its own is "
            "needed for each"
        )
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
        raise ExecutionError(f"{who} is {error}") from error.__cause__
    if source.dtype != type.dtype:
        raise ExecutionError(f"{who} is {source.element}; {type.dtype} is needed")
    if source.shape != type.shape:
        raise ExecutionError(f"{who} has shape {source.shape}; {type.shape} is needed")
    if not source.on_host and (device is None or source.ordinal != device.ordinal):
        raise ExecutionError(f"{who} lies on cuda:{source.ordinal}; an array on {device or 'the CPU'} is needed")
    return source


def check_apart(who: str, array: Array, others: Mapping[str, Array]) -> None:
    """Raises ExecutionError where an array that is written has an element in common with one of the others."""
    for other, taken in others.items():
        if np.shares_memory(array, taken):
            raise ExecutionError(f"{who} shares memory with {other}; memory of its own is needed")
