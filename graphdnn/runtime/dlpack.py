"""DLPack, the C structures by which libraries hand tensors to each other without copies: both ends, through ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar, NamedTuple

from graphdnn.ir.types import DTYPES, DType

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
"""DLPack's numbers of kinds of memory."""

ON_HOST, ON_CUDA = frozenset({CPU, CUDA_HOST}), frozenset({CUDA, CUDA_MANAGED})
"""Kinds of memory that are read as the host's, and as a device's."""

CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}
"""DLPack's codes of kinds of numbers."""

BFLOAT = 4
"""DLPack's code of bfloat16, which is a kind of its own there."""

ELEMENTS: dict[tuple[int, int], DType] = {
    (BFLOAT if t.name == "bfloat16" else CODES[t.kind], t.bits): t for t in DTYPES.values()
}
"""Data type by DLPack's code and bits."""

VERSION = (1, 0)
"""Of DLPack, as versioned capsules carry it: the first one that has flags."""

READ_ONLY = 1
"""DLPACK_FLAG_BITMASK_READ_ONLY."""

LEGACY_NAME, VERSIONED_NAME = b"dltensor", b"dltensor_versioned"
"""What capsules are called until somebody has taken the tensor out."""


class Device(ctypes.Structure):
    """DLDevice."""

    _fields_: ClassVar = [("kind", c_int32), ("ordinal", c_int32)]


class Element(ctypes.Structure):
    """DLDataType."""

    _fields_: ClassVar = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(ctypes.Structure):
    """DLTensor: shape and strides in elements; strides may be NULL for row-major."""

    _fields_: ClassVar = [
        ("data", c_void_p), ("device", Device), ("rank", c_int32), ("element", Element),
        ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
    ]  # fmt: skip


class Managed(ctypes.Structure):
    """DLManagedTensor, from before version 1.0."""

    _fields_: ClassVar = [("tensor", Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_: ClassVar = [
        ("major", c_uint32), ("minor", c_uint32), ("context", c_void_p), ("deleter", c_void_p),
        ("flags", c_uint64), ("tensor", Tensor),
    ]  # fmt: skip


class Description(NamedTuple):
    """What a tensor is and where it lies; `dtype` is None for an element type that graphdnn does not have."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: DType | None
    element: str
    kind: int
    ordinal: int
    read_only: bool = False


_python = ctypes.pythonapi
_new = _python.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (c_void_p, c_char_p, c_void_p)
_pointer = _python.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, (ctypes.py_object, c_char_p)
_named = _python.PyCapsule_IsValid
_named.restype, _named.argtypes = c_int, (ctypes.py_object, c_char_p)
# The same two for a capsule that is being destroyed: as a bare address, since an object of no references left must not
# be given new ones.
_dying_pointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _python))
_dying_named = ctypes.PYFUNCTYPE(c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _python))

_exported: dict[int, tuple[Any, ...]] = {}
"""What each exported structure needs to stay alive, by its address, until its consumer calls the deleter."""


# What the deleters need they hold as defaults: a consumer may let go of a tensor while the interpreter ends, when the
# names of this module are gone already.
def _forget(address: int, exported: dict[int, tuple[Any, ...]] = _exported) -> None:
    exported.pop(address, None)


def _forget_untaken(
    capsule: int,
    exported: dict[int, tuple[Any, ...]] = _exported,
    names: tuple[bytes, ...] = (LEGACY_NAME, VERSIONED_NAME),
    is_named: Any = _dying_named,
    pointer: Any = _dying_pointer,
) -> None:
    """Destructor of a capsule: one that no consumer took, and so did not rename, still owns its tensor."""
    for name in names:
        if is_named(capsule, name):
            exported.pop(pointer(capsule, name), None)


_delete = ctypes.CFUNCTYPE(None, c_void_p)(_forget)
_drop_capsule = ctypes.CFUNCTYPE(None, c_void_p)(_forget_untaken)


def export(
    address: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: DType,
    device: tuple[int, int],
    owner: object,
    versioned: bool,
) -> object:
    """A capsule for the tensor at `address`; `owner` lives until the consumer is done with it."""
    managed = Versioned() if versioned else Managed()
    rank = len(shape)
    extents, steps = (c_int64 * max(rank, 1))(*shape), (c_int64 * max(rank, 1))(*strides)
    tensor = managed.tensor
    tensor.data, tensor.rank, tensor.byte_offset = address, rank, 0
    tensor.device = Device(*device)
    code = BFLOAT if dtype.name == "bfloat16" else CODES[dtype.kind]
    tensor.element = Element(code, dtype.bits, 1)
    tensor.shape, tensor.strides = ctypes.cast(extents, POINTER(c_int64)), ctypes.cast(steps, POINTER(c_int64))
    managed.deleter = ctypes.cast(_delete, c_void_p)
    if isinstance(managed, Versioned):
        managed.major, managed.minor = VERSION
    own_address = ctypes.addressof(managed)
    _exported[own_address] = (managed, extents, steps, owner)
    name = VERSIONED_NAME if versioned else LEGACY_NAME
    capsule: object = _new(own_address, name, ctypes.cast(_drop_capsule, c_void_p))
    return capsule


def describe(capsule: object) -> Description:
    """What a capsule holds.  It is not taken: whoever uses the memory keeps the capsule.

    Raises ValueError for an object that is no capsule of a tensor, or whose tensor was taken.
    """
    if _named(capsule, VERSIONED_NAME):
        managed: Any = Versioned.from_address(_pointer(capsule, VERSIONED_NAME))
        if managed.major != VERSION[0]:
            raise ValueError(f"a DLPack tensor of version {managed.major}; version {VERSION[0]} is needed")
    elif _named(capsule, LEGACY_NAME):
        managed = Managed.from_address(_pointer(capsule, LEGACY_NAME))
    else:
        raise ValueError(f"a {type(capsule).__name__} that holds no DLPack tensor")
    tensor = managed.tensor
    rank, element, device = tensor.rank, tensor.element, tensor.device
    code, bits, lanes = element.code, element.bits, element.lanes
    dtype = ELEMENTS.get((code, bits)) if lanes == 1 else None
    return Description(
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[:rank]),
        strides=tuple(tensor.strides[:rank]) if tensor.strides else None,
        dtype=dtype,
        element=dtype.name if dtype is not None else f"DLPack type {code} of {bits} bits and {lanes} lanes",
        kind=device.kind,
        ordinal=device.ordinal,
        read_only=isinstance(managed, Versioned) and bool(managed.flags & READ_ONLY),
    )
