"""Estimates against what was measured on an H200: best plans, in microseconds."""

from collections.abc import Callable
from math import log2
from statistics import median

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines.contract import Policy, Precision, Support
from graphdnn.engines.cudnn.engine import CudnnEngine
from graphdnn.engines.nvrtc.engine import NvrtcEngine
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import channels_last, row_major
from graphdnn.target import Target
from tests.engines.cudnn.regions import attention, bias, closed, columns, convolution, norm, product, residual

Ints = tuple[int, ...]
H200 = Target.named("h200")


def scaled_block(g: gd.GraphBuilder, y: Value) -> Value:
    scale = g.input("scale", (1, y.type.shape[1], 1, 1), y.type.dtype)
    return g.relu(residual(g, bias(g, g.mul(y, scale))))


def biased(g: gd.GraphBuilder, y: Value) -> Value:
    return g.relu(bias(g, y))


def swiglu() -> Region:
    g = gd.GraphBuilder("swiglu")
    a = g.input("a", (4096, 4096), gd.bfloat16)
    gate, up = (g.matmul(a, g.input(n, (4096, 14336), gd.bfloat16)) for n in ("gate", "up"))
    return closed(g, g.mul(g.silu(gate), up), row_major)


def depthwise(batch: int, channels: int, size: int, kernel: int, stride: int = 1) -> Callable[[], Region]:
    return lambda: convolution(
        (batch, channels, size, size), channels, (kernel, kernel), groups=channels, padding=kernel // 2, stride=stride,
        finish=biased,
    )  # fmt: skip


def gelu(g: gd.GraphBuilder, y: Value) -> Value:
    return g.gelu(columns(g, y))


def residual_columns(g: gd.GraphBuilder, y: Value) -> Value:
    return residual(g, columns(g, y))


MEASURED: dict[str, tuple[Callable[[], Region], float]] = {
    "1x1 with scale, bias, add, relu": (
        lambda: convolution((32, 64, 56, 56), 256, (1, 1), padding=0, finish=scaled_block), 51.1
    ),
    "3x3": (lambda: convolution((32, 256, 14, 14), 256, finish=biased), 18.9),
    "3x3, row-major": (lambda: convolution((32, 256, 14, 14), 256, layout=row_major, finish=biased), 28.4),
    "7x7 on 3 channels": (
        lambda: convolution((32, 3, 224, 224), 64, (7, 7), padding=3, stride=2, finish=biased), 92.9
    ),
    "7x7 on 4 channels": (
        lambda: convolution((32, 4, 224, 224), 64, (7, 7), padding=3, stride=2, finish=biased), 67.1
    ),
    "7x7 on 8 channels": (
        lambda: convolution((32, 8, 224, 224), 64, (7, 7), padding=3, stride=2, finish=biased), 174.2
    ),
    "depthwise 7x7, 384": (depthwise(64, 384, 14, 7), 842),
    "depthwise 7x7, 96": (depthwise(64, 96, 56, 7), 2027),
    "depthwise 5x5, 240": (depthwise(32, 240, 28, 5), 320),
    "depthwise 3x3 stride 2": (depthwise(32, 64, 112, 3, 2), 429),
    "depthwise 5x5, 960": (depthwise(32, 960, 7, 5), 139),
    "few rows, long K": (lambda: product((128, 4096), (4096, 1024), finish=residual_columns), 8.3),
    "few rows, gelu": (lambda: product((128, 1024), (1024, 4096), finish=gelu), 7.0),
    "many rows, gelu": (lambda: product((8192, 1024), (1024, 4096), finish=gelu), 145.6),
    "many rows, residual": (lambda: product((8192, 4096), (4096, 1024), finish=residual_columns), 98.5),
    "large": (lambda: product((4096, 4096), (4096, 28672), gd.bfloat16), 1397),
    "swiglu": (swiglu, 1523),
    "layer norm": (lambda: norm((8192, 4096), gd.bfloat16), 38.4),
    "rms norm": (lambda: norm((8192, 4096), gd.bfloat16, rms=True), 34.9),
    "attention": (
        lambda: attention((4, 32, 4096, 128), (4, 32, 4096, 128), 128, gd.bfloat16), 4 * 4 * 32 * 4096**2 * 128 / 594e6
    ),
    "attention, causal": (
        lambda: attention((1, 16, 16384, 128), (1, 16, 16384, 128), 128, gd.bfloat16, causal="top_left"),
        2 * 16 * 16384**2 * 128 / 567e6,
    ),
}  # fmt: skip


def price(region: Region, engine: CudnnEngine | NvrtcEngine | None = None, precision: Precision = "ieee") -> float:
    answer = (engine or CudnnEngine()).supports(region, H200, Policy(precision=precision))
    assert isinstance(answer, Support), str(answer)
    return answer.estimated_us


def off(name: str) -> float:
    """log2 of estimated over measured."""
    make, measured = MEASURED[name]
    answer = CudnnEngine().supports(make(), H200, Policy())
    assert isinstance(answer, Support), str(answer)
    return log2(answer.estimated_us / measured)


@pytest.mark.parametrize("name", MEASURED)
def test_within_a_factor_of_two(name: str) -> None:
    assert abs(off(name)) < 1


def test_the_middle_is_close() -> None:
    assert median(abs(off(name)) for name in MEASURED) < 0.3


def test_depthwise_is_estimated_far_above_the_bytes() -> None:
    answer = CudnnEngine().supports(MEASURED["depthwise 7x7, 384"][0](), H200, Policy())
    assert isinstance(answer, Support)
    assert any("slower" in note for note in answer.notes)


def test_four_channels_cost_least_in_a_first_convolution() -> None:
    three, four, eight = (
        CudnnEngine().supports(MEASURED[f"7x7 on {n} channels"][0](), H200, Policy()) for n in (3, 4, 8)
    )
    assert isinstance(three, Support)
    assert isinstance(four, Support)
    assert isinstance(eight, Support)
    assert 1.25 * four.estimated_us < three.estimated_us < eight.estimated_us


def test_a_dear_prologue_costs_more_than_a_kernel_of_its_own() -> None:
    """It is computed again for each of the eight tiles across N."""

    def before_the_second(g: gd.GraphBuilder) -> Value:
        a = g.bias(g.input("a", (8192, 4096), gd.float16), g.input("b", (4096,), gd.float16), axis=1)
        return g.gelu(a)

    g = gd.GraphBuilder("fused")
    fused = closed(g, g.matmul(before_the_second(g), g.input("w", (4096, 1024), gd.float16)), row_major)
    g = gd.GraphBuilder("alone")
    alone = closed(g, before_the_second(g), row_major)
    apart = price(product((8192, 4096), (4096, 1024))) + price(alone, NvrtcEngine())
    assert price(fused) > 1.5 * apart


def test_a_prologue_costs_more_the_wider_the_product() -> None:
    def fused(columns: int) -> float:
        g = gd.GraphBuilder("prologue")
        a = g.silu(g.input("a", (8192, 1024), gd.float16))
        return price(closed(g, g.matmul(a, g.input("w", (1024, columns), gd.float16)), row_major))

    plain = price(product((8192, 1024), (1024, 4096))) - price(product((8192, 1024), (1024, 1024)))
    assert fused(4096) - fused(1024) > 1.7 * plain


CONVOLUTIONS: tuple[tuple[Ints, int, int, int], ...] = (
    ((1, 64, 56, 56), 64, 1, 1), ((1, 512, 7, 7), 512, 3, 1), ((1, 3, 224, 224), 64, 7, 2),
    ((1, 64, 56, 56), 256, 1, 1),
    ((32, 64, 56, 56), 256, 1, 1), ((32, 3, 224, 224), 64, 7, 2), ((256, 64, 56, 56), 256, 1, 1),
    ((2, 3, 9, 7), 17, 3, 1), ((256, 128, 28, 28), 512, 1, 1), ((4, 33, 65, 63), 129, 3, 1), ((1, 24, 1, 1), 7, 1, 1),
    ((1, 2048, 7, 7), 2048, 3, 1), ((8, 23, 31, 5), 300, 5, 2),
)  # fmt: skip
"""Shape, filters, kernel, stride."""


def is_first_of_few_images(shape: Ints, dtype: gd.DType) -> bool:
    """Halves of few channels, where the library was measured to be slower (FIRST below)."""
    return dtype is gd.float16 and shape[0] < 8 and shape[1] < 8


@pytest.mark.parametrize(
    ("shape", "filters", "kernel", "stride", "dtype"),
    [
        (*c, dtype)
        for c in CONVOLUTIONS
        for dtype in (gd.float16, gd.float32)
        if not is_first_of_few_images(c[0], dtype)
    ],
    ids=str,
)
def test_no_last_resort_kernel_is_priced_below_the_library(
    shape: Ints, filters: int, kernel: int, stride: int, dtype: gd.DType
) -> None:
    """Float32 in TF32: without it generated kernels are no last resort (tests/engines/test_float32.py)."""
    for finish in (lambda g, y: y, lambda g, y: g.relu(residual(g, bias(g, y)))):
        region = convolution(shape, filters, (kernel, kernel), dtype, padding=kernel // 2, stride=stride, finish=finish)
        assert price(region, precision="tf32") < price(region, NvrtcEngine(), "tf32")


Row = tuple[Ints, int, int, int, int, float, float, float]
FIRST: tuple[Row, ...] = (
    ((1, 3, 224, 224), 16, 3, 2, 1, 19.8, 12.8, 7.4), ((8, 3, 224, 224), 16, 3, 2, 1, 23.0, 23.0, 21.7),
    ((32, 3, 224, 224), 16, 3, 2, 1, 36.3, 36.3, 78.7), ((1, 3, 224, 224), 64, 7, 2, 3, 27.1, 25.7, 14.3),
    ((8, 3, 224, 224), 64, 7, 2, 3, 31.2, 31.2, 83.6), ((32, 3, 224, 224), 64, 7, 2, 3, 82.0, 82.0, 327.0),
    ((8, 4, 224, 224), 64, 7, 2, 3, 22.2, 22.2, 64.5), ((32, 4, 224, 224), 64, 7, 2, 3, 61.5, 61.5, 246.8),
    ((1, 3, 224, 224), 64, 3, 1, 1, 31.1, 19.1, 12.4), ((32, 3, 224, 224), 64, 3, 1, 1, 461.0, 282.0, 316.5),
    ((8, 4, 224, 224), 64, 3, 1, 1, 280.1, 83.0, 103.1), ((32, 8, 224, 224), 64, 3, 1, 1, 256.7, 256.7, 453.6),
    ((8, 3, 224, 224), 96, 4, 4, 0, 27.8, 25.3, 14.2), ((32, 3, 224, 224), 96, 4, 4, 0, 70.5, 70.5, 41.2),
    ((32, 3, 128, 128), 64, 3, 1, 1, 166.8, 105.3, 98.9), ((32, 8, 128, 128), 64, 3, 1, 1, 90.0, 90.0, 148.2),
    ((32, 3, 112, 112), 32, 3, 2, 1, 140.1, 26.3, 21.9), ((8, 3, 224, 224), 32, 5, 2, 2, 244.7, 44.0, 54.2),
    ((32, 3, 64, 64), 16, 3, 1, 1, 30.4, 30.4, 25.8), ((1, 3, 32, 32), 32, 3, 1, 1, 12.9, 9.7, 2.6),
)  # fmt: skip
"""First convolutions with bias and ReLU on an H200: shape, filters, kernel, stride, padding; microseconds of the first
and of the best plan of cuDNN, and of the generated kernel."""


def first_convolution(shape: Ints, filters: int, kernel: int, stride: int, padding: int) -> Region:
    return convolution(
        shape, filters, (kernel, kernel), padding=padding, stride=stride, finish=lambda g, y: g.relu(bias(g, y))
    )


def untimed(region: Region) -> float:
    """What the plan that heuristics put first is expected to take."""
    answer = CudnnEngine().supports(region, H200, Policy())
    assert isinstance(answer, Support), str(answer)
    return answer.untimed_us or answer.estimated_us


def test_first_convolutions_are_priced_as_measured() -> None:
    regions = [first_convolution(*row[:5]) for row in FIRST]
    best = [abs(log2(price(r) / row[6])) for r, row in zip(regions, FIRST, strict=True)]
    first = [abs(log2(untimed(r) / row[5])) for r, row in zip(regions, FIRST, strict=True)]
    generated = [abs(log2(price(r, NvrtcEngine()) / row[7])) for r, row in zip(regions, FIRST, strict=True)]
    assert median(best) < 0.35
    assert median(first) < 0.5
    assert median(generated) < 0.4
    assert max(best) < 1


@pytest.mark.parametrize("row", FIRST, ids=lambda row: "x".join(map(str, (*row[0], *row[1:4]))))
def test_the_choice_in_a_first_convolution_costs_little(row: Row) -> None:
    region = first_convolution(*row[:5])
    chosen = row[5] if untimed(region) < price(region, NvrtcEngine()) else row[7]
    assert chosen <= 1.25 * min(row[5], row[7])


@pytest.mark.parametrize("rows", [1, 7, 33, 129, 300, 4096])
@pytest.mark.parametrize("inner", [64, 300, 4096])
def test_no_last_resort_product_is_priced_below_the_library(rows: int, inner: int) -> None:
    for wide in (8, 127, 1024):
        region = product((rows, inner), (inner, wide))
        assert price(region) < price(region, NvrtcEngine())


DEPTHWISE: tuple[tuple[int, int, int, int], ...] = (
    (16, 112, 3, 1), (64, 112, 3, 2), (72, 56, 3, 1), (72, 56, 5, 2), (120, 28, 5, 1), (240, 28, 3, 2), (200, 14, 3, 1),
    (184, 14, 3, 1), (480, 14, 3, 1), (672, 14, 5, 2), (960, 7, 5, 1),
)  # fmt: skip
"""Channels, size, kernel and stride of MobileNetV3's depthwise convolutions."""


@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize(("channels", "size", "kernel", "stride"), DEPTHWISE)
def test_depthwise_convolutions_go_to_the_generated_kernel(
    batch: int, channels: int, size: int, kernel: int, stride: int
) -> None:
    region = depthwise(batch, channels, size, kernel, stride)()
    assert price(region) > price(region, NvrtcEngine())


@pytest.mark.parametrize(
    ("x", "filters", "stride", "measured_us"),
    [
        ((32, 64, 56, 56), 64, 1, 72.3),
        ((32, 512, 14, 14), 512, 2, 51.1),
        ((1, 256, 28, 28), 256, 2, 23.9),
        ((8, 128, 128, 128), 128, 1, 181.6),
    ],
)
def test_plans_that_convert_are_priced_as_they_were_measured(
    x: tuple[int, ...], filters: int, stride: int, measured_us: float
) -> None:
    """Whole graphs without the pass layout: x, filters and y are converted by the plan, y once more behind it."""
    g = gd.GraphBuilder("converting")
    given = g.input("x", x, gd.float16, strides=channels_last(x))
    w = g.constant(np.ones((filters, x[1], 3, 3), np.float16))
    y = g.relu(g.bias(g.conv(given, w, stride=stride, padding=1), g.constant(np.ones(filters, np.float16)), axis=1))
    graph = g.build({"y": y}, strides={"y": channels_last(y.type.shape)})
    report = gd.compile(graph, gd.Target.named("h200"), gd.CompileOptions(disabled_passes=("layout",))).report
    assert 0.75 < report.estimated_us / measured_us < 1.25
