"""How logical shapes are told to cuDNN: which axes it sees, and what their strides are.

Strides of size-1 axes mean nothing to us but select kernels there, so they are given one spelling here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Protocol

Ints = tuple[int, ...]

CACHE_SIZE = 4096
"""Entries of each cache of what is told to cuDNN and of its plans' names: the same few tensors stand in hundreds of
regions that are asked about."""


@dataclass(frozen=True)
class Description:
    """What cuDNN is told of one tensor: dims in its order (N, C, spatial or batch, rows, columns) and strides."""

    dims: Ints
    strides: Ints


class Frame(Protocol):
    """The axes in which all tensors of one region are described."""

    def describe(self, shape: Ints, strides: Ints, full: Ints) -> Description | None:
        """A tensor of `shape`, aligned with and broadcasting to `full`; None where this frame cannot say it."""


def canonical_strides(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> Ints:
    """`strides` with those of size-1 axes set as in a dense array whose axes, outermost first, are `order`."""
    out, step = list(strides), 1
    for axis in reversed(order):
        if shape[axis] == 1:
            out[axis] = step
        else:
            step = max(step, strides[axis] * shape[axis])
    return tuple(out)


def follows(shape: Sequence[int], strides: Sequence[int], order: Sequence[int]) -> bool:
    """Whether the axes that are stepped along lie in memory in this order, outermost first, without overlap."""
    wide = [a for a in order if shape[a] > 1]
    return all(strides[outer] >= strides[inner] * shape[inner] for outer, inner in pairwise(wide)) and (
        not wide or strides[wide[-1]] >= 1
    )


def channels_last_order(rank: int) -> Ints:
    """N, spatial, C."""
    return (0, *range(2, rank), 1)


@lru_cache(CACHE_SIZE)
def is_channels_last(shape: Ints, strides: Ints) -> bool:
    """Whether (N, C, *spatial) lies in memory as N, *spatial, C with neighbouring channels side by side."""
    return follows(shape, strides, channels_last_order(len(shape))) and (shape[1] == 1 or strides[1] == 1)


@lru_cache(CACHE_SIZE)
def described(dims: Ints, strides: Ints, orders: tuple[Ints, ...]) -> Description:
    """Spelled in the first of `orders` that the memory follows; by falling stride where it follows none."""
    fitting = (o for o in orders if follows(dims, strides, o))
    order = next(fitting, tuple(sorted(range(len(dims)), key=lambda a: (-strides[a], a))))
    return Description(dims, canonical_strides(dims, strides, order))


def folded(shape: Ints, strides: Ints) -> tuple[int, int] | None:
    """Extent and stride of all axes taken as one; None where no single stride walks through them."""
    extent = prod(shape)
    wide = [(n, s) for n, s in zip(shape, strides, strict=True) if n > 1]
    if any(outer[1] != inner[1] * inner[0] for outer, inner in pairwise(wide)):
        return None
    return extent, wide[-1][1] if wide else 0


def fold_axes(shape: Ints, strides: Ints, full: Ints) -> tuple[int, int] | None:
    """As `folded`, for an operand that must broadcast along all of the axes or along none of them."""
    if shape == full:
        return folded(shape, strides)
    return (1, 0) if all(n == 1 for n in shape) else None


@dataclass(frozen=True)
class Spatial:
    """N, C and two or three spatial axes, channels-last where the memory allows both readings."""

    rank: int

    def describe(self, shape: Ints, strides: Ints, full: Ints) -> Description | None:
        """Missing axes are put in front."""
        missing = self.rank - len(shape)
        if missing < 0:
            return None
        dims, steps = (1,) * missing + shape, (0,) * missing + strides
        return described(dims, steps, (channels_last_order(self.rank), tuple(range(self.rank))))


@dataclass(frozen=True)
class Matrix:
    """Batch, rows, columns: cuDNN multiplies matrices of rank 3 only, so all batch axes are taken as one.

    With `rows` the batch is empty and all axes but the last are the rows of one matrix.
    """

    rows: bool = False

    def describe(self, shape: Ints, strides: Ints, full: Ints) -> Description | None:
        """Missing axes are put in front; row-major where the memory allows several readings."""
        missing = max(0, 3 - len(shape))
        shape, strides, full = (1,) * missing + shape, (0,) * missing + strides, (1,) * missing + full
        first = slice(None, -1 if self.rows else -2)
        outer = fold_axes(shape[first], strides[first], full[first])
        if outer is None:
            return None
        if self.rows:
            return described((1, outer[0], shape[-1]), (0, outer[1], strides[-1]), ((0, 1, 2), (0, 2, 1)))
        return described((outer[0], *shape[-2:]), (outer[1], *strides[-2:]), ((0, 1, 2), (0, 2, 1)))


@dataclass(frozen=True)
class Rows:
    """Rows of the axes that a norm runs over: (rows, C, 1, 1) with C innermost; `split` is the first of those axes."""

    split: int

    def describe(self, shape: Ints, strides: Ints, full: Ints) -> Description | None:
        """Operands vary along all rows or none, and along all of C or none of it."""
        if len(shape) <= self.split:
            return None
        rows = fold_axes(shape[: self.split], strides[: self.split], full[: self.split])
        columns = fold_axes(shape[self.split :], strides[self.split :], full[self.split :])
        if rows is None or columns is None:
            return None
        dims, steps = (rows[0], columns[0], 1, 1), (rows[1], columns[1], 0, 0)
        return described(dims, steps, ((0, 2, 3, 1),))
