"""Convolution and matrix product: the operations that have weights."""

from __future__ import annotations

from math import prod

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.op import Op, op
from graphdnn.ir.ops.pointwise import common_type
from graphdnn.ir.types import IMAGE_RANKS, LARGEST_SIZE, Array, DType, TensorType, bool_, broadcast_shapes, int32
from graphdnn.spelling import quoted


def product_type(who: str, names: tuple[str, ...], operands: tuple[TensorType, ...]) -> DType:
    """Type of a sum of products: the promoted float type, int32 for 8-bit integers, which would overflow."""
    dtype = common_type(who, names, operands)
    if dtype == bool_:
        raise GraphError(f"{who}: operands are bool; cast them to a number type first")
    return int32 if dtype.is_integer and dtype.bits < 32 else dtype


def exact(array: Array) -> Array:
    """Integers widened so that sums of products cannot overflow before they are stored."""
    return array.astype(np.int64) if array.dtype.kind in "iu" else array


@op("matmul")
class MatMul(Op):
    """C[..., m, n] = sum over k of A[..., m, k] * B[..., k, n]; batch axes broadcast.

    Raises GraphError when an operand has fewer than two axes, or the inner extents or batch axes differ.
    """

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("A", "B")

    def infer(self, a: TensorType, b: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if a.rank < 2 or b.rank < 2:
            raise GraphError(f"matmul: operands need at least two axes: A is {a}, B is {b}")
        if a.shape[-1] != b.shape[-2]:
            raise GraphError(f"matmul: inner extents differ: A is {a}, B is {b}")
        try:
            batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except ValueError as error:
            raise GraphError(f"matmul: batch axes do not broadcast at {error}: A is {a}, B is {b}") from None
        return (TensorType((*batch, a.shape[-2], b.shape[-1]), product_type("matmul", self.operand_names, (a, b))),)

    def reference(self, a: Array, b: Array) -> tuple[Array, ...]:  # type: ignore[override]
        return (np.matmul(exact(a), exact(b)),)

    def flops(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        return 2 * results[0].size * operands[0].shape[-1]


def conv_extent(size: int, kernel: int, stride: int, padding: tuple[int, int], dilation: int) -> int:
    """Extent of a convolution's or pooling's result along one axis; below 1 when the kernel does not fit."""
    return (size + sum(padding) - dilation * (kernel - 1) - 1) // stride + 1


def windows(x: Array, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> Array:
    """View of padded x (N, C, *spatial) as (N, C, *out, *kernel)."""
    span = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    axes = tuple(range(2, x.ndim))
    view = np.lib.stride_tricks.sliding_window_view(x, span, axis=axes)
    steps = tuple(slice(None, None, s) for s in stride) + tuple(slice(None, None, d) for d in dilation)
    return view[(slice(None), slice(None), *steps)]


def check_window(
    who: str,
    x: TensorType,
    spatial: int,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> None:
    """Raises GraphError when window attributes do not have one sensible entry per spatial axis."""
    for name, values in (("kernel", kernel), ("stride", stride), ("padding", padding), ("dilation", dilation)):
        if len(values) != spatial:
            raise GraphError(
                f"{who}: {name} {quoted(values)} has {len(values)} entries; x is {x}, so {spatial} are needed"
            )
    for name, values in (("kernel", kernel), ("stride", stride), ("dilation", dilation)):
        if min(values) < 1 or max(values) > LARGEST_SIZE:
            raise GraphError(f"{who}: {name} is {quoted(values)}; every entry must be at least 1 and at most 2**48")
    if min(p for pair in padding for p in pair) < 0:
        raise GraphError(f"{who}: padding is {padding}; every entry must be at least 0")


@op("conv")
class Conv(Op):
    """y[n, k, o] = sum over c, r of x[n, c, o * stride + r * dilation - lo] * w[k, c, r].

    That is cross-correlation, as PyTorch's.  x is (N, C, *spatial) with two or three spatial axes and zero outside,
    w is (K, C / groups, *kernel); `padding` holds (lo, hi) per spatial axis.  Raises GraphError when ranks, channels,
    groups or extents do not fit.
    """

    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x", "w")

    def infer(self, x: TensorType, w: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if x.rank != w.rank or x.rank not in IMAGE_RANKS:
            raise GraphError(f"conv: x and w need four axes each, or five: x is {x}, w is {w}")
        check_window("conv", x, x.rank - 2, w.shape[2:], self.stride, self.padding, self.dilation)
        if self.groups < 1 or x.shape[1] % self.groups or w.shape[0] % self.groups:
            raise GraphError(f"conv: groups={self.groups} does not divide the channels: x is {x}, w is {w}")
        if x.shape[1] != w.shape[1] * self.groups:
            raise GraphError(
                f"conv: x has {x.shape[1]} channels, but w and groups={self.groups} need "
                f"{w.shape[1] * self.groups}: x is {x}, w is {w}"
            )
        out = tuple(map(conv_extent, x.shape[2:], w.shape[2:], self.stride, self.padding, self.dilation))
        if min(out) < 1:
            raise GraphError(
                f"conv: the kernel does not fit: x is {x} with padding {quoted(self.padding)}, w is {w} with "
                f"dilation {quoted(self.dilation)}"
            )
        return (TensorType((x.shape[0], w.shape[0], *out), product_type("conv", self.operand_names, (x, w))),)

    def reference(self, x: Array, w: Array) -> tuple[Array, ...]:  # type: ignore[override]
        x, w = exact(x), exact(w)
        spatial = x.ndim - 2
        padded = np.pad(x, ((0, 0), (0, 0), *self.padding))
        view = windows(padded, w.shape[2:], self.stride, self.dilation)
        n, c, out = x.shape[0], w.shape[1], view.shape[2 : 2 + spatial]
        # (N, groups, C/groups, *out, *kernel) -> one product per group: (N * out, C/groups * kernel) by its filter
        view = view.reshape(n, self.groups, c, *view.shape[2:])
        order = (1, 0, *range(3, 3 + spatial), 2, *range(3 + spatial, 3 + 2 * spatial))
        columns = view.transpose(order).reshape(self.groups, n * prod(out), -1)
        filters = w.reshape(self.groups, w.shape[0] // self.groups, -1).transpose(0, 2, 1)
        y = np.matmul(columns, filters).reshape(self.groups, n, *out, -1)
        y = np.moveaxis(y, -1, 1).transpose(2, 0, 1, *range(3, 3 + spatial))
        return (y.reshape(n, w.shape[0], *out),)

    def flops(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        return 2 * results[0].size * prod(operands[1].shape[1:])
