"""Estimates against what was measured on an H200: us by kernel, each constant behind them fitted to some of these."""

from math import log2

import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy
from graphdnn.engines.nvrtc.engine import NvrtcEngine
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, channels_last
from graphdnn.target import Target
from tests.engines.cudnn.layouts import whole
from tests.engines.nvrtc.moves import convert

H200 = Target.named("h200")
LAST = (0, 2, 3, 1)


def priced(region: Region) -> float:
    answer = NvrtcEngine().supports(region, H200, Policy())
    assert not isinstance(answer, Decline), answer
    return answer.estimated_us


def region(build: object) -> Region:
    g = gd.GraphBuilder()
    return whole(g.build({"y": build(g)}))  # type: ignore[operator]


def image(g: gd.GraphBuilder, *shape: int) -> Value:
    return g.input("x", shape, gd.float16, strides=channels_last(shape))


def conv3x3(g: gd.GraphBuilder, *shape: int) -> Value:
    channels = shape[1]
    filters = (channels, channels, 3, 3)
    return g.conv(image(g, *shape), g.input("w", filters, gd.float16, strides=channels_last(filters)), padding=1)


def square(g: gd.GraphBuilder, n: int, dtype: DType) -> Value:
    return g.matmul(g.input("a", (n, n), dtype), g.input("b", (n, n), dtype))


def normed(g: gd.GraphBuilder, kind: str) -> Value:
    x, scale = g.input("x", (8192, 4096), gd.bfloat16), g.input("scale", (4096,), gd.bfloat16)
    return g.rms_norm(x, scale) if kind == "rms" else g.layer_norm(x, scale, g.input("b", (4096,), gd.bfloat16))


MEASURED: dict[str, tuple[object, float]] = {
    "sum and relu of 64 MiB": (
        lambda g: g.relu(g.input("x", (2**25,), gd.float16) + g.input("r", (2**25,), gd.float16)),
        48.1,
    ),
    "softmax": (lambda g: g.softmax(g.input("x", (16384, 4096), gd.float16)), 66.5),
    "layer norm": (lambda g: normed(g, "layer"), 35.8),
    "rms norm": (lambda g: normed(g, "rms"), 34.7),
    "max pooling": (lambda g: g.max_pool(image(g, 32, 64, 112, 112), kernel=3, stride=2, padding=1), 19.0),
    "mean over places": (lambda g: g.global_avg_pool(image(g, 32, 2048, 7, 7)), 5.1),
    "matmul 1024": (lambda g: square(g, 1024, gd.float32), 75.3),
    "matmul 4096": (lambda g: square(g, 4096, gd.float32), 3277),
    "conv of 64 channels": (lambda g: conv3x3(g, 32, 64, 56, 56), 109),
    "conv of 256 channels": (lambda g: conv3x3(g, 32, 256, 14, 14), 99.8),
}


@pytest.mark.parametrize("name", MEASURED)
def test_estimates_are_near_what_was_measured(name: str) -> None:
    build, measured = MEASURED[name]
    assert abs(log2(priced(region(build)) / measured)) < 0.2


@pytest.mark.parametrize(("channels", "size", "measured"), [(64, 56, 10.5), (3, 224, 8.2)])
def test_conversions_are_near_what_was_measured(channels: int, size: int, measured: float) -> None:
    found = priced(convert((32, channels, size, size), gd.float16, None, LAST))
    assert abs(log2(found / measured)) < 0.2


def test_a_join_pays_for_what_it_computes_everywhere() -> None:
    """Each operand of a concat is computed at every place, so dear work is better done before."""

    def parts(count: int) -> float:
        g = gd.GraphBuilder()
        xs = [g.input(f"x{i}", (2**20, 8), gd.float16) for i in range(count)]
        for _ in range(40):
            xs = [g.gelu(x) for x in xs]
        return priced(whole(g.build({"y": g.concat(xs, axis=0)})))

    assert parts(8) > 7 * 8 / 2 * parts(2) / 2


def test_scalar_loads_are_slower() -> None:
    def rotated(dim: int) -> float:
        g = gd.GraphBuilder()
        x = g.input("x", (32, 4096, dim), gd.bfloat16)
        first, second = g.split(x, [dim // 2, dim // 2], axis=-1)
        return priced(whole(g.build({"y": g.concat([-second, first], axis=-1) * x})))

    assert rotated(126) > 1.4 * rotated(128)
