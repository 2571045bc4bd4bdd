"""Pooling: the largest or the mean of each window, with PyTorch's rules for padding and for the last window."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.op import Op, op
from graphdnn.ir.ops.linear import check_window, windows
from graphdnn.ir.types import IMAGE_RANKS, Array, TensorType
from graphdnn.spelling import quoted

Pairs = tuple[tuple[int, int], ...]


def pooled_extent(size: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int, ceil_mode: bool) -> int:
    """Extent of the result along one axis; below 1 when the window does not fit.

    `ceil_mode` lets a last window run over the end, unless it would begin behind x and its left padding.
    """
    room = size + sum(padding) - dilation * (kernel - 1) - 1
    count = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= size + padding[0] else count


class Pool(Op):
    """What the poolings share: attributes with one entry per spatial axis, and the extents of the result."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Pairs
    ceil_mode: bool

    @property
    def steps(self) -> tuple[int, ...]:
        """Distance between neighbouring elements of a window, per axis."""
        raise NotImplementedError

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x",)

    def out(self, x: tuple[int, ...]) -> tuple[int, ...]:
        """Spatial extents of the result for x of shape (N, C, *spatial)."""
        along = zip(x[2:], self.kernel, self.stride, self.padding, self.steps, strict=True)
        return tuple(pooled_extent(*entries, self.ceil_mode) for entries in along)

    def check(self, x: TensorType) -> TensorType:
        """Type of the result.  Raises GraphError for windows that are wrong or do not fit."""
        if x.rank not in IMAGE_RANKS:
            raise GraphError(f"{self}: x is {x}; batch, channels and two or three spatial axes are needed")
        check_window(str(self), x, x.rank - 2, self.kernel, self.stride, self.padding, self.steps)
        for axis, (k, pair, d) in enumerate(zip(self.kernel, self.padding, self.steps, strict=True)):
            reach = d * (k - 1) + 1
            if max(pair) > reach // 2:
                raise GraphError(
                    f"{self}: padding {pair} of spatial axis {axis} is more than half of its window, which "
                    f"reaches over {reach}"
                )
        out = self.out(x.shape)
        if min(out) < 1:
            raise GraphError(
                f"{self}: kernel {quoted(self.kernel)} with dilation {quoted(self.steps)} does not fit: x is {x} with "
                f"padding {quoted(self.padding)}"
            )
        return TensorType((*x.shape[:2], *out), x.dtype)

    def gathered(self, x: Array, fill: float) -> Array:
        """View of x as (N, C, *out, *kernel), with `fill` wherever a window leaves x."""
        out = self.out(x.shape)
        reach = zip(x.shape[2:], out, self.kernel, self.stride, self.padding, self.steps, strict=True)
        behind = [(lo, max(0, (o - 1) * s + d * (k - 1) + 1 - n - lo)) for n, o, k, s, (lo, _), d in reach]
        padded = np.pad(x, ((0, 0), (0, 0), *behind), constant_values=fill)
        view = windows(padded, self.kernel, self.stride, self.steps)
        return view[(slice(None), slice(None), *(slice(o) for o in out))]

    def flops(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        return results[0].size * prod(self.kernel)


def lowest(dtype: np.dtype[Any]) -> float:
    """What loses against every element: -inf, or the smallest integer."""
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


@op("max_pool")
class MaxPool(Pool):
    """y[n, c, o] = largest x[n, c, o * stride + r * dilation - lo] over the window r; NaN wins, padding never does.

    x is (N, C, *spatial) with two or three spatial axes, floats or integers; `padding` holds (lo, hi) per axis, at most
    half of the window's reach.  With `ceil_mode` the last window may run over the end.  Raises GraphError for another
    x, and for windows that are wrong or do not fit.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    ceil_mode: bool = False

    @property
    def steps(self) -> tuple[int, ...]:
        return self.dilation

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if x.dtype.kind == "bool":
            raise GraphError(f"max_pool: x is {x}; a number type is needed")
        return (self.check(x),)

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        view = self.gathered(x, lowest(x.dtype))
        return (view.max(axis=tuple(range(x.ndim, view.ndim))),)


@op("avg_pool")
class AvgPool(Pool):
    """y[n, c, o] = sum of x over the window at o * stride - lo, divided by the window's size.

    The size counts the places inside x, and with `count_include_pad` those in its padding too; never those behind the
    padding, where `ceil_mode` lets the last window run.  x is (N, C, *spatial) with two or three spatial axes, a float
    type; `padding` holds (lo, hi) per axis, at most half of the window.  Raises GraphError for another x, and for
    windows that are wrong or do not fit.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Pairs
    ceil_mode: bool = False
    count_include_pad: bool = True

    @property
    def steps(self) -> tuple[int, ...]:
        return (1,) * len(self.kernel)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if not x.dtype.is_float:
            raise GraphError(f"avg_pool: x is {x}; a float type is needed, cast it first")
        return (self.check(x),)

    def counts(self, x: tuple[int, ...]) -> Array:
        """How many places each window counts, of shape `out`."""
        counts = np.ones((), np.int64)
        for n, o, k, s, (lo, hi) in zip(x[2:], self.out(x), self.kernel, self.stride, self.padding, strict=True):
            start = np.arange(o) * s - lo
            first, last = (-lo, n + hi) if self.count_include_pad else (0, n)
            counts = np.multiply.outer(counts, np.minimum(start + k, last) - np.maximum(start, first))
        return counts

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        view = self.gathered(x, 0)
        total = view.sum(axis=tuple(range(x.ndim, view.ndim)), dtype=np.float64)
        return (total / self.counts(x.shape),)
