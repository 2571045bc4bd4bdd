"""Row kernels on the device against the float64 definition: cases, odd addresses, extremes, large means, splitting."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.types import row_major
from graphdnn.runtime.device import CudaDevice
from tests.engines.cudnn.layouts import whole
from tests.engines.nvrtc.row_regions import LENGTHS, ROWS, Case, layer_norm, softmax
from tests.gpu.region_runs import check_region, run_region

pytestmark = pytest.mark.gpu

Rng = np.random.Generator


@pytest.mark.parametrize("case", ROWS, ids=str)
def test_regions(device: CudaDevice, case: Case, rng: Rng) -> None:
    region = case.region()
    arrays = case.arrays(region, rng)
    check_region(device, region, arrays, scales=case.scales(arrays))


@pytest.mark.parametrize("case", ROWS[::3], ids=str)
def test_addresses_that_are_aligned_to_an_element_only(device: CudaDevice, case: Case, rng: Rng) -> None:
    region = case.region()
    largest = max(v.type.dtype.itemsize for v in (*region.inputs, *region.outputs))
    arrays = case.arrays(region, rng)
    check_region(device, region, arrays, shift=largest, scales=case.scales(arrays))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [gd.float64, gd.float32, gd.float16, gd.bfloat16], ids=str)
@pytest.mark.parametrize("length", [*LENGTHS, 1024, 2048, 2056, 8192, 16384, 32768, 65537])
@pytest.mark.parametrize("count", [1, 3, 131])
def test_swept_lengths(device: CudaDevice, dtype: gd.DType, length: int, count: int, rng: Rng) -> None:
    parameters = gd.float64 if dtype == gd.float64 else gd.float32
    for case in (softmax((count, length), dtype), layer_norm((count, length), dtype, parameters)):
        region = case.region()
        check_region(device, region, case.arrays(region, rng))


@pytest.mark.parametrize("length", [7, 1000, 4096, 70000])
def test_a_large_mean_does_not_eat_the_variance(device: CudaDevice, length: int, rng: Rng) -> None:
    g = gd.GraphBuilder()
    region = whole(g.build({"y": g.layer_norm(g.input("x", (3, length), gd.float32))}))
    check_region(device, region, {"x": rng.uniform(1000, 1001, (3, length)).astype(np.float32)})


@pytest.mark.parametrize("row", [[np.inf, 1.0], [np.nan, 1.0], [-np.inf, -np.inf], [-np.inf, 2.0], [6e4, -6e4]])
@pytest.mark.parametrize("repeat", [1, 50, 3000])
def test_extremes(device: CudaDevice, row: list[float], repeat: int) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 2 * repeat), gd.float16)
    graph = g.build({"softmax": g.softmax(x), "max": g.reduce_max(x, axes=1), "min": g.reduce_min(x, axes=1)})
    check_region(device, whole(graph), {"x": np.array([row * repeat, [0.0, 1.0] * repeat], np.float16)})


def test_splitting_gives_the_same_bits_every_time(device: CudaDevice, rng: Rng) -> None:
    g = gd.GraphBuilder()
    region = whole(g.build({"y": g.reduce_sum(g.input("x", (1000, 3001), gd.float32), axes=None)}))
    arrays = {"x": rng.standard_normal((1000, 3001)).astype(np.float32)}
    first = run_region(device, region, arrays)[region.outputs[0]]
    assert all(np.array_equal(run_region(device, region, arrays)[region.outputs[0]], first) for _ in range(5))
    assert abs(float(first) - arrays["x"].astype(np.float64).sum()) <= 1e-5 * np.abs(arrays["x"]).sum()


@pytest.mark.parametrize("shape", [(1, 3, 700, 512), (2, 5, 129, 1025)])
def test_long_rows_that_blocks_share(device: CudaDevice, shape: tuple[int, ...], rng: Rng) -> None:
    g = gd.GraphBuilder()
    x, scale, bias = (
        g.input("x", shape, gd.float32),
        g.input("s", shape[1:2], gd.float32),
        g.input("b", shape[1:2], gd.float32),
    )
    region = whole(g.build({"y": g.relu(g.instance_norm(x, scale, bias))}), row_major)
    arrays = {"x": rng.standard_normal(shape), "s": rng.standard_normal(shape[1]), "b": rng.standard_normal(shape[1])}
    check_region(device, region, {n: a.astype(np.float32) for n, a in arrays.items()})
