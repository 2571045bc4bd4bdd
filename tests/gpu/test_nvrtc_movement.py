"""Kernels that move elements, on the device: every bit arrives, nothing is written elsewhere, at any address."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines.nvrtc.engine import NvrtcEngine
from graphdnn.ir.evaluate import apply
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, DType
from graphdnn.runtime.device import CudaDevice
from tests.engines.nvrtc.moves import LAST, convert, dense, move
from tests.engines.nvrtc.test_movement import REGIONS, inputs, padded
from tests.gpu.region_runs import Placed, built, run_region, settled

pytestmark = pytest.mark.gpu

Rng = np.random.Generator
TYPES = (gd.float64, gd.float32, gd.float16, gd.bfloat16, gd.int64, gd.int8, gd.bool)


def check(device: CudaDevice, region: Region, arrays: dict[str, Array], shift: int = 0) -> None:
    """Runs the region and compares every bit with the definition."""
    node = region.nodes[0]
    seen = {v.name: settled(v.type, arrays[v.name]) for v in region.inputs}
    found = run_region(device, region, seen, shift)
    expected = apply(node.op, [seen[v.name] for v in node.operands], node.result_types)
    for value, array in zip(node.results, expected, strict=True):
        np.testing.assert_array_equal(found[value], array)


@pytest.mark.parametrize("shift", [0, 8, 16])
@pytest.mark.parametrize("name", REGIONS)
def test_every_op(device: CudaDevice, rng: Rng, name: str, shift: int) -> None:
    check(device, REGIONS[name], inputs(REGIONS[name], rng), shift)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("order", ["to_last", "to_first"])
@pytest.mark.parametrize("channels", [1, 3, 5, 7, 23, 24, 25, 31, 33, 64, 65, 127, 129, 300])
def test_layout_conversion(device: CudaDevice, rng: Rng, channels: int, order: str, dtype: DType) -> None:
    layouts = (None, LAST) if order == "to_last" else (LAST, None)
    for shape in ((3, channels, 7, 9), (2, channels, 16, 24)):
        region = convert(shape, dtype, *layouts)
        check(device, region, inputs(region, rng), shift=dtype.itemsize if shape[0] == 3 else 0)


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32, gd.int8], ids=str)
@pytest.mark.parametrize("before", [None, LAST], ids=["planes", "pixels"])
@pytest.mark.parametrize("to", [4, 8])
@pytest.mark.parametrize("channels", [1, 3, 5, 7])
def test_padded_channels(
    device: CudaDevice, rng: Rng, channels: int, to: int, before: tuple[int, ...] | None, dtype: DType
) -> None:
    """Row-major or not, to channels-last with more channels; what is not written stays poison, and would show."""
    if channels >= to:
        to *= 2
    for shape in ((1, channels, 1, 1), (3, channels, 7, 9), (2, channels, 16, 24), (4, channels, 33, 65)):
        region = padded(shape, to, dtype, before)
        for shift in (0, dtype.itemsize, 8):
            check(device, region, inputs(region, rng), shift)


def test_padded_channels_of_a_whole_batch(device: CudaDevice, rng: Rng) -> None:
    for shape in ((32, 3, 224, 224), (33, 3, 225, 223)):
        region = padded(shape, 4, gd.float16)
        check(device, region, inputs(region, rng))


def test_padding_brings_no_nan_into_other_pixels(device: CudaDevice) -> None:
    region = padded((2, 3, 5, 7), 4, gd.float16)
    image = np.full((2, 3, 5, 7), np.nan, np.float16)
    (found,) = run_region(device, region, {"x0": image}).values()
    assert np.isnan(found[:, :3]).all()
    assert not found[:, 3].any()


def test_large_conversion(device: CudaDevice, rng: Rng) -> None:
    for layouts in ((None, LAST), (LAST, None)):
        region = convert((8, 67, 113, 127), gd.float16, *layouts)
        check(device, region, inputs(region, rng))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 3, 5, 7, 23, 33, 63, 65, 127, 129, 300, 1025])
@pytest.mark.parametrize("columns", [1, 2, 5, 8, 31, 64, 65, 129, 300, 2049])
def test_matrix_transposes(device: CudaDevice, rng: Rng, rows: int, columns: int) -> None:
    for dtype in (gd.int8, gd.float16, gd.float32, gd.float64):
        region = move("transpose", dense((3, rows, columns), dtype), axes=(0, 2, 1))
        check(device, region, inputs(region, rng))


def test_nan_payloads_and_signed_zeros_survive(device: CudaDevice) -> None:
    bits = np.array([0x7E01, 0xFE55, 0x8000, 0x0001, 0x7C00, 0xFC00], np.uint16).reshape(2, 3)
    region = move("transpose", dense((2, 3), gd.float16), axes=(1, 0))
    (found,) = run_region(device, region, {"x0": bits.view(np.float16)}).values()
    np.testing.assert_array_equal(found.view(np.uint16), bits.T)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("index", [gd.int32, gd.int64], ids=str)
def test_indices_outside_never_read_outside(device: CudaDevice, rng: Rng, axis: int, index: DType) -> None:
    """The operand lies between poison: an index that is not held inside would bring it."""
    limits = np.iinfo(index.numpy)
    wanted = np.array([limits.min, -1000, -8, -1, 0, 3, 7, 1000, limits.max], index.numpy)
    region = move("gather", dense((7, 5, 8), gd.float32), dense((9,), index), axis=axis)
    arrays = {"x0": rng.standard_normal((7, 5, 8)).astype(np.float32), "x1": wanted}
    found = run_region(device, region, arrays)[region.outputs[0]]
    assert np.isfinite(found).all()
    check(device, region, arrays)


def test_one_tensor_may_be_data_and_index(device: CudaDevice) -> None:
    from graphdnn.ir.op import OPS
    from graphdnn.ir.writer import GraphWriter

    writer = GraphWriter("g")
    x = writer.input("x0", dense((6,), gd.int32))
    (y,) = writer.emit(OPS["gather"](axis=0), (x, x))
    graph = writer.finish({"y": y})
    check(device, Region.of(graph, graph.nodes), {"x0": np.array([3, 1, -1, 9, 0, 2], np.int32)})


@pytest.mark.parametrize("start", [-3, 0, 2, 5, 99])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("in_place", [False, True])
def test_written_slices(device: CudaDevice, rng: Rng, start: int, axis: int, in_place: bool) -> None:
    """In place the result has the operand's address; only the window may change, and all of it must."""
    shape = (7, 9, 16)
    window = tuple(2 if a == axis else n for a, n in enumerate(shape))
    region = move("write_slice", dense(shape, gd.float16), dense(window, gd.float16), dense((1,), gd.int32), axis=axis)
    x, update = (rng.standard_normal(s).astype(np.float16) for s in (shape, window))
    arrays = [x, update, np.array([start], np.int32)]
    (expected,) = region.nodes[0].op.reference(*arrays)
    plan = built(NvrtcEngine(), region, device)
    with device:
        ins = [Placed(device, v.type, 0).filled(a) for v, a in zip(region.inputs, arrays, strict=True)]
        out = ins[0] if in_place else Placed(device, region.outputs[0].type, 0).filled(None)
        plan.enqueue([*(p.address for p in ins), out.address], device.stream, 0)
        device.synchronize()
        np.testing.assert_array_equal(out.read(), expected)
        np.testing.assert_array_equal(ins[0].read(), expected if in_place else x)


@pytest.mark.parametrize("dtype", [gd.float16, gd.float32], ids=str)
def test_a_cache_grows_in_its_own_memory(device: CudaDevice, rng: Rng, dtype: DType) -> None:
    region = move(
        "write_slice", dense((2, 3, 300, 64), dtype), dense((2, 3, 1, 64), dtype), dense((1,), gd.int32), axis=2
    )
    plan = built(NvrtcEngine(), region, device)
    cache = np.zeros((2, 3, 300, 64), dtype.numpy)
    with device:
        held = Placed(device, region.inputs[0].type, 0).filled(cache)
        for position in (0, 1, 2, 150, 299, 300, 1000):
            token = rng.standard_normal((2, 3, 1, 64)).astype(dtype.numpy)
            new, at = (
                Placed(device, v.type, 0).filled(a)
                for v, a in zip(region.inputs[1:], (token, np.array([position], np.int32)), strict=True)
            )
            plan.enqueue([held.address, new.address, at.address, held.address], device.stream, 0)
            device.synchronize()
            cache[:, :, min(position, 299)] = token[:, :, 0]
        np.testing.assert_array_equal(held.read(), cache)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_concat_of_unequal_parts(device: CudaDevice, rng: Rng, axis: int) -> None:
    for order in (None, LAST):
        shapes = [tuple(n if a == axis else m for a, m in enumerate((2, 6, 5, 8))) for n in (1, 7, 24, 3)]
        total = tuple(35 if a == axis else m for a, m in enumerate((2, 6, 5, 8)))
        operands = [dense(s, gd.float16, order if i != 2 else None) for i, s in enumerate(shapes)]
        region = move("concat", *operands, to=[dense(total, gd.float16, order)], axis=axis)
        check(device, region, inputs(region, rng), shift=2)


def test_a_long_walk_with_a_tail(device: CudaDevice, rng: Rng) -> None:
    n = 132 * 4 * 1024 * 8 + 5
    region = move("slice", dense((n + 8,), gd.int8), starts=(8,), stops=(n + 8,), steps=(1,))
    check(device, region, inputs(region, rng))
