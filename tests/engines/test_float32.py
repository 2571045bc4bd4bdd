"""Float32 convolutions without TF32: cuDNN's and the generated ones, against what was measured on an H200."""

from math import log2
from statistics import median
from typing import NamedTuple

import pytest

import graphdnn as gd
from graphdnn.engines.contract import Policy, Precision, Support
from graphdnn.engines.cudnn.engine import CudnnEngine
from graphdnn.engines.nvrtc.engine import NvrtcEngine
from graphdnn.ir.region import Region
from graphdnn.ir.types import row_major
from graphdnn.target import Target
from tests.engines.cudnn.regions import bias, convolution, residual

H200 = Target.named("h200")


class Timed(NamedTuple):
    """Images, channels, size, filters, kernel, stride, whether a residual is added; microseconds of cuDNN's first plan
    and of the generated kernel."""

    images: int
    channels: int
    size: int
    filters: int
    kernel: int
    stride: int
    with_residual: bool
    cudnn_us: float
    nvrtc_us: float


MEASURED = (
    Timed(32, 64, 56, 64, 1, 1, False, 99.6, 35.2), Timed(32, 64, 56, 64, 3, 1, False, 353.3, 249.4),
    Timed(32, 64, 56, 256, 1, 1, False, 260.5, 132.8), Timed(32, 256, 56, 64, 1, 1, False, 217.1, 116.5),
    Timed(32, 256, 56, 64, 1, 1, True, 4284.5, 118.7), Timed(32, 256, 56, 128, 1, 1, False, 293.1, 171.0),
    Timed(32, 256, 56, 128, 1, 1, True, 8441.1, 185.3), Timed(32, 128, 56, 128, 3, 2, False, 289.3, 270.1),
    Timed(32, 128, 28, 512, 1, 1, False, 174.9, 112.7), Timed(32, 256, 56, 512, 1, 2, False, 293.0, 209.8),
    Timed(32, 256, 56, 512, 1, 2, True, 13075.6, 255.1), Timed(32, 512, 28, 128, 1, 1, False, 160.3, 113.4),
    Timed(32, 128, 28, 128, 3, 1, False, 158.9, 272.9), Timed(32, 256, 14, 1024, 1, 1, False, 161.4, 106.1),
    Timed(32, 256, 14, 1024, 1, 1, True, 4307.0, 132.8), Timed(32, 1024, 14, 256, 1, 1, False, 148.4, 132.8),
    Timed(32, 256, 14, 256, 3, 1, False, 278.7, 267.0), Timed(32, 256, 14, 256, 3, 1, True, 7736.7, 264.8),
    Timed(32, 512, 7, 2048, 1, 1, False, 133.5, 133.7), Timed(32, 2048, 7, 512, 1, 1, False, 207.1, 161.8),
    Timed(32, 512, 7, 512, 3, 1, False, 358.0, 362.6), Timed(32, 3, 224, 64, 7, 2, False, 675.7, 354.3),
    Timed(2, 64, 128, 64, 3, 1, False, 92.7, 85.9), Timed(2, 64, 64, 128, 3, 1, False, 62.9, 48.9),
    Timed(2, 128, 64, 128, 3, 1, False, 105.0, 93.7), Timed(2, 256, 32, 256, 3, 1, False, 113.4, 120.5),
    Timed(2, 512, 16, 512, 3, 1, False, 142.8, 239.4), Timed(2, 512, 8, 1024, 3, 1, False, 183.4, 108.7),
    Timed(2, 1024, 8, 1024, 3, 1, False, 373.0, 230.5), Timed(2, 1024, 16, 512, 3, 1, False, 328.0, 476.5),
    Timed(2, 128, 128, 64, 3, 1, False, 162.6, 171.0), Timed(8, 128, 128, 128, 3, 1, False, 1057.6, 1027.5),
    Timed(1, 256, 14, 256, 3, 1, False, 76.3, 56.0), Timed(1, 64, 56, 256, 1, 1, False, 29.5, 9.3),
    Timed(1, 1024, 14, 256, 1, 1, False, 38.1, 40.8),
)  # fmt: skip
"""Convolution, bias, maybe a residual, relu, all channels-last."""


def region_of(one: Timed) -> Region:
    def finish(g: gd.GraphBuilder, y: gd.Value) -> gd.Value:
        y = bias(g, y)
        return g.relu(residual(g, y) if one.with_residual else y)

    return convolution(
        (one.images, one.channels, one.size, one.size), one.filters, (one.kernel, one.kernel), gd.float32,
        padding=one.kernel // 2, stride=one.stride, finish=finish,
    )  # fmt: skip


def answer(engine: CudnnEngine | NvrtcEngine, region: Region, precision: Precision = "ieee") -> Support:
    found = engine.supports(region, H200, Policy(precision=precision))
    assert isinstance(found, Support), str(found)
    return found


PRICES = [
    (one, answer(CudnnEngine(), region_of(one)).estimated_us, answer(NvrtcEngine(), region_of(one)).estimated_us)
    for one in MEASURED
]


def test_estimates_are_near_what_was_measured() -> None:
    assert median(abs(log2(cudnn / one.cudnn_us)) for one, cudnn, _ in PRICES) < 0.25
    assert median(abs(log2(nvrtc / one.nvrtc_us)) for one, _, nvrtc in PRICES) < 0.25


def test_the_cheaper_by_estimate_is_the_faster_one() -> None:
    lost = [
        (one.cudnn_us if cudnn < nvrtc else one.nvrtc_us) / min(one.cudnn_us, one.nvrtc_us)
        for one, cudnn, nvrtc in PRICES
    ]
    assert median(lost) == 1.0
    assert max(lost) < 2


@pytest.mark.parametrize("one", [one for one in MEASURED if one.with_residual], ids=str)
def test_nobody_is_sent_to_the_slow_engine_of_a_residual(one: Timed) -> None:
    """Engine 8 takes 30 times as long, and cuDNN has no other one without TF32."""
    found = gd.compile(region_of(one).graph, target=H200).report
    assert all(r.engine != "cudnn" or "add" not in r.pattern.split("+") for r in found.regions if "conv" in r.pattern)
    assert found.estimated_us < one.cudnn_us / 10


def test_row_major_tensors_need_no_conversion() -> None:
    shape = (32, 128, 28, 28)
    lying = convolution(shape, 128, (3, 3), gd.float32, padding=1)
    standing = convolution(shape, 128, (3, 3), gd.float32, padding=1, layout=row_major)
    assert answer(CudnnEngine(), standing).estimated_us + 20 < answer(CudnnEngine(), lying).estimated_us
    assert "row-major" in " ".join(answer(CudnnEngine(), lying).notes)
    assert "row-major" not in " ".join(answer(CudnnEngine(), standing).notes)


def test_only_where_a_library_is_faster_is_it_a_last_resort() -> None:
    region = region_of(MEASURED[1])
    assert not answer(NvrtcEngine(), region).last_resort
    assert answer(NvrtcEngine(), region, "tf32").last_resort
    halves = convolution((32, 64, 56, 56), 64, (3, 3), gd.float16, padding=1)
    assert answer(NvrtcEngine(), halves).last_resort
