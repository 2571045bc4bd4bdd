"""Builder methods for pointwise ops; those without parameters are made from the rows of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, cast

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.builder.arguments import called, number, one_of
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.builder.promotion import BOOLS_AS, OF_BOOLS, OF_FLOATS, WHOLE_ALREADY, meeting
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.pointwise import (
    FUNCTIONS,
    GRADIENT,
    GRADIENT_BY_RESULT,
    ONE,
    TWO,
    Bias,
    Cast,
    Fn,
    Pointwise,
    Select,
)
from graphdnn.ir.types import DType, as_dtype, normalize_axis
from graphdnn.ir.writer import Operand
from graphdnn.spelling import quoted


class Unary(Protocol):
    """A builder method that applies a function of one operand."""

    def __call__(self, x: Value, *, name: str | None = None) -> Value: ...


class Binary(Protocol):
    """A builder method that applies a function of two operands, one of which may be a Python number."""

    def __call__(self, a: Operand, b: Operand, *, name: str | None = None) -> Value: ...


class Gradient(Protocol):
    """A builder method for dy times a function's derivative at x."""

    def __call__(self, dy: Operand, x: Operand, *, name: str | None = None) -> Value: ...


class GradientByResult(Protocol):
    """A builder method for dy times a function's derivative, computed from the function's result y."""

    def __call__(self, dy: Operand, y: Operand, *, name: str | None = None) -> Value: ...


class PointwiseMethods(BuilderCore):
    """Pointwise functions: each element of the result is computed from the operands' elements at its place.

    Operands broadcast as in numpy, and one of two may be a Python number, which takes the other's type.  float16 and
    bfloat16 are computed in float32 and rounded once.  Types promote as in PyTorch, but for integers beside floats,
    which are refused.  Raises GraphError naming the operands where shapes or types do not go together.
    """

    neg: Unary
    abs: Unary
    square: Unary
    identity: Unary
    exp: Unary
    log: Unary
    sqrt: Unary
    rsqrt: Unary
    reciprocal: Unary
    sin: Unary
    cos: Unary
    tan: Unary
    tanh: Unary
    erf: Unary
    ceil: Unary
    floor: Unary
    relu: Unary
    sigmoid: Unary
    silu: Unary
    hard_sigmoid: Unary
    hard_swish: Unary
    logical_not: Unary

    add: Binary
    sub: Binary
    mul: Binary
    mod: Binary
    pow: Binary
    minimum: Binary
    maximum: Binary
    add_square: Binary
    atan2: Binary
    equal: Binary
    not_equal: Binary
    greater: Binary
    greater_equal: Binary
    less: Binary
    less_equal: Binary
    logical_and: Binary
    logical_or: Binary
    relu_backward: Gradient
    tanh_backward: GradientByResult
    sigmoid_backward: GradientByResult
    silu_backward: Gradient

    def div(
        self, a: Operand, b: Operand, *, rounding_mode: Literal["trunc"] | None = None, name: str | None = None
    ) -> Value:
        """a / b, with broadcasting; integers and bools are cast to float32 first.

        With rounding_mode="trunc", for integers only, the quotient is rounded toward zero and keeps their type; it is 0
        where b is 0.  PyTorch's "floor" is not there.
        """
        one_of(called(name, "div"), "rounding_mode", rounding_mode, (None, "trunc"))
        return self._add(Pointwise(fn="div"), a, b, name=name, whole=rounding_mode == "trunc")[0]

    def gelu(self, x: Value, *, approximate: Literal["none", "tanh"] = "none", name: str | None = None) -> Value:
        """x * (1 + erf(x / sqrt 2)) / 2, or with approximate="tanh" x * (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))) / 2.

        Takes floats; the result has x's shape and type.
        """
        return self._add(Pointwise(fn=gelu_form(called(name, "gelu"), approximate)), x, name=name)[0]

    def gelu_backward(
        self, dy: Value, x: Value, *, approximate: Literal["none", "tanh"] = "none", name: str | None = None
    ) -> Value:
        """dy times the derivative of gelu at x."""
        form = gelu_form(called(name, "gelu_backward"), approximate)
        return self._add(Pointwise(fn=f"{form}_backward"), dy, x, name=name)[0]

    def leaky_relu(self, x: Value, *, negative_slope: float = 0.01, name: str | None = None) -> Value:
        """x where x >= 0, negative_slope * x elsewhere."""
        slope = number(called(name, "leaky_relu"), "negative_slope", negative_slope)
        op = Pointwise(fn="leaky_relu", parameters=(slope,))
        return self._add(op, x, name=name)[0]

    def leaky_relu_backward(
        self, dy: Value, x: Value, *, negative_slope: float = 0.01, name: str | None = None
    ) -> Value:
        """dy where x > 0, negative_slope * dy elsewhere."""
        slope = number(called(name, "leaky_relu_backward"), "negative_slope", negative_slope)
        op = Pointwise(fn="leaky_relu_backward", parameters=(slope,))
        return self._add(op, dy, x, name=name)[0]

    def elu(self, x: Value, *, alpha: float = 1.0, name: str | None = None) -> Value:
        """x where x >= 0, alpha * (e ** x - 1) elsewhere."""
        op = Pointwise(fn="elu", parameters=(number(called(name, "elu"), "alpha", alpha),))
        return self._add(op, x, name=name)[0]

    def elu_backward(self, dy: Value, x: Value, *, alpha: float = 1.0, name: str | None = None) -> Value:
        """dy * alpha * e ** x where x <= 0, dy elsewhere."""
        op = Pointwise(fn="elu_backward", parameters=(number(called(name, "elu_backward"), "alpha", alpha),))
        return self._add(op, dy, x, name=name)[0]

    def softplus(self, x: Value, *, beta: float = 1.0, name: str | None = None) -> Value:
        """log(1 + e ** (beta x)) / beta."""
        op = Pointwise(fn="softplus", parameters=(nonzero(called(name, "softplus"), beta),))
        return self._add(op, x, name=name)[0]

    def softplus_backward(self, dy: Value, x: Value, *, beta: float = 1.0, name: str | None = None) -> Value:
        """dy * sigmoid(beta x)."""
        op = Pointwise(fn="softplus_backward", parameters=(nonzero(called(name, "softplus_backward"), beta),))
        return self._add(op, dy, x, name=name)[0]

    def swish(self, x: Value, *, beta: float = 1.0, name: str | None = None) -> Value:
        """x * sigmoid(beta x)."""
        op = Pointwise(fn="swish", parameters=(number(called(name, "swish"), "beta", beta),))
        return self._add(op, x, name=name)[0]

    def swish_backward(self, dy: Value, x: Value, *, beta: float = 1.0, name: str | None = None) -> Value:
        """dy times the derivative of swish at x."""
        op = Pointwise(fn="swish_backward", parameters=(number(called(name, "swish_backward"), "beta", beta),))
        return self._add(op, dy, x, name=name)[0]

    def clip(self, x: Value, *, min: float | None = None, max: float | None = None, name: str | None = None) -> Value:
        """min(max(x, `min`), `max`) with Python numbers as bounds, of which one may be absent; NaN stays NaN.

        The result has x's shape and type.  Raises GraphError where both bounds are absent, `min` is above `max`, or an
        integer type cannot hold a bound.
        """
        who = called(name, "clip")
        self._check_owned(f"{who}: x", x)
        if min is None and max is None:
            raise GraphError(f"{who}: min and max are both absent; at least one is needed")
        ends: tuple[Any, Any] = (min, max)
        given = [v.item() if isinstance(v, np.generic) else v for v in ends]
        numbers = [v if isinstance(v, int) else number(who, "a bound", v) for v in given if v is not None]
        dtype = meeting(who, [x.type.dtype], numbers) or x.type.dtype
        bounds = tuple(None if v is None else bound(who, v, dtype) for v in given)
        if None not in bounds and bounds[0] > bounds[1]:  # type: ignore[operator]
            raise GraphError(f"{who}: min={quoted(min)} is above max={quoted(max)}")
        return self._add(Pointwise(fn="clip", parameters=bounds), x, name=name)[0]

    def cast(self, x: Value, dtype: DType, *, name: str | None = None) -> Value:
        """x in another type: rounded to the nearest float, ties to even, or toward zero to an integer; as bool x != 0.

        A cast always rounds, also inside a fused kernel.  A float beyond an integer type's range gives the nearest end
        of the range, and NaN gives 0, which PyTorch leaves undefined; an integer loses its upper bits.
        """
        return self._add(Cast(dtype=as_dtype(dtype, called(name, "cast")).name), x, name=name)[0]

    def select(self, condition: Value, a: Operand, b: Operand, *, name: str | None = None) -> Value:
        """a where condition holds, b elsewhere, as torch.where: all three broadcast, a and b promote.

        Raises GraphError where `condition` is not of type bool.
        """
        return self._add(Select(), condition, a, b, name=name)[0]

    def bias(self, x: Value, b: Value, *, axis: int | None = None, name: str | None = None) -> Value:
        """x + b, of x's shape and of the common type; b must broadcast to x's shape.

        A 1-D b, one entry a channel, lies along `axis` of x (1 behind a convolution, -1 behind a matrix product), which
        must be named unless x is 1-D too.  Raises GraphError where b would make the result larger than x.
        """
        who = called(name, "bias")
        for what, value in (("x", x), ("b", b)):
            self._check_owned(f"{who}: {what}", value)
        if b.type.rank == 1 and axis is None and x.type.rank > 1:
            fits = [a for a, n in enumerate(x.type.shape) if n == b.type.shape[0]]
            raise GraphError(
                f"{who}: b is 1-D ({b.type}) and x is {x.type}; name its axis"
                f"{f', such as axis={fits[0]}' if fits else ''}"
            )
        if axis is not None:
            axis = normalize_axis(axis, x.type, who)
        return self._add(Bias(axis=axis), x, b, name=name)[0]


def gelu_form(who: str, approximate: str) -> str:
    one_of(who, "approximate", approximate, ("none", "tanh"))
    return "gelu" if approximate == "none" else "gelu_tanh"


def nonzero(who: str, beta: float) -> float:
    found = number(who, "beta", beta)
    if found == 0:
        raise GraphError(f"{who}: beta is 0; another number is needed")
    return found


def bound(who: str, value: float, dtype: DType) -> float:
    """A bound as `dtype` holds it: exactly, where that is an integer type."""
    found = number(who, "a bound", value)
    if dtype.is_float:
        return found
    if not dtype.holds(value):
        raise GraphError(
            f"{who}: a bound is {quoted(value)}, which {dtype}, the type of x, does not hold; cast x first"
        )
    return int(value)


def unary(fn: str) -> Unary:
    def method(self: BuilderCore, x: Value, *, name: str | None = None) -> Value:
        return self._add(Pointwise(fn=fn), x, name=name)[0]

    return cast(Unary, method)


def binary(fn: str) -> Binary:
    def method(self: BuilderCore, a: Operand, b: Operand, *, name: str | None = None) -> Value:
        return self._add(Pointwise(fn=fn), a, b, name=name)[0]

    return cast(Binary, method)


def gradient(fn: str) -> Gradient:
    def method(self: BuilderCore, dy: Operand, x: Operand, *, name: str | None = None) -> Value:
        return self._add(Pointwise(fn=fn), dy, x, name=name)[0]

    return cast(Gradient, method)


def gradient_by_result(fn: str) -> GradientByResult:
    def method(self: BuilderCore, dy: Operand, y: Operand, *, name: str | None = None) -> Value:
        return self._add(Pointwise(fn=fn), dy, y, name=name)[0]

    return cast(GradientByResult, method)


METHODS: Mapping[tuple[str, ...], Callable[[str], Any]] = {
    ONE: unary,
    TWO: binary,
    GRADIENT: gradient,
    GRADIENT_BY_RESULT: gradient_by_result,
}
"""What makes the method of a function without parameters, by the names of its operands."""

TYPES = {"float": "floats", "number": "floats and integers", "bool": "bools", "any": "any type"}
"""What a row of FUNCTIONS takes, in words."""


def described(fn: str, row: Fn) -> str:
    """The docstring of a function's method."""
    takes, type = TYPES[row.takes], "common type" if row.arity > 1 else "type"
    if fn in OF_FLOATS:
        takes, type = "floats; integers and bools are cast to float32 first", "float type"
    elif fn in OF_BOOLS:
        takes = f"floats and integers; of nothing but bools it is {OF_BOOLS[fn]}"
    elif fn in BOOLS_AS:
        takes = f"floats and integers; of nothing but bools they are cast to {BOOLS_AS[fn]} first"
    elif fn in WHOLE_ALREADY:
        takes = "floats; integers stay as they are"
    shape = "the operands' broadcast shape" if row.arity > 1 else "x's shape"
    gives = f"their {type}" if row.arity > 1 else f"its {type}"
    return f"{row.equation}.\n\nTakes {takes}.\nThe result has {shape} and {gives if row.gives is None else row.gives}."


def add_methods() -> None:
    """Adds a method for each function that has no parameters and none that is written out above."""
    for fn, row in FUNCTIONS.items():
        if fn not in vars(PointwiseMethods) and not row.parameters and not fn.startswith("gelu"):
            method = METHODS[row.operands](fn)
            method.__name__, method.__qualname__ = fn, f"GraphBuilder.{fn}"
            method.__doc__ = described(fn, row)
            setattr(PointwiseMethods, fn, method)


add_methods()
