"""The fast path to the addresses of callers' arrays: a few attribute checks, for arrays of well-known classes that lie
as a graph reads them and are ready on the stream of the call.  All others are read in full by reading.py, which also
has the messages of refusals."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from graphdnn.ir.region import ALIGNMENT
from graphdnn.ir.types import TensorType
from graphdnn.runtime.arrays import DeviceArray
from graphdnn.runtime.driver import LEGACY_STREAM

AddressReader = Callable[[Any, int], int]
"""Gives the address of an array for a call on a stream; 0 where it has to be read in full."""

NULL_STREAM = 0
"""What other libraries call the legacy default stream."""


class FastPath:
    """The fast path of one input: `address` takes a microsecond where a DLPack exchange takes twenty.

    A class of arrays is on it once `learn` was given an array of that class that could be read in place.
    """

    __slots__ = ("_ordinal", "_readers", "_wanted")

    def __init__(self, wanted: TensorType, ordinal: int) -> None:
        self._wanted = wanted
        self._ordinal = ordinal
        self._readers: dict[type, AddressReader] = {}

    def address(self, array: Any, stream: int) -> int:
        """The array's address, or 0 where it has to be read in full."""
        address_of = self._readers.get(array.__class__)
        return 0 if address_of is None else address_of(array, stream)

    def learn(self, array: Any) -> None:
        """An array was read in full and needed nothing: others of its class and strides are looked at from now on."""
        make = READERS.get((array.__class__.__module__, array.__class__.__qualname__))
        if make is not None:
            self._readers[array.__class__] = make(array, self._wanted, self._ordinal)


def device_array(array: DeviceArray, type: TensorType, ordinal: int) -> AddressReader:
    shape, dtype, strides = type.shape, type.dtype, array.strides

    def address_of(found: Any, stream: int) -> int:
        kind = found._type
        if kind.shape != shape or kind.dtype is not dtype or kind.layout != strides:
            return 0
        if found._device.ordinal != ordinal:
            return 0
        found.go(stream)
        address: int = found._address
        return 0 if address % ALIGNMENT else address

    return address_of


def torch_tensor(array: Any, type: TensorType, ordinal: int) -> AddressReader:
    """A tensor that DLPack would refuse (it needs gradients, or is lazily negated) is left to that refusal."""
    torch: Any = sys.modules["torch"]
    dtype, shape, strides = array.dtype, type.shape, array.stride()
    current_stream = torch._C._cuda_getCurrentRawStream

    def address_of(found: Any, stream: int) -> int:
        if (
            found.dtype is not dtype
            or found.shape != shape
            or found.get_device() != ordinal
            or found.requires_grad
            or found.is_neg()
            or current_stream(ordinal) != (NULL_STREAM if stream == LEGACY_STREAM else stream)
        ):
            return 0
        try:
            if found.stride() != strides:
                return 0
            address: int = found.data_ptr()
        except RuntimeError:  # sparse, or wrapped by a transformation: there is no one address
            return 0
        return 0 if address % ALIGNMENT else address

    return address_of


def cupy_array(array: Any, type: TensorType, ordinal: int) -> AddressReader:
    cupy: Any = sys.modules["cupy"]
    dtype, shape, strides = array.dtype, type.shape, array.strides

    def address_of(found: Any, stream: int) -> int:
        if (
            found.dtype != dtype
            or found.shape != shape
            or found.strides != strides
            or found.device.id != ordinal
            or cupy.cuda.get_current_stream().ptr != (NULL_STREAM if stream == LEGACY_STREAM else stream)
        ):
            return 0
        address: int = found.data.ptr
        return 0 if address % ALIGNMENT else address

    return address_of


READERS: dict[tuple[str, str], Callable[[Any, TensorType, int], AddressReader]] = {
    (DeviceArray.__module__, DeviceArray.__qualname__): device_array,
    ("torch", "Tensor"): torch_tensor,
    ("cupy", "ndarray"): cupy_array,
}
"""How arrays of a class are looked at, by its module and name: none of these libraries is imported for it."""
