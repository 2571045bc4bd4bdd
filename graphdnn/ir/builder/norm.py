"""Builder methods for normalisations."""

from __future__ import annotations

from collections.abc import Sequence

from graphdnn.ir.builder.arguments import number, whole_number
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm
from graphdnn.ir.types import normalize_axes


class NormMethods(BuilderCore):
    """Norms; each result has x's type, whatever the types of the parameters."""

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
        """(x - mean) / sqrt(var + eps) * scale + bias for each channel (axis 1); the parameters are (C,)."""
        return self._add(BatchNorm(eps=number(name or "batch_norm", "eps", eps)), x, mean, var, scale, bias, name=name)[
            0
        ]

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
        """(x - mean) / sqrt(variance + eps) * scale + bias over axes; scale and bias have the shape of x's axes."""
        given = {n: v for n, v in (("scale", scale), ("bias", bias)) if v is not None}
        who = name or "layer_norm"
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
        """x / sqrt(mean of x squared + eps) * scale over axes; scale has the shape of x's axes."""
        who = name or "rms_norm"
        self._check_owned(f"{who}: x", x)
        found, eps = normalize_axes(axes, x.type, who), number(who, "eps", eps)
        if scale is None:
            return self._add(RmsNorm(axes=found, eps=eps), x, name=name)[0]
        return self._add(RmsNorm(axes=found, eps=eps, affine=("scale",)), x, scale, name=name)[0]

    def instance_norm(
        self, x: Value, scale: Value, bias: Value, *, eps: float = 1e-5, name: str | None = None
    ) -> Value:
        """(x - mean) / sqrt(variance + eps) * scale + bias over the spatial axes of each sample and channel."""
        return self._add(InstanceNorm(eps=number(name or "instance_norm", "eps", eps)), x, scale, bias, name=name)[0]

    def group_norm(
        self, x: Value, scale: Value, bias: Value, *, groups: int, eps: float = 1e-5, name: str | None = None
    ) -> Value:
        """As instance_norm, with statistics over the spatial axes and C / groups neighbouring channels together."""
        who = name or "group_norm"
        op = GroupNorm(groups=whole_number(who, "groups", groups), eps=number(who, "eps", eps))
        return self._add(op, x, scale, bias, name=name)[0]
