"""The pointwise functions in CUDA C++: an expression for each row of graphdnn.ir.ops.pointwise.FUNCTIONS.

Expressions are templates over operands {0}, {1} of register type {T}, parameters {p0}, {p1} and the suffix {f} of the C
library's float32 functions.  Nothing here is a fast-math approximation; NaN passes through as numpy has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from graphdnn.ir.ops.pointwise import GELU_CUBIC


@dataclass(frozen=True)
class Expression:
    """The expression on floats (and on bool, where the function takes it), and the one on integers if that differs.

    `prepare` are statements that must stand before it; local names in them begin with {t}, which no other node uses.
    """

    floats: str
    integers: str | None = None
    prepare: str = ""


SIGMOID = "(({T})1 / (({T})1 + exp{f}(-({0}))))"
ERF_HALF = f"(({{T}})0.5 * (({{T}})1 + erf{{f}}({{0}} * ({{T}}){math.sqrt(0.5)!r})))"
TANH_ARGUMENT = f"(({{T}}){math.sqrt(2 / math.pi)!r} * ({{0}} + ({{T}}){GELU_CUBIC!r} * {{0}} * {{0}} * {{0}}))"
TANH_SLOPE = f"(({{T}}){math.sqrt(2 / math.pi)!r} * (({{T}})1 + ({{T}}){3 * GELU_CUBIC!r} * {{1}} * {{1}}))"
NORMAL_DENSITY = f"(exp{{f}}(({{T}})-0.5 * {{1}} * {{1}}) * ({{T}}){1 / math.sqrt(2 * math.pi)!r})"
HARD_SIGMOID = "clamped({0} * (({T})1 / ({T})6) + ({T})0.5, ({T})0, ({T})1)"
"""Parts that several functions share, or that would not fit in their row; NORMAL_DENSITY is that of the normal
distribution."""


def _at_x(expression: str, x: str = "{1}") -> str:
    """A unary expression of something else than the first operand."""
    return expression.replace("{0}", f"({x})")


EXPRESSIONS: dict[str, Expression] = {
    # arithmetic; integers wrap
    "add": Expression("{0} + {1}", "wrapping_add({0}, {1})"),
    "sub": Expression("{0} - {1}", "wrapping_sub({0}, {1})"),
    "mul": Expression("{0} * {1}", "wrapping_mul({0}, {1})"),
    "div": Expression("{0} / {1}", "whole_div({0}, {1})"),
    "mod": Expression("fmod{f}({0}, {1})", "whole_mod({0}, {1})"),
    "pow": Expression("pow{f}({0}, {1})"),
    "minimum": Expression("smaller({0}, {1})", "{0} < {1} ? {0} : {1}"),
    "maximum": Expression("larger({0}, {1})", "{0} > {1} ? {0} : {1}"),
    "add_square": Expression("{0} + {1} * {1}", "wrapping_add({0}, wrapping_mul({1}, {1}))"),
    "atan2": Expression("atan2{f}({0}, {1})"),
    "neg": Expression("-{0}", "wrapping_sub(({T})0, {0})"),
    "abs": Expression("fabs{f}({0})", "{0} < ({T})0 ? wrapping_sub(({T})0, {0}) : {0}"),
    "square": Expression("{0} * {0}", "wrapping_mul({0}, {0})"),
    "identity": Expression("{0}", "{0}"),
    # elementary functions
    "exp": Expression("exp{f}({0})"),
    "log": Expression("log{f}({0})"),
    "sqrt": Expression("sqrt{f}({0})"),
    "rsqrt": Expression("({T})1 / sqrt{f}({0})"),
    "reciprocal": Expression("({T})1 / {0}"),
    "sin": Expression("sin{f}({0})"),
    "cos": Expression("cos{f}({0})"),
    "tan": Expression("tan{f}({0})"),
    "tanh": Expression("tanh{f}({0})"),
    "erf": Expression("erf{f}({0})"),
    "ceil": Expression("ceil{f}({0})"),
    "floor": Expression("floor{f}({0})"),
    # activations
    "relu": Expression("{0} < ({T})0 ? ({T})0 : {0}", "{0} < ({T})0 ? ({T})0 : {0}"),
    "leaky_relu": Expression("{0} < ({T})0 ? {p0} * {0} : {0}"),
    "elu": Expression("{0} < ({T})0 ? {p0} * expm1{f}({0}) : {0}"),
    "gelu": Expression("{0} * " + ERF_HALF),
    "gelu_tanh": Expression("({T})0.5 * {0} * (({T})1 + tanh{f}(" + TANH_ARGUMENT + "))"),
    "sigmoid": Expression(SIGMOID),
    "silu": Expression("{0} * " + SIGMOID),
    "softplus": Expression("softplus({p0} * {0}) / {p0}"),
    "swish": Expression("{0} * " + _at_x(SIGMOID, "{p0} * {0}")),
    "hard_sigmoid": Expression(HARD_SIGMOID),
    "hard_swish": Expression("{0} * " + HARD_SIGMOID),
    "clip": Expression("clamped({0}, {p0}, {p1})", "clamped({0}, {p0}, {p1})"),
    # gradients of activations
    "relu_backward": Expression("{1} <= ({T})0 ? ({T})0 : {0}"),
    "tanh_backward": Expression("{0} * (({T})1 - {1} * {1})"),
    "sigmoid_backward": Expression("{0} * {1} * (({T})1 - {1})"),
    "leaky_relu_backward": Expression("{1} > ({T})0 ? {0} : {p0} * {0}"),
    "elu_backward": Expression("{0} * ({1} <= ({T})0 ? {p0} * exp{f}({1}) : ({T})1)"),
    "gelu_backward": Expression("{0} * (" + _at_x(ERF_HALF) + " + {1} * " + NORMAL_DENSITY + ")"),
    "gelu_tanh_backward": Expression(
        "{0} * (({T})0.5 * (({T})1 + {t}) + ({T})0.5 * {1} * (({T})1 - {t} * {t}) * " + TANH_SLOPE + ")",
        prepare="const {T} {t} = tanh{f}(" + _at_x(TANH_ARGUMENT) + ");",
    ),
    "silu_backward": Expression(
        "{0} * ({t} + {1} * {t} * (({T})1 - {t}))", prepare="const {T} {t} = " + _at_x(SIGMOID) + ";"
    ),
    "softplus_backward": Expression("{0} * " + _at_x(SIGMOID, "{p0} * {1}")),
    "swish_backward": Expression(
        "{0} * ({t} * (({T})1 + {p0} * {1} * (({T})1 - {t})))",
        prepare="const {T} {t} = " + _at_x(SIGMOID, "{p0} * {1}") + ";",
    ),
    # comparisons and logic; the result is a bool
    "equal": Expression("{0} == {1}", "{0} == {1}"),
    "not_equal": Expression("{0} != {1}", "{0} != {1}"),
    "greater": Expression("{0} > {1}", "{0} > {1}"),
    "greater_equal": Expression("{0} >= {1}", "{0} >= {1}"),
    "less": Expression("{0} < {1}", "{0} < {1}"),
    "less_equal": Expression("{0} <= {1}", "{0} <= {1}"),
    "logical_and": Expression("{0} && {1}"),
    "logical_or": Expression("{0} || {1}"),
    "logical_not": Expression("!{0}"),
}
"""Expressions by function name, grouped by subject as in FUNCTIONS; their order has no meaning."""
