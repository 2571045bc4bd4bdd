"""Memory of either kind by its address: what a buffer is to the runtime, and host memory seen as an array."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from graphdnn.ir.types import Array, TensorType


class Memory:
    """Memory aligned to MEMORY_ALIGNMENT at the address `handle`.

    `owner` holds it: it is given back when nobody refers to that any more, or by `close`.
    """

    __slots__ = ("__weakref__", "handle", "nbytes", "owner")

    def __init__(self, handle: int, nbytes: int, owner: object) -> None:
        self.handle = handle
        self.nbytes = nbytes
        self.owner: object | None = owner

    def close(self) -> None:
        self.owner = None


class Pinned(Memory):
    """Page-locked host memory, from and to which copies run beside other work."""

    def array(self, type: TensorType, offset: int = 0) -> Array:
        """The memory from `offset` bytes on as an array with the type's strides."""
        return host_view(self.handle + offset, type, self)


def host_view(address: int, type: TensorType, owner: object) -> Array:
    """Host memory whose first element is at `address` as an array of this type; `owner` lives as long as the array."""
    dtype = type.dtype.numpy
    reach = [(n - 1) * s for n, s in zip(type.shape, type.layout, strict=True)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    raw: Any = (ctypes.c_byte * ((high - low + 1) * dtype.itemsize)).from_address(address + low * dtype.itemsize)
    raw.owner = owner
    flat: Array = np.frombuffer(raw, dtype=np.uint8).view(dtype)
    return type.strided(flat[-low:])
