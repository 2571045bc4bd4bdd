"""How far found numbers are from a float64 reference, and how far they may be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import graphdnn as gd
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.norm import BatchNorm, InstanceNorm, LayerNorm, RmsNorm
from graphdnn.ir.ops.softmax import Softmax

Array = npt.NDArray[Any]

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "tf32": 1e-3, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Largest error relative to the peak, by the narrowest type that the arithmetic passes through."""


def relative_error(found: Array, expected: Array, scale: float = 0.0, axes: tuple[int, ...] | None = None) -> float:
    """Largest difference over the larger of the reference's peak and `scale`; infinite where only one is finite.

    With `axes` each row along them has a peak of its own.  Equal infinities and NaNs in the same places count as equal.
    """
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        return float("inf")
    size = np.abs(np.where(finite, expected, 0.0))
    peaks = np.broadcast_to(np.maximum(size.max(axes, keepdims=True, initial=0.0), scale), expected.shape)
    wrong = finite & (found != expected)
    with np.errstate(divide="ignore"):
        return float((np.abs(found[wrong] - expected[wrong]) / peaks[wrong]).max(initial=0.0))


def rows_of(graph: gd.Graph, name: str, inputs: Mapping[str, Array]) -> dict[str, Any]:
    """Against what an output's error is measured, as `relative_error` takes it.

    Softmax, norms and attention row by row, the latter two at least against 1 and the peak of v.  All else against the
    whole tensor's peak: that of a product is never above the peak of |x| times |w|, which would be its own scale.
    """
    node = graph.producer.get(graph.outputs[name])
    op = node.op if node is not None else None
    if isinstance(op, Softmax):
        return {"axes": (op.axis,)}
    if isinstance(op, LayerNorm | RmsNorm):
        return {"axes": op.axes, "scale": 1.0}
    if isinstance(op, BatchNorm | InstanceNorm):
        rank = node.result.type.rank
        return {"axes": tuple(range(2, rank)) if isinstance(op, InstanceNorm) else (0, *range(2, rank)), "scale": 1.0}
    if isinstance(op, Attention) and graph.outputs[name] is node.results[0]:
        v = inputs.get(node.operands[2].name)
        return {} if v is None else {"axes": (3,), "scale": float(np.nanmax(np.abs(v.astype(np.float64)), initial=0.0))}
    return {}


def output_error(graph: gd.Graph, name: str, found: Array, wanted: Array, inputs: Mapping[str, Array]) -> float:
    """How far an output is from the reference, against what it is measured by and 1e-3 at least."""
    return relative_error(found, wanted, **{"scale": 1e-3, **rows_of(graph, name, inputs)})


def narrowest(graph: gd.Graph) -> str:
    """Name of the narrowest float type in a graph; float64 where there is none."""
    values = [*graph.inputs.values(), *(v for n in graph.nodes for v in n.results)]
    floats = [v.type.dtype for v in values if v.type.dtype.is_float]
    return min(floats, key=lambda t: list(TOLERANCE).index(t.name) * -1).name if floats else "float64"
