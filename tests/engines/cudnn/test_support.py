import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

import graphdnn as gd
from graphdnn.answer import FIXABLE, Code, Decline
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.cudnn.engine import CudnnEngine
from graphdnn.engines.cudnn.lower import RULES
from graphdnn.engines.cudnn.rules.pointwise import COMPOSED, MODE
from graphdnn.engines.cudnn.rules.pointwise import DECLINED as DECLINED_FUNCTIONS
from graphdnn.engines.cudnn.support import DECLINED, LOWERED
from graphdnn.ir.graph import Value
from graphdnn.ir.op import OPS
from graphdnn.ir.ops.pointwise import FUNCTIONS
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, channels_last, row_major
from graphdnn.ir.views import is_free
from graphdnn.target import Target
from tests.engines.cudnn.layouts import laid_out
from tests.engines.cudnn.regions import (
    attention,
    beside,
    bias,
    closed,
    columns,
    convolution,
    norm,
    product,
    reread,
    residual,
    twice,
)

H200 = Target.named("h200")
IEEE, TF32 = Policy(), Policy(precision="tf32")

MOVES_DATA = frozenset(
    {
        "concat", "convert", "expand", "gather", "iota", "pad", "reshape", "slice", "split",
        "squeeze", "transpose", "unsqueeze", "write_slice",
    }
)  # fmt: skip
"""Kinds that move or make data: cuDNN's interface has no operation for them, or none that is a kernel of its own."""


def ask(region: Region, policy: Policy = IEEE, target: Target = H200) -> Support | Decline:
    return CudnnEngine().supports(region, target, policy)


def test_every_op_has_a_rule_or_a_reason() -> None:
    lowered = {kind for kind, op in OPS.items() if issubclass(op, LOWERED)}
    declined = {op.kind for op in DECLINED} | MOVES_DATA
    assert lowered | declined == set(OPS)
    assert not lowered & declined
    assert {op.kind for op in RULES} == lowered


def test_every_pointwise_function_has_a_method_or_a_reason() -> None:
    assert set(MODE) | set(COMPOSED) | set(DECLINED_FUNCTIONS) == set(FUNCTIONS)


def test_answering_loads_no_cuda_package() -> None:
    """Run alone in a child process: other tests of this process load them."""
    code = (
        "import sys\n"
        "from tests.engines.cudnn.regions import convolution\n"
        "from graphdnn.engines.cudnn.engine import CudnnEngine\n"
        "from graphdnn.engines.contract import Policy\n"
        "from graphdnn.target import Target\n"
        "assert CudnnEngine().supports(convolution(), Target.named('h200'), Policy())\n"
        "assert not {'cudnn', 'cuda', 'nvmath', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


TAKEN = {
    "conv": convolution(),
    "conv, odd channels": convolution((2, 3, 11, 8), 17, finish=lambda g, y: g.relu(bias(g, y))),
    "conv, row-major": convolution(layout=row_major, finish=lambda g, y: g.relu(bias(g, y))),
    "conv, two outputs": convolution(finish=lambda g, y: {"y": y, "z": g.relu(y)}),
    "conv, clip": convolution(finish=lambda g, y: g.clip(bias(g, y), min=0, max=6)),
    "conv, compare and select": convolution(finish=lambda g, y: g.select(g.greater(y, 0.0), y, g.mul(y, 0.1))),
    "conv, one entry a pixel": convolution(finish=lambda g, y: residual(g, y, (3, 1, 9, 7))),
    "conv, float32 bias": convolution(finish=lambda g, y: bias(g, y, dtype=gd.float32)),
    "conv, channel sums": convolution(finish=lambda g, y: g.reduce_sum(g.cast(y, gd.float32), axes=(0, 2, 3))),
    "conv 3-D": convolution((2, 8, 5, 6, 7), 16, (3, 3, 3), finish=lambda g, y: g.relu(residual(g, bias(g, y)))),
    "depthwise": convolution((2, 24, 9, 7), 24, groups=24, finish=lambda g, y: g.relu(bias(g, y))),
    "matmul": product(),
    "matmul, batch": product((2, 3, 23, 40), (2, 3, 40, 33)),
    "matmul, one B": product((2, 3, 23, 40), (40, 33), finish=lambda g, y: g.gelu(columns(g, y))),
    "matmul, rsub": product(finish=lambda g, y: g.sub(1.0, y)),
    "layer norm": norm(),
    "layer norm, odd": norm((5, 7, 33)),
    "layer norm, float32": norm(dtype=gd.float32),
    "layer norm, float32 parameters": norm(parameters=gd.float32),
    "rms norm, residual": norm(rms=True, before=lambda g, x: residual(g, x, (5, 7, 128))),
    "layer norm, nothing behind its axis": norm((35, 128, 1, 1), axes=(1,)),
    "layer norm, one row, gaps of extent 1": norm((1, 128, 1, 64), axes=(0, 1, 3)),
    "rms norm, nothing behind its axis, residual": norm(
        (35, 128, 1, 1), rms=True, axes=(1,), before=lambda g, x: residual(g, x, (35, 128, 1, 1))
    ),
    "rms norm, an axis of extent 1 before its rows": norm((1, 5, 1, 128), rms=True, axes=(0, 3)),
    "norm, chain behind": norm(finish=lambda g, y: g.mul(g.relu(y), 0.5)),
    "attention": attention(),
    "attention, causal": attention(causal="top_left"),
    "attention, bottom right": attention(causal="bottom_right"),
    "attention, window": attention(window=(3, 0)),
    "attention, lengths": attention(extras=("q_lengths", "kv_lengths")),
    "attention, bias": attention(extras=("bias",)),
    "attention, statistics": attention(return_lse=True),
    **twice(),
    **reread(),
    **beside(),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    answer = ask(TAKEN[name])
    assert isinstance(answer, Support), str(answer)
    assert 1 < answer.estimated_us < 1000


REFUSED: dict[str, tuple[Region, Code]] = {
    "float64": (convolution(dtype=gd.float64), Code.DTYPE),
    "int8": (convolution(dtype=gd.int8), Code.OP),
    "bool output": (product(finish=lambda g, y: g.greater(y, 0.0)), Code.OP),
    "residual of batch and channel": (convolution(finish=lambda g, y: residual(g, y, (3, 40, 1, 1))), Code.BROADCAST),
    "residual without batch": (convolution(finish=lambda g, y: residual(g, y, (1, 40, 9, 7))), Code.BROADCAST),
    "pow of a vector": (
        convolution(finish=lambda g, y: g.pow(g.input("b", (1, 40, 1, 1), gd.float16), y)), Code.BROADCAST
    ),
    "row-major residual": (
        convolution(layout=row_major, finish=lambda g, y: g.add(y, g.input("r", y.type.shape, gd.float16))), Code.LAYOUT
    ),
    "row-major bias that is needed too": (
        convolution(layout=row_major, finish=lambda g, y: {"y": (b := bias(g, y)), "z": g.relu(b)}), Code.LAYOUT
    ),
    "row-major silu": (convolution(layout=row_major, finish=lambda g, y: g.silu(bias(g, y))), Code.LAYOUT),
    "atan2": (convolution(finish=lambda g, y: g.atan2(y, y)), Code.OP),
    "pixel means": (convolution(finish=lambda g, y: g.reduce_mean(g.cast(y, gd.float32), axes=(2, 3))), Code.PATTERN),
    "half sums": (convolution(finish=lambda g, y: g.reduce_sum(y, axes=(0, 2, 3))), Code.DTYPE),
    "softmax behind": (product(finish=lambda g, y: g.softmax(y)), Code.OP),
    "float32 product": (product(dtype=gd.float32), Code.PRECISION),
    "batches that cross": (product((3, 1, 23, 40), (1, 5, 40, 33)), Code.BROADCAST),
    "rows counted behind its axis": (norm((5, 128, 1, 2), axes=(1,)), Code.ATTRIBUTE),
    "odd rows fused, axes of extent 1": (
        norm((1, 5, 33, 1), axes=(0, 2), finish=lambda g, y: g.relu(y)),
        Code.ALIGNMENT,
    ),
    "odd rows fused": (norm((5, 7, 33), finish=lambda g, y: g.relu(y)), Code.ALIGNMENT),
    "mixed types fused": (norm(parameters=gd.float32, finish=lambda g, y: g.relu(y)), Code.DTYPE),
    "branch behind a norm": (norm(finish=lambda g, y: g.mul(y, g.sigmoid(y))), Code.PATTERN),
    "norm needed twice": (norm(finish=lambda g, y: {"y": y, "z": g.relu(y)}), Code.PATTERN),
    "attention float32": (attention(dtype=gd.float32), Code.DTYPE),
    "attention features": (attention((2, 6, 33, 20), (2, 3, 65, 20)), Code.ALIGNMENT),
    "attention float32, features": (attention((2, 6, 33, 7), (2, 3, 65, 7), 7, gd.float32), Code.ATTRIBUTE),
    "attention float32, many features": (attention((2, 6, 33, 264), (2, 3, 65, 264), dtype=gd.float32), Code.SIZE),
    "attention float32, mask": (attention(dtype=gd.float32, extras=("mask",)), Code.ATTRIBUTE),
    "attention features, two": (attention((2, 6, 33, 20), (2, 3, 65, 20), 12), Code.ATTRIBUTE),
    "attention mask": (attention(extras=("mask",)), Code.ATTRIBUTE),
    "attention one length": (attention(extras=("kv_lengths",)), Code.ATTRIBUTE),
    "bottom right and bias": (attention(extras=("bias",), causal="bottom_right"), Code.ATTRIBUTE),
    "a number a head": (attention(extras=("bias",), bias_shape=(2, 6, 1, 1)), Code.BROADCAST),
    "a number a sequence": (attention(extras=("bias",), bias_shape=(2, 1, 1, 1)), Code.BROADCAST),
    "bottom right, many queries": (attention((2, 6, 70, 64), causal="bottom_right"), Code.SHAPE),
    "attention and more": (attention(), Code.PATTERN),
}  # fmt: skip
REFUSED["attention and more"] = (
    closed(
        (g := gd.GraphBuilder("g")),
        g.relu(g.attention(*(g.input(n, (2, 3, 33, 64), gd.float16) for n in "qkv"))),
        row_major,
    ),
    Code.PATTERN,
)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_its_code(name: str) -> None:
    region, code = REFUSED[name]
    answer = ask(region)
    assert isinstance(answer, Decline)
    assert answer.code is code, str(answer)
    assert (answer.fix is not None) is (code in FIXABLE), str(answer)
    assert answer.reason[0] != " "
    assert len(answer.reason) < 400


def of_rows_from(start: int) -> Region:
    """The product of five rows of a matrix from `start` on, which lie inside it."""
    g = gd.GraphBuilder("rows")
    a = g.slice(g.input("a", (13, 20), gd.float16), starts=(start, 0), stops=(start + 5, 20), name="rows")
    graph = laid_out(g.build({"y": g.matmul(a, g.input("b", (20, 24), gd.float16))}), row_major)
    assert is_free(graph.nodes[0])
    return Region.of(graph, graph.nodes[1:])


@pytest.mark.parametrize("start", range(1, 9))
def test_views_must_start_at_multiples_of_sixteen_bytes(start: int) -> None:
    answer = ask(of_rows_from(start))
    if start % 2 == 0:
        assert answer
        return
    assert isinstance(answer, Decline)
    assert answer.code is Code.ALIGNMENT
    assert f"starts {20 * start} elements of float16 into %a" in answer.reason
    assert answer.fix is not None
    after = int(answer.fix.after.split()[0])
    assert after % 8 == 0
    assert abs(after - 20 * start) == 4


def test_regions_whose_inputs_may_start_elsewhere_are_told_apart() -> None:
    """Engines are asked once for all regions of one key."""
    keys = [of_rows_from(start).key for start in (2, 3, 4, 5)]
    assert keys[0] == keys[2] != keys[1] == keys[3]


def test_a_graph_of_more_than_fifty_operations() -> None:
    def behind(count: int) -> Region:
        def long(g: gd.GraphBuilder, y: Value) -> Value:
            for _ in range(count):
                y = g.tanh(y)
            return y

        return convolution(finish=long)

    assert ask(behind(49))
    answer = ask(behind(50))
    assert isinstance(answer, Decline)
    assert answer.code is Code.SIZE
    assert "51 cuDNN operations" in answer.reason


def test_float32_convolutions_only_where_an_engine_is_known() -> None:
    assert ask(convolution(dtype=gd.float32))
    g = gd.GraphBuilder("summed")
    x = g.input("x", (3, 24, 9, 7), gd.float32, strides=channels_last((3, 24, 9, 7)))
    w = g.input("w", (24, 24, 3, 3), gd.float32, strides=channels_last((24, 24, 3, 3)))
    sums = g.reduce_sum(g.conv(x, w, padding=1), axes=(0, 2, 3), keepdims=True)
    summed = closed(g, sums)
    refused = ask(summed)
    assert isinstance(refused, Decline)
    assert refused.code is Code.PRECISION
    assert refused.fix is not None
    assert (refused.fix.attribute, refused.fix.after) == ("precision", "tf32")
    assert ask(summed, TF32)
    assert ask(product(dtype=gd.float32), TF32)


def test_tf32_is_no_remedy_where_something_else_is_in_the_way() -> None:
    """Work before a float32 convolution is declined with TF32 too: a change of types is what helps."""
    for policy in (IEEE, TF32):
        refused = ask(closed_prologue(gd.float32), policy)
        assert isinstance(refused, Decline)
        assert refused.fix is not None
        assert (refused.code, refused.fix.attribute) == (Code.DTYPE, "dtype")


def closed_prologue(dtype: DType) -> Region:
    """x * scale + shift and a relu before a convolution."""
    g = gd.GraphBuilder("prologue")
    shape, weights = (3, 24, 9, 7), (40, 24, 3, 3)
    vectors = [g.input(n, (1, 24, 1, 1), dtype) for n in ("scale", "shift")]
    x = g.input("x", shape, dtype, strides=channels_last(shape))
    y = g.relu(g.add(g.mul(x, vectors[0]), vectors[1]))
    return closed(g, g.conv(y, g.input("w", weights, dtype, strides=channels_last(weights)), padding=1))


@pytest.mark.parametrize("scale_first", [False, True])
@pytest.mark.parametrize("shift_first", [False, True])
def test_before_a_convolution_operands_stand_in_any_order(scale_first: bool, shift_first: bool) -> None:
    def build(g: gd.GraphBuilder, x: Value, scale: Value, shift: Value) -> tuple[Value, Value | None]:
        y = g.mul(*(scale, x) if scale_first else (x, scale))
        return g.relu(g.add(*(shift, y) if shift_first else (y, shift))), None

    assert ask(before_convolution(build))


def test_before_a_convolution_work_is_on_its_image_alone() -> None:
    """A scale of the image and a shift of the weights are no scale and shift of the image."""

    def build(g: gd.GraphBuilder, x: Value, scale: Value, shift: Value) -> tuple[Value, Value | None]:
        weights = g.input("v", (40, 24, 3, 3), gd.float16, strides=channels_last((40, 24, 3, 3)))
        return g.mul(x, scale), g.add(weights, shift)

    answer = ask(before_convolution(build))
    assert isinstance(answer, Decline)
    assert answer.code is Code.PATTERN


BEFORE: dict[str, Callable[[gd.GraphBuilder, Value], Value]] = {
    "hard swish": lambda g, x: g.hard_swish(x),
    "square": lambda g, x: g.square(x),
    "twice": lambda g, x: g.minimum(g.abs(x), x),
    "chain": lambda g, x: g.tanh(g.mul(g.abs(x), 0.5)),
}


@pytest.mark.parametrize("name", BEFORE)
@pytest.mark.parametrize("dtype", [gd.float16, gd.float32], ids=str)
def test_work_before_a_product_in_tf32_is_a_chain(dtype: gd.DType, name: str) -> None:
    """cuDNN's plans were off by 0.2 to 0.8 of the peak where it reads a tensor twice, in float32 alone."""
    g = gd.GraphBuilder("before")
    a = BEFORE[name](g, g.input("a", (24, 40), dtype))
    answer = ask(closed(g, g.matmul(a, g.input("b", (40, 48), dtype)), row_major), TF32)
    if dtype == gd.float16 or name == "chain":
        assert isinstance(answer, Support)
    else:
        assert isinstance(answer, Decline)
        assert (answer.code, "%a is needed twice" in answer.reason) == (Code.PATTERN, True)


def test_reasons_are_about_the_op_that_is_there() -> None:
    """Nothing goes before a transposed convolution, and pooling moves no data."""
    for word in ("transposed", "no pooling"):
        g = gd.GraphBuilder("reasons")
        x, w = g.input("x", (3, 24, 9, 7), gd.float16), g.input("w", (24, 40, 2, 2), gd.float16)
        y = g.conv_transpose(g.relu(x), w, stride=2) if word == "transposed" else g.max_pool(x, kernel=2)
        answer = ask(closed(g, y))
        assert isinstance(answer, Decline)
        assert word in answer.reason


def before_convolution(build: Callable[[gd.GraphBuilder, Value, Value, Value], tuple[Value, Value | None]]) -> Region:
    """A convolution of what is built of an image and two channel vectors, with the weights that are built or others."""
    g = gd.GraphBuilder("before")
    shape, weights = (3, 24, 9, 7), (40, 24, 3, 3)
    vectors = [g.input(n, (1, 24, 1, 1), gd.float16) for n in ("scale", "shift")]
    y, w = build(g, g.input("x", shape, gd.float16, strides=channels_last(shape)), *vectors)
    w = g.input("w", weights, gd.float16, strides=channels_last(weights)) if w is None else w
    return closed(g, g.conv(y, w, padding=1))


def test_a_relu_without_a_bias_is_told_what_may_lie_otherwise() -> None:
    """It is less than a bias and a relu, and still refused."""
    answer = ask(convolution(layout=row_major, finish=lambda g, y: g.relu(y)))
    assert isinstance(answer, Decline)
    assert answer.reason.endswith(
        "cuDNN takes images that are not channels-last only of a convolution alone, or with a bias and maybe a relu "
        "behind it"
    )
    assert "strides" not in answer.reason, "the type has them"


def test_machines() -> None:
    region = convolution()
    old = replace(H200, compute_capability=(7, 5))
    for target, code in ((Target.cpu(), Code.ARCHITECTURE), (old, Code.ARCHITECTURE)):
        answer = ask(region, target=target)
        assert isinstance(answer, Decline)
        assert answer.code is code
    answer = ask(region, target=replace(H200, versions={"cudnn": "9.28.0"}))
    assert isinstance(answer, Decline)
    assert answer.code is Code.VERSION


@pytest.mark.parametrize(("pitch", "accepted"), [(24, True), (32, True), (40, True), (28, False), (25, False)])
def test_images_with_gaps_step_by_whole_vectors(pitch: int, accepted: bool) -> None:
    """Part of the channels of a wider image: an engine read such steps wrongly where they were no multiples of 8."""
    g = gd.GraphBuilder("gaps")
    x = g.input("x", (3, 24, 9, 7), gd.float16, strides=(63 * pitch, 1, 7 * pitch, pitch))
    w = g.input("w", (40, 24, 3, 3), gd.float16, strides=channels_last((40, 24, 3, 3)))
    answer = ask(closed(g, g.silu(residual(g, g.conv(x, w, padding=1)))))
    assert bool(answer) is accepted
    if isinstance(answer, Decline):
        assert answer.code is Code.ALIGNMENT
        assert answer.fix is not None
        assert answer.fix.after == "32 elements"
