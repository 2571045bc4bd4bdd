"""Pointwise functions against PyTorch and scipy, and what is refused; types are in test_promotion.py."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import scipy.special
import torch
from torch.nn import functional

import graphdnn as gd
from graphdnn.ir.ops.pointwise import FUNCTIONS
from graphdnn.ir.types import Array, promote
from tests.ir.single import array, evaluated, inferred, tensor, torch_type

FLOATS = (gd.float64, gd.float32, gd.float16, gd.bfloat16)
INTEGERS = (gd.int64, gd.int32, gd.int8, gd.uint8)


def through_autograd(
    fn: Callable[[torch.Tensor], torch.Tensor],
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """dy times the derivative of fn at x, as PyTorch finds it."""

    def backward(dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(fn(x), x, dy)[0]

    return backward


def at_result(fn: Callable[[torch.Tensor], torch.Tensor], inverse: Callable[[torch.Tensor], torch.Tensor]) -> object:
    """The same with y = fn(x) given instead of x."""
    return lambda dy, y: through_autograd(fn)(dy, inverse(y))


EXPECTED: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "mod": torch.fmod, "pow": torch.pow,
    "minimum": torch.minimum, "maximum": torch.maximum, "add_square": lambda a, b: a + b.square(), "atan2": torch.atan2,
    "neg": torch.neg, "abs": torch.abs, "square": torch.square, "identity": torch.clone, "exp": torch.exp,
    "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "sin": torch.sin,
    "cos": torch.cos, "tan": torch.tan, "tanh": torch.tanh, "erf": torch.erf, "ceil": torch.ceil, "floor": torch.floor,
    "relu": functional.relu, "leaky_relu": lambda x: functional.leaky_relu(x, 0.2),
    "elu": lambda x: functional.elu(x, 1.3), "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"), "sigmoid": torch.sigmoid, "silu": functional.silu,
    "softplus": lambda x: functional.softplus(x, 2.0, threshold=1e9), "swish": lambda x: x * torch.sigmoid(1.5 * x),
    "hard_sigmoid": functional.hardsigmoid, "hard_swish": functional.hardswish,
    "clip": lambda x: torch.clip(x, -0.5, 0.75),
    "relu_backward": through_autograd(functional.relu), "tanh_backward": at_result(torch.tanh, torch.atanh),
    "sigmoid_backward": at_result(torch.sigmoid, torch.logit),
    "leaky_relu_backward": through_autograd(lambda x: functional.leaky_relu(x, 0.2)),
    "elu_backward": through_autograd(lambda x: functional.elu(x, 1.3)),
    "gelu_backward": through_autograd(functional.gelu),
    "gelu_tanh_backward": through_autograd(lambda x: functional.gelu(x, approximate="tanh")),
    "silu_backward": through_autograd(functional.silu),
    "softplus_backward": through_autograd(lambda x: functional.softplus(x, 2.0, threshold=1e9)),
    "swish_backward": through_autograd(lambda x: x * torch.sigmoid(1.5 * x)),
    "equal": torch.eq, "not_equal": torch.ne, "greater": torch.gt, "greater_equal": torch.ge, "less": torch.lt,
    "less_equal": torch.le, "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_not": torch.logical_not,
}  # fmt: skip
"""What PyTorch calls each function; parameters as in PARAMETERS."""

PARAMETERS: dict[str, dict[str, object]] = {
    "leaky_relu": {"negative_slope": 0.2}, "leaky_relu_backward": {"negative_slope": 0.2},
    "elu": {"alpha": 1.3}, "elu_backward": {"alpha": 1.3},
    "softplus": {"beta": 2.0}, "softplus_backward": {"beta": 2.0}, "swish": {"beta": 1.5},
    "swish_backward": {"beta": 1.5}, "clip": {"min": -0.5, "max": 0.75}, "gelu_tanh": {"approximate": "tanh"},
    "gelu_tanh_backward": {"approximate": "tanh"},
}  # fmt: skip

POSITIVE = {"log", "sqrt", "rsqrt", "pow"}
IN_RANGE = {"tanh_backward": (-0.9, 0.9), "sigmoid_backward": (0.1, 0.9)}
"""Where y is a possible result of the activation."""

FINITE_AT_ZERO = set(FUNCTIONS) - {"log", "rsqrt", "reciprocal", "div", "mod", "tanh_backward", "sigmoid_backward"}


def call(fn: str) -> Callable[..., gd.Value]:
    method = fn.replace("gelu_tanh", "gelu")
    return lambda g, *v: getattr(g, method)(*v, **PARAMETERS.get(fn, {}))


def elements(fn: str, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    if FUNCTIONS[fn].takes == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if fn in IN_RANGE:
        return rng.uniform(*IN_RANGE[fn], shape)
    x = 3 * rng.standard_normal(shape)
    return np.abs(x) + 0.05 if fn in POSITIVE else x


def test_the_table_of_expectations_is_whole() -> None:
    assert set(EXPECTED) == set(FUNCTIONS)


@pytest.mark.parametrize("shapes", [((3, 5, 7), (5, 7)), ((1,), (129,)), ((4, 1, 33), (3, 1)), ((), (2, 3)), ((), ())])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_definition(fn: str, shapes: tuple[tuple[int, ...], ...], rng: np.random.Generator) -> None:
    if "backward" in fn:
        shapes = (shapes[0], shapes[0])
    operands = [np.asarray(elements(fn, rng, shape)) for shape in shapes[: FUNCTIONS[fn].arity]]
    found = evaluated(call(fn), *operands)
    expected = array(EXPECTED[fn](*map(tensor, operands)))
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("fn", sorted(FINITE_AT_ZERO & {f for f, row in FUNCTIONS.items() if row.takes != "bool"}))
def test_at_zero_and_at_the_kinks(fn: str) -> None:
    operands = [np.array([0.0, -0.0, 3.0, -3.0, 1.0, -1.0, 6.0])] * FUNCTIONS[fn].arity
    if "backward" in fn:
        operands[0] = np.arange(1.0, 8.0)
    if fn in POSITIVE:
        operands = [np.abs(x) for x in operands]
    expected = array(EXPECTED[fn](*map(tensor, operands)))
    np.testing.assert_allclose(evaluated(call(fn), *operands), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("fn", [fn for fn in FUNCTIONS if fn.endswith("_backward")])
def test_gradients_at_nan_are_pytorchs(fn: str) -> None:
    """Those of ReLU and ELU are dy there, since NaN is not <= 0; that of leaky ReLU is the slope's part of it."""
    operands = [np.array([2.0, np.nan]), np.array([np.nan, 0.5])]
    found = evaluated(call(fn), *operands)
    np.testing.assert_allclose(found, array(EXPECTED[fn](*map(tensor, operands))), rtol=1e-9)


@pytest.mark.parametrize(
    "fn", ["relu", "clip", "maximum", "minimum", "gelu", "sigmoid", "silu", "tanh", "leaky_relu", "elu"]
)
def test_nan_stays_nan(fn: str) -> None:
    x = np.array([np.nan, 1.0], np.float32)
    found = evaluated(call(fn), *[x, x[::-1].copy()][: FUNCTIONS[fn].arity])
    assert np.isnan(found[0])
    assert np.isnan(found[1]) == (FUNCTIONS[fn].arity == 2)


@pytest.mark.parametrize("fn", ["gelu", "gelu_tanh", "sigmoid", "silu", "tanh", "erf", "elu", "hard_swish"])
def test_far_out_nothing_overflows(fn: str) -> None:
    x = np.array([-1e4, -90.0, 90.0, 1e4], np.float32)
    expected = array(EXPECTED[fn](tensor(x.astype(np.float64))))
    np.testing.assert_allclose(evaluated(call(fn), x), expected, rtol=1e-6, atol=1e-30)


def test_near_zero_elu_keeps_its_digits() -> None:
    x = np.array([-1e-30, -1e-9, -1e-4], np.float32)
    np.testing.assert_allclose(evaluated(call("elu"), x), 1.3 * np.expm1(x.astype(np.float64)), rtol=2e-7)


def test_softplus_is_linear_far_out() -> None:
    x = np.array([-1e4, 90.0, 1e4], np.float32)
    np.testing.assert_allclose(evaluated(call("softplus"), x), [0, 90, 1e4], rtol=1e-6)


def test_erf_and_sigmoid_are_scipys(rng: np.random.Generator) -> None:
    x = rng.standard_normal(63)
    np.testing.assert_allclose(evaluated(call("erf"), x), scipy.special.erf(x), rtol=1e-13)
    np.testing.assert_allclose(evaluated(call("sigmoid"), x), scipy.special.expit(x), rtol=1e-13)


def test_int8_with_uint8_does_not_overflow() -> None:
    a, b = np.array([-128, 127], np.int8), np.array([255, 254], np.uint8)
    found = evaluated(lambda g, *v: g.add_square(*v), a, b)
    np.testing.assert_array_equal(found, a.astype(np.int64) + b.astype(np.int64) ** 2)


WHOLE: dict[str, Callable[..., gd.Value]] = {
    "div": lambda g, *v: g.div(*v, rounding_mode="trunc"),
    "mod": lambda g, *v: g.mod(*v),
}


@pytest.mark.parametrize("fn", WHOLE)
def test_integer_division_rounds_toward_zero(fn: str) -> None:
    a, b = np.array([7, -7, 7, -7, 5, 0], np.int32), np.array([2, 2, -2, -2, 0, 3], np.int32)
    divided = b != 0
    found = evaluated(WHOLE[fn], a, b)
    expected = {"div": lambda x, y: torch.div(x, y, rounding_mode="trunc"), "mod": torch.fmod}[fn](
        tensor(a[divided]), tensor(b[divided])
    )
    np.testing.assert_array_equal(found[divided], array(expected))
    assert found[~divided] == 0


@pytest.mark.parametrize("dtype", [gd.int8, gd.uint8, gd.int32, gd.int64], ids=str)
def test_integer_division_at_the_ends(dtype: gd.DType) -> None:
    """The least integer has no absolute value; by -1 it wraps, as it does in C++ computed without a sign."""
    ends = np.iinfo(dtype.numpy)
    numbers = [n for n in (ends.min, ends.min + 1, -3, -1, 0, 1, 3, ends.max - 1, ends.max) if n >= ends.min]
    pairs = [(a, b) for a in numbers for b in numbers]
    a, b = (np.array(column, dtype.numpy) for column in zip(*pairs, strict=True))
    quotients = [0 if y == 0 else abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1) for x, y in pairs]
    remainders = [0 if y == 0 else x - y * q for (x, y), q in zip(pairs, quotients, strict=True)]
    wrapped = [(q - ends.min) % 2**dtype.bits + ends.min for q in quotients]
    np.testing.assert_array_equal(evaluated(WHOLE["div"], a, b), np.array(wrapped, dtype.numpy))
    np.testing.assert_array_equal(evaluated(call("mod"), a, b), np.array(remainders, dtype.numpy))


@pytest.mark.parametrize(("one", "other"), list(itertools.permutations(INTEGERS, 2)), ids=str)
@pytest.mark.parametrize("fn", ["add", "sub", "mul", "add_square", "div", "mod", "minimum", "maximum", "less", "equal"])
def test_integers_of_two_types_are_computed_in_the_common_one(
    fn: str, one: gd.DType, other: gd.DType, rng: np.random.Generator
) -> None:
    a, b = (
        rng.integers(np.iinfo(t.numpy).min, np.iinfo(t.numpy).max, 63, t.numpy, endpoint=True) for t in (one, other)
    )
    common = promote(one, other).numpy
    made = WHOLE.get(fn, call(fn))
    np.testing.assert_array_equal(evaluated(made, a, b), evaluated(made, a.astype(common), b.astype(common)))


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("fn", sorted(f for f, row in FUNCTIONS.items() if row.arity == 2 and row.takes != "bool"))
def test_floats_of_two_types_are_computed_in_the_common_one(fn: str, flip: bool, rng: np.random.Generator) -> None:
    """A float64 result has float64's accuracy, whatever the other operand's type is."""
    a, b = (
        elements(fn, rng, (63,)).astype(t) for t in ((np.float64, np.float32) if flip else (np.float32, np.float64))
    )
    found = evaluated(call(fn), a, b)
    np.testing.assert_array_equal(found, evaluated(call(fn), a.astype(np.float64), b.astype(np.float64)))


def test_a_bias_of_another_integer_type() -> None:
    found = evaluated(lambda g, *v: g.bias(*v, axis=1), np.array([[-128, 127]], np.int8), np.array([255, 1], np.uint8))
    np.testing.assert_array_equal(found, np.array([[127, 128]], np.int32))


@pytest.mark.parametrize(
    "shapes", [((3, 1, 5), (4, 1)), ((7,), (2, 3, 7)), ((1,), (5,)), ((), (2, 3)), ((2, 1), (1, 9))]
)
def test_broadcasting_is_numpys(shapes: tuple[tuple[int, ...], tuple[int, ...]], rng: np.random.Generator) -> None:
    a, b = (rng.standard_normal(s) for s in shapes)
    np.testing.assert_array_equal(evaluated(lambda g, *v: g.sub(*v), a, b), a - b)


@pytest.mark.parametrize(
    ("axis", "b"), [(1, (3,)), (-1, (4,)), (0, (2,)), (None, (3, 4)), (None, (1, 3, 1)), (None, ())]
)
def test_bias(axis: int | None, b: tuple[int, ...], rng: np.random.Generator) -> None:
    x, given = rng.standard_normal((2, 3, 4)), rng.standard_normal(b)
    shape = b if axis is None else tuple(b[0] if a == axis % 3 else 1 for a in range(3))
    expected = torch.tensor(x) + torch.tensor(given).reshape(shape)
    np.testing.assert_array_equal(evaluated(lambda g, *v: g.bias(*v, axis=axis), x, given), expected.numpy())


@pytest.mark.parametrize(("before", "after"), list(itertools.product((*FLOATS, *INTEGERS, gd.bool), repeat=2)), ids=str)
def test_casts_are_as_in_torch(before: gd.DType, after: gd.DType, rng: np.random.Generator) -> None:
    x = (rng.integers(0, 90, 65) + (rng.uniform(0.1, 0.4, 65) if before.is_float else 0)).astype(before.numpy)
    found = evaluated(lambda g, v: g.cast(v, after), x)
    assert found.dtype == after.numpy
    expected = array(tensor(x).to(torch_type(after)))
    np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


@pytest.mark.parametrize("value", [2.5, -2.5, 0.3, -0.9, 3.999])
def test_casts_to_integers_round_toward_zero(value: float) -> None:
    found = evaluated(lambda g, v: g.cast(v, gd.int32), np.array([value], np.float32))
    assert found[0] == int(value)


@pytest.mark.parametrize("after", INTEGERS, ids=str)
@pytest.mark.parametrize("before", FLOATS, ids=str)
def test_casts_hold_floats_within_an_integer_type(before: gd.DType, after: gd.DType) -> None:
    limits = np.iinfo(after.numpy)
    ends = [limits.min, limits.max, limits.min - 1, limits.max + 1, limits.max + 0.5, -0.9, 2 * limits.max, -(2.0**100)]
    with np.errstate(over="ignore"):
        x = np.array([*map(float, ends), np.inf, -np.inf, np.nan]).astype(before.numpy)
    found = evaluated(lambda g, v: g.cast(v, after), x)
    held = [0 if np.isnan(v) else limits.max if v > limits.max else max(v, limits.min) for v in x.tolist()]
    assert found.tolist() == [int(v) for v in held]


@pytest.mark.parametrize("after", [gd.int8, gd.uint8, gd.int32], ids=str)
def test_casts_between_integers_lose_upper_bits(after: gd.DType) -> None:
    x = [300, -129, 2**31, -(2**40) - 7]
    found = evaluated(lambda g, v: g.cast(v, after), np.array(x, np.int64))
    assert [(int(v) - e) % 2**after.bits for v, e in zip(found, x, strict=True)] == [0] * 4


def test_select(rng: np.random.Generator) -> None:
    c, a, b = rng.integers(0, 2, (5, 1)).astype(bool), rng.standard_normal((3, 5, 4)), rng.standard_normal(4)
    found = evaluated(lambda g, *v: g.select(*v), c, a, b)
    np.testing.assert_array_equal(found, array(torch.where(tensor(c), tensor(a), tensor(b))))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, x, i, s: g.add(x, s), r"operands do not broadcast at axis 1: 3 against 4: a is f32\[2x3\], b is"),
        (lambda g, x, i, s: g.add(x, i, name="sum"), r"sum: add: types do not go together \(float32 with int32\)"),
        (lambda g, x, i, s: g.select(x, x, x), r"select: condition is f32\[2x3\]; a bool tensor is needed"),
        (lambda g, x, i, s: g.clip(x), "clip: min and max are both absent"),
        (lambda g, x, i, s: g.clip(x, min=2, max=1), "clip: min=2 is above max=1"),
        (lambda g, x, i, s: g.gelu(x, approximate="fast"), 'gelu: approximate is \'fast\'; "none" or "tanh" is needed'),
        (lambda g, x, i, s: g.bias(x, s), r"bias: b must broadcast to x's shape|bias: operands do not broadcast"),
        (lambda g, x, i, s: g.bias(x, g.reduce_sum(x, axes=0)), r"bias: b is 1-D .* name its axis, such as axis=1"),
        (lambda g, x, i, s: g.cast(x, "float7"), "data type 'float7' is not one of"),
        (lambda g, x, i, s: g.add(1, 2), "add: all operands are Python numbers"),
        (lambda g, x, i, s: g.softplus(x, beta=0), "softplus: beta is 0"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(call: object, message: str) -> None:
    with pytest.raises(gd.GraphError, match=message):
        inferred(call, ((2, 3), gd.float32), ((2, 3), gd.int32), ((2, 4), gd.float32))  # type: ignore[arg-type]


def test_another_builders_value_is_refused() -> None:
    other = gd.GraphBuilder("other").input("x", (2,), gd.float32)
    with pytest.raises(gd.GraphError, match="add: b is %x, which belongs to another builder"):
        inferred(lambda g, v: g.add(v, other), ((2,), gd.float32))
