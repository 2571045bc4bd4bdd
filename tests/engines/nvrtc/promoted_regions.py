"""Regions of operands of two types, or of a type and Python numbers: what the builder promotes, in one kernel each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import DTYPES, Array, DType
from tests.engines.cudnn.layouts import whole
from tests.ir.samples import draw

SHAPE = (5, 33)

Made = Callable[[gd.GraphBuilder, Value, Value], Value]

TWO: dict[str, Made] = {
    "sum": lambda g, a, b: a + b,
    "product": lambda g, a, b: a * b,
    "quotient": lambda g, a, b: a / b,
    "whole quotient": lambda g, a, b: g.div(a, b, rounding_mode="trunc"),
    "larger": lambda g, a, b: g.maximum(a, b),
    "less": lambda g, a, b: g.less(a, b),
    "equal": lambda g, a, b: g.equal(a, b),
    "and": lambda g, a, b: g.logical_and(a, b),
    "chosen": lambda g, a, b: g.select(g.logical_not(a), a, b),
}
"""Some functions of each rule; one that refuses a pair of types is left out."""

ONE: dict[str, Callable[[gd.GraphBuilder, Value], Value]] = {
    "one more": lambda g, a: a + 1,
    "and true": lambda g, a: a + True,
    "half": lambda g, a: a * 0.5,
    "third": lambda g, a: a / 3,
    "inverse": lambda g, a: 2.5 / a,
    "root": lambda g, a: g.sqrt(g.maximum(a, 0)),
    "exponential": lambda g, a: g.exp(g.minimum(a, 5)),
    "sigmoid": lambda g, a: g.sigmoid(a),
    "angle": lambda g, a: g.atan2(a, 2),
    "rounded": lambda g, a: g.floor(a),
    "square": lambda g, a: g.square(a),
    "between": lambda g, a: g.clip(a, min=0, max=2),
    "not": lambda g, a: g.logical_not(a),
    "numbers": lambda g, a: g.select(g.greater(a, 0), 1.0, -2.5),
    "whole numbers": lambda g, a: g.select(g.greater(a, 0), 3, -7),
}
"""Functions of one tensor, and of one and a number."""


def beside_numbers(dtype: DType) -> Region:
    """All of ONE that take the type."""
    g = gd.GraphBuilder(f"{dtype}")
    a = g.input("a", SHAPE, dtype)
    return whole(g.build(accepted({name: lambda made=made: made(g, a) for name, made in ONE.items()})))


def beside(dtype: DType, other: DType) -> Region:
    """All of TWO that take the pair of types."""
    g = gd.GraphBuilder(f"{dtype}_{other}")
    a, b = g.input("a", SHAPE, dtype), g.input("b", SHAPE[1:], other)
    return whole(g.build(accepted({name: lambda made=made: made(g, a, b) for name, made in TWO.items()})))


def accepted(calls: dict[str, Callable[[], Value]]) -> dict[str, Value]:
    """What is not refused, by name."""
    outputs: dict[str, Value] = {}
    for name, call in calls.items():
        try:
            outputs[name] = call()
        except gd.GraphError:
            continue
    return outputs


def regions(dtype: DType) -> dict[str, Region]:
    """A type beside numbers and beside every type."""
    made = (beside_numbers(dtype), *(beside(dtype, other) for other in DTYPES.values()))
    return {region.graph.name: region for region in made}


def arrays(region: Region, rng: np.random.Generator) -> dict[str, Array]:
    return {v.name: draw(v.type, rng) for v in region.inputs}
