"""Builder methods for reductions."""

from __future__ import annotations

from collections.abc import Sequence

from graphdnn.ir.builder.arguments import called, flag
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.movement import Unsqueeze
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.types import normalize_axes

Axes = int | Sequence[int] | None


class ReductionMethods(BuilderCore):
    """Reductions over `axes`: a number, several, or None for all; axes may be negative.

    The result has x's type unless a method says otherwise, and x's shape without `axes`, or with extent 1 there where
    `keepdims` is set.  Raises GraphError for axes that x lacks, that are named twice, or none.
    """

    def reduce_sum(self, x: Value, *, axes: Axes, keepdims: bool = False, name: str | None = None) -> Value:
        """Sum of x over `axes`; integers and bools are summed as int64, floats in float32 or wider and rounded once."""
        return self._reduce("sum", x, axes, keepdims, name)

    def reduce_mean(self, x: Value, *, axes: Axes, keepdims: bool = False, name: str | None = None) -> Value:
        """Mean of x over `axes`.  Raises GraphError for integers and bools: cast them first."""
        return self._reduce("mean", x, axes, keepdims, name)

    def reduce_max(self, x: Value, *, axes: Axes, keepdims: bool = False, name: str | None = None) -> Value:
        """Largest element of x over `axes`, as torch.amax; NaN where any element is."""
        return self._reduce("max", x, axes, keepdims, name)

    def reduce_min(self, x: Value, *, axes: Axes, keepdims: bool = False, name: str | None = None) -> Value:
        """Smallest element of x over `axes`, as torch.amin; NaN where any element is."""
        return self._reduce("min", x, axes, keepdims, name)

    def _reduce(self, fn: str, x: Value, axes: Axes, keepdims: bool, name: str | None) -> Value:
        who = called(name, f"reduce_{fn}")
        self._check_owned(f"{who}: x", x)
        kept = flag(who, "keepdims", keepdims)
        if axes is None and not x.type.rank:  # its one element, which an axis of extent 1 makes a row of
            op = Reduce(fn=fn, axes=(0,))
            return self._writer.emit(op, (x,), name=name, stem=op.label, first={0: Unsqueeze(axes=(0,))})[0]
        found = tuple(range(x.type.rank)) if axes is None else normalize_axes(axes, x.type, who)
        op = Reduce(fn=fn, axes=found, keepdims=kept)
        return self._add(op, x, name=name)[0]
