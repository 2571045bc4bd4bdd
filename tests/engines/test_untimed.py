"""What nobody timed is not trusted blindly: the slow rows that were measured on an H200 are avoided by estimates."""

import pytest

import graphdnn as gd
from tests.planned import h200_report

DEPTHWISE = [
    ("convnext", 64, 384, 14, 7, 1, False),
    ("convnext_wide", 64, 96, 56, 7, 1, False),
    ("mobilenet_240", 32, 240, 28, 5, 1, True),
    ("strided", 32, 64, 112, 3, 2, True),
    ("mobilenet_960", 32, 960, 7, 5, 1, True),
]
"""Depthwise convolutions whose fused plans took 8 to 16 times what others need: batch, channels, size, kernel, stride,
and whether a relu follows."""


def swiglu(rows: int, wide: int, inner: int) -> gd.Graph:
    g = gd.GraphBuilder("swiglu")
    a = g.input("a", (rows, inner), gd.bfloat16)
    gate, up = (g.matmul(a, g.input(f"{n}_w", (inner, wide), gd.bfloat16), name=n) for n in ("gate", "up"))
    return g.build({"y": g.mul(g.silu(gate, name="silu"), up, name="product")})


@pytest.mark.parametrize(
    ("rows", "wide", "inner"), [(4096, 14336, 4096), (128, 14336, 4096), (1, 14336, 4096), (512, 2048, 768)]
)
def test_two_products_in_one_plan_are_chosen_only_where_plans_are_timed(rows: int, wide: int, inner: int) -> None:
    """The plan that heuristics put first took 17440 us where two products and a pointwise kernel took 1480."""
    report = h200_report(swiglu(rows, wide, inner))
    assert all(r.pattern.count("matmul") < 2 for r in report.regions), [r.pattern for r in report.regions]
    offered = [c for c in report.candidates if c.engine == "cudnn" and c.pattern.count("matmul") == 2]
    assert offered, "the fused form is not even offered"
    assert all(c.verdict in ("slower", "declined") for c in offered)


@pytest.mark.parametrize(("name", "batch", "channels", "size", "kernel", "stride", "relu"), DEPTHWISE)
def test_depthwise_convolutions_go_to_the_generated_kernel(
    name: str, batch: int, channels: int, size: int, kernel: int, stride: int, relu: bool
) -> None:
    g = gd.GraphBuilder(name)
    x = g.input("x", (batch, channels, size, size), gd.float16)
    w, b = g.input("w", (channels, 1, kernel, kernel), gd.float16), g.input("b", (channels,), gd.float16)
    y = g.bias(g.conv(x, w, padding=kernel // 2, stride=stride, groups=channels, name="conv"), b, axis=1)
    report = h200_report(g.build({"y": g.relu(y) if relu else y}))
    (region,) = [r for r in report.regions if "conv" in r.nodes]
    assert (region.engine, region.last_resort) == ("nvrtc", False)
    cudnn = [c for c in report.candidates if c.engine == "cudnn" and "conv" in c.nodes and c.estimated_us]
    fused = [c for c in cudnn if c.pattern.startswith("conv+bias")]
    assert min(c.estimated_us for c in fused) > 4 * region.estimated_us
    assert min(c.estimated_us for c in cudnn) > region.estimated_us
