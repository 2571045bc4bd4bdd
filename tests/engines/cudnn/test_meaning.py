"""What the rules tell cuDNN, read in numpy: each of the frontend's methods as it is documented, against the definition.

That the frontend builds a graph says nothing of whether its operands changed places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cudnn
import numpy as np
import pytest

import graphdnn as gd
import graphdnn.engines.cudnn.rules
from graphdnn.answer import Decline
from graphdnn.engines.check import POSITIVE
from graphdnn.engines.cudnn.anatomy import Anatomy
from graphdnn.engines.cudnn.lower import RULES, Emitter
from graphdnn.engines.cudnn.rules.pointwise import DECLINED, TWO_SIDED
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.pointwise import FUNCTIONS, Elementwise, Pointwise
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, bool_, channels_last
from tests.engines.cudnn.regions import closed, convolution
from tests.engines.cudnn.test_lower import NUMBERS
from tests.engines.cudnn.test_support import TAKEN, closed_prologue
from tests.numbers import TOLERANCE, relative_error

ROUNDED = {cudnn.data_type.HALF: np.float16}
"""Types in which a tensor holds less than it is computed in here."""


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def clipped(x: Array, lower_clip: float = 0.0, upper_clip: float = np.inf) -> Array:
    return np.clip(x, lower_clip, upper_clip)


def swish_slope(loss: Array, x: Array, swish_beta: float) -> Array:
    s = sigmoid(swish_beta * x)
    return loss * (s + swish_beta * x * s * (1 - s))


METHODS: dict[str, Callable[..., Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "mod": np.fmod,
    "pow": np.power,
    "min": np.minimum,
    "max": np.maximum,
    "add_square": lambda a, b: a + b * b,
    "neg": np.negative,
    "abs": np.abs,
    "identity": lambda x: x,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "erf": FUNCTIONS["erf"].numpy,
    "ceil": np.ceil,
    "floor": np.floor,
    "relu": clipped,
    "leaky_relu": lambda x, negative_slope: np.where(x > 0, x, negative_slope * x),
    "elu": lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
    "gelu": FUNCTIONS["gelu"].numpy,
    "gelu_approx_tanh": FUNCTIONS["gelu_tanh"].numpy,
    "sigmoid": sigmoid,
    "softplus": lambda x: np.log1p(np.exp(x)),
    "swish": lambda x, swish_beta: x * sigmoid(swish_beta * x),
    "relu_backward": lambda loss, x: np.where(x > 0, loss, 0.0),
    "leaky_relu_backward": lambda loss, x, negative_slope: np.where(x > 0, loss, negative_slope * loss),
    "gelu_backward": FUNCTIONS["gelu_backward"].numpy,
    "gelu_approx_tanh_backward": FUNCTIONS["gelu_tanh_backward"].numpy,
    "swish_backward": swish_slope,
    "binary_select": lambda a, b, mask: np.where(mask, a, b),
    "cmp_eq": np.equal,
    "cmp_neq": np.not_equal,
    "cmp_gt": np.greater,
    "cmp_ge": np.greater_equal,
    "cmp_lt": np.less,
    "cmp_le": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_not": np.logical_not,
    "matmul": lambda A, B: A @ B,
}
"""What the frontend's methods compute, operands in their order."""


class Tensor:
    """A tensor of the operation graph, with its numbers."""

    def __init__(self, array: Array) -> None:
        self.array = np.asarray(array)

    def get_dim(self) -> list[int]:
        return list(self.array.shape)

    def set_data_type(self, dtype: Any) -> Tensor:
        if dtype in ROUNDED:
            self.array = self.array.astype(ROUNDED[dtype]).astype(np.float64)
        return self

    def set_dim(self, dims: list[int]) -> Tensor:
        self.array = self.array.reshape(dims)
        return self

    def set_stride(self, strides: list[int]) -> Tensor:
        return self

    def set_uid(self, uid: int) -> Tensor:
        return self

    def set_output(self, is_output: bool) -> Tensor:
        return self


class Graph:
    """An operation graph that is computed as it is told.  `memories` are flat, by the names of inputs."""

    def __init__(self, memories: Mapping[str, Array]) -> None:
        self.memories = memories

    def tensor(self, dim: list[int], stride: list[int], name: str, **_: Any) -> Tensor:
        flat = self.memories[name]
        view = np.lib.stride_tricks.as_strided(flat, dim, [s * flat.itemsize for s in stride])
        return Tensor(view.astype(np.float64))

    def tensor_scalar(self, number: float, kind: Any) -> Tensor:
        return Tensor(np.float64(number))

    def conv_fprop(
        self,
        image: Tensor,
        weight: Tensor,
        pre_padding: list[int],
        post_padding: list[int],
        stride: list[int],
        dilation: list[int],
        name: str,
    ) -> Tensor:
        groups = image.array.shape[1] // weight.array.shape[1]
        padding = tuple(zip(pre_padding, post_padding, strict=True))
        op = Conv(stride=tuple(stride), padding=padding, dilation=tuple(dilation), groups=groups)
        return Tensor(*op.reference(image.array, weight.array))

    def __getattr__(self, method: str) -> Callable[..., Tensor]:
        meaning = METHODS[method]

        def operation(*operands: Tensor, name: str = "", compute_data_type: Any = None, **given: Any) -> Tensor:
            numbers = {k: v.array if isinstance(v, Tensor) else v for k, v in given.items()}
            with np.errstate(all="ignore"):
                return Tensor(meaning(*(o.array for o in operands), **numbers))

        return operation


def told(region: Region, arrays: Mapping[str, Array]) -> dict[Value, Tensor]:
    """Every tensor that the rules make for a region, with its numbers."""
    memories = {}
    for value in region.inputs:
        memories[value.name] = np.zeros(value.type.extent, value.type.dtype.numpy)
        value.type.strided(memories[value.name])[...] = arrays[value.name]
    frame = Anatomy(region).frame
    assert not isinstance(frame, Decline)
    emit = Emitter(cudnn, Graph(memories), region, frame)
    for node in region.nodes:
        emit.handles.update(zip(node.results, RULES[type(node.op)](emit, node), strict=True))
        emit.narrow(node)
    emit.finish()
    return emit.handles


def check(region: Region, rng: np.random.Generator, dtype: str) -> None:
    arrays = {}
    for value in region.inputs:
        uses = [(n, i) for n in region.nodes for i, v in enumerate(n.operands) if v is value]
        positive = any(isinstance(n.op, Elementwise) and i in POSITIVE.get(n.op.function, ()) for n, i in uses)
        drawn = rng.uniform(0.5, 1.5, value.type.shape) if positive else rng.standard_normal(value.type.shape)
        arrays[value.name] = drawn.astype(value.type.dtype.numpy)
    wanted = gd.evaluate(region.graph, arrays, gd.float64)
    found = told(region, arrays)
    for name, value in region.graph.outputs.items():
        got = np.broadcast_to(found[value].array.reshape(wanted[name].shape), wanted[name].shape)
        assert relative_error(got, wanted[name]) <= TOLERANCE[dtype], f"{name} of {region.pattern}"


FULL, SMALL = (3, 24, 5, 7), (1, 24, 1, 1)
ORDERS = {"equal": (FULL, FULL), "small first": (SMALL, FULL), "small second": (FULL, SMALL)}
NUMBERED = {"number first": (1.25, FULL), "number second": (FULL, 1.25)}
"""Shapes of two operands; a number stands for itself."""

FLOATS = [f for f, row in FUNCTIONS.items() if row.takes != "bool" and f not in DECLINED]
OF_NUMBERS = ("add", "sub", "mul", "div", "mod", "pow", "minimum", "maximum", "add_square", "greater", "less_equal")


def operands(g: gd.GraphBuilder, *shapes: tuple[int, ...] | float) -> list[Value | float]:
    made = zip("abc", shapes, strict=False)
    return [s if isinstance(s, float) else g.input(n, s, gd.float32, strides=channels_last(s)) for n, s in made]


def finished(g: gd.GraphBuilder, z: Value) -> Region:
    """A condition chooses between a number and another tensor."""
    if z.type.dtype == bool_:
        z = g.select(z, 0.75, g.input("other", FULL, gd.float32, strides=channels_last(FULL)))
    return closed(g, z)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fn", FLOATS)
def test_a_function_is_told_as_itself(fn: str, order: str, rng: np.random.Generator) -> None:
    arity = FUNCTIONS[fn].arity
    if (arity == 1 and order != "equal") or (order == "small first" and fn not in TWO_SIDED):
        return
    g = gd.GraphBuilder("alone")
    numbers = tuple(NUMBERS[name] for name, _ in FUNCTIONS[fn].parameters)
    (z,) = g._add(Pointwise(fn=fn, parameters=numbers), *operands(g, *ORDERS[order][:arity]), name=None)
    check(finished(g, z), rng, "float32")


@pytest.mark.parametrize("order", NUMBERED)
@pytest.mark.parametrize("fn", OF_NUMBERS)
def test_a_number_is_told_in_its_place(fn: str, order: str, rng: np.random.Generator) -> None:
    if order == "number first" and fn not in TWO_SIDED:
        return
    g = gd.GraphBuilder("number")
    check(finished(g, getattr(g, fn)(*operands(g, *NUMBERED[order]))), rng, "float32")


@pytest.mark.parametrize("numbers", [(None, 0.5), (-0.5, None), (0.0, 0.5), (0.0, None), (-0.5, 0.5), (0.25, 0.5)])
def test_a_clip_is_told_with_its_bounds(numbers: tuple[float | None, float | None], rng: np.random.Generator) -> None:
    g = gd.GraphBuilder("clip")
    (x,) = operands(g, FULL)
    check(closed(g, g.clip(x, min=numbers[0], max=numbers[1])), rng, "float32")


@pytest.mark.parametrize("number", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("fn", ["elu", "softplus", "elu_backward", "softplus_backward", "swish", "swish_backward"])
def test_a_parameter_is_told(fn: str, number: float, rng: np.random.Generator) -> None:
    g = gd.GraphBuilder(fn)
    given = operands(g, *(FULL,) * FUNCTIONS[fn].arity)
    check(closed(g, g._add(Pointwise(fn=fn, parameters=(number,)), *given, name=None)[0]), rng, "float32")


def test_conditions_are_told_in_their_order(rng: np.random.Generator) -> None:
    g = gd.GraphBuilder("conditions")
    a, b = operands(g, FULL, FULL)
    inside = g.logical_and(g.greater(a, -1.0), g.logical_not(g.less(0.5, b)))
    check(closed(g, g.select(g.logical_or(inside, g.less_equal(b, a)), a, b)), rng, "float32")


READABLE = [n for n, r in TAKEN.items() if all(isinstance(x.op, Conv | MatMul | Elementwise) for x in r.nodes)]


@pytest.mark.parametrize("name", READABLE)
def test_products_and_the_work_around_them(name: str, rng: np.random.Generator) -> None:
    check(TAKEN[name], rng, "float16")


def test_a_convolution_is_told_with_its_attributes(rng: np.random.Generator) -> None:
    """Each of them other than its neighbour, and other along each axis."""
    for attributes in ({"padding": ((0, 3), (2, 1))}, {"stride": (2, 3)}, {"dilation": (1, 2), "padding": 2}):
        check(convolution((3, 24, 11, 8), 40, dtype=gd.float32, **attributes), rng, "float32")
    check(convolution((3, 24, 11, 8), 40, dtype=gd.float32, groups=8), rng, "float32")


def test_what_the_matrix_units_read_is_rounded_to_the_type_that_it_has(rng: np.random.Generator) -> None:
    """All other tensors between operations keep float32."""
    region = closed_prologue(gd.float16)
    conv = next(n for n in region.nodes if isinstance(n.op, Conv))
    arrays = {v.name: rng.standard_normal(v.type.shape).astype(np.float16) for v in region.inputs}
    found = told(region, arrays)
    *inner, read = (found[n.result].array for n in region.nodes if n is not conv)
    np.testing.assert_array_equal(read, read.astype(np.float16))
    assert all((array != array.astype(np.float16)).any() for array in inner)
