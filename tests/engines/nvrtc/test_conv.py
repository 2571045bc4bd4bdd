"""Generated convolutions without a device: which kernel takes which, how it walks, and that all of it compiles."""

from typing import Any

import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy
from graphdnn.engines.nvrtc import conv, depthwise
from graphdnn.engines.nvrtc.compile import compile_cubin
from graphdnn.engines.nvrtc.engine import NvrtcEngine, family_of, recipes
from graphdnn.engines.nvrtc.epilogue import anchor_with_epilogue
from graphdnn.engines.nvrtc.recipe import Anchored
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, channels_last, row_major
from graphdnn.target import Target
from tests.engines.cudnn.layouts import Layout, whole

H200 = Target.named("h200")
Shape = tuple[int, ...]


def convolution(
    x: Shape,
    w: Shape,
    dtype: DType = gd.float16,
    layout: Layout = channels_last,
    filters: Layout = row_major,
    epilogue: bool = False,
    **attributes: Any,
) -> Region:
    g = gd.GraphBuilder()
    y = g.conv(g.input("x", x, dtype, strides=layout(x)), g.input("w", w, dtype, strides=filters(w)), **attributes)
    if epilogue:
        y = g.relu(g.bias(y, g.input("b", (w[0],), dtype), axis=1))
    return whole(g.build({"y": y}), layout)


def parts_of(region: Region) -> Anchored:
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    return parts


def source(region: Region) -> str:
    family = family_of(region)
    assert not isinstance(family, Decline), family
    return family.generate(region, H200).kernels[0].source


@pytest.mark.parametrize(
    ("x", "w", "attributes", "family"),
    [
        ((2, 8, 9, 9), (8, 1, 3, 3), {"groups": 8}, depthwise.FAMILY),
        ((2, 8, 9, 9), (16, 1, 3, 3), {"groups": 8}, conv.FAMILY),
        ((2, 8, 9, 9), (8, 2, 3, 3), {"groups": 4}, conv.FAMILY),
        ((2, 1, 9, 9), (1, 1, 3, 3), {}, conv.FAMILY),
        ((2, 8, 5, 9, 9), (8, 1, 3, 3, 3), {"groups": 8}, conv.FAMILY),
        ((2, 8, 70, 70), (8, 1, 63, 63), {"groups": 8}, depthwise.FAMILY),
        ((2, 8, 130, 130), (8, 1, 127, 127), {"groups": 8}, conv.FAMILY),
    ],
)
def test_which_kernel_takes_it(x: Shape, w: Shape, attributes: dict[str, Any], family: object) -> None:
    assert family_of(convolution(x, w, **attributes)) is family


def test_depthwise_needs_channels_innermost_and_floats() -> None:
    assert family_of(convolution((2, 8, 9, 9), (8, 1, 3, 3), layout=row_major, groups=8)) is conv.FAMILY
    assert family_of(convolution((2, 8, 9, 9), (8, 1, 3, 3), gd.int8, groups=8)) is conv.FAMILY


@pytest.mark.parametrize(
    ("dtype", "layout", "arch"),
    [
        (gd.float16, channels_last, "sm_80"),
        (gd.float32, row_major, "sm_90"),
        (gd.float64, channels_last, "sm_90"),
        (gd.int8, channels_last, "sm_80"),
    ],
)
def test_kernels_compile(dtype: DType, layout: Layout, arch: str) -> None:
    region = convolution((2, 12, 9, 8), (6, 4, 3, 2), dtype, layout, groups=3, padding=1, epilogue=True)
    cubin = compile_cubin(source(region), arch)
    assert isinstance(cubin, bytes), cubin


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32, gd.float64], ids=str)
def test_depthwise_compiles(dtype: DType) -> None:
    region = convolution((2, 24, 9, 13), (24, 1, 5, 5), dtype, groups=24, padding=2, epilogue=True)
    cubin = compile_cubin(source(region), "sm_80")
    assert isinstance(cubin, bytes), cubin


@pytest.mark.slow
@pytest.mark.parametrize("number", range(0, 100, 9))
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_every_cut_compiles(number: int, arch: str) -> None:
    for stride in (1, 2):
        region = convolution((2, 24, 9, 13), (24, 1, 7, 7), groups=24, padding=3, stride=stride, epilogue=True)
        cuts = [*depthwise.choices(parts_of(region))]
        (kernel,) = depthwise.recipe(region, parts_of(region), cuts[number % len(cuts)]).kernels
        cubin = compile_cubin(kernel.source, arch)
        assert isinstance(cubin, bytes), cubin


def test_taps_run_along_the_dense_axis() -> None:
    last = source(convolution((2, 8, 9, 9), (16, 8, 3, 3), gd.float32, filters=channels_last))
    assert "constexpr bool CHANNELS_INNER = true;" in last
    assert "VA = 4, VB = 4;" in last
    mixed = source(convolution((2, 8, 9, 9), (16, 8, 3, 3), gd.float32))
    assert "VA = 4, VB = 1;" in mixed
    first = source(convolution((2, 8, 9, 9), (16, 8, 3, 3), gd.float32, layout=row_major))
    assert "constexpr bool CHANNELS_INNER = false;" in first
    assert "VA = 1, VB = 4;" in first
    odd = source(convolution((2, 7, 9, 9), (16, 7, 3, 3), gd.float32, filters=channels_last))
    assert "VA = 1, VB = 1;" in odd
    half = source(convolution((32, 64, 56, 56), (64, 64, 3, 3), filters=channels_last))
    assert "#define MATRIX_UNITS 1" in half
    assert "VA = 8, VB = 8;" in half


@pytest.mark.parametrize(("channels", "widths"), [(24, {4, 2, 1}), (26, {2, 1}), (23, {1})])
def test_depthwise_takes_neighbouring_channels(channels: int, widths: set[int]) -> None:
    region = convolution((2, channels, 9, 9), (channels, 1, 3, 3), groups=channels)
    cuts = [*depthwise.choices(parts_of(region))]
    assert {c.channels for c in cuts} == widths
    assert {c.columns for c in cuts} == set(range(1, 9))
    assert all(c.rows * c.columns * c.channels <= depthwise.MOST_SUMS for c in cuts)


def test_depthwise_takes_several_rows_only_where_taps_are_neighbours() -> None:
    plain = [*depthwise.choices(parts_of(convolution((2, 24, 9, 9), (24, 1, 3, 3), groups=24)))]
    dilated = [*depthwise.choices(parts_of(convolution((2, 24, 9, 9), (24, 1, 3, 3), groups=24, dilation=(2, 1))))]
    assert {c.rows for c in plain} == set(range(1, 8))
    assert {c.rows for c in dilated} == {1}


def test_depthwise_keeps_many_threads_on_small_images_and_reads_little_again_on_large_ones() -> None:
    small, *_ = depthwise.ranked(parts_of(convolution((1, 64, 7, 7), (64, 1, 3, 3), groups=64, padding=1)), H200)
    large, *_ = depthwise.ranked(parts_of(convolution((64, 96, 56, 56), (96, 1, 7, 7), groups=96, padding=3)), H200)
    assert small.rows * small.columns * small.channels <= 4
    assert large.columns >= 4
    assert large.rows >= 2


def test_further_cuts_are_offered_for_timing() -> None:
    region = convolution((64, 384, 14, 14), (384, 1, 7, 7), groups=384, padding=3)
    names = [r.name for r in recipes(depthwise.FAMILY, region, H200)]
    assert len(set(names)) == len(names) >= 4
    assert {name[-1] for name in names} == {"1", "2", "4"}


def test_the_inner_loop_multiplies_most_of_the_time() -> None:
    """Of what a thread issues for a 7x7 filter, at least 60 in 100 are multiply-adds: the rest loads a filter's taps
    once for each row of results, and fetches and widens each input once."""
    region = convolution((64, 96, 56, 56), (96, 1, 7, 7), groups=96, padding=3)
    best, *_ = depthwise.ranked(parts_of(region), H200)
    multiplied = 49 * best.rows * best.columns * best.channels
    taps, fetched = 49 * best.rows, best.read * (best.columns + 6) * (3 + best.channels)
    assert multiplied > 0.6 * (multiplied + taps + fetched)


@pytest.mark.parametrize(
    ("x", "kernel", "stride", "measured"),
    [
        ((64, 384, 14, 14), 7, 1, {"7x7x1": 19.8, "4x7x2": 25.2, "3x7x2": 24.6, "2x5x4": 30.7}),
        ((64, 96, 56, 56), 7, 1, {"4x8x2": 74.0, "4x7x2": 79.1, "4x4x4": 93.7}),
        ((32, 72, 56, 56), 3, 1, {"2x7x4": 15.0, "4x7x2": 17.9, "3x5x4": 16.2, "7x4x2": 20.7, "7x7x1": 21.5}),
        ((32, 64, 112, 112), 3, 2, {"1x7x4": 21.7, "4x8x2": 28.0, "7x7x1": 30.3}),
        ((32, 240, 28, 28), 5, 1, {"4x7x2": 21.2, "4x4x4": 23.4}),
        ((32, 672, 14, 14), 3, 1, {"2x7x4": 10.8, "5x5x2": 14.9}),
    ],
)
def test_what_cuts_took_on_a_device_is_what_is_foreseen(
    x: tuple[int, ...], kernel: int, stride: int, measured: dict[str, float]
) -> None:
    channels = x[1]
    region = convolution(x, (channels, 1, kernel, kernel), groups=channels, padding=kernel // 2, stride=stride)
    parts = parts_of(region)
    walks = {f"{s.rows}x{s.columns}x{s.channels}": depthwise.walk_us(s, H200) for s in depthwise.choices(parts)}
    best = depthwise.ranked(parts, H200)[0]
    rest = depthwise.estimate(region, H200) - depthwise.walk_us(best, H200)
    foreseen = {name: walks[name] + rest for name in measured}
    for name, us in measured.items():
        assert 0.7 < foreseen[name] / us < 1.3, name
    assert measured[min(foreseen, key=foreseen.__getitem__)] <= 1.1 * min(measured.values())


@pytest.mark.parametrize(
    ("x", "kernel", "stride", "library_us", "floor_us"),
    [
        ((64, 384, 14, 14), 7, 1, 53, 4.5),
        ((64, 96, 56, 56), 7, 1, 188, 17.9),
        ((32, 240, 28, 28), 5, 1, 39, 5.6),
        ((32, 64, 112, 112), 3, 2, 37, 14.9),
        ((32, 960, 7, 7), 5, 1, 14, 1.4),
    ],
)
def test_depthwise_is_priced_between_the_floor_and_the_libraries(
    x: Shape, kernel: int, stride: int, library_us: float, floor_us: float
) -> None:
    """The five measured rows that the libraries lose: fused in cuDNN they take 2.6 to 16 times as long."""
    region = convolution(x, (x[1], 1, kernel, kernel), groups=x[1], padding=kernel // 2, stride=stride, epilogue=True)
    answer = NvrtcEngine().supports(region, H200, Policy())
    assert not isinstance(answer, Decline)
    assert not answer.last_resort
    assert floor_us < answer.estimated_us < library_us


def test_any_other_convolution_is_a_last_resort() -> None:
    region = convolution((32, 64, 56, 56), (64, 64, 3, 3), padding=1)
    answer = NvrtcEngine().supports(region, H200, Policy(precision="tf32"))
    assert not isinstance(answer, Decline)
    assert answer.last_resort
    assert answer.estimated_us > 30
