"""Transposed convolution: the gradient of a convolution with respect to its input, used as an operation."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.graph import Value
from graphdnn.ir.op import Make, Op, op
from graphdnn.ir.ops.linear import MatMul, check_window, exact, product_type
from graphdnn.ir.ops.movement import Reshape, Transpose
from graphdnn.ir.types import IMAGE_RANKS, Array, TensorType
from graphdnn.spelling import quoted


def transposed_extent(size: int, kernel: int, stride: int, padding: tuple[int, int], extra: int, dilation: int) -> int:
    """Extent of a transposed convolution's result along one axis."""
    return (size - 1) * stride - sum(padding) + dilation * (kernel - 1) + extra + 1


@op("conv_transpose")
class ConvTranspose(Op):
    """y[n, k, i * stride + r * dilation - lo] = sum over c, and all i, r that meet there, of x[n, c, i] * w[c, k, r].

    x is (N, C, *spatial) with two or three spatial axes, w is (C, K / groups, *kernel), as PyTorch's.  `padding` holds
    (lo, hi) per spatial axis and shortens y; `output_padding` lengthens its end.  Raises GraphError when ranks,
    channels, groups or extents do not fit.
    """

    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x", "w")

    def infer(self, x: TensorType, w: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        who = "conv_transpose"
        if x.rank != w.rank or x.rank not in IMAGE_RANKS:
            raise GraphError(f"{who}: x and w need four axes each, or five: x is {x}, w is {w}")
        check_window(who, x, x.rank - 2, w.shape[2:], self.stride, self.padding, self.dilation)
        limits = tuple(map(max, self.stride, self.dilation))
        if len(self.output_padding) != x.rank - 2 or not all(
            0 <= p < m for p, m in zip(self.output_padding, limits, strict=True)
        ):
            raise GraphError(
                f"{who}: output_padding is {quoted(self.output_padding)}; each entry must be at least 0 and below "
                f"the larger of stride {quoted(self.stride)} and dilation {quoted(self.dilation)}"
            )
        if x.shape[1] != w.shape[0]:
            raise GraphError(f"{who}: x has {x.shape[1]} channels and w takes {w.shape[0]}: x is {x}, w is {w}")
        if self.groups < 1 or x.shape[1] % self.groups:
            raise GraphError(f"{who}: groups={self.groups} does not divide the channels of x, which is {x}")
        out = tuple(
            map(
                transposed_extent,
                x.shape[2:],
                w.shape[2:],
                self.stride,
                self.padding,
                self.output_padding,
                self.dilation,
            )
        )
        if min(out) < 1:
            raise GraphError(f"{who}: padding {quoted(self.padding)} leaves nothing of the result: x is {x}, w is {w}")
        dtype = product_type(who, self.operand_names, (x, w))
        return (TensorType((x.shape[0], w.shape[1] * self.groups, *out), dtype),)

    def reference(self, x: Array, w: Array) -> tuple[Array, ...]:  # type: ignore[override]
        x, w = exact(x), exact(w)
        n, spatial, kernel = x.shape[0], x.shape[2:], w.shape[2:]
        out = tuple(
            map(transposed_extent, spatial, kernel, self.stride, self.padding, self.output_padding, self.dilation)
        )
        # one product per group, (N * in, C / groups) by (C / groups, K / groups * kernel), added to where it belongs
        columns = np.moveaxis(x.reshape(n, self.groups, -1, prod(spatial)), 1, 0).swapaxes(2, 3)
        filters = w.reshape(self.groups, 1, w.shape[0] // self.groups, -1)
        parts = np.matmul(columns, filters).reshape(self.groups, n, *spatial, w.shape[1], *kernel)
        parts = np.moveaxis(parts, (0, 2 + len(spatial)), (1, 2)).reshape(n, -1, *spatial, *kernel)
        # dilation * (kernel - 1) + stride * (in - 1) + 1 elements are reached; output_padding and padding move the ends
        whole = tuple(o + sum(p) for o, p in zip(out, self.padding, strict=True))
        y = np.zeros((n, parts.shape[1], *whole), parts.dtype)
        for offset in product(*map(range, kernel)):
            places = tuple(
                slice(r * d, r * d + (i - 1) * s + 1, s)
                for r, d, i, s in zip(offset, self.dilation, spatial, self.stride, strict=True)
            )
            y[(slice(None), slice(None), *places)] += parts[(..., *offset)]
        inner = tuple(slice(lo, lo + o) for o, (lo, _) in zip(out, self.padding, strict=True))
        return (y[(slice(None), slice(None), *inner)],)

    def expand(self, make: Make, *operands: Value) -> tuple[Value, ...] | None:
        """One matrix product where windows neither overlap nor leave gaps, as in U-Net's 2 by 2 with stride 2."""
        x, w = operands
        kernel, axes = w.type.shape[2:], x.type.rank - 2
        plain = sum(map(sum, self.padding)) == 0 and set(self.output_padding) == {0} and self.groups == 1
        if (
            not plain
            or kernel != self.stride
            or any(d > 1 and k > 1 for d, k in zip(self.dilation, kernel, strict=True))
        ):
            return None
        n, c, *spatial = x.type.shape
        k = w.type.shape[1]
        rows = make(Reshape(shape=(n, prod(spatial), c)), make(Transpose(axes=(0, *range(2, axes + 2), 1)), x))
        columns = make(Reshape(shape=(c, k * prod(kernel))), w)
        blocks = make(Reshape(shape=(n, *spatial, k, *kernel)), make(MatMul(), rows, columns))
        order = (0, axes + 1, *(a for i in range(axes) for a in (1 + i, axes + 2 + i)))
        shape = (n, k, *(i * r for i, r in zip(spatial, kernel, strict=True)))
        return (make(Reshape(shape=shape), make(Transpose(axes=order), blocks)),)

    def flops(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        return 2 * operands[0].size * prod(operands[1].shape[1:])
