"""Builder methods for reductions."""

from __future__ import annotations

from collections.abc import Sequence

from graphdnn.ir.builder.arguments import flag
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.types import normalize_axes

Axes = int | Sequence[int] | None


class ReductionMethods(BuilderCore):
    """Reductions over `axes`: one, several, or all for None; they vanish, or stay with extent 1 with `keepdims`."""

    def reduce_sum(self, x: Value, *, axes: Axes, keepdims: bool = False, name: str | None = None) -> Value:
        """Sum of x over axes; integers and bool are summed as int64."""
        return self._reduce("sum", x, axes, keepdims, name)

    def reduce_mean(self, x: Value, *, axes: Axes, keepdims: bool = False, name: str | None = None) -> Value:
        """Mean of x over axes."""
        return self._reduce("mean", x, axes, keepdims, name)

    def reduce_max(self, x: Value, *, axes: Axes, keepdims: bool = False, name: str | None = None) -> Value:
        """Largest x over axes; NaN if any is."""
        return self._reduce("max", x, axes, keepdims, name)

    def reduce_min(self, x: Value, *, axes: Axes, keepdims: bool = False, name: str | None = None) -> Value:
        """Smallest x over axes; NaN if any is."""
        return self._reduce("min", x, axes, keepdims, name)

    def _reduce(self, fn: str, x: Value, axes: Axes, keepdims: bool, name: str | None) -> Value:
        who = name or f"reduce_{fn}"
        self._check_owned(f"{who}: x", x)
        found = tuple(range(x.type.rank)) if axes is None else normalize_axes(axes, x.type, who)
        op = Reduce(fn=fn, axes=found, keepdims=flag(who, "keepdims", keepdims))
        return self._add(op, x, name=name)[0]
