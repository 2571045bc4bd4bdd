"""Reductions over axes: sum, mean, largest and smallest, as rows of one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.op import Op, op
from graphdnn.ir.types import Array, DType, TensorType, int64, normalize_axes
from graphdnn.spelling import quoted


@dataclass(frozen=True)
class Reduction:
    """One reduction: numpy meaning of (array, axes, keepdims), and what types it takes and gives.

    `takes` is "float" or "any"; with `widens` every integer type and bool give int64, as in PyTorch.
    """

    numpy: Callable[[Array, tuple[int, ...], bool], Array]
    equation: str
    takes: str = "any"
    widens: bool = False


def accumulator(x: Array) -> type[np.float64] | type[np.int64]:
    """The type that sums are held in here: as wide as there is, so that a reference's error is its last rounding."""
    return np.float64 if x.dtype.kind == "f" else np.int64


def total(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Sum over axes in the widest type."""
    return np.asarray(np.sum(x, axis=axes, keepdims=keepdims, dtype=accumulator(x)))


def mean(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Mean over axes in the widest type."""
    return np.asarray(np.mean(x, axis=axes, keepdims=keepdims, dtype=np.float64))


def largest(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Maximum over axes; NaN wins."""
    return np.asarray(np.max(x, axis=axes, keepdims=keepdims))


def smallest(x: Array, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Minimum over axes; NaN wins."""
    return np.asarray(np.min(x, axis=axes, keepdims=keepdims))


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(total, "sum over the axes (integers and bool: as int64)", widens=True),
    "mean": Reduction(mean, "mean over the axes", takes="float"),
    "max": Reduction(largest, "largest over the axes; NaN if any is"),
    "min": Reduction(smallest, "smallest over the axes; NaN if any is"),
}
"""Every reduction by name; order has no meaning."""


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """`shape` without `axes`, or with 1 in their place."""
    if keepdims:
        return tuple(1 if a in axes else n for a, n in enumerate(shape))
    return tuple(n for a, n in enumerate(shape) if a not in axes)


def check_axes(who: str, axes: tuple[int, ...], x: TensorType) -> None:
    """Raises GraphError unless `axes` are at least one, distinct, ascending, counted from the front of x."""
    if not axes:
        raise GraphError(f"{who}: axes are empty; x is {x}, and at least one of its axes is needed")
    if normalize_axes(axes, x, who) != axes:
        raise GraphError(f"{who}: axes are {quoted(axes)}; ascending axes counted from the front of {x} are needed")


@op("reduce")
class Reduce(Op):
    """y = fn of x over `axes`, fn a row of REDUCTIONS; the axes vanish, or stay with extent 1 if `keepdims`.

    Floats are accumulated in float32 or wider, and rounded once.  Raises GraphError for axes that x lacks, and for a
    mean of integers.
    """

    fn: str
    axes: tuple[int, ...]
    keepdims: bool = False

    @property
    def label(self) -> str:
        return f"reduce_{self.fn}"

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x",)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        row = REDUCTIONS[self.fn]
        check_axes(self.label, self.axes, x)
        if row.takes == "float" and not x.dtype.is_float:
            raise GraphError(f"{self.label}: x is {x}; a float type is needed, cast it first")
        return (TensorType(reduced_shape(x.shape, self.axes, self.keepdims), self.result_type(x.dtype)),)

    def result_type(self, dtype: DType) -> DType:
        """Type of the result for operands of type `dtype`."""
        return int64 if REDUCTIONS[self.fn].widens and not dtype.is_float else dtype

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        return (REDUCTIONS[self.fn].numpy(x, self.axes, self.keepdims),)

    def flops(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        return operands[0].size
