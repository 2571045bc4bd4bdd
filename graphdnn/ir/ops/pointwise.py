"""Pointwise operations: one result element from the operands' elements at the same place, with broadcasting.

The functions are rows of one table; `Bias` and `Cast` are pointwise too, but have attributes that are not numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.graph import Value
from graphdnn.ir.op import Make, Op, op
from graphdnn.ir.types import DTYPES, Array, DType, TensorType, bool_, broadcast_shapes, promote
from graphdnn.spelling import quoted

ONE = ("x",)
TWO = ("a", "b")
GRADIENT = ("dy", "x")
GRADIENT_BY_RESULT = ("dy", "y")
"""What the operands of a function are called: in its equation, in messages and as arguments of the builder's method."""

GELU_CUBIC = 0.044715
"""Factor of x ** 3 in gelu by tanh: Hendrycks and Gimpel, Gaussian Error Linear Units, arXiv:1606.08415, section 2."""


@dataclass(frozen=True)
class Fn:
    """One pointwise function: names of its operands, numpy meaning, equation, parameters with their defaults, and what
    types it takes.

    `takes` is "float", "number" (floats and integers), "bool" or "any"; `gives` is None for the operands'
    common type or a fixed type.
    """

    operands: tuple[str, ...]
    numpy: Callable[..., Array]
    equation: str
    parameters: tuple[tuple[str, float | None], ...] = ()
    takes: str = "number"
    gives: DType | None = None

    @property
    def arity(self) -> int:
        """Number of operands."""
        return len(self.operands)


def _special(name: str) -> Callable[..., Array]:
    """A scipy.special function, imported when first called."""

    def call(*arrays: Array) -> Array:
        import scipy.special

        result: Array = getattr(scipy.special, name)(*arrays)
        return result

    return call


_erf = _special("erf")
_sigmoid = _special("expit")


def _gelu(x: Array) -> Array:
    return x * (0.5 * (1 + _erf(x * np.asarray(math.sqrt(0.5), x.dtype))))


def _tanh_argument(x: Array) -> Array:
    return math.sqrt(2 / math.pi) * (x + GELU_CUBIC * x**3)


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(_tanh_argument(x)))


def _softplus(x: Array, beta: float) -> Array:
    return np.logaddexp(0, beta * x) / beta


def _hard_sigmoid(x: Array) -> Array:
    return np.clip(x / 6 + 0.5, 0, 1)


def _maximum_with(bound: float, x: Array) -> Array:
    return np.maximum(x, np.asarray(bound, x.dtype))


def _clip(x: Array, low: float | None, high: float | None) -> Array:
    out = x if low is None else np.maximum(x, np.asarray(low, x.dtype))
    return out if high is None else np.minimum(out, np.asarray(high, x.dtype))


def _trunc_divide(a: Array, b: Array) -> Array:
    """a / b; for integers rounded toward zero, and 0 where b is 0."""
    if a.dtype.kind == "f":
        return a / b
    # Without the remainder the quotient is whole, so that it does not matter which way numpy rounds; magnitudes would
    # not do, since the least integer has none.
    safe = np.where(b == 0, 1, b).astype(b.dtype)
    return np.where(b == 0, 0, (a - np.fmod(a, safe)) // safe).astype(np.result_type(a, b))


def _remainder(a: Array, b: Array) -> Array:
    """a - b * trunc(a / b), the sign of a, as C has it; 0 for integers where b is 0."""
    if a.dtype.kind == "f":
        return np.fmod(a, b)
    return np.where(b == 0, 0, np.fmod(a, np.where(b == 0, 1, b))).astype(np.result_type(a, b))


def _saturated(x: Array, dtype: DType) -> Array:
    """Floats rounded toward zero and held within an integer type; NaN gives 0."""
    limits = np.iinfo(dtype.numpy)
    wide = np.trunc(x.astype(np.float64))  # of which limits.max + 1 is a number, where limits.max may be none
    is_above, is_below = wide >= float(limits.max + 1), wide < float(limits.min)
    inside = np.where(is_above | is_below | np.isnan(wide), 0, wide).astype(dtype.numpy)
    return np.select([is_above, is_below], [dtype.numpy.type(limits.max), dtype.numpy.type(limits.min)], inside)


def _gelu_backward(dy: Array, x: Array) -> Array:
    density = np.exp(-0.5 * x * x) * np.asarray(1 / math.sqrt(2 * math.pi), x.dtype)
    return dy * (0.5 * (1 + _erf(x * np.asarray(math.sqrt(0.5), x.dtype))) + x * density)


def _gelu_tanh_backward(dy: Array, x: Array) -> Array:
    t = np.tanh(_tanh_argument(x))
    slope = math.sqrt(2 / math.pi) * (1 + 3 * GELU_CUBIC * x**2)
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)


def _silu_backward(dy: Array, x: Array) -> Array:
    s = _sigmoid(x)
    return dy * (s + x * s * (1 - s))


FUNCTIONS: dict[str, Fn] = {
    # arithmetic
    "add": Fn(TWO, np.add, "a + b"),
    "sub": Fn(TWO, np.subtract, "a - b"),
    "mul": Fn(TWO, np.multiply, "a * b"),
    "div": Fn(TWO, _trunc_divide, "a / b (integers: rounded toward zero, 0 where b is 0)"),
    "mod": Fn(TWO, _remainder, "a - b * trunc(a / b), with the sign of a as torch.fmod (integers: 0 where b is 0)"),
    "pow": Fn(TWO, np.power, "a ** b", takes="float"),
    "minimum": Fn(TWO, np.minimum, "the smaller of a and b; NaN if either is"),
    "maximum": Fn(TWO, np.maximum, "the larger of a and b; NaN if either is"),
    "add_square": Fn(TWO, lambda a, b: a + b * b, "a + b * b"),
    "atan2": Fn(TWO, np.arctan2, "angle of the point (b, a), in radians", takes="float"),
    "neg": Fn(ONE, np.negative, "-x"),
    "abs": Fn(ONE, np.abs, "|x|"),
    "square": Fn(ONE, np.square, "x * x"),
    "identity": Fn(ONE, lambda x: x, "x", takes="any"),
    # elementary functions
    "exp": Fn(ONE, np.exp, "e ** x", takes="float"),
    "log": Fn(ONE, np.log, "natural logarithm of x", takes="float"),
    "sqrt": Fn(ONE, np.sqrt, "square root of x", takes="float"),
    "rsqrt": Fn(ONE, lambda x: 1 / np.sqrt(x), "1 / sqrt(x)", takes="float"),
    "reciprocal": Fn(ONE, lambda x: 1 / x, "1 / x", takes="float"),
    "sin": Fn(ONE, np.sin, "sine of x radians", takes="float"),
    "cos": Fn(ONE, np.cos, "cosine of x radians", takes="float"),
    "tan": Fn(ONE, np.tan, "tangent of x radians", takes="float"),
    "tanh": Fn(ONE, np.tanh, "hyperbolic tangent of x", takes="float"),
    "erf": Fn(ONE, _erf, "error function of x", takes="float"),
    "ceil": Fn(ONE, np.ceil, "least whole number not below x", takes="float"),
    "floor": Fn(ONE, np.floor, "greatest whole number not above x", takes="float"),
    # activations
    "relu": Fn(ONE, lambda x: _maximum_with(0, x), "max(x, 0)"),
    "leaky_relu": Fn(
        ONE,
        lambda x, slope: np.where(x < 0, slope * x, x),
        "x where x >= 0, negative_slope * x elsewhere",
        (("negative_slope", 0.01),),
        takes="float",
    ),
    "elu": Fn(
        ONE,
        lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x),
        "x where x >= 0, alpha * (e ** x - 1) elsewhere",
        (("alpha", 1.0),),
        takes="float",
    ),
    "gelu": Fn(ONE, _gelu, "x * (1 + erf(x / sqrt 2)) / 2", takes="float"),
    "gelu_tanh": Fn(ONE, _gelu_tanh, "x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x**3))) / 2", takes="float"),
    "sigmoid": Fn(ONE, _sigmoid, "1 / (1 + e ** -x)", takes="float"),
    "silu": Fn(ONE, lambda x: x * _sigmoid(x), "x * sigmoid(x)", takes="float"),
    "softplus": Fn(ONE, _softplus, "log(1 + e ** (beta x)) / beta", (("beta", 1.0),), takes="float"),
    "swish": Fn(ONE, lambda x, beta: x * _sigmoid(beta * x), "x * sigmoid(beta x)", (("beta", 1.0),), takes="float"),
    "hard_sigmoid": Fn(ONE, _hard_sigmoid, "min(max(x / 6 + 1/2, 0), 1)", takes="float"),
    "hard_swish": Fn(ONE, lambda x: x * _hard_sigmoid(x), "x * hard_sigmoid(x)", takes="float"),
    "clip": Fn(ONE, _clip, "x held between min and max; NaN stays", (("min", None), ("max", None))),
    # gradients of activations: dy times the derivative at x (at y, the activation's result, for tanh and sigmoid)
    "relu_backward": Fn(
        GRADIENT, lambda dy, x: np.where(x <= 0, np.zeros_like(dy), dy), "0 where x <= 0, dy elsewhere", takes="float"
    ),
    "tanh_backward": Fn(
        GRADIENT_BY_RESULT, lambda dy, y: dy * (1 - y * y), "dy * (1 - y * y), y = tanh(x)", takes="float"
    ),
    "sigmoid_backward": Fn(
        GRADIENT_BY_RESULT, lambda dy, y: dy * y * (1 - y), "dy * y * (1 - y), y = sigmoid(x)", takes="float"
    ),
    "leaky_relu_backward": Fn(
        GRADIENT,
        lambda dy, x, slope: np.where(x > 0, dy, slope * dy),
        "dy where x > 0, negative_slope * dy elsewhere",
        (("negative_slope", 0.01),),
        takes="float",
    ),
    "elu_backward": Fn(
        GRADIENT,
        lambda dy, x, alpha: dy * np.where(x <= 0, alpha * np.exp(x), 1).astype(x.dtype),
        "dy * alpha * e ** x where x <= 0, dy elsewhere",
        (("alpha", 1.0),),
        takes="float",
    ),
    "gelu_backward": Fn(GRADIENT, _gelu_backward, "dy * d gelu(x) / dx", takes="float"),
    "gelu_tanh_backward": Fn(GRADIENT, _gelu_tanh_backward, "dy * d gelu_tanh(x) / dx", takes="float"),
    "silu_backward": Fn(GRADIENT, _silu_backward, "dy * d silu(x) / dx", takes="float"),
    "softplus_backward": Fn(
        GRADIENT, lambda dy, x, beta: dy * _sigmoid(beta * x), "dy * sigmoid(beta x)", (("beta", 1.0),), takes="float"
    ),
    "swish_backward": Fn(
        GRADIENT,
        lambda dy, x, beta: dy * (_sigmoid(beta * x) * (1 + beta * x * (1 - _sigmoid(beta * x)))),
        "dy * d swish(x) / dx",
        (("beta", 1.0),),
        takes="float",
    ),
    # comparisons and logic
    "equal": Fn(TWO, np.equal, "a == b", takes="any", gives=bool_),
    "not_equal": Fn(TWO, np.not_equal, "a != b", takes="any", gives=bool_),
    "greater": Fn(TWO, np.greater, "a > b", gives=bool_),
    "greater_equal": Fn(TWO, np.greater_equal, "a >= b", gives=bool_),
    "less": Fn(TWO, np.less, "a < b", gives=bool_),
    "less_equal": Fn(TWO, np.less_equal, "a <= b", gives=bool_),
    "logical_and": Fn(TWO, np.logical_and, "a and b", takes="bool", gives=bool_),
    "logical_or": Fn(TWO, np.logical_or, "a or b", takes="bool", gives=bool_),
    "logical_not": Fn(ONE, np.logical_not, "not x", takes="bool", gives=bool_),
}
"""Every pointwise function by name, by subject; order has no meaning.  `select` is an op of its own below."""

TAKES: dict[str, Callable[[DType], bool]] = {
    "float": lambda t: t.is_float,
    "number": lambda t: t.kind != "bool",
    "bool": lambda t: t.kind == "bool",
    "any": lambda t: True,
}
"""Whether a function that takes such operands takes a type."""


class Elementwise(Op):
    """Base of the pointwise ops: operands broadcast as in numpy; arithmetic in float32 for the halves."""

    promotes = False

    @property
    def function(self) -> str:
        """Row of FUNCTIONS that the op applies, or "select"."""
        raise NotImplementedError

    def aligned(self, index: int, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
        """Shape of operand `index` with size-1 axes put in, so that it has the result's rank."""
        return (1,) * (rank - len(shape)) + shape


def result_shape(who: str, names: tuple[str, ...], operands: tuple[TensorType, ...]) -> tuple[int, ...]:
    """Broadcast shape of the operands.  Raises GraphError naming the operands, their types and the axis."""
    try:
        return broadcast_shapes(*(t.shape for t in operands))
    except ValueError as error:
        described = ", ".join(f"{n} is {t}" for n, t in zip(names, operands, strict=True))
        raise GraphError(f"{who}: operands do not broadcast at {error}: {described}") from None


def common_type(who: str, names: tuple[str, ...], operands: tuple[TensorType, ...]) -> DType:
    """Promoted type of the operands.  Raises GraphError naming them, with a cast as the fix."""
    try:
        return promote(*(t.dtype for t in operands))
    except ValueError as error:
        described = ", ".join(f"{n} is {t}" for n, t in zip(names, operands, strict=True))
        raise GraphError(f"{who}: types do not go together ({error}), cast one of them: {described}") from None


@op("pointwise")
class Pointwise(Elementwise):
    """y[i] = fn(operands at i), fn a row of FUNCTIONS; `parameters` are its numbers in the row's order.

    Raises GraphError for operands whose number, types or shapes do not fit, and for numbers that the operands' integer
    type does not hold.
    """

    fn: str
    parameters: tuple[float | None, ...] = ()

    @property
    def function(self) -> str:
        return self.fn

    @property
    def label(self) -> str:
        return self.fn

    @property
    def operand_names(self) -> tuple[str, ...]:
        return FUNCTIONS[self.fn].operands

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        row = FUNCTIONS[self.fn]
        if len(operands) != row.arity or len(self.parameters) != len(row.parameters):
            raise GraphError(
                f"{self.fn}: takes {row.arity} operands and {len(row.parameters)} parameters, "
                f"not {len(operands)} and {len(self.parameters)}"
            )
        dtype = common_type(self.fn, self.operand_names, operands)
        if not TAKES[row.takes](dtype):
            raise GraphError(f"{self.fn}: operand is {dtype}; a {row.takes} type is needed")
        self._check_parameters(row, dtype)
        return (TensorType(result_shape(self.fn, self.operand_names, operands), row.gives or dtype),)

    def _check_parameters(self, row: Fn, dtype: DType) -> None:
        """Raises GraphError for a missing number, and for one that an integer type of the operands does not hold."""
        for (name, default), number in zip(row.parameters, self.parameters, strict=True):
            if number is None and default is not None:
                raise GraphError(f"{self.fn}: {name} is None; a number is needed")
            if number is not None and dtype.is_integer and not (math.isfinite(number) and dtype.holds(number)):
                raise GraphError(f"{self.fn}: {name} is {quoted(number)}, which {dtype} does not hold")

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (FUNCTIONS[self.fn].numpy(*in_common_type(operands), *self.parameters),)


def in_common_type(operands: tuple[Array, ...]) -> tuple[Array, ...]:
    """Integers, or floats, of different types in their common one, in which the op is computed.

    Numpy would compute a square of int8 that is added to an int32 in int8, int8 beside uint8 in int16, and a square of
    float32 that is added to a float64 in float32.
    """
    types = {a.dtype for a in operands}
    if len(types) == 1:
        return operands
    if all(t.kind == "f" for t in types):
        common = np.result_type(*types)
    elif all(t.kind in "iu" for t in types):
        common = promote(*(DTYPES[t.name] for t in types)).numpy
    else:
        return operands
    return tuple(a.astype(common, copy=False) for a in operands)


@op("bias")
class Bias(Elementwise):
    """y = x + b, b broadcast against x; a 1-D b lies along `axis` of x, and the result has x's shape.

    Raises GraphError where b does not broadcast to that shape, and for types that do not go together or are no numbers.
    """

    axis: int | None = None

    @property
    def function(self) -> str:
        return "add"

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x", "b")

    def aligned(self, index: int, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
        if index == 1 and self.axis is not None:
            return tuple(shape[0] if a == self.axis else 1 for a in range(rank))
        return super().aligned(index, shape, rank)

    def infer(self, x: TensorType, b: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        dtype = common_type("bias", self.operand_names, (x, b))
        if not TAKES["number"](dtype):
            raise GraphError(f"bias: x is {x}; a number type is needed")
        if self.axis is not None and (b.rank != 1 or not 0 <= self.axis < x.rank):
            raise GraphError(f"bias: axis={self.axis} goes with a 1-D b along an axis of x, but x is {x} and b is {b}")
        try:
            shape = broadcast_shapes(x.shape, self.aligned(1, b.shape, x.rank))
        except ValueError as error:
            raise GraphError(f"bias: operands do not broadcast at {error}: x is {x}, b is {b}") from None
        if shape != x.shape:
            raise GraphError(f"bias: b must broadcast to x's shape, but x is {x} and b is {b}")
        return (TensorType(shape, dtype),)

    def reference(self, x: Array, b: Array) -> tuple[Array, ...]:  # type: ignore[override]
        x, b = in_common_type((x, b.reshape(self.aligned(1, b.shape, x.ndim))))
        return (x + b,)


@op("cast")
class Cast(Elementwise):
    """y = x rounded to `dtype` (nearest, ties to even); floats to integers toward zero, to bool x != 0.

    A float beyond an integer type's range gives the nearest end of it, NaN gives 0; an integer is taken modulo 2**bits.
    """

    dtype: str

    @property
    def function(self) -> str:
        return "identity"

    @property
    def target(self) -> DType:
        return DTYPES[self.dtype]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        return (TensorType(x.shape, self.target),)

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        if self.target.is_integer and x.dtype.kind not in "iub":
            return (_saturated(x, self.target),)
        return (x.astype(self.target.numpy),)


@op("select")
class Select(Elementwise):
    """y = a where condition holds, b elsewhere; all three broadcast.

    Raises GraphError for a condition that is not bool, for types of a and b that do not go together, and for shapes
    that do not broadcast.
    """

    @property
    def function(self) -> str:
        return "select"

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("condition", "a", "b")

    def infer(self, condition: TensorType, a: TensorType, b: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if condition.dtype != bool_:
            raise GraphError(f"select: condition is {condition}; a bool tensor is needed")
        dtype = common_type("select", ("a", "b"), (a, b))
        return (TensorType(result_shape("select", self.operand_names, (condition, a, b)), dtype),)

    def reference(self, condition: Array, a: Array, b: Array) -> tuple[Array, ...]:  # type: ignore[override]
        return (np.where(condition, a, b),)


def widened(make: Make, x: Value) -> Value:
    """`x` in the type that arithmetic on it is done in: a cast to float32 for the halves."""
    return cast_to(make, x, x.type.dtype.compute)


def cast_to(make: Make, x: Value, dtype: DType) -> Value:
    """`x` cast to `dtype`, or itself where it has that type."""
    return x if x.type.dtype == dtype else make(Cast(dtype=dtype.name), x)
