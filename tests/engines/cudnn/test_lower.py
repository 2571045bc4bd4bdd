"""The real frontend validates and builds the operation graph of what the rules take; no device is needed for that."""

import json
from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.cudnn.anatomy import Anatomy
from graphdnn.engines.cudnn.engine import CudnnEngine
from graphdnn.engines.cudnn.lower import Lowering, lower
from graphdnn.engines.cudnn.rules.pointwise import DECLINED
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.pointwise import FUNCTIONS, Pointwise
from graphdnn.ir.region import Region
from graphdnn.ir.types import bool_, channels_last, row_major
from graphdnn.target import Target
from tests.engines.cudnn.random_neighbours import ANCHORS, IN_TF32, random_region
from tests.engines.cudnn.regions import attention, bias, closed, columns, convolution, norm, product, residual, twice
from tests.engines.cudnn.test_support import TAKEN

H200 = Target.named("h200")
SIZES = (1, 3, 5, 7, 23, 33, 63, 65, 127, 129, 300)
NUMBERS = {"negative_slope": 0.1, "alpha": 1.5, "beta": 0.7, "min": -1.0, "max": 2.0}


def built(region: Region, policy: Policy | None = None) -> Lowering:
    """The operation graph of a region that the rules take."""
    answer = CudnnEngine().supports(region, H200, policy or Policy())
    assert isinstance(answer, Support), str(answer)
    frame = Anatomy(region).frame
    assert not isinstance(frame, Decline)
    made = lower(region, frame, sm_version=90)
    assert isinstance(made, Lowering), str(made)
    return made


@pytest.mark.parametrize("name", TAKEN)
def test_what_is_taken_builds(name: str) -> None:
    region = TAKEN[name]
    made = built(region)
    assert {index for _, index in made.bindings} == set(range(len(region.inputs) + len(region.outputs)))
    assert len({uid for uid, _ in made.bindings}) == len(made.bindings)


def behind(fn: str, order: str, matrix: bool) -> Region:
    """A function behind a product or a convolution; `order` says what its operands are and which comes first."""

    def finish(g: gd.GraphBuilder, y: Value) -> Value:
        operands = [y]
        if FUNCTIONS[fn].arity == 2:
            full = y.type.shape
            small = full[-1:] if matrix else (1, full[1], 1, 1)
            shape = full if "full" in order else small
            strides = channels_last(shape) if len(shape) == 4 else None
            operands.append(g.input("operand", shape, y.type.dtype, strides=strides))
        if order.startswith("first"):
            operands.reverse()
        numbers = tuple(NUMBERS[name] for name, _ in FUNCTIONS[fn].parameters)
        z = g._add(Pointwise(fn=fn, parameters=numbers), *operands, name=None)[0]
        return g.select(z, y, 0.25) if z.type.dtype == bool_ else z

    return product(finish=finish) if matrix else convolution(finish=finish)


FLOAT_FUNCTIONS = [f for f, row in FUNCTIONS.items() if row.takes != "bool" and f not in DECLINED]


@pytest.mark.parametrize("matrix", [False, True], ids=["conv", "matmul"])
@pytest.mark.parametrize("fn", FLOAT_FUNCTIONS)
def test_every_function_behind_an_anchor(fn: str, matrix: bool) -> None:
    orders = ("one",) if FUNCTIONS[fn].arity == 1 else ("full", "first full", "small", "first small")
    for order in orders:
        region = behind(fn, order, matrix)
        if not CudnnEngine().supports(region, H200, Policy()):
            assert order == "first small", "only functions whose operands cannot change places are refused"
            continue
        built(region)


@pytest.mark.parametrize("kind", ANCHORS)
@pytest.mark.parametrize("dtype", [gd.float16, gd.float32], ids=str)
def test_random_graphs_around_a_product(dtype: gd.DType, kind: str, rng: np.random.Generator) -> None:
    """What the rules take of them, which is all in halves."""
    policy = Policy(precision="tf32" if kind in IN_TF32 else "ieee")
    regions = [random_region(rng, dtype, kind)[0] for _ in range(40)]
    taken = [r for r in regions if CudnnEngine().supports(r, H200, policy)]
    assert len(taken) == len(regions) if dtype == gd.float16 else taken
    for region in taken[:4]:
        built(region, policy)


CASTS: dict[str, tuple[Callable[[gd.GraphBuilder, Value], dict[str, Value]], str]] = {
    "alone": (lambda g, y: {"y": g.cast(y, gd.float32)}, "IDENTITY"),
    "beside a relu": (lambda g, y: {"y": g.cast(y, gd.float32), "z": g.relu(y)}, "MUL"),
    "of an output": (lambda g, y: {"y": g.cast(y, gd.float32), "z": y}, "MUL"),
    "identity beside a relu": (lambda g, y: {"y": g.identity(y), "z": g.relu(y)}, "MUL"),
}


@pytest.mark.parametrize("name", CASTS)
def test_a_copy_of_what_is_needed_again_is_a_product_with_1(name: str) -> None:
    """Beside an identity to float32 other readers of its tensor got NaN on the device."""
    finish, mode = CASTS[name]
    nodes = json.loads(repr(built(product(finish=finish)).graph))["nodes"]
    assert [n["mode"] for n in nodes if n["name"] in ("cast_0", "identity_0")] == [mode]


def test_logic_of_comparisons() -> None:
    def both(g: gd.GraphBuilder, y: Value) -> Value:
        inside = g.logical_and(g.greater(y, -1.0), g.logical_not(g.greater_equal(y, 1.0)))
        return g.select(g.logical_or(inside, g.equal(y, 2.0)), y, g.neg(y))

    built(product(finish=both))


@pytest.mark.parametrize("channels", SIZES)
def test_convolutions_of_odd_sizes(channels: int) -> None:
    filters = SIZES[(SIZES.index(channels) + 3) % len(SIZES)]
    for dtype in (gd.float16, gd.bfloat16, gd.float32):
        for finish in (lambda g, y: y, lambda g, y: g.relu(residual(g, bias(g, y)))):
            built(convolution((3, channels, 9, 7), filters, dtype=dtype, finish=finish))


@pytest.mark.parametrize(
    "attributes",
    [
        {"stride": 2},
        {"stride": (2, 1), "padding": ((0, 1), (2, 1))},
        {"dilation": 2, "padding": 2},
        {"padding": 0},
        {"padding": 5},
        {"groups": 8},
    ],
    ids=str,
)
def test_convolution_attributes(attributes: dict[str, object]) -> None:
    region = convolution((3, 24, 11, 8), 40, **attributes, finish=lambda g, y: g.relu(residual(g, bias(g, y))))
    made = built(region)
    shape = region.outputs[0].type.shape
    uid = made.bindings[-1][0]
    assert tuple(made.graph.query_tensor_attributes_of_uid(uid).get_dim()) == shape


@pytest.mark.parametrize("rows", SIZES)
def test_products_of_odd_sizes(rows: int) -> None:
    inner, wide = SIZES[(SIZES.index(rows) + 4) % len(SIZES)], SIZES[(SIZES.index(rows) + 7) % len(SIZES)]
    for batch, other in (((), ()), ((3,), ()), ((3,), (3,)), ((1,), (3,)), ((2, 3), (2, 3)), ((2, 3), ())):
        built(product((*batch, rows, inner), (*other, inner, wide), finish=lambda g, y: g.gelu(columns(g, y))))


def test_stored_transposes_are_strides() -> None:
    g = gd.GraphBuilder("t")
    a = g.input("a", (3, 23, 40), gd.float16, strides=(920, 1, 23))
    b = g.input("b", (3, 40, 33), gd.float16, strides=(1320, 1, 40))
    made = built(closed(g, g.matmul(a, b), row_major))
    told = [made.graph.query_tensor_attributes_of_uid(uid).get_stride() for uid, _ in made.bindings]
    assert told == [[920, 1, 23], [1320, 1, 40], [759, 33, 1]]


@pytest.mark.parametrize("length", [*SIZES, 64, 768])
def test_norms_of_odd_sizes(length: int) -> None:
    for rms in (False, True):
        for rows in ((1,), (5, 7)):
            built(norm((*rows, length), rms=rms))
            built(norm((*rows, length), gd.bfloat16, gd.float32, rms=rms))


def test_norm_chains() -> None:
    sides = (lambda g, y: residual(g, y, name="r1"), lambda g, y: g.mul(g.relu(y), 0.5), lambda g, y: g.sub(1.0, y))
    for before in sides:
        for finish in (lambda g, y: y, lambda g, y: g.add(g.input("r2", y.type.shape, y.type.dtype), y)):
            built(norm(before=before, finish=finish))


@pytest.mark.parametrize("shape", [(2, 24, 5, 7), (3, 33, 1, 9), (2, 8, 3, 5, 4)])
def test_instance_norm(shape: tuple[int, ...]) -> None:
    g = gd.GraphBuilder("instance")
    x = g.input("x", shape, gd.float16, strides=channels_last(shape))
    y = g.instance_norm(x, *(g.input(n, shape[1:2], gd.float32) for n in ("scale", "shift")))
    built(closed(g, y))


@pytest.mark.parametrize("output_padding", [0, 1])
def test_transposed_convolution_has_the_extents_it_is_told(output_padding: int) -> None:
    g = gd.GraphBuilder("transposed")
    shape, weights = (3, 24, 9, 7), (24, 16, 3, 3)
    x = g.input("x", shape, gd.float16, strides=channels_last(shape))
    w = g.input("w", weights, gd.float16, strides=channels_last(weights))
    y = g.conv_transpose(x, w, stride=2, padding=1, output_padding=output_padding)
    made = built(closed(g, g.relu(bias(g, y))))
    assert tuple(made.graph.query_tensor_attributes_of_uid(made.bindings[-1][0]).get_dim()) == y.type.shape


@pytest.mark.parametrize("features", [8, 40, 64, 72, 128, 256])
def test_attention_features_and_lengths(features: int) -> None:
    for queries, keys in ((1, 65), (33, 65), (129, 300), (300, 63)):
        built(attention((2, 6, queries, features), (2, 3, keys, features), 64))


@pytest.mark.parametrize("name", twice())
def test_an_input_has_a_tensor_for_each_place_in_a_node(name: str) -> None:
    """cuDNN had no address for a tensor that stood twice: its layer norm did not run, its attention read elsewhere."""
    region = twice()[name]
    read = [index for _, index in built(region).bindings if index < len(region.inputs)]
    assert sorted(read) == sorted(
        region.inputs.index(v) for n in region.nodes for v in n.operands if v in region.inputs
    )


def test_two_products_of_one_input_share_its_tensor() -> None:
    """cuDNN's engine for both at once takes them for that."""
    g = gd.GraphBuilder()
    x, a, b = g.input("x", (64, 40), gd.float16), g.input("a", (40, 24), gd.float16), g.input("b", (40, 24), gd.float16)
    region = closed(g, g.mul(g.silu(g.matmul(x, a)), g.matmul(x, b)), row_major)
    assert sorted(index for _, index in built(region).bindings) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "shape", [(2, 6, 33, 65), (1, 6, 33, 65), (2, 1, 33, 65), (33, 65), (1, 65), (2, 1, 1, 65), (1, 6, 33, 1)]
)
def test_attention_bias_broadcasts(shape: tuple[int, ...]) -> None:
    built(attention(extras=("bias",), bias_shape=shape))


def test_lowering_twice_gives_the_same_ids() -> None:
    assert built(TAKEN["conv, two outputs"]).bindings == built(TAKEN["conv, two outputs"]).bindings
