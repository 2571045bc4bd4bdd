"""Softmax along one axis."""

from __future__ import annotations

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.graph import Value
from graphdnn.ir.op import Make, Op, op
from graphdnn.ir.ops.pointwise import Pointwise, cast_to, widened
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.types import Array, TensorType, normalize_axis

SOFTMAX_OPERATIONS = 5
"""Operations for each element: largest, difference, exponential, sum, quotient."""


@op("softmax")
class Softmax(Op):
    """y = e ** (x - m) / sum of e ** (x - m) along `axis`, m the largest x along it, so that nothing overflows.

    A line that holds NaN or +inf, or nothing but -inf, gives NaN.  Raises GraphError for integers or a foreign axis.
    """

    axis: int

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x",)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if not x.dtype.is_float:
            raise GraphError(f"softmax: x is {x}; a float type is needed, cast it first")
        if normalize_axis(self.axis, x, "softmax") != self.axis:
            raise GraphError(f"softmax: axis is {self.axis}; an axis counted from the front of {x} is needed")
        return (TensorType(x.shape, x.dtype),)

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        powers = np.exp(x - np.max(x, axis=self.axis, keepdims=True))
        return (powers / np.sum(powers, axis=self.axis, keepdims=True, dtype=np.float64),)

    def expand(self, make: Make, x: Value) -> tuple[Value, ...]:  # type: ignore[override]
        wide = widened(make, x)
        largest = make(Reduce(fn="max", axes=(self.axis,), keepdims=True), wide)
        powers = make(Pointwise(fn="exp"), make(Pointwise(fn="sub"), wide, largest))
        total = make(Reduce(fn="sum", axes=(self.axis,), keepdims=True), powers)
        return (cast_to(make, make(Pointwise(fn="div"), powers, total), x.type.dtype),)

    def flops(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        return SOFTMAX_OPERATIONS * results[0].size
