"""What of a caller's array a build depends on: data type, shape, and the order of its axes in memory.

An array whose elements lie densely in another order (channels-last, transposed) has a build of its own and is read in
place.  One with gaps counts as row-major and is copied by the call: where gaps are differs from array to array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.types import DTYPES, TensorType, as_dtype, dense_strides

Form = tuple[str, tuple[int, ...], tuple[int, ...] | None]
"""Name of the data type, shape, and axes outermost first, None for row-major."""

Signature = tuple[Form | None, ...]
"""A form for each parameter of a function, in their order; None for one that was left out."""

NAMES: dict[object, str] = {}
"""Names of data types by the objects that libraries use for them; holds only types that graphdnn has."""


def form_of(array: Any) -> Form:
    """Looks at shape, type and strides only.  Raises TypeError or what the array itself raises."""
    return reader_of(array.__class__)(array)


@lru_cache(maxsize=64)
def reader_of(kind: type) -> Callable[[Any], Form]:
    """How arrays of a class are looked at; chosen once for each class."""
    from graphdnn.runtime.arrays import DeviceArray

    if issubclass(kind, np.ndarray | np.generic) or kind.__module__.split(".")[0] == "cupy":
        return numpy_form
    if issubclass(kind, DeviceArray):
        return device_form
    if hasattr(kind, "stride") and hasattr(kind, "is_contiguous") and hasattr(kind, "__dlpack__"):
        return torch_form
    return foreign_form


def numpy_form(array: Any) -> Form:
    dtype = NAMES.get(array.dtype) or learned(array.dtype)
    if array.flags.c_contiguous:
        return (dtype, array.shape, None)
    return (dtype, array.shape, order_of(array.shape, array.strides, array.itemsize))


def torch_form(tensor: Any) -> Form:
    dtype = NAMES.get(tensor.dtype) or learned(tensor.dtype)
    if tensor.is_contiguous():
        return (dtype, tensor.shape, None)
    return (dtype, tensor.shape, order_of(tuple(tensor.shape), tensor.stride(), 1))


def device_form(array: Any) -> Form:
    return (array.dtype.name, array.shape, order_of(array.shape, array.strides, 1))


def foreign_form(array: Any) -> Form:
    """By the runtime's own reading, for whatever says nothing of its strides in a way known here."""
    from graphdnn.runtime.arrays import UNORDERED
    from graphdnn.runtime.reading import read

    source = read(array, UNORDERED, None)
    if source.dtype is None:
        raise GraphError(f"data type {source.element} is not one of {', '.join(DTYPES)}")
    order = None if source.strides is None else order_of(source.shape, source.strides, 1)
    return (source.dtype.name, source.shape, order)


def learned(dtype: Any) -> str:
    """The name of a data type not seen before.  Raises GraphError for one that graphdnn lacks."""
    known = str(dtype).removeprefix("torch.")
    name = as_dtype(known if known in DTYPES else dtype).name
    NAMES[dtype] = name
    return name


@lru_cache(maxsize=1024)
def order_of(shape: tuple[int, ...], strides: tuple[int, ...], step: int) -> tuple[int, ...] | None:
    """Axes outermost first where the elements lie densely in another order than row-major, else None.

    Size-1 axes are never stepped along, so their strides mean nothing; they count as outermost.
    """
    wide = [a for a, n in enumerate(shape) if n > 1]
    by_stride = sorted(wide, key=lambda a: -strides[a])
    for axis in reversed(by_stride):
        if strides[axis] != step:
            return None
        step *= shape[axis]
    return None if by_stride == wide else (*(a for a, n in enumerate(shape) if n == 1), *by_stride)


def type_of(form: Form) -> TensorType:
    """The tensor type that an input of this form is declared with."""
    dtype, shape, order = form
    return TensorType(tuple(shape), DTYPES[dtype], None if order is None else dense_strides(shape, order))


def signature_text(names: Sequence[str], signature: Signature) -> str:
    """A signature as people read it: each parameter with its type."""
    return ", ".join(f"{n}: {type_of(f)}" for n, f in zip(names, signature, strict=True) if f is not None)
