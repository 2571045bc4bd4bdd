"""Builder methods for pooling."""

from __future__ import annotations

from graphdnn.errors import GraphError
from graphdnn.ir.builder.arguments import called, flag
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.builder.linear import Padding, Window, pairs, per_axis
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.pool import AvgPool, MaxPool
from graphdnn.ir.ops.reduction import Reduce


class PoolMethods(BuilderCore):
    """Pooling of x (N, C, *spatial), with two or three spatial axes, over windows; each result has x's type."""

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
        """y[n, c, o] = largest x[n, c, o * stride + r * dilation - lo] over the places r of a window.

        This is PyTorch's max_pool2d and max_pool3d.  The result is (N, C, *out), out = floor((in + lo + hi - dilation *
        (kernel - 1) - 1) / stride) + 1 along each axis; with `ceil_mode` it is rounded up, but no window begins behind
        x and its left padding.  NaN wins, padding never does.  `stride` is `kernel` where it is None; attributes are
        given as to `conv`.  There are no indices.

        Raises GraphError for bools, padding over half of the window's reach, and a window that does not fit.
        """
        who = called(name, "max_pool")
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
        """y[n, c, o] = sum of x over the window at o * stride - lo, divided by how many places it counts.

        Those inside x count, and with `count_include_pad` those in the padding too; never those behind the padding,
        where `ceil_mode` lets the last window run.  Extents and attributes are as for max_pool, without dilation; there
        is no `divisor_override`.  Raises GraphError for types that are no floats, and as max_pool does.
        """
        who = called(name, "avg_pool")
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
        """Mean of x (N, C, *spatial) over all spatial axes, as (N, C, 1, ...); PyTorch's adaptive_avg_pool2d(x, 1)."""
        return self._pool_all("mean", "global_avg_pool", x, name)

    def global_max_pool(self, x: Value, *, name: str | None = None) -> Value:
        """Largest element of x (N, C, *spatial) over all spatial axes, as (N, C, 1, ...); NaN where any element is."""
        return self._pool_all("max", "global_max_pool", x, name)

    def _pool_all(self, fn: str, label: str, x: Value, name: str | None) -> Value:
        who = called(name, label)
        self._check_owned(f"{who}: x", x)
        if x.type.rank < 3:
            raise GraphError(f"{who}: x is {x.type}; batch, channels and at least one spatial axis are needed")
        return self._add(Reduce(fn=fn, axes=tuple(range(2, x.type.rank)), keepdims=True), x, name=name)[0]
