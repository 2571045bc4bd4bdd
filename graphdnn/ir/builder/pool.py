"""Builder methods for pooling."""

from __future__ import annotations

from graphdnn.errors import GraphError
from graphdnn.ir.builder.arguments import flag
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.builder.linear import Padding, Window, pairs, per_axis
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.pool import AvgPool, MaxPool
from graphdnn.ir.ops.reduction import Reduce


class PoolMethods(BuilderCore):
    """Pooling of x (N, C, *spatial), 2-D or 3-D; a stride of None is the kernel's extent."""

    def max_pool(
        self,
        x: Value,
        *,
        kernel: Window,
        stride: Window | None = None,
        padding: Padding = 0,
        dilation: Window = 1,
        ceil_mode: bool = False,
        name: str | None = None,
    ) -> Value:
        """Largest x of each window; NaN wins, padding never does."""
        who = name or "max_pool"
        self._check_owned(f"{who}: x", x)
        spatial = max(x.type.rank - 2, 0)
        op = MaxPool(
            kernel=per_axis(who, "kernel", kernel, spatial),
            padding=pairs(who, padding, spatial),
            stride=per_axis(who, "stride", kernel if stride is None else stride, spatial),
            dilation=per_axis(who, "dilation", dilation, spatial),
            ceil_mode=flag(who, "ceil_mode", ceil_mode),
        )
        return self._add(op, x, name=name)[0]

    def avg_pool(
        self,
        x: Value,
        *,
        kernel: Window,
        stride: Window | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        name: str | None = None,
    ) -> Value:
        """Mean of x over each window; with count_include_pad zeros in the padding count as elements."""
        who = name or "avg_pool"
        self._check_owned(f"{who}: x", x)
        spatial = max(x.type.rank - 2, 0)
        op = AvgPool(
            kernel=per_axis(who, "kernel", kernel, spatial),
            padding=pairs(who, padding, spatial),
            stride=per_axis(who, "stride", kernel if stride is None else stride, spatial),
            ceil_mode=flag(who, "ceil_mode", ceil_mode),
            count_include_pad=flag(who, "count_include_pad", count_include_pad),
        )
        return self._add(op, x, name=name)[0]

    def global_avg_pool(self, x: Value, *, name: str | None = None) -> Value:
        """Mean over all spatial axes, which stay with extent 1: a reduce_mean."""
        return self._pool_all("mean", "global_avg_pool", x, name)

    def global_max_pool(self, x: Value, *, name: str | None = None) -> Value:
        """Largest over all spatial axes, which stay with extent 1: a reduce_max."""
        return self._pool_all("max", "global_max_pool", x, name)

    def _pool_all(self, fn: str, who: str, x: Value, name: str | None) -> Value:
        self._check_owned(f"{name or who}: x", x)
        if x.type.rank < 3:
            raise GraphError(f"{name or who}: x is {x.type}; batch, channels and at least one spatial axis are needed")
        return self._add(Reduce(fn=fn, axes=tuple(range(2, x.type.rank)), keepdims=True), x, name=name)[0]
