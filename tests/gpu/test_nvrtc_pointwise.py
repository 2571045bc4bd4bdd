"""Generated pointwise kernels on the device: every function and type, broadcasting, layouts, odd addresses."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.nvrtc.compile import compile_cubin
from graphdnn.engines.nvrtc.engine import NvrtcEngine
from graphdnn.engines.nvrtc.launch import load_plan
from graphdnn.engines.nvrtc.recipe import Kernel, Recipe
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.pointwise import FUNCTIONS, TAKES, Pointwise
from graphdnn.ir.types import DTYPES, Array, DType, channels_last, row_major
from graphdnn.runtime.device import CudaDevice
from tests.engines.cudnn.layouts import Layout, whole
from tests.engines.nvrtc.moving_regions import MOVING, Moving
from tests.engines.nvrtc.promoted_regions import arrays as arrays_of
from tests.engines.nvrtc.promoted_regions import regions
from tests.gpu.region_runs import Placed, built, check_in_place, check_region, compare, run_region
from tests.ir.samples import draw

pytestmark = pytest.mark.gpu

Rng = np.random.Generator
NUMBERS = {"negative_slope": 0.1, "alpha": 1.5, "beta": 0.7, "min": -1, "max": 2}
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0)


def spiced(array: Array, dtype: DType, turn: int) -> Array:
    """The array with the elements that go wrong most often among its first."""
    flat = array.reshape(-1)
    if dtype.is_float:
        flat[: len(SPECIAL)] = np.roll(SPECIAL, turn)
    elif dtype.is_integer:
        ends = np.iinfo(dtype.numpy)
        flat[:4] = np.roll([ends.max, ends.min, 0, 1], turn)
    return array


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=str)
def test_every_function(device: CudaDevice, rng: Rng, dtype: DType) -> None:
    """Ten functions a kernel, each on ordinary and on special elements."""
    names = [fn for fn, row in FUNCTIONS.items() if TAKES[row.takes](dtype)]
    for start in range(0, len(names), 10):
        g = gd.GraphBuilder()
        arrays = {n: spiced(draw(gd.TensorType((7, 33), dtype), rng), dtype, 3 * i) for i, n in enumerate("ab")}
        operands = [g.input(n, (7, 33), dtype) for n in "ab"]
        outputs: dict[str, Value] = {}
        for fn in names[start : start + 10]:
            numbers = tuple(1 if dtype.kind == "uint" else NUMBERS[p] for p, _ in FUNCTIONS[fn].parameters)
            op = Pointwise(fn=fn, parameters=numbers)
            outputs[fn] = g._add(op, *operands[: FUNCTIONS[fn].arity], name=None, whole=dtype.is_integer)[0]
        check_region(device, whole(g.build(outputs)), arrays)


@pytest.mark.parametrize("dtype", list(DTYPES.values()), ids=str)
def test_types_promote_as_in_the_definition(device: CudaDevice, rng: Rng, dtype: DType) -> None:
    """Beside numbers, and beside every type: bools count, integers divide and take roots in float32."""
    for region in regions(dtype).values():
        check_region(device, region, arrays_of(region, rng))


@pytest.mark.parametrize("first", [2**24 + 1, 2**31 - 1, -(2**31)])
def test_integers_round_once_where_they_become_floats(device: CudaDevice, first: int) -> None:
    """Past 24 bits float32 holds no more than every second integer; PyTorch rounds them, to even, before it divides."""
    g = gd.GraphBuilder()
    graph = g.build({"y": g.div(g.input("i", (3,), gd.int32), 1)})
    array = np.array([first, 2**24 + 3, 7], np.int32)
    region = whole(graph)
    found = run_region(device, region, {"i": array})[region.outputs[0]]
    np.testing.assert_array_equal(found, array.astype(np.float32))


def test_masks_through_the_compiler(device: CudaDevice, rng: Rng) -> None:
    """A bool beside a product, in whatever regions that comes to."""
    g = gd.GraphBuilder()
    a, b = g.input("a", (64, 96), gd.float16), g.input("b", (96, 40), gd.float16)
    mask, count = g.input("mask", (64, 1), gd.bool), g.input("count", (64, 1), gd.int32)
    masked = g.matmul(a, b) * mask
    graph = g.build({"y": masked, "mean": g.reduce_sum(masked, axes=1, keepdims=True) / g.sqrt(count)})
    given = {n: draw(t.type, rng) for n, t in graph.inputs.items()} | {
        "count": np.arange(1, 65, dtype=np.int32)[:, None]
    }
    found, wanted = gd.compile(graph, target=device.target)(given), gd.evaluate(graph, given, dtype=gd.float64)
    for name in graph.outputs:  # the mean is float32, of a sum that is a half
        compare(name, found[name], wanted[name], gd.float16)


@pytest.mark.parametrize("source", list(DTYPES.values()), ids=str)
def test_every_cast(device: CudaDevice, rng: Rng, source: DType) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (129,), source)
    array = rng.uniform(0, 100, 129).astype(source.numpy) if source.kind != "bool" else rng.random(129) < 0.5
    check_region(device, whole(g.build({t: g.cast(x, dtype) for t, dtype in DTYPES.items()})), {"x": array})


@pytest.mark.parametrize("source", [t for t in DTYPES.values() if t.is_float], ids=str)
def test_casts_hold_floats_within_an_integer_type(device: CudaDevice, source: DType) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (17,), source)
    powers = [2.0**n for n in (7, 8, 15, 31, 32, 63, 64)]
    with np.errstate(over="ignore"):
        array = np.array([*powers, *(-p for p in powers), np.inf, -np.inf, np.nan]).astype(source.numpy)
    integers = {t: dtype for t, dtype in DTYPES.items() if dtype.is_integer}
    check_region(device, whole(g.build({t: g.cast(x, dtype) for t, dtype in integers.items()})), {"x": array})


def test_a_cast_rounds_inside_a_region(device: CudaDevice, rng: Rng) -> None:
    """Float16, rounded, minus itself not rounded: exactly the rounding error, in float32."""
    g = gd.GraphBuilder()
    x = g.input("x", (300,), gd.float32)
    graph = g.build({"y": g.sub(g.cast(g.cast(x, gd.float16), gd.float32), x)})
    array = rng.standard_normal(300).astype(np.float32)
    check_region(device, whole(graph), {"x": array})


def test_float64_to_bfloat16_rounds_once(device: CudaDevice) -> None:
    """Just above a tie: rounding to float32 first would make it one."""
    g = gd.GraphBuilder()
    graph = g.build({"y": g.cast(g.input("x", (2,), gd.float64), gd.bfloat16)})
    tie = 1 + 2.0**-8
    region = whole(graph)
    found = run_region(device, region, {"x": np.array([tie + 2.0**-40, tie])})[region.outputs[0]].astype(np.float64)
    np.testing.assert_array_equal(found, [1 + 2.0**-7, 1.0])


Build = Callable[[gd.GraphBuilder], Mapping[str, Value]]


def sizes_1d(count: int, dtype: DType) -> Build:
    return lambda g: {"y": g.relu(g.input("x", (count,), dtype))}


def bias_of(shape: tuple[int, ...], axis: int, strides: tuple[int, ...] | None = None) -> Build:
    def build(g: gd.GraphBuilder) -> Mapping[str, Value]:
        x = g.input("x", shape, gd.float16, strides=strides)
        return {"y": g.gelu(g.bias(x, g.input("b", (shape[axis],), gd.float16), axis=axis))}

    return build


def relu_of(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType = gd.float16) -> Build:
    return lambda g: {"y": g.relu(g.input("x", shape, dtype, strides=strides))}


def squeeze_and_scale(g: gd.GraphBuilder) -> Mapping[str, Value]:
    s = g.sigmoid(g.input("s", (3, 5, 1, 1), gd.float16))
    return {"y": g.mul(g.input("x", (3, 5, 4, 9), gd.float16), s), "s": s}


def vector_twice(g: gd.GraphBuilder) -> Mapping[str, Value]:
    x, b = g.input("x", (4, 4, 4), gd.float32), g.relu(g.input("b", (4,), gd.float32))
    return {"y": g.add(g.bias(x, b, axis=1), b), "b_out": b}


def mixed(g: gd.GraphBuilder) -> Mapping[str, Value]:
    a, b = g.input("a", (37, 40), gd.float16), g.input("b", (37, 40), gd.float32)
    return {"sum": g.add(a, b), "less": g.less(a, b), "picked": g.select(g.less(a, b), a, 0.5)}


def outer(g: gd.GraphBuilder) -> Mapping[str, Value]:
    return {"y": g.mul(g.input("a", (33, 1), gd.float16), g.input("b", (1, 48), gd.float16))}


def alone(g: gd.GraphBuilder) -> Mapping[str, Value]:
    return {"y": g.exp(g.input("x", (), gd.float32))}


def reordered(g: gd.GraphBuilder) -> Mapping[str, Value]:
    a = g.input("a", (2, 3, 4, 5, 6), gd.float32, strides=(360, 120, 1, 24, 4))
    return {"y": g.add(a, g.input("b", (3, 1, 5, 1), gd.float32))}


IMAGE = (3, 16, 5, 7)
CASES: dict[str, tuple[Build, Layout]] = {
    **{f"length_{n}": (sizes_1d(n, gd.float16), row_major) for n in (1, 63, 65, 127, 129, 300)},
    "length_10007": (sizes_1d(10007, gd.float16), row_major),
    "several_groups_a_thread": (sizes_1d(2**23 + 3, gd.float16), row_major),
    "bytes": (lambda g: {"y": g.logical_not(g.input("x", (67,), gd.bool))}, row_major),
    "bias_last_axis": (bias_of((5, 7, 24), 2), row_major),
    "bias_channels_first": (bias_of((3, 5, 8, 16), 1), row_major),
    "bias_channels_first_odd": (bias_of((3, 5, 7, 9), 1), row_major),
    "bias_channels_last": (bias_of(IMAGE, 1, channels_last(IMAGE)), channels_last),
    "first_to_last": (bias_of(IMAGE, 1), channels_last),
    "last_to_first": (bias_of(IMAGE, 1, channels_last(IMAGE)), row_major),
    "rows_with_gaps": (relu_of((7, 16), (24, 1)), row_major),
    "rows_with_odd_gaps": (relu_of((7, 16), (25, 1)), row_major),
    "expanded_rows": (relu_of((7, 16), (0, 1)), row_major),
    "expanded_columns": (relu_of((7, 16), (1, 0)), row_major),
    "every_second": (relu_of((7, 16), (32, 2), gd.float32), row_major),
    "transposed_output": (relu_of((7, 18), (18, 1)), lambda shape: (1, shape[0])),
    "output_with_gaps": (relu_of((7, 16), (16, 1)), lambda shape: (24, 1)),
    "small_output": (squeeze_and_scale, row_major),
    "vector_at_two_axes": (vector_twice, row_major),
    "mixed_types": (mixed, row_major),
    "outer_product": (outer, row_major),
    "one_element": (alone, row_major),
    "reordered_axes": (reordered, row_major),
}


@pytest.mark.parametrize("shift", [0, 2, 4, 8])
@pytest.mark.parametrize("name", CASES)
def test_shapes_and_layouts(device: CudaDevice, rng: Rng, name: str, shift: int) -> None:
    """Case T1 among them: addresses off the boundary that vectors need."""
    build, layout = CASES[name]
    g = gd.GraphBuilder(name)
    region = whole(g.build(build(g)), layout)
    widest = max(v.type.dtype.itemsize for v in (*region.inputs, *region.outputs))
    shift = -(-shift // widest) * widest
    check_region(device, region, {v.name: draw(v.type, rng) for v in region.inputs}, shift)


@pytest.mark.parametrize("shift", [0, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_in_place(device: CudaDevice, rng: Rng, name: str, shift: int) -> None:
    """Each pair that a plan offers, with both addresses equal."""
    build, layout = CASES[name]
    g = gd.GraphBuilder(name)
    region = whole(g.build(build(g)), layout)
    widest = max(v.type.dtype.itemsize for v in (*region.inputs, *region.outputs))
    arrays = {v.name: draw(v.type, rng) for v in region.inputs}
    check_in_place(device, region, arrays, -(-shift // widest) * widest)


@pytest.mark.parametrize("shape", [(129,), (33, 65), (2**20 + 7,), (300, 24)])
def test_several_outputs_in_place(device: CudaDevice, rng: Rng, shape: tuple[int, ...]) -> None:
    """Every output needs every input, so that an early store over an input would be seen."""
    g = gd.GraphBuilder()
    a, b, c = (g.input(n, shape, gd.float16) for n in "abc")
    outputs = {"sum": a + b + c, "first": g.relu(a) * b, "second": g.sigmoid(c) - a, "third": g.tanh(b) * c}
    region = whole(g.build(outputs), row_major)
    assert check_in_place(device, region, {v.name: draw(v.type, rng) for v in region.inputs}) == 12


@pytest.mark.parametrize("length", [1, 63, 65, 300, 1024, 4096, 9000, 40001])
def test_rows_in_place(device: CudaDevice, rng: Rng, length: int) -> None:
    """Residual sums that are outputs too, and what is normalized over them: two phases, both stores over inputs."""
    g = gd.GraphBuilder()
    x, r = g.input("x", (7, length), gd.float16), g.input("r", (7, length), gd.float16)
    total = x + r
    outputs = {"sum": total, "y": g.rms_norm(total, g.input("scale", (length,), gd.float16)), "late": g.softmax(r) * x}
    region = whole(g.build({"sum": outputs["sum"], "y": outputs["y"]}), row_major)
    check_in_place(device, region, {v.name: draw(v.type, rng) for v in region.inputs})
    region = whole(g.build({"late": outputs["late"]}), row_major)
    check_in_place(device, region, {v.name: draw(v.type, rng) for v in region.inputs})


@pytest.mark.parametrize("elements", [0, 1])
@pytest.mark.parametrize("case", MOVING, ids=str)
def test_movement_inside_a_kernel(case: Moving, elements: int, device: CudaDevice, rng: Rng) -> None:
    region = case.region()
    shift = elements * max(v.type.dtype.itemsize for v in (*region.inputs, *region.outputs))
    check_region(device, region, case.arrays(region, rng), shift)
    check_in_place(device, region, case.arrays(region, rng))


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32], ids=str)
def test_a_rotation_of_slices_of_one_product(dtype: DType, device: CudaDevice, rng: Rng) -> None:
    """Through the compiler: x, its halves and v are views of one buffer, which the rotations must not write over."""
    g = gd.GraphBuilder()
    wide = g.relu(g.input("x", (2, 63, 7 * 64), dtype))
    q, k, v = (
        g.transpose(g.reshape(part, (2, 63, heads, 64)), (0, 2, 1, 3))
        for part, heads in zip(g.split(wide, [4 * 64, 2 * 64, 64], axis=-1), (4, 2, 1), strict=True)
    )
    cos, sin = (g.input(n, (63, 64), dtype) for n in ("cos", "sin"))

    def rotate(x: Value) -> Value:
        first, second = g.split(x, [32, 32], axis=-1)
        return x * cos + g.concat([-second, first], axis=-1) * sin

    graph = g.build({"q": rotate(q), "k": rotate(k), "v": g.neg(v)})
    exe = gd.compile(graph, target=device.target)
    assert sum("concat" in r.pattern for r in exe.report.regions) == 2
    arrays = {n: draw(t.type, rng) for n, t in graph.inputs.items()}
    found, wanted = exe(arrays), gd.evaluate(graph, arrays, dtype=gd.float64)
    for name, value in graph.outputs.items():
        compare(name, found[name], wanted[name], value.type.dtype)


def test_a_written_slice_in_place(device: CudaDevice, rng: Rng) -> None:
    g = gd.GraphBuilder()
    x, u = g.input("x", (3, 65, 7), gd.float16), g.input("u", (3, 5, 7), gd.float16)
    region = whole(g.build({"y": g.write_slice(x, u, 9, axis=1)}), row_major)
    assert check_in_place(device, region, {v.name: draw(v.type, rng) for v in region.inputs}) == 1


def test_numbers_in_float_and_integer_outputs_of_one_kernel(device: CudaDevice, rng: Rng) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (300,), gd.bfloat16)
    i = g.input("i", (300,), gd.int64)
    region = whole(g.build({"y": 2.5 - x * -1e-3, "z": i * -7 + 2**40}))
    check_region(device, region, {"x": draw(x.type, rng), "i": draw(i.type, rng)})


def test_a_plan_runs_on_other_addresses_and_inside_a_capture(device: CudaDevice, rng: Rng) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (1000,), gd.float32)
    region = whole(g.build({"y": g.neg(x)}))
    plan = built(NvrtcEngine(), region, device)
    arrays = [draw(x.type, rng) for _ in range(3)]
    with device:
        ins = [Placed(device, x.type, 0).filled(a) for a in arrays]
        outs = [Placed(device, x.type, 0).filled(None) for _ in arrays]
        addresses = [[i.address, o.address] for i, o in zip(ins, outs, strict=True)]
        plan.enqueue(addresses[0], device.stream, 0)
        plan.enqueue(addresses[1], device.stream, 0)
        captured = device.capture(lambda stream: plan.enqueue(addresses[2], stream, 0))
        captured.launch(device.stream)
        device.synchronize()
        for array, out in zip(arrays, outs, strict=True):
            np.testing.assert_array_equal(out.read(), -array)


def test_a_refused_launch_names_the_kernel(device: CudaDevice) -> None:
    kernel = Kernel("idle", lambda: 'extern "C" __global__ void idle() {}', (), (1, 1, 1), (2048, 1, 1))
    cubin = compile_cubin(kernel.source, device.target.arch)
    assert isinstance(cubin, bytes)
    with device:
        plan = load_plan(Recipe("idle", (kernel,)), (cubin,), {}, device.target)
        assert not isinstance(plan, Decline)
        with pytest.raises(gd.ExecutionError, match=r"generated kernel idle of idle.*CUDA_ERROR_INVALID_VALUE"):
            plan.enqueue((), device.stream, 0)


def test_a_broken_cubin_is_declined(device: CudaDevice) -> None:
    kernel = Kernel("idle", str, (), (1, 1, 1), (32, 1, 1))
    with device:
        answer = load_plan(Recipe("idle", (kernel,)), (b"no cubin at all",), {}, device.target)
    assert isinstance(answer, Decline)
    assert answer.code == Code.BUILD
    assert "idle" in answer.reason
