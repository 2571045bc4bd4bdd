"""Builder method for transposed convolution."""

from __future__ import annotations

from graphdnn.ir.builder.arguments import called, whole_number
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.builder.linear import Padding, Window, pairs, per_axis
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.transposed import ConvTranspose


class TransposedMethods(BuilderCore):
    """Operations that enlarge with weights."""

    def conv_transpose(
        self,
        x: Value,
        w: Value,
        *,
        stride: Window = 1,
        padding: Padding = 0,
        output_padding: Window = 0,
        dilation: Window = 1,
        groups: int = 1,
        name: str | None = None,
    ) -> Value:
        """y[n, k, i * stride + r * dilation - lo] = sum over c and all i, r that meet there of x[n, c, i] * w[c, k, r].

        This is the gradient of `conv` by its input, as PyTorch's conv_transpose2d and conv_transpose3d.  x is (N, C,
        *spatial) with two or three spatial axes, w is (C, K / groups, *kernel), the result (N, K, *out) with out = (in
        - 1) * stride - lo - hi + dilation * (kernel - 1) + output_padding + 1 along each axis.  Attributes are given as
        to `conv`; `output_padding` must be below the larger of stride and dilation.

        Raises GraphError where ranks, channels, groups or attributes do not fit, or nothing of the result is left.
        """
        who = called(name, "conv_transpose")
        self._check_owned(f"{who}: x", x)
        spatial = max(x.type.rank - 2, 0)
        op = ConvTranspose(
            stride=per_axis(who, "stride", stride, spatial),
            padding=pairs(who, padding, spatial),
            output_padding=per_axis(who, "output_padding", output_padding, spatial),
            dilation=per_axis(who, "dilation", dilation, spatial),
            groups=whole_number(who, "groups", groups),
        )
        return self._add(op, x, w, name=name)[0]
