"""The pointwise functions in CUDA C++: one row for each row of graphdnn.ir.ops.pointwise.FUNCTIONS.

A row is an expression over operands {0}, {1} of register type {T}, parameters {p0}, {p1} and suffix {f} of the C
library's float32 functions.  Nothing here is a fast-math approximation; NaN passes through as numpy has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Expression on floats (and on bool, where bools are taken), and on integers where it is another one.

    `prepare` are statements before it, with {t} as a prefix for local names that nothing else has.
    """

    floats: str
    integers: str | None = None
    prepare: str = ""


SIGMOID = "(({T})1 / (({T})1 + exp{f}(-({0}))))"
ERF_HALF = f"(({{T}})0.5 * (({{T}})1 + erf{{f}}({{0}} * ({{T}}){math.sqrt(0.5)!r})))"
TANH_ARGUMENT = f"(({{T}}){math.sqrt(2 / math.pi)!r} * ({{0}} + ({{T}})0.044715 * {{0}} * {{0}} * {{0}}))"
TANH_SLOPE = f"(({{T}}){math.sqrt(2 / math.pi)!r} * (({{T}})1 + ({{T}}){3 * 0.044715!r} * {{1}} * {{1}}))"
NORMAL_DENSITY = f"(exp{{f}}(({{T}})-0.5 * {{1}} * {{1}}) * ({{T}}){1 / math.sqrt(2 * math.pi)!r})"
HARD_SIGMOID = "clamped({0} * (({T})1 / ({T})6) + ({T})0.5, ({T})0, ({T})1)"


def _at_x(expression: str, x: str = "{1}") -> str:
    """A unary expression of something else than the first operand."""
    return expression.replace("{0}", f"({x})")


ROWS: dict[str, Row] = {
    # arithmetic; integers wrap
    "add": Row("{0} + {1}", "wrapping_add({0}, {1})"),
    "sub": Row("{0} - {1}", "wrapping_sub({0}, {1})"),
    "mul": Row("{0} * {1}", "wrapping_mul({0}, {1})"),
    "div": Row("{0} / {1}", "whole_div({0}, {1})"),
    "mod": Row("fmod{f}({0}, {1})", "whole_mod({0}, {1})"),
    "pow": Row("pow{f}({0}, {1})"),
    "minimum": Row("smaller({0}, {1})", "{0} < {1} ? {0} : {1}"),
    "maximum": Row("larger({0}, {1})", "{0} > {1} ? {0} : {1}"),
    "add_square": Row("{0} + {1} * {1}", "wrapping_add({0}, wrapping_mul({1}, {1}))"),
    "atan2": Row("atan2{f}({0}, {1})"),
    "neg": Row("-{0}", "wrapping_sub(({T})0, {0})"),
    "abs": Row("fabs{f}({0})", "{0} < ({T})0 ? wrapping_sub(({T})0, {0}) : {0}"),
    "square": Row("{0} * {0}", "wrapping_mul({0}, {0})"),
    "identity": Row("{0}", "{0}"),
    # elementary functions
    "exp": Row("exp{f}({0})"),
    "log": Row("log{f}({0})"),
    "sqrt": Row("sqrt{f}({0})"),
    "rsqrt": Row("({T})1 / sqrt{f}({0})"),
    "reciprocal": Row("({T})1 / {0}"),
    "sin": Row("sin{f}({0})"),
    "cos": Row("cos{f}({0})"),
    "tan": Row("tan{f}({0})"),
    "tanh": Row("tanh{f}({0})"),
    "erf": Row("erf{f}({0})"),
    "ceil": Row("ceil{f}({0})"),
    "floor": Row("floor{f}({0})"),
    # activations
    "relu": Row("{0} < ({T})0 ? ({T})0 : {0}", "{0} < ({T})0 ? ({T})0 : {0}"),
    "leaky_relu": Row("{0} < ({T})0 ? {p0} * {0} : {0}"),
    "elu": Row("{0} < ({T})0 ? {p0} * expm1{f}({0}) : {0}"),
    "gelu": Row("{0} * " + ERF_HALF),
    "gelu_tanh": Row("({T})0.5 * {0} * (({T})1 + tanh{f}(" + TANH_ARGUMENT + "))"),
    "sigmoid": Row(SIGMOID),
    "silu": Row("{0} * " + SIGMOID),
    "softplus": Row("softplus({p0} * {0}) / {p0}"),
    "swish": Row("{0} * " + _at_x(SIGMOID, "{p0} * {0}")),
    "hard_sigmoid": Row(HARD_SIGMOID),
    "hard_swish": Row("{0} * " + HARD_SIGMOID),
    "clip": Row("clamped({0}, {p0}, {p1})", "clamped({0}, {p0}, {p1})"),
    # gradients of activations
    "relu_backward": Row("{1} > ({T})0 ? {0} : ({T})0"),
    "tanh_backward": Row("{0} * (({T})1 - {1} * {1})"),
    "sigmoid_backward": Row("{0} * {1} * (({T})1 - {1})"),
    "leaky_relu_backward": Row("{1} < ({T})0 ? {p0} * {0} : {0}"),
    "elu_backward": Row("{0} * ({1} < ({T})0 ? {p0} * exp{f}({1}) : ({T})1)"),
    "gelu_backward": Row("{0} * (" + _at_x(ERF_HALF) + " + {1} * " + NORMAL_DENSITY + ")"),
    "gelu_tanh_backward": Row(
        "{0} * (({T})0.5 * (({T})1 + {t}) + ({T})0.5 * {1} * (({T})1 - {t} * {t}) * " + TANH_SLOPE + ")",
        prepare="const {T} {t} = tanh{f}(" + _at_x(TANH_ARGUMENT) + ");",
    ),
    "silu_backward": Row("{0} * ({t} + {1} * {t} * (({T})1 - {t}))", prepare="const {T} {t} = " + _at_x(SIGMOID) + ";"),
    "softplus_backward": Row("{0} * " + _at_x(SIGMOID, "{p0} * {1}")),
    "swish_backward": Row(
        "{0} * ({t} * (({T})1 + {p0} * {1} * (({T})1 - {t})))",
        prepare="const {T} {t} = " + _at_x(SIGMOID, "{p0} * {1}") + ";",
    ),
    # comparisons and logic; the result is a bool
    "equal": Row("{0} == {1}", "{0} == {1}"),
    "not_equal": Row("{0} != {1}", "{0} != {1}"),
    "greater": Row("{0} > {1}", "{0} > {1}"),
    "greater_equal": Row("{0} >= {1}", "{0} >= {1}"),
    "less": Row("{0} < {1}", "{0} < {1}"),
    "less_equal": Row("{0} <= {1}", "{0} <= {1}"),
    "logical_and": Row("{0} && {1}"),
    "logical_or": Row("{0} || {1}"),
    "logical_not": Row("!{0}"),
}
"""Rows by function name, by subject as in FUNCTIONS; order has no meaning."""
