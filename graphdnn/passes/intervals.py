"""Between which numbers the elements of an integer value lie, as far as the graph tells."""

from __future__ import annotations

from itertools import product
from math import inf

from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.ops.pointwise import Pointwise
from graphdnn.ir.types import int32

Interval = tuple[float, float]

ANYTHING = (-inf, inf)
DEEPEST = 8
"""Nodes that are looked through, one behind the other."""


def interval(graph: Graph, value: Value, depth: int = DEEPEST) -> Interval:
    """The least and the greatest element: of constants, and through clip, minimum, maximum and products in int32."""
    if value.literal is not None:
        return float(value.literal), float(value.literal)
    if graph.is_constant(value):
        payload = graph.payloads.get(value.name)
        if payload is None or not payload.has_data or not payload.type.size:
            return ANYTHING
        array = payload.array()
        return float(array.min()), float(array.max())
    producer = graph.producer.get(value)
    if producer is None or not isinstance(producer.op, Pointwise) or value.type.dtype != int32 or not depth:
        return ANYTHING
    parts = [interval(graph, v, depth - 1) for v in producer.operands]
    lows, highs = zip(*parts, strict=True)
    match producer.op.fn:
        case "minimum":
            return min(lows), min(highs)
        case "maximum":
            return max(lows), max(highs)
        case "clip":
            low, high = producer.op.parameters
            return clipped(lows[0], low, high), clipped(highs[0], low, high)
        case "mul":
            ends = [a * b for a, b in product(*parts)] if ANYTHING not in parts else [-inf, inf]
            # A product beyond the type wraps around, and may be anything.
            return (min(ends), max(ends)) if min(ends) >= -(2**31) and max(ends) < 2**31 else ANYTHING
    return ANYTHING


def clipped(number: float, low: float | None, high: float | None) -> float:
    above = number if low is None else max(number, low)
    return above if high is None else min(above, high)
