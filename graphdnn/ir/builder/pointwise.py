"""Builder methods for pointwise ops; those without parameters are made from the rows of the table."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.builder.arguments import number, one_of
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.builder.promotion import meeting
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.pointwise import FUNCTIONS, Bias, Cast, Fn, Pointwise, Select
from graphdnn.ir.types import DType, as_dtype, normalize_axis
from graphdnn.ir.writer import Operand


class Unary(Protocol):
    """A builder method that applies a function of one operand."""

    def __call__(self, x: Value, *, name: str | None = None) -> Value: ...


class Binary(Protocol):
    """A builder method that applies a function of two operands, one of which may be a Python number."""

    def __call__(self, a: Operand, b: Operand, *, name: str | None = None) -> Value: ...


class PointwiseMethods(BuilderCore):
    """Pointwise functions; see FUNCTIONS in graphdnn.ir.ops.pointwise for the equation of each.

    Types promote as in PyTorch, but for integers beside floats, which are refused; see graphdnn.ir.builder.promotion.
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
    relu_backward: Binary
    tanh_backward: Binary
    sigmoid_backward: Binary
    silu_backward: Binary

    def div(
        self, a: Operand, b: Operand, *, rounding_mode: Literal["trunc"] | None = None, name: str | None = None
    ) -> Value:
        """a / b, in float32 for integers and bools; with "trunc" integers stay: rounded toward zero, 0 where b is 0."""
        one_of(name or "div", "rounding_mode", rounding_mode, (None, "trunc"))
        return self._add(Pointwise(fn="div"), a, b, name=name, whole=rounding_mode == "trunc")[0]

    def gelu(self, x: Value, *, approximate: Literal["none", "tanh"] = "none", name: str | None = None) -> Value:
        """x * (1 + erf(x / sqrt 2)) / 2, or with "tanh" x * (1 + tanh(sqrt(2/pi) (x + 0.044715 x**3))) / 2."""
        return self._add(Pointwise(fn=gelu_form(name or "gelu", approximate)), x, name=name)[0]

    def gelu_backward(
        self, dy: Value, x: Value, *, approximate: Literal["none", "tanh"] = "none", name: str | None = None
    ) -> Value:
        """dy times the derivative of gelu at x."""
        form = gelu_form(name or "gelu_backward", approximate)
        return self._add(Pointwise(fn=f"{form}_backward"), dy, x, name=name)[0]

    def leaky_relu(self, x: Value, *, negative_slope: float = 0.01, name: str | None = None) -> Value:
        """x where x >= 0, negative_slope * x elsewhere."""
        op = Pointwise(fn="leaky_relu", parameters=(number(name or "leaky_relu", "negative_slope", negative_slope),))
        return self._add(op, x, name=name)[0]

    def leaky_relu_backward(
        self, dy: Value, x: Value, *, negative_slope: float = 0.01, name: str | None = None
    ) -> Value:
        """dy where x >= 0, negative_slope * dy elsewhere."""
        slope = number(name or "leaky_relu_backward", "negative_slope", negative_slope)
        op = Pointwise(fn="leaky_relu_backward", parameters=(slope,))
        return self._add(op, dy, x, name=name)[0]

    def elu(self, x: Value, *, alpha: float = 1.0, name: str | None = None) -> Value:
        """x where x >= 0, alpha * (e ** x - 1) elsewhere."""
        return self._add(Pointwise(fn="elu", parameters=(number(name or "elu", "alpha", alpha),)), x, name=name)[0]

    def elu_backward(self, dy: Value, x: Value, *, alpha: float = 1.0, name: str | None = None) -> Value:
        """dy where x >= 0, dy * alpha * e ** x elsewhere."""
        return self._add(
            Pointwise(fn="elu_backward", parameters=(number(name or "elu_backward", "alpha", alpha),)), dy, x, name=name
        )[0]

    def softplus(self, x: Value, *, beta: float = 1.0, name: str | None = None) -> Value:
        """log(1 + e ** (beta x)) / beta."""
        return self._add(Pointwise(fn="softplus", parameters=(nonzero(name or "softplus", beta),)), x, name=name)[0]

    def softplus_backward(self, dy: Value, x: Value, *, beta: float = 1.0, name: str | None = None) -> Value:
        """dy * sigmoid(beta x)."""
        return self._add(
            Pointwise(fn="softplus_backward", parameters=(nonzero(name or "softplus_backward", beta),)),
            dy,
            x,
            name=name,
        )[0]

    def swish(self, x: Value, *, beta: float = 1.0, name: str | None = None) -> Value:
        """x * sigmoid(beta x)."""
        return self._add(Pointwise(fn="swish", parameters=(number(name or "swish", "beta", beta),)), x, name=name)[0]

    def swish_backward(self, dy: Value, x: Value, *, beta: float = 1.0, name: str | None = None) -> Value:
        """dy times the derivative of swish at x."""
        return self._add(
            Pointwise(fn="swish_backward", parameters=(number(name or "swish_backward", "beta", beta),)),
            dy,
            x,
            name=name,
        )[0]

    def clip(self, x: Value, *, min: float | None = None, max: float | None = None, name: str | None = None) -> Value:
        """x held between min and max, either of which may be absent; NaN stays NaN.  Integers take whole bounds."""
        who = name or "clip"
        self._check_owned(f"{who}: x", x)
        if min is None and max is None:
            raise GraphError(f"{who}: min and max are both absent; at least one is needed")
        ends: tuple[Any, Any] = (min, max)
        given = [v.item() if isinstance(v, np.generic) else v for v in ends]
        numbers = [v if isinstance(v, int) else number(who, "a bound", v) for v in given if v is not None]
        dtype = meeting(who, [x.type.dtype], numbers) or x.type.dtype
        bounds = tuple(None if v is None else bound(who, v, dtype) for v in given)
        if None not in bounds and bounds[0] > bounds[1]:  # type: ignore[operator]
            raise GraphError(f"{who}: min={min} is above max={max}")
        return self._add(Pointwise(fn="clip", parameters=bounds), x, name=name)[0]

    def cast(self, x: Value, dtype: DType, *, name: str | None = None) -> Value:
        """x rounded to `dtype`: to nearest even between floats, toward zero to integers, x != 0 to bool."""
        return self._add(Cast(dtype=as_dtype(dtype, name or "cast").name), x, name=name)[0]

    def select(self, condition: Value, a: Operand, b: Operand, *, name: str | None = None) -> Value:
        """a where condition (bool) holds, b elsewhere; all three broadcast."""
        return self._add(Select(), condition, a, b, name=name)[0]

    def bias(self, x: Value, b: Value, *, axis: int | None = None, name: str | None = None) -> Value:
        """x + b with x's shape; b broadcasts against x, and a 1-D b must name the axis of x that it lies along."""
        for what, value in (("x", x), ("b", b)):
            self._check_owned(f"{name or 'bias'}: {what}", value)
        if b.type.rank == 1 and axis is None and x.type.rank > 1:
            fits = [a for a, n in enumerate(x.type.shape) if n == b.type.shape[0]]
            raise GraphError(
                f"{name or 'bias'}: b is 1-D ({b.type}) and x is {x.type}; name its axis"
                f"{f', such as axis={fits[0]}' if fits else ''}"
            )
        if axis is not None:
            axis = normalize_axis(axis, x.type, name or "bias")
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
        raise GraphError(f"{who}: a bound is {value}, which {dtype}, the type of x, does not hold; cast x first")
    return int(value)


def _method(fn: str, row: Fn) -> object:
    if row.arity == 1:

        def unary(self: BuilderCore, x: Value, *, name: str | None = None) -> Value:
            return self._add(Pointwise(fn=fn), x, name=name)[0]

        made: object = unary
    else:

        def binary(self: BuilderCore, a: Operand, b: Operand, *, name: str | None = None) -> Value:
            return self._add(Pointwise(fn=fn), a, b, name=name)[0]

        made = binary
    made.__name__, made.__qualname__ = fn, f"GraphBuilder.{fn}"  # type: ignore[attr-defined]
    made.__doc__ = f"{row.equation}."
    return made


for _fn, _row in FUNCTIONS.items():
    if _fn not in vars(PointwiseMethods) and not _row.parameters and not _fn.startswith("gelu"):
        setattr(PointwiseMethods, _fn, _method(_fn, _row))
