"""Samples of the pointwise ops: one for each row of the table, and the ops with attributes of their own."""

from __future__ import annotations

import numpy as np

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.pointwise import FUNCTIONS
from graphdnn.ir.types import DType
from tests.ir.samples.sample import Sample

Rng = np.random.Generator

RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "log": {"a": (0.1, 5)},
    "sqrt": {"a": (0, 5)},
    "rsqrt": {"a": (0.1, 5)},
    "reciprocal": {"a": (0.3, 5)},
    "tan": {"a": (-1, 1)},
    "pow": {"a": (0.1, 3), "b": (-2, 2)},
    "div": {"b": (0.3, 5)},
    "mod": {"a": (3.1, 3.9), "b": (1.1, 1.4)},
}
"""Where a function is steep or not defined, the elements that it is shown with."""

DOMAIN = {"float": gd.float32, "number": gd.float32, "integer": gd.int32, "bool": gd.bool, "any": gd.float32}
"""A type of each kind that functions take."""

PARAMETERS: dict[str, dict[str, float]] = {
    "leaky_relu": {"negative_slope": 0.2},
    "leaky_relu_backward": {"negative_slope": 0.3},
    "elu": {"alpha": 1.3},
    "elu_backward": {"alpha": 0.7},
    "softplus": {"beta": 2.0},
    "softplus_backward": {"beta": 0.5},
    "swish": {"beta": 1.5},
    "swish_backward": {"beta": 0.8},
    "clip": {"min": -0.5, "max": 0.75},
}


def function(fn: str, dtype: DType | None = None) -> Sample:
    """One row of the table, with broadcasting where it has two operands."""
    row, dtype = FUNCTIONS[fn], dtype or DOMAIN[FUNCTIONS[fn].takes]
    shapes = [(3, 5, 7), (5, 1), (7,)][: row.arity]

    def build(g: gd.GraphBuilder, rng: Rng) -> Value:
        operands = [g.input(name, shape, dtype) for name, shape in zip("ab", shapes, strict=False)]
        attributes: dict[str, object] = dict(PARAMETERS.get(fn, {}))
        method = fn
        if fn.startswith("gelu_tanh"):
            method, attributes["approximate"] = fn.replace("_tanh", ""), "tanh"
        made: Value = getattr(g, method)(*operands, **attributes)
        return made

    return Sample(f"{fn}_{dtype}", build, RANGES.get(fn, {}))


def add_broadcast(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.add(g.input("a", (4, 1, 6), gd.float16), g.input("b", (2, 4, 5, 1), gd.float16))


def mixed_floats(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.mul(g.input("a", (4, 6), gd.float16), g.input("b", (6,), gd.bfloat16))


def mixed_integers(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.add(g.input("a", (4, 6), gd.int8), g.input("b", (6,), gd.uint8))


def numbers(g: gd.GraphBuilder, rng: Rng) -> Value:
    return 1 - g.input("a", (5, 3), gd.float16) * 0.1


def same_operand(g: gd.GraphBuilder, rng: Rng) -> Value:
    x = g.input("a", (5, 3), gd.float32)
    return x + x


def operators(g: gd.GraphBuilder, rng: Rng) -> Value:
    a, b = g.input("a", (3, 4), gd.float64), g.input("b", (3, 4), gd.float64)
    return -(a - b) / b


def bias_channels(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.bias(g.input("x", (2, 3, 5, 4), gd.float16), g.input("b", (3,), gd.float16), axis=1)


def bias_mixed(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.bias(g.input("x", (6, 5), gd.float16), g.constant(rng.standard_normal(5).astype(np.float32)), axis=-1)


def bias_broadcast(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.bias(g.input("x", (2, 3, 5), gd.float32), g.input("b", (3, 1), gd.float32))


def cast(before: DType, after: DType) -> Sample:
    return Sample(f"cast_{before}_to_{after}", lambda g, rng: g.cast(g.input("x", (4, 9), before), after))


def select(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.select(g.input("c", (5, 1), gd.bool), g.input("a", (3, 5, 4), gd.float16), g.input("b", (4,), gd.float32))


def select_number(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.select(g.input("c", (5, 3), gd.bool), g.input("a", (5, 3), gd.float32), -1e9)


def masked(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.mul(g.input("a", (4, 6), gd.float16), g.input("b", (4, 1), gd.bool))


def counted_bools(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.add(g.input("a", (4, 6), gd.bool) * 3, g.input("b", (6,), gd.int8))


def either(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.add(g.input("a", (5, 3), gd.bool), g.input("b", (3,), gd.bool))


def quotient(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.input("a", (5, 3), gd.int32) / g.input("b", (3,), gd.uint8)


def whole_quotient(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.div(g.input("a", (5, 3), gd.int32), g.input("b", (3,), gd.int8), rounding_mode="trunc")


def root_of_integers(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.rsqrt(g.input("a", (5, 3), gd.int64))


def select_numbers(g: gd.GraphBuilder, rng: Rng) -> Value:
    return g.select(g.input("c", (5, 3), gd.bool), 1.0, -2.5)


SAMPLES = [
    *(function(fn) for fn in FUNCTIONS),
    *(function(fn, gd.float16) for fn in ("add", "gelu", "silu", "exp", "sigmoid", "clip", "greater")),
    *(function(fn, gd.bfloat16) for fn in ("mul", "gelu_tanh", "tanh", "rsqrt")),
    *(function(fn, gd.float64) for fn in ("erf", "softplus", "hard_swish", "atan2")),
    *(function(fn, gd.int32) for fn in ("add", "mul", "relu", "abs", "equal", "maximum")),
    *(function(fn, gd.int64) for fn in ("sub", "neg")),
    *(function(fn, gd.bool) for fn in ("equal", "identity")),
    Sample("add_both_broadcast", add_broadcast),
    Sample("mul_mixed_floats", mixed_floats),
    Sample("add_mixed_integers", mixed_integers),
    Sample("numbers", numbers),
    Sample("same_operand", same_operand),
    Sample("operators", operators, {"b": (0.5, 2)}),
    Sample("bias_channels", bias_channels),
    Sample("bias_mixed", bias_mixed),
    Sample("bias_broadcast", bias_broadcast),
    cast(gd.float32, gd.float16),
    cast(gd.float16, gd.float32),
    cast(gd.float32, gd.bfloat16),
    cast(gd.float32, gd.int32),
    cast(gd.int8, gd.float32),
    cast(gd.int64, gd.int32),
    cast(gd.float32, gd.bool),
    cast(gd.bool, gd.float16),
    Sample("select", select),
    Sample("select_number", select_number),
    Sample("select_numbers", select_numbers),
    Sample("mul_masked", masked),
    Sample("add_counted_bools", counted_bools),
    Sample("add_bools", either),
    Sample("div_integers", quotient, {"b": (1, 9)}),
    Sample("div_whole", whole_quotient, {"b": (1, 9)}),
    Sample("rsqrt_integers", root_of_integers, {"a": (1, 99)}),
]
