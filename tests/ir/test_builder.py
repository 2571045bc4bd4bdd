"""What a builder takes and refuses, apart from single ops: arrays, numbers, operators."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.ir.builder.pointwise import PointwiseMethods
from graphdnn.ir.ops.pointwise import FUNCTIONS

BIG_ENDIAN = np.arange(6, dtype=">f4").reshape(2, 3)


def test_constants_are_plain_arrays_in_native_order(tmp_path) -> None:
    wanted = BIG_ENDIAN.astype(np.float32)
    for array in (
        BIG_ENDIAN,
        wanted.view(np.matrix),
        np.asfortranarray(wanted),
        np.ma.masked_array(wanted, wanted > 2),
    ):
        g = gd.GraphBuilder()
        graph = g.build({"y": g.identity(g.constant(array, name="c"))})
        graph.save(str(tmp_path / "c.json"))
        by_name = gd.parse(str(graph), {"c": array if type(array) is np.ndarray else wanted})
        for again in (graph, gd.Graph.from_json(graph.to_json()), gd.Graph.load(str(tmp_path / "c.json")), by_name):
            stored = again.payloads["c"].array()
            assert type(stored) is np.ndarray
            assert stored.dtype.isnative
            np.testing.assert_array_equal(stored, wanted)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_methods_made_from_the_table_are_declared(fn: str) -> None:
    """Type checkers and editors see those methods that have a line of their own, or are written out."""
    method = getattr(PointwiseMethods, fn, None)
    is_made = method is not None and method.__code__.co_name != fn
    assert not is_made or fn in PointwiseMethods.__annotations__, f"ir/builder/pointwise.py has no line for {fn}"


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("fn", ["add", "less", "maximum"])
def test_a_number_outside_the_other_operands_type_is_refused(name: str, fn: str) -> None:
    g, dtype = gd.GraphBuilder(), gd.DType
    x = g.iota(3, dtype=getattr(gd, name))
    limits = np.iinfo(name)
    assert isinstance(x.type.dtype, dtype)
    for number in (limits.min, limits.max):
        getattr(g, fn)(x, int(number))
    for number in (limits.min - 1, limits.max + 1):
        with pytest.raises(gd.GraphError, match=f"{fn}: {number} is outside {name}"):
            getattr(g, fn)(x, int(number))


def test_a_number_that_no_float_holds_is_refused() -> None:
    g = gd.GraphBuilder()
    with pytest.raises(gd.GraphError, match="too large for a floating-point number"):
        g.add(g.input("x", (3,), gd.float32), 10**400)


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), np.float16(0.5)])
def test_numpy_numbers_are_numbers(number: np.floating) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3,), gd.float16)
    for y in (number * x, x * number, g.mul(x, number)):
        assert y.type == x.type
    assert [str(n.operands[i]) for n, i in zip(g.build({"y": y}).nodes, (0, 1, 1), strict=True)] == ["0.5"] * 3


@pytest.mark.parametrize("fn", [f for f, row in FUNCTIONS.items() if row.arity == 2 and hasattr(gd.GraphBuilder, f)])
def test_operands_are_named_as_the_equation_names_them(fn: str) -> None:
    dtype = gd.bool if FUNCTIONS[fn].takes == "bool" else gd.float32
    g = gd.GraphBuilder()
    first, second = (g.input(name, shape, dtype) for name, shape in (("first", (2, 3)), ("second", (2, 4))))
    method, names = getattr(g, fn), FUNCTIONS[fn].operands
    with pytest.raises(gd.GraphError, match=f"{names[0]} is .*, {names[1]} is "):
        method(**dict(zip(names, (first, second), strict=True)))


@pytest.mark.parametrize("operate", [lambda a, x: a + x, lambda a, x: x + a, lambda a, x: a @ x, lambda a, x: x @ a])
def test_arrays_beside_values_are_refused(operate) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3, 3), gd.float32)
    with pytest.raises(gd.GraphError, match="is a ndarray; a value of this builder is needed"):
        operate(np.ones((3, 3), np.float32), x)
    assert g.build({"x": x}).nodes == ()


def image(g: gd.GraphBuilder) -> gd.Value:
    return g.input("x", (2, 4, 6, 6), gd.float32)


def weights(g: gd.GraphBuilder, *shape: int) -> gd.Value:
    return g.constant(np.ones(shape, np.float32))


NUMPY_ARGUMENTS = {
    "axis": lambda g, x: g.softmax(x, axis=np.int64(1)),
    "axes": lambda g, x: g.reduce_sum(x, axes=np.int64(1)),
    "several axes": lambda g, x: g.layer_norm(x, axes=np.array([1, 3])),
    "order": lambda g, x: g.transpose(x, np.array([0, 2, 1, 3])),
    "bounds": lambda g, x: g.slice(x, np.zeros(4, int), np.ones(4, int)),
    "parts": lambda g, x: g.split(x, np.int32(2), axis=np.uint8(1))[0],
    "short": lambda g, x: g.squeeze(g.unsqueeze(x, np.int64(0)), np.int64(0)),
    "stride": lambda g, x: g.conv(
        x, weights(g, 2, 4, 3, 3), stride=np.int64(2), padding=[np.int64(1), (np.int8(0), 1)]
    ),
    "kernel": lambda g, x: g.max_pool(x, kernel=np.int32(2), stride=(np.int64(1), 2)),
    "groups": lambda g, x: g.group_norm(x, weights(g, 4), weights(g, 4), groups=np.int64(2), eps=np.float32(0.5)),
    "window": lambda g, x: g.attention(x, x, x, window=np.array([1, 2]), scale=np.float32(0.5)),
    "clip": lambda g, x: g.clip(x, min=np.float32(0.5)),
    "flag": lambda g, x: g.reduce_sum(x, axes=1, keepdims=np.bool_(True)),
    "size": lambda g, x: g.iota(np.int64(3)),
}


@pytest.mark.parametrize("what", NUMPY_ARGUMENTS)
def test_numpy_arguments_are_written_as_numbers(what: str) -> None:
    g = gd.GraphBuilder()
    graph = g.build({"y": NUMPY_ARGUMENTS[what](g, image(g))})
    assert str(gd.parse(str(graph))) == str(graph)
    assert gd.Graph.from_json(graph.to_json()).to_json() == graph.to_json()


WRONG = {
    "input a: shape is (2.7, 3)": lambda g, x: g.input("a", (2.7, 3), gd.float32),
    "input a: shape is '23'": lambda g, x: g.input("a", "23", gd.float32),
    "input a: strides are": lambda g, x: g.input("a", (2, 3), gd.float32, strides=(-3, 1)),
    "input a: strides is (2.5, 1)": lambda g, x: g.input("a", (2, 3), gd.float32, strides=(2.5, 1)),
    "input a: f32[1180591620717411303424] has more than": lambda g, x: g.input("a", (2**70,), gd.float32),
    "pad: f32[": lambda g, x: g.pad(x, [(2**40, 0)] * 4),
    "data type is None": lambda g, x: g.cast(x, None),
    "the name of input is 5": lambda g, x: g.input(5, (3,), gd.float32),
    "the name of input is None": lambda g, x: g.input(None, (3,), gd.float32),
    "the name of a value or node is ''": lambda g, x: g.relu(x, name=""),
    "the name of a value or node is 7": lambda g, x: g.relu(x, name=7),
    "text of at least one character": lambda g, x: g.relu(x, name="\ud800"),
    "the name of graph is 5": lambda g, x: gd.GraphBuilder(5),
    "softmax: axis is 1.0": lambda g, x: g.softmax(x, axis=1.0),
    "softmax: axis is None": lambda g, x: g.softmax(x, axis=None),
    "reduce_sum: axis is '1'": lambda g, x: g.reduce_sum(x, axes="1"),
    "bias: axis is 1.0": lambda g, x: g.bias(x, weights(g, 4), axis=1.0),
    "slice: an entry of starts is 0.5": lambda g, x: g.slice(x, [0.5] * 4, [2] * 4),
    "slice: starts is 0": lambda g, x: g.slice(x, 0, 1),
    "pad: value is 'a'": lambda g, x: g.pad(x, [(0, 0)] * 4, value="a"),
    "pad: padding is 1; one (lo, hi) pair": lambda g, x: g.pad(x, 1),
    "pad: padding is None": lambda g, x: g.pad(x, None),
    "max_pool: ceil_mode is 'no'; True or False": lambda g, x: g.max_pool(x, kernel=2, ceil_mode="no"),
    "avg_pool: ceil_mode is 1": lambda g, x: g.avg_pool(x, kernel=2, ceil_mode=1),
    "avg_pool: count_include_pad is None": lambda g, x: g.avg_pool(x, kernel=2, count_include_pad=None),
    "reduce_sum: keepdims is array([1, 1])": lambda g, x: g.reduce_sum(x, axes=1, keepdims=np.array([1, 1])),
    "attention: return_lse is nan": lambda g, x: g.attention(x, x, x, return_lse=float("nan")),
    "iota: size is 2.5": lambda g, x: g.iota(2.5),
    "conv: stride is True": lambda g, x: g.conv(x, weights(g, 2, 4, 3, 3), stride=True),
    "softmax: axis is True": lambda g, x: g.softmax(x, axis=True),
    "input a: shape is [True, 3]": lambda g, x: g.input("a", [True, 3], gd.float32),
    "input a: shape is {3}": lambda g, x: g.input("a", {3}, gd.float32),
    "input a: shape is b'ab'": lambda g, x: g.input("a", b"ab", gd.float32),
    "input a: shape is ''": lambda g, x: g.input("a", "", gd.float32),
    "input a: shape is {}": lambda g, x: g.input("a", {}, gd.float32),
    "input a: data type np.float32(1.0) is not one of": lambda g, x: g.input("a", (3,), np.float32(1)),
    "attention: kv_lengths is a int; a value of this builder": lambda g, x: g.attention(x, x, x, kv_lengths=5),
    "layer_norm: scale is a float; a value of this builder": lambda g, x: g.layer_norm(x, 1.0),
    "attention: bias is a ndarray": lambda g, x: g.attention(x, x, x, bias=np.zeros(6)),
    "matmul: B is a float": lambda g, x: x @ 2.0,
    "conv: stride is 2.0": lambda g, x: g.conv(x, weights(g, 2, 4, 3, 3), stride=2.0),
    "conv: padding is None": lambda g, x: g.conv(x, weights(g, 2, 4, 3, 3), padding=None),
    "conv: groups is 1.9": lambda g, x: g.conv(x, weights(g, 2, 4, 3, 3), groups=1.9),
    "conv: x is a ndarray": lambda g, x: g.conv(np.ones((2, 4, 6, 6)), x),
    "max_pool: kernel is None": lambda g, x: g.max_pool(x, kernel=None),
    "attention: window is 3": lambda g, x: g.attention(x, x, x, window=3),
    "attention: a bound of window is 1.5": lambda g, x: g.attention(x, x, x, window=(1.5, 2)),
    "attention: scale is 'a'": lambda g, x: g.attention(x, x, x, scale="a"),
    "layer_norm: eps is None": lambda g, x: g.layer_norm(x, eps=None),
    "elu: alpha is None": lambda g, x: g.elu(x, alpha=None),
    "clip: 0.5 is a float and the tensor is int32": lambda g, x: g.clip(g.iota(5), min=0.5),
    "clip: a bound is 300, which int8": lambda g, x: g.clip(g.iota(5, dtype=gd.int8), max=300),
    "bias: b is a ndarray": lambda g, x: g.bias(x, np.ones(4), axis=1),
    "concat: xs is a Value": lambda g, x: g.concat(x, axis=0),
    "build: outputs is a list": lambda g, x: g.build([x]),
    "the name of an output is 1": lambda g, x: g.build({1: x}),
    "the name of an output is '\\ud800'": lambda g, x: g.build({"\ud800": x}),
    "the name of an output is a value of type int that": lambda g, x: g.build({"y": x}, strides={10**5000: (1,)}),
    "no output of graph graph": lambda g, x: g.build({"y": x}, strides={"z" * 5000: (1,)}),
    "names no state of graph graph; states are []": lambda g, x: g.build({"y": x}, {"z" * 5000: x}),
    "the name of a value or node is a value of type int that": lambda g, x: g.add(1, 2, name=10**5000),
    "the name of a value or node is array(": lambda g, x: g.add(1, 2, name=np.zeros(3)),
    "zz...: add: all operands are Python numbers": lambda g, x: g.add(1, 2, name="z" * 3000),
    "output y: strides is 'abcd'": lambda g, x: g.build({"y": x}, strides={"y": "abcd"}),
    "inhomogeneous": lambda g, x: g.constant([[1], [1, 2]]),
    "input x is a list": lambda g, x: gd.evaluate(g.build({"y": x}), {"x": [1]}),
    "k is not a state": lambda g, x: gd.evaluate(
        g.build({"y": x}), {"x": np.zeros(x.type.shape, np.float32)}, states={"k": 1}
    ),
    "constant c: its data is a list": lambda g, x: gd.parse(
        str(g.build({"y": g.add(x, g.constant(np.ones(6, np.float32), name="c"))})), {"c": [1]}
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_no_argument_is_named(message: str) -> None:
    g = gd.GraphBuilder()
    x = image(g)
    with pytest.raises(gd.GraphError) as refused:
        WRONG[message](g, x)
    assert message in str(refused.value)


@pytest.mark.parametrize("name", [None, "far"])
def test_a_result_that_is_too_large_leaves_nothing_behind(name: str | None) -> None:
    g = gd.GraphBuilder()
    x = image(g)
    before = repr(g)
    with pytest.raises(gd.GraphError, match=r"(far: )?conv: f32\[.*\] has more than 32 axes or 2\*\*48 elements"):
        g.conv(x, x, padding=2**50, name=name)
    assert repr(g) == before
    assert g.relu(x, name=name or "conv").name == (name or "conv")


def test_axes_of_an_iterator_are_read_once() -> None:
    g = gd.GraphBuilder()
    assert g.unsqueeze(image(g), iter([0, 1])).type.rank == 6


CULPRITS = {
    "input pixels: data type 'float7' is not one of": lambda g, x: g.input("pixels", (2, 3), "float7"),
    "state cache: data type 'float7' is not one of": lambda g, x: g.state("cache", (2, 3), "float7"),
    "constant kernel: data type complex128 is not one of": lambda g, x: g.constant(np.ones(2, complex), name="kernel"),
    "narrow: data type 'foo' is not one of": lambda g, x: g.cast(x, "foo", name="narrow"),
    "cast: data type is None; one of": lambda g, x: g.cast(x, None),
    "steps: data type 'foo' is not one of": lambda g, x: g.iota(3, dtype="foo", name="steps"),
    "output y: strides are (1,); 2 numbers, none negative, are needed for f32[2x3]": lambda g, x: g.build(
        {"y": g.relu(x)}, strides={"y": (1,)}
    ),
    "output y: strides are (3, -1); 2 numbers": lambda g, x: g.build({"y": g.relu(x)}, strides={"y": (3, -1)}),
    "output y of type f32[2x3] has strides (1099511627776, 1), which spread its elements over 1099511627779; at most": (
        lambda g, x: g.build({"y": g.relu(x)}, strides={"y": (2**40, 1)})
    ),
    "output y of type f32[2x3] has strides (4, 18446744073709551616), which": (
        lambda g, x: g.build({"y": g.relu(x)}, strides={"y": (4, 2**64)})
    ),
    "output y of type f32[2x3] has strides (0, 1), which make elements share memory": lambda g, x: g.build(
        {"y": g.relu(x)}, strides={"y": (0, 1)}
    ),
    "output y of type f32[2x3] has strides (2, 2), which make elements share memory": lambda g, x: g.build(
        {"y": g.relu(x)}, strides={"y": (2, 2)}
    ),
    "output y of type f32[4x4] has strides (2, 3), which make elements share memory": lambda g, x: g.build(
        {"y": g.input("square", (4, 4), gd.float32)}, strides={"y": (2, 3)}
    ),
    "input far of type f32[2x3] has strides (1099511627776, 1), which spread its elements": lambda g, x: g.input(
        "far", (2, 3), gd.float32, strides=(2**40, 1)
    ),
    'div: rounding_mode is array([0., 0.]); None or "trunc" is needed': lambda g, x: g.div(
        x, x, rounding_mode=np.zeros(2)
    ),
    "soft: beta is array([0., 0.]); a number is needed": lambda g, x: g.softplus(x, beta=np.zeros(2), name="soft"),
    "bent: alpha is 'x'; a number is needed": lambda g, x: g.elu(x, alpha="x", name="bent"),
    'bell: approximate is \'erf\'; "none" or "tanh" is needed': lambda g, x: g.gelu(x, approximate="erf", name="bell"),
    "part: axes is 1; a sequence of whole numbers is needed": lambda g, x: g.slice(x, (0,), (1,), axes=1, name="part"),
    'heads: causal is array([0., 0.]); None, "top_left" or "bottom_right" is needed': lambda g, x: g.attention(
        *(g.input(n, (1, 1, 2, 8), gd.float32) for n in "qkv"), causal=np.zeros(2), name="heads"
    ),
    "far: avg_pool: stride is (1208925819614629174706176,": lambda g, x: g.avg_pool(
        g.input("image", (1, 1, 2, 2), gd.float32), kernel=1, stride=2**80, name="far"
    ),
    "mul: 1.5 is a float and the tensor is int32; cast the tensor to a float type; its operands are %count, 1.5": (
        lambda g, x: g.input("count", (3,), gd.int32) * 1.5
    ),
    "twice: mul: 1.5 is a float and the tensor is int32": lambda g, x: g.mul(
        g.input("count", (3,), gd.int32), 1.5, name="twice"
    ),
    "sm: axis 2 is outside f32[2x3] of rank 2": lambda g, x: g.softmax(x, axis=2, name="sm"),
    "total: axis -3 is outside f32[2x3] of rank 2": lambda g, x: g.reduce_sum(x, axes=(0, -3), name="total"),
    "part: axis 4 is outside f32[2x3] of rank 2": lambda g, x: g.slice(x, (0,), (1,), axes=(4,), name="part"),
}


@pytest.mark.parametrize("message", CULPRITS)
def test_a_refusal_names_the_culprit(message: str) -> None:
    g = gd.GraphBuilder("r")
    x = g.input("x", (2, 3), gd.float32)
    with pytest.raises(gd.GraphError) as refusal:
        CULPRITS[message](g, x)
    assert str(refusal.value).startswith(message)


def test_large_strides_of_short_axes_and_large_dense_tensors_are_allowed() -> None:
    g = gd.GraphBuilder("r")
    x, wide = g.input("x", (1, 3), gd.float32), g.input("wide", (2**21, 2**21), gd.int8)
    graph = g.build({"y": g.relu(x), "z": wide}, strides={"y": (2**50, 1), "z": (1, 2**21)})
    assert graph.output_type("z").extent == 2**42


ONE_NUMBER: dict[str, Callable[[gd.GraphBuilder, gd.Value, Any], Any]] = {
    "stride": lambda g, x, n: g.max_pool(x, kernel=n, stride=n, dilation=n),
    "padding": lambda g, x, n: g.avg_pool(x, kernel=(2, 2), padding=(n, n)),
    "axes": lambda g, x, n: g.reduce_sum(x, axes=n),
    "axes of a squeeze": lambda g, x, n: g.squeeze(x, n),
    "axes of an unsqueeze": lambda g, x, n: g.unsqueeze(x, n),
    "sizes": lambda g, x, n: g.split(x, n, axis=n)[0],
}


@pytest.mark.parametrize("call", ONE_NUMBER.values(), ids=ONE_NUMBER.keys())
@pytest.mark.parametrize("one", [np.array(1), np.int64(1), torch.tensor(1)], ids=["array", "scalar", "tensor"])
def test_an_array_without_axes_is_one_number(call: Callable[..., gd.Value], one: Any) -> None:
    def built(number: Any) -> str:
        g = gd.GraphBuilder()
        return str(g.build({"y": call(g, g.input("x", (2, 1, 5, 4), gd.float32), number)}))

    assert built(one) == built(1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda g, x: g.max_pool(x, kernel=np.array([2.0, 2.0])), r"max_pool: kernel is .*whole numbers"),
        (lambda g, x: g.max_pool(x, kernel=2, padding=np.array([0.5, 0.5])), r"max_pool: padding is .*whole numbers"),
        (lambda g, x: g.slice(x, np.array(1), (None,), axes=(0,)), r"slice: starts is array\(1\); a sequence"),
        (lambda g, x: g.concat(np.array(1), axis=0), r"concat: xs is a ndarray; a sequence of values"),
        (lambda g, x: g.attention(x, x, x, window=np.array(1)), r"attention: window is array\(1\); a pair"),
        (lambda g, x: g.cast(x, "\ud800"), r"cast: data type '\\ud800' is not one of"),
        (lambda g, x: g.build({"y": x}, np.array([1, 2])), r"build: updates is a ndarray; a mapping"),
        (lambda g, x: g.build({"y": x}, strides=np.array([1, 2])), r"build: strides is a ndarray; a mapping"),
    ],
)
def test_arrays_where_numbers_or_mappings_belong_are_refused(call: Callable[..., Any], said: str) -> None:
    g = gd.GraphBuilder()
    with pytest.raises(gd.GraphError, match=said):
        call(g, g.input("x", (2, 3, 5, 4), gd.float32))


def test_a_listed_number_too_large_for_float32_is_infinite() -> None:
    g = gd.GraphBuilder()
    graph = g.build({"y": g.constant([1e300, -1e300, 1.5])})
    np.testing.assert_array_equal(gd.evaluate(graph, {})["y"], np.array([np.inf, -np.inf, 1.5], np.float32))


HUGE = 10**5000
"""More digits than Python writes."""

MISTAKEN = {
    "name": lambda g, x: g.relu(x, name=np.arange(2)),
    "name of a source": lambda g, x: g.input(np.arange(2), (2,), gd.float32),
    "name of a constant": lambda g, x: g.constant(np.zeros(2), name=np.arange(2)),
    "name of a norm": lambda g, x: g.layer_norm(x, name=np.arange(2)),
    "name of no tensor": lambda g, x: g.relu(1.0, name=np.arange(2)),
    "long name of no tensor": lambda g, x: g.relu(1.0, name="relu" * 1000),
    "name that is taken": lambda g, x: g.relu(g.relu(x, name="relu" * 1000), name="relu" * 1000),
    "digits as a name": lambda g, x: g.relu(HUGE, name=HUGE),
    "extent": lambda g, x: g.input("y", (HUGE,), gd.float32),
    "shape": lambda g, x: g.reshape(x, (HUGE, 2)),
    "axis": lambda g, x: g.softmax(x, axis=HUGE),
    "padding": lambda g, x: g.pad(x, ((0, HUGE), (0, 0), (0, 0), (0, 0))),
    "filler": lambda g, x: g.pad(g.iota(3), ((0, 1),), value=HUGE),
    "number": lambda g, x: g.add(x, HUGE),
    "whole number": lambda g, x: g.add(g.iota(3), HUGE),
    "bound": lambda g, x: g.clip(g.iota(3), min=HUGE),
    "window": lambda g, x: g.attention(x, x, x, window=(HUGE, 0)),
    "scale": lambda g, x: g.attention(x, x, x, scale=HUGE),
    "step": lambda g, x: g.slice(x, (0,), (1,), (-HUGE,), axes=(0,)),
    "long text": lambda g, x: g.attention(x, x, x, causal="top" * 1000),
    "long name": lambda g, x: g.softmax(x, axis=7, name="softmax" * 1000),
    "lines": lambda g, x: g.softmax(x, axis=7, name="soft\nmax"),
    "many": lambda g, x: g.reshape(x, range(5000)),
}
"""What no sentence holds whole."""


@pytest.mark.parametrize("mistake", MISTAKEN)
def test_whatever_was_given_the_error_is_one_sentence(mistake: str) -> None:
    g = gd.GraphBuilder()
    with pytest.raises(gd.GraphError) as caught:
        MISTAKEN[mistake](g, image(g))
    assert len(str(caught.value)) < 700
    assert "\n" not in str(caught.value)


def test_a_filler_that_floats_round_is_rounded() -> None:
    g = gd.GraphBuilder()
    graph = g.build({"y": g.pad(g.input("x", (2,), gd.float32), ((0, 1),), value=10**30 + 1)})
    assert str(gd.parse(str(graph))) == str(graph)
    assert gd.evaluate(graph, {"x": np.zeros(2, np.float32)})["y"][2] == np.float32(1e30)
