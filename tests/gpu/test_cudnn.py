"""Every plan that the cuDNN engine offers, on the device: poisoned outputs, compared with the float64 definition."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, DevicePlan, Policy
from graphdnn.engines.cudnn.anatomy import Anatomy
from graphdnn.engines.cudnn.engine import CudnnEngine, as_candidates
from graphdnn.engines.cudnn.estimate import engine_class
from graphdnn.engines.cudnn.plans import PlanName
from graphdnn.engines.cudnn.tables import IEEE
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, bool_, channels_last, row_major
from graphdnn.runtime.device import CudaDevice
from tests.engines.cudnn.layouts import spatial_last, whole
from tests.engines.cudnn.regions import (
    attention,
    bias,
    closed,
    columns,
    convolution,
    norm,
    product,
    residual,
    without_exact_plan,
)
from tests.engines.cudnn.surface_graphs import GRAPHS, ROW_MAJOR
from tests.engines.cudnn.test_lower import FLOAT_FUNCTIONS, SIZES, behind
from tests.engines.cudnn.test_support import TAKEN
from tests.engines.cudnn.test_surface import PATTERNS
from tests.gpu.region_runs import Placed, settled
from tests.numbers import TOLERANCE, narrowest, output_error

pytestmark = pytest.mark.gpu

Rng = np.random.Generator
FIRST = 3
"""Plans that are run whatever their engine is; of the others one of each engine."""


def drawn(graph: Graph, rng: Rng) -> dict[str, Array]:
    """Random inputs: normal numbers, weights so small that sums of products are of order 1, lengths within range."""
    scales: dict[Value, float] = {}
    longest: dict[Value, int] = {}
    for node in graph.nodes:
        if isinstance(node.op, Conv | ConvTranspose | MatMul):
            w = node.operands[1]
            inner = w.type.shape[-2] if isinstance(node.op, MatMul) else int(np.prod(w.type.shape[1:]))
            scales[w] = inner**-0.5
        elif isinstance(node.op, Attention):
            for name, value in zip(node.op.extras, node.operands[3:], strict=True):
                longest[value] = node.operands[0 if name == "q_lengths" else 1].type.shape[2]
    return {name: settled(v.type, draw(v, rng, scales, longest)) for name, v in graph.inputs.items()}


def draw(value: Value, rng: Rng, scales: Mapping[Value, float], longest: Mapping[Value, int]) -> Array:
    """One input."""
    type = value.type
    if type.dtype == bool_:
        return rng.random(type.shape) < 0.7
    if type.dtype.is_integer:
        return rng.integers(1, longest[value] + 1, type.shape).astype(type.dtype.numpy)
    return (rng.standard_normal(type.shape) * scales.get(value, 1.0)).astype(type.dtype.numpy)


def chosen(candidates: tuple[Candidate, ...]) -> list[Candidate]:
    """The first plans and one of each further engine."""
    seen = {PlanName.parse(c.name).engine for c in candidates[:FIRST]}
    more = []
    for plan in candidates[FIRST:]:
        number = PlanName.parse(plan.name).engine
        if number not in seen:
            seen.add(number)
            more.append(plan)
    return [*candidates[:FIRST], *more]


def run(device: CudaDevice, region: Region, plan: DevicePlan, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Outputs of one run, by name, into memory that held NaN."""
    ins = [Placed(device, v.type, 0).filled(arrays[v.name]) for v in region.inputs]
    outs = [Placed(device, v.type, 0).filled(None) for v in region.outputs]
    workspace = device.allocate(max(plan.workspace_bytes, 1))
    plan.enqueue([p.address for p in (*ins, *outs)], device.stream, workspace.handle)
    device.synchronize()
    found = {v: p.read() for v, p in zip(region.outputs, outs, strict=True)}
    return {name: found[v] for name, v in region.graph.outputs.items()}


def errors(device: CudaDevice, region: Region, candidates: list[Candidate], rng: Rng) -> dict[str, float | str]:
    """Largest error of each plan by name, or why it did not build."""
    engine, graph = CudnnEngine(), region.graph
    arrays = drawn(graph, rng)
    wanted = gd.evaluate(graph, arrays, dtype=gd.float64)
    found: dict[str, float | str] = {}
    for one in candidates:
        plan = engine.build(one, device)
        if isinstance(plan, Decline):
            found[one.name] = plan.reason
            continue
        outputs = run(device, region, plan, arrays)
        found[one.name] = max(output_error(graph, n, outputs[n], wanted[n], arrays) for n in outputs)
    return found


def check(device: CudaDevice, region: Region, rng: Rng, policy: Policy | None = None) -> None:
    """Every chosen plan that builds has the right numbers, and at least one builds."""
    policy = policy or Policy()
    with device:
        candidates = CudnnEngine().candidates(region, device, policy)
        assert not isinstance(candidates, Decline), str(candidates)
        found = errors(device, region, chosen(tuple(candidates)), rng)
    limit = TOLERANCE[narrowest(region.graph)]
    if policy.precision == "tf32" and narrowest(region.graph) == "float32":
        limit = TOLERANCE["tf32"]
    numbers = {name: e for name, e in found.items() if isinstance(e, float)}
    assert numbers, f"no plan of {region.pattern} builds: {found}"
    wrong = {name: e for name, e in numbers.items() if e > limit}
    assert not wrong, f"{region.pattern}: errors above {limit}: {wrong} of {numbers}"
    print(f"{region.pattern}: {len(numbers)} plans, largest error {max(numbers.values()):.2g}")


@pytest.mark.parametrize("name", [n for n in GRAPHS if PATTERNS[n]["accepted"]])
def test_surface(name: str, device: CudaDevice, rng: Rng) -> None:
    check(device, whole(GRAPHS[name](), row_major if name in ROW_MAJOR else spatial_last), rng)


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str, device: CudaDevice, rng: Rng) -> None:
    check(device, TAKEN[name], rng)


@pytest.mark.parametrize("matrix", [False, True], ids=["conv", "matmul"])
@pytest.mark.parametrize("fn", [f for f in FLOAT_FUNCTIONS if f not in ("log", "sqrt", "rsqrt", "reciprocal", "tan")])
def test_functions(fn: str, matrix: bool, device: CudaDevice, rng: Rng) -> None:
    """Those that are finite on all numbers and not too steep for halves."""
    if fn in ("div", "mod", "pow"):
        check(device, positive(fn, matrix), rng)
        return
    for order in ("full", "first small") if fn in ("sub", "greater", "add_square", "maximum") else ("full",):
        check(device, behind(fn, order, matrix), rng)


def positive(fn: str, matrix: bool) -> Region:
    """Quotients and powers of numbers between 1 and 2."""

    def finish(g: gd.GraphBuilder, y: Value) -> Value:
        strides = channels_last(y.type.shape) if y.type.rank == 4 else None
        other = g.add(g.sigmoid(g.input("operand", y.type.shape, y.type.dtype, strides=strides)), 1.0)
        return getattr(g, fn)(g.add(g.sigmoid(y), 1.0), other)  # type: ignore[no-any-return]

    return product(finish=finish) if matrix else convolution(finish=finish)


@pytest.mark.parametrize("channels", SIZES)
@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16], ids=str)
def test_convolutions(dtype: gd.DType, channels: int, device: CudaDevice, rng: Rng) -> None:
    filters = SIZES[(SIZES.index(channels) + 3) % len(SIZES)]
    for finish in (lambda g, y: y, lambda g, y: g.relu(bias(g, y)), lambda g, y: g.relu(residual(g, bias(g, y)))):
        check(device, convolution((3, channels, 9, 7), filters, dtype=dtype, finish=finish), rng)


@pytest.mark.parametrize(
    "attributes",
    [{"stride": 2}, {"stride": (2, 1), "padding": ((0, 1), (2, 1))}, {"dilation": 2, "padding": 2}, {"groups": 8}],
    ids=str,
)
def test_convolution_attributes(attributes: dict[str, object], device: CudaDevice, rng: Rng) -> None:
    for finish in (lambda g, y: g.relu(bias(g, y)), lambda g, y: g.silu(residual(g, y))):
        check(device, convolution((3, 24, 11, 8), 40, finish=finish, **attributes), rng)


@pytest.mark.parametrize("channels", [3, 24, 64])
def test_depthwise(channels: int, device: CudaDevice, rng: Rng) -> None:
    for finish in (lambda g, y: g.relu(bias(g, y)), lambda g, y: g.silu(residual(g, y))):
        check(device, convolution((2, channels, 9, 7), channels, groups=channels, finish=finish), rng)


@pytest.mark.parametrize("stride", [1, 2])
def test_transposed_convolution(stride: int, device: CudaDevice, rng: Rng) -> None:
    for finish in (lambda g, y: y, lambda g, y: g.relu(bias(g, y))):
        g = gd.GraphBuilder("transposed")
        x = g.input("x", (3, 24, 9, 7), gd.float16, strides=channels_last((3, 24, 9, 7)))
        w = g.input("w", (24, 16, 3, 3), gd.float16, strides=channels_last((24, 16, 3, 3)))
        y = g.conv_transpose(x, w, stride=stride, padding=1, output_padding=stride - 1)
        check(device, closed(g, finish(g, y)), rng)


@pytest.mark.parametrize("rows", SIZES)
def test_products(rows: int, device: CudaDevice, rng: Rng) -> None:
    inner, wide = SIZES[(SIZES.index(rows) + 4) % len(SIZES)], SIZES[(SIZES.index(rows) + 7) % len(SIZES)]
    for batch, other in (((), ()), ((3,), ()), ((1,), (3,)), ((2, 3), (2, 3))):
        check(
            device,
            product((*batch, rows, inner), (*other, inner, wide), finish=lambda g, y: g.gelu(columns(g, y))),
            rng,
        )


def test_what_stands_before_a_product(device: CudaDevice, rng: Rng) -> None:
    for dtype in (gd.float16, gd.bfloat16):
        g = gd.GraphBuilder("prologue")
        a = g.silu(g.mul(g.input("a", (23, 40), dtype), g.input("s", (40,), dtype)))
        check(device, closed(g, columns(g, g.matmul(a, g.input("b", (40, 48), dtype))), row_major), rng)


@pytest.mark.parametrize("pitch", [40, 48, 44, 42, 41, 65])
def test_rows_with_gaps(pitch: int, device: CudaDevice, rng: Rng) -> None:
    """Views of wider matrices: rows that start off 16 bytes are told as they lie."""
    for dtype in (gd.float16, gd.bfloat16):
        g = gd.GraphBuilder("gaps")
        a, b = g.input("a", (23, 40), dtype, strides=(pitch, 1)), g.input("b", (40, 33), dtype, strides=(pitch, 1))
        check(device, closed(g, g.gelu(columns(g, g.matmul(a, b))), row_major), rng)


@pytest.mark.parametrize("pitch", [24, 32, 40])
def test_channels_with_gaps(pitch: int, device: CudaDevice, rng: Rng) -> None:
    """Part of the channels of a wider tensor."""
    for finish in (lambda g, y: g.relu(bias(g, y)), lambda g, y: g.silu(residual(g, y))):
        g = gd.GraphBuilder("gaps")
        x = g.input("x", (3, 24, 9, 7), gd.float16, strides=(63 * pitch, 1, 7 * pitch, pitch))
        w = g.input("w", (40, 24, 3, 3), gd.float16, strides=channels_last((40, 24, 3, 3)))
        check(device, closed(g, finish(g, g.conv(x, w, padding=1))), rng)


@pytest.mark.parametrize("length", [*SIZES, 64, 768, 4096])
def test_norms(length: int, device: CudaDevice, rng: Rng) -> None:
    for rms in (False, True):
        for dtype in (gd.float16, gd.bfloat16, gd.float32):
            if length > 1 or rms:
                check(device, norm((5, 7, length), dtype, rms=rms), rng)


def test_axes_of_extent_1_make_no_difference(device: CudaDevice, rng: Rng) -> None:
    for rms in (False, True):
        check(device, norm((35, 128, 1, 1), rms=rms, axes=(1,)), rng)
        check(device, norm((1, 5, 1, 128), rms=rms, axes=(0, 3), finish=lambda g, y: g.relu(y)), rng)


def test_norm_chains(device: CudaDevice, rng: Rng) -> None:
    for dtype in (gd.float16, gd.bfloat16):
        sums = norm(
            dtype=dtype, before=lambda g, x: residual(g, x, name="r1"), finish=lambda g, y: g.mul(g.relu(y), 0.5)
        )
        check(device, sums, rng)
        check(device, norm(dtype=dtype, finish=lambda g, y: g.sub(g.input("r", y.type.shape, y.type.dtype), y)), rng)


@pytest.mark.parametrize("features", [8, 64, 72, 128, 256])
def test_attention_sizes(features: int, device: CudaDevice, rng: Rng) -> None:
    for queries, keys in ((1, 65), (33, 65), (129, 300), (300, 63)):
        check(device, attention((2, 6, queries, features), (2, 3, keys, features), 64), rng)


ATTENTION: dict[str, Callable[[], Region]] = {
    "causal": lambda: attention(causal="top_left"),
    "causal, more queries": lambda: attention((2, 6, 70, 64), causal="top_left"),
    "bottom right": lambda: attention(causal="bottom_right"),
    "window": lambda: attention(window=(3, 0)),
    "window of one": lambda: attention(window=(0, 0)),
    "window, causal": lambda: attention(window=(5, None), causal="top_left"),
    "window to both sides": lambda: attention(window=(3, 4)),
    "window, bottom right": lambda: attention(window=(5, 0), causal="bottom_right"),
    "lengths": lambda: attention(extras=("q_lengths", "kv_lengths")),
    "lengths, causal": lambda: attention(extras=("q_lengths", "kv_lengths"), causal="top_left"),
    "lengths, statistics": lambda: attention(extras=("q_lengths", "kv_lengths"), return_lse=True),
    "bias": lambda: attention(extras=("bias",)),
    "bias of a row": lambda: attention(extras=("bias",), bias_shape=(2, 1, 1, 65)),
    "bias, causal": lambda: attention(extras=("bias",), causal="top_left"),
    "bias, lengths": lambda: attention(extras=("bias", "q_lengths", "kv_lengths")),
    "statistics": lambda: attention(return_lse=True),
    "statistics, causal": lambda: attention(return_lse=True, causal="top_left"),
    "bfloat16": lambda: attention(dtype=gd.bfloat16, causal="top_left"),
    "scale": lambda: attention(scale=0.5),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_masks(name: str, device: CudaDevice, rng: Rng) -> None:
    check(device, ATTENTION[name](), rng)


FLOAT32: dict[str, Region] = {
    "plain": convolution((2, 64, 16, 15), 64, dtype=gd.float32),
    "bias": convolution((2, 64, 16, 15), 64, dtype=gd.float32, finish=bias),
    "bias, relu": convolution((2, 64, 16, 15), 64, dtype=gd.float32, finish=lambda g, y: g.relu(bias(g, y))),
    "bias, relu, odd": convolution((2, 3, 16, 15), 17, dtype=gd.float32, finish=lambda g, y: g.relu(bias(g, y))),
    "residual": convolution((2, 64, 16, 15), 64, dtype=gd.float32, finish=lambda g, y: g.relu(residual(g, bias(g, y)))),
    "silu": convolution((2, 64, 16, 15), 64, dtype=gd.float32, finish=lambda g, y: g.silu(y)),
    "odd, residual": convolution((2, 3, 16, 15), 17, dtype=gd.float32, finish=lambda g, y: g.relu(residual(g, y))),
    "depthwise": convolution((2, 24, 16, 15), 24, groups=24, dtype=gd.float32, finish=lambda g, y: g.relu(bias(g, y))),
}


@pytest.mark.parametrize("name", FLOAT32)
def test_float32_is_float32(name: str, device: CudaDevice, rng: Rng) -> None:
    """Every engine that the table trusts, and no engine that it leaves out without need: the whole list is printed."""
    region = FLOAT32[name]
    policy, engine = Policy(), CudnnEngine()
    anatomy = Anatomy(region)
    with device:
        found = engine._proposals(region, device)
        assert not isinstance(found, Decline), str(found)
        plans = list(as_candidates(anatomy, found, device.target, policy))
        measured = errors(device, region, plans, rng)
    by_engine: dict[int, float] = {}
    for text, error in measured.items():
        if isinstance(error, float):
            number = PlanName.parse(text).engine
            by_engine[number] = max(error, by_engine.get(number, 0.0))
    kind = engine_class(anatomy)
    print(f"{name} ({kind}):", {f"eng{n}": f"{e:.1e}" for n, e in sorted(by_engine.items())})
    lying = {n: e for n, e in by_engine.items() if n in IEEE[kind] and e > TOLERANCE["float32"]}
    assert not lying, f"{kind}: engines of the table with larger errors: {lying}"


def test_tf32_on_request(device: CudaDevice, rng: Rng) -> None:
    tf32 = Policy(precision="tf32")
    check(device, FLOAT32["bias, relu"], rng, tf32)
    check(device, product((65, 40), (40, 33), gd.float32, finish=lambda g, y: g.gelu(columns(g, y))), rng, tf32)


@pytest.mark.parametrize("name", without_exact_plan())
def test_what_only_tf32_computes_rightly_is_declined_until_it_is_asked_for(
    name: str, device: CudaDevice, rng: Rng
) -> None:
    region = without_exact_plan()[name]
    with device:
        refusal = CudnnEngine().candidates(region, device, Policy())
    assert isinstance(refusal, Decline)
    assert refusal.code == Code.PRECISION
    check(device, region, rng, Policy(precision="tf32"))


def test_plans_are_within_the_workspace_they_tell(device: CudaDevice) -> None:
    region, engine = TAKEN["conv, odd channels"], CudnnEngine()
    with device:
        candidates = engine.candidates(region, device, Policy())
        assert not isinstance(candidates, Decline)
        for one in chosen(tuple(candidates)):
            plan = engine.build(one, device)
            if not isinstance(plan, Decline):
                assert plan.workspace_bytes == one.workspace_bytes


def test_nan_passes_a_relu(device: CudaDevice, rng: Rng) -> None:
    region = convolution(finish=lambda g, y: g.relu(bias(g, y)))
    arrays = drawn(region.graph, rng)
    arrays["x"][1, 3, 4, 5] = np.nan
    wanted = gd.evaluate(region.graph, arrays, dtype=gd.float64)["y"]
    with device:
        engine = CudnnEngine()
        candidates = engine.candidates(region, device, Policy())
        assert not isinstance(candidates, Decline)
        for one in chosen(tuple(candidates)):
            plan = engine.build(one, device)
            if not isinstance(plan, Decline):
                found = run(device, region, plan, arrays)["y"]
                np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted), err_msg=one.name)
