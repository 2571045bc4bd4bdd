"""Builder methods for convolution and matrix product."""

from __future__ import annotations

from collections.abc import Sequence

from graphdnn.errors import GraphError
from graphdnn.ir.builder.arguments import called, is_whole, whole_number, whole_numbers
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.types import is_several
from graphdnn.spelling import quoted

Window = int | Sequence[int]
Padding = int | Sequence[int] | Sequence[tuple[int, int]]


class LinearMethods(BuilderCore):
    """Operations with weights."""

    def matmul(self, a: Value, b: Value, *, name: str | None = None) -> Value:
        """C[..., m, n] = sum over k of A[..., m, k] * B[..., k, n], for A (..., M, K) and B (..., K, N).

        Batch axes broadcast.  Float types promote to their common type; 8-bit integers give int32, where PyTorch stays
        in 8 bits.  Raises GraphError for an operand with fewer than two axes (PyTorch takes vectors), inner extents or
        batch axes that do not fit, floats beside integers, and bools.
        """
        return self._add(MatMul(), a, b, name=name)[0]

    def conv(
        self,
        x: Value,
        w: Value,
        *,
        stride: Window = 1,
        padding: Padding = 0,
        dilation: Window = 1,
        groups: int = 1,
        name: str | None = None,
    ) -> Value:
        """y[n, k, o] = sum over c, r of x[n, c, o * stride + r * dilation - lo] * w[k, c, r].

        This is cross-correlation, as PyTorch's conv2d and conv3d.  x is (N, C, *spatial) with two or three spatial axes
        and zeros outside, w is (K, C / groups, *kernel), the result (N, K, *out) where
        out = floor((in + lo + hi - dilation * (kernel - 1) - 1) / stride) + 1 along each axis.

        `stride` and `dilation` are a number or one for each spatial axis; `padding` is that, or a (lo, hi) for each.
        A bias is an op of its own: `bias(y, b, axis=1)`.  Types are as for matmul.

        Raises GraphError where ranks, channels, groups or attributes do not fit, or the kernel is larger than x.
        """
        who = called(name, "conv")
        self._check_owned(f"{who}: x", x)
        spatial = max(x.type.rank - 2, 0)
        attributes = Conv(
            stride=per_axis(who, "stride", stride, spatial),
            padding=pairs(who, padding, spatial),
            dilation=per_axis(who, "dilation", dilation, spatial),
            groups=whole_number(who, "groups", groups),
        )
        return self._add(attributes, x, w, name=name)[0]


def per_axis(who: str, what: str, value: Window, spatial: int) -> tuple[int, ...]:
    """One number per spatial axis."""
    if is_whole(value):
        return (whole_number(who, what, value),) * spatial
    entries = whole_numbers(who, what, value) if is_several(value) else None
    if entries is None or len(entries) != spatial:
        raise GraphError(f"{who}: {what} is {quoted(value)}; a whole number or {spatial} of them are needed")
    return entries


def pairs(who: str, value: Padding, spatial: int) -> tuple[tuple[int, int], ...]:
    """(lo, hi) per spatial axis."""
    given = tuple(value) if is_several(value) else (value,) * spatial
    entries = [tuple(e) if is_several(e) else (e, e) for e in given]
    if len(entries) != spatial or any(len(pair) != 2 or not all(map(is_whole, pair)) for pair in entries):
        raise GraphError(
            f"{who}: padding is {quoted(value)}; a whole number, or {spatial} whole numbers or (lo, hi) pairs of such "
            "are needed"
        )
    return tuple((lo, hi) for lo, hi in (whole_numbers(who, "padding", pair) for pair in entries))
