"""Pooling kernels on the device against the float64 definition: windows, layouts, types, NaN, odd addresses."""

import itertools

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.types import channels_last, row_major
from graphdnn.runtime.device import CudaDevice
from tests.engines.nvrtc.row_regions import POOLS, Case, image, pool
from tests.gpu.region_runs import check_region

pytestmark = pytest.mark.gpu

Rng = np.random.Generator


@pytest.mark.parametrize("case", POOLS, ids=str)
@pytest.mark.parametrize("shifted", [False, True])
def test_regions(device: CudaDevice, case: Case, shifted: bool, rng: Rng) -> None:
    region = case.region()
    shift = max(v.type.dtype.itemsize for v in region.inputs) if shifted else 0
    check_region(device, region, case.arrays(region, rng), shift)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["max_pool", "avg_pool"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "padding"), list(itertools.product([2, 3], [1, 2, 3], [0, 1])))
def test_swept_windows(
    device: CudaDevice, kind: str, last: bool, ceil_mode: bool, kernel: int, stride: int, padding: int, rng: Rng
) -> None:
    attributes = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}
    for shape in ((3, 24, 7, 10), (1, 5, 11, 4), (2, 33, 5, 6, 7)):
        case = pool(kind, shape, gd.float16, last, **attributes)
        region = case.region()
        check_region(device, region, case.arrays(region, rng))


@pytest.mark.parametrize("last", [False, True])
def test_nan_wins_and_padding_never_does(device: CudaDevice, last: bool) -> None:
    shape = (2, 16, 6, 5)
    x = np.full(shape, -np.inf, np.float16)
    x[1, 3, 2, 2] = np.nan
    x[0, 5, 0, 0] = 4
    layout = channels_last if last else row_major

    def build(g: gd.GraphBuilder) -> gd.Value:
        return g.max_pool(image(g, shape, gd.float16, last), kernel=3, stride=1, padding=1)

    check_region(device, Case("nan", build, layout=layout).region(), {"x": x})
