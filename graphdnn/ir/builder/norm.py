"""Builder methods for normalisations."""

from __future__ import annotations

from collections.abc import Sequence

from graphdnn.ir.builder.arguments import called, number, whole_number
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm
from graphdnn.ir.types import normalize_axes


class NormMethods(BuilderCore):
    """Normalisations of x by a mean and a variance.

    Every result has x's shape and type, whatever the float types of the parameters; statistics are float32 for float16
    and bfloat16, and variances are those of the population (divided by n).  Raises GraphError for types that are no
    floats, parameters of another shape than is said, and an `eps` that is negative or not finite.
    """

    def batch_norm(
        self,
        x: Value,
        mean: Value,
        var: Value,
        scale: Value,
        bias: Value,
        *,
        eps: float = 1e-5,
        name: str | None = None,
    ) -> Value:
        """y = (x - mean) / sqrt(var + eps) * scale + bias for each channel, with known statistics (inference only).

        x is (N, C, ...), the four parameters are (C,); `var` is the variance, not its inverse.
        """
        op = BatchNorm(eps=number(called(name, "batch_norm"), "eps", eps))
        return self._add(op, x, mean, var, scale, bias, name=name)[0]

    def layer_norm(
        self,
        x: Value,
        scale: Value | None = None,
        bias: Value | None = None,
        *,
        axes: int | Sequence[int] = -1,
        eps: float = 1e-5,
        name: str | None = None,
    ) -> Value:
        """y = (x - mean) / sqrt(variance + eps) * scale + bias, mean and variance over `axes` of x.

        scale and bias, each of which may be absent, have the extents of those axes.  PyTorch names the last axes by
        their extents (`normalized_shape`), here any axes are named by number, and may be negative.
        """
        given = {n: v for n, v in (("scale", scale), ("bias", bias)) if v is not None}
        who = called(name, "layer_norm")
        self._check_owned(f"{who}: x", x)
        found, eps = normalize_axes(axes, x.type, who), number(who, "eps", eps)
        op = LayerNorm(axes=found, eps=eps, affine=tuple(given))
        return self._add(op, x, *given.values(), name=name)[0]

    def rms_norm(
        self,
        x: Value,
        scale: Value | None = None,
        *,
        axes: int | Sequence[int] = -1,
        eps: float = 1e-5,
        name: str | None = None,
    ) -> Value:
        """y = x / sqrt(mean of x * x + eps) * scale, the mean over `axes` of x; scale has the extents of those axes.

        PyTorch's default eps is the machine's epsilon of x's type, and not 1e-5.
        """
        who = called(name, "rms_norm")
        self._check_owned(f"{who}: x", x)
        found, eps = normalize_axes(axes, x.type, who), number(who, "eps", eps)
        if scale is None:
            return self._add(RmsNorm(axes=found, eps=eps), x, name=name)[0]
        return self._add(RmsNorm(axes=found, eps=eps, affine=("scale",)), x, scale, name=name)[0]

    def instance_norm(
        self, x: Value, scale: Value, bias: Value, *, eps: float = 1e-5, name: str | None = None
    ) -> Value:
        """y = (x - mean) / sqrt(variance + eps) * scale + bias, mean and variance of each sample and channel.

        Both are over the spatial axes of x (N, C, *spatial), of which there is at least one; scale and bias are (C,).
        """
        op = InstanceNorm(eps=number(called(name, "instance_norm"), "eps", eps))
        return self._add(op, x, scale, bias, name=name)[0]

    def group_norm(
        self, x: Value, scale: Value, bias: Value, *, groups: int, eps: float = 1e-5, name: str | None = None
    ) -> Value:
        """y = (x - mean) / sqrt(variance + eps) * scale + bias, mean and variance of each sample and group.

        Both are over C / groups neighbouring channels and all axes behind them of x (N, C, ...).  C is a multiple of
        `groups`; scale and bias are (C,).
        """
        who = called(name, "group_norm")
        op = GroupNorm(groups=whole_number(who, "groups", groups), eps=number(who, "eps", eps))
        return self._add(op, x, scale, bias, name=name)[0]
