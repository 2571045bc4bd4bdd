"""Generated transposed convolution without a device: its phases, its price, and that it compiles."""

from itertools import product
from typing import Any

import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.nvrtc import tiled, transposed
from graphdnn.engines.nvrtc.compile import compile_cubin
from graphdnn.engines.nvrtc.engine import NvrtcEngine, family_of
from graphdnn.engines.nvrtc.epilogue import anchor_with_epilogue
from graphdnn.engines.nvrtc.recipe import Anchored
from graphdnn.engines.nvrtc.tiling import MATRIX_TILINGS, TILINGS
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, channels_last, row_major
from graphdnn.target import Target
from tests.engines.cudnn.layouts import Layout, whole

H200 = Target.named("h200")
Shape = tuple[int, ...]


def transposing(
    x: Shape,
    w: Shape,
    dtype: DType = gd.float16,
    layout: Layout = channels_last,
    filters: Layout = row_major,
    epilogue: bool = False,
    **attributes: Any,
) -> Region:
    g = gd.GraphBuilder()
    image, filter = g.input("x", x, dtype, strides=layout(x)), g.input("w", w, dtype, strides=filters(w))
    y = g.conv_transpose(image, filter, **attributes)
    if epilogue:
        y = g.relu(g.bias(y, g.input("b", (y.type.shape[1],), dtype), axis=1))
    return whole(g.build({"y": y}), layout)


def source(region: Region) -> str:
    assert family_of(region) is transposed.FAMILY
    return transposed.FAMILY.generate(region, H200).kernels[0].source


@pytest.mark.parametrize("padding", [0, 1, 2, 5])
@pytest.mark.parametrize("dilation", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("kernel", [1, 2, 3, 4, 7])
def test_phases_gather_what_the_definition_scatters(kernel: int, stride: int, dilation: int, padding: int) -> None:
    """Each (element, tap) that reaches a place of the result is found from that place, and no other."""
    size, extra = 5, max(stride, dilation) - 1
    extent = (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1
    if extent < 1:
        return
    scattered = {
        (i * stride + r * dilation - padding, i, r)
        for i, r in product(range(size), range(kernel))
        if 0 <= i * stride + r * dilation - padding < extent
    }
    axis = transposed.phases(extent, kernel, stride, dilation, padding)
    gathered = set()
    for phase in range(axis.count):
        for q in range(-(-(extent - phase) // stride)):
            for t in range(axis.taps[phase]):
                i = q + axis.base[phase] - t * axis.back
                if 0 <= i < size:
                    gathered.add((q * stride + phase, i, axis.first[phase] + t * axis.skip))
    assert gathered == scattered


@pytest.mark.parametrize(
    ("dtype", "layout", "arch"),
    [
        (gd.float16, channels_last, "sm_80"),
        (gd.bfloat16, row_major, "sm_90"),
        (gd.float32, channels_last, "sm_80"),
        (gd.float64, row_major, "sm_90"),
        (gd.int8, channels_last, "sm_90"),
    ],
    ids=lambda part: getattr(part, "__name__", str(part)),
)
def test_kernels_compile(dtype: DType, layout: Layout, arch: str) -> None:
    for region in (
        transposing((2, 12, 9, 8), (12, 4, 3, 2), dtype, layout, groups=3, stride=(2, 3), padding=1, epilogue=True),
        transposing((1, 8, 3, 4, 5), (8, 6, 2, 3, 2), dtype, layout, channels_last, stride=(1, 2, 3)),
    ):
        cubin = compile_cubin(source(region), arch)
        assert isinstance(cubin, bytes), cubin


@pytest.mark.slow
@pytest.mark.parametrize("tiling", [*TILINGS, *MATRIX_TILINGS], ids=lambda t: "x".join(map(str, t.block)))
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_every_tiling_compiles(monkeypatch: pytest.MonkeyPatch, tiling: Any, arch: str) -> None:
    monkeypatch.setattr(tiled, "best_tiling", lambda *_: tiling)
    for filters in (row_major, channels_last):
        region = transposing((2, 16, 9, 8), (16, 8, 4, 4), filters=filters, stride=2, padding=1, epilogue=True)
        cubin = compile_cubin(source(region), arch)
        assert isinstance(cubin, bytes), cubin


def test_only_the_taps_that_count_are_multiplied() -> None:
    region = transposing((2, 64, 16, 16), (64, 32, 4, 4), stride=2, padding=1)
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    found = transposed.product_of(parts)
    assert (found.batch, found.m, found.n, found.k) == ((4,), 2 * 16 * 16, 32, 64 * 4)


def test_vectors_run_along_the_dense_axis() -> None:
    def swapped(shape: Shape) -> Shape:
        c, _, h, w = shape
        return (1, c * h * w, c * w, c)

    def plain(w: Shape = (8, 16, 3, 3), **layouts: Layout) -> str:
        return source(transposing((2, w[0], 9, 9), w, gd.float32, stride=2, **layouts))

    assert "VA = 4, VB = 1;" in plain()
    assert "VA = 4, VB = 4;" in plain(filters=channels_last)
    along = plain(filters=swapped)
    assert "VA = 4, VB = 4;" in along
    assert "B_ALONG_K = true" in along
    assert "VA = 1, VB = 1;" in plain((7, 15, 3, 3), filters=channels_last)
    assert "CHANNELS_INNER = false" in plain(layout=row_major)


def test_it_is_a_last_resort_with_a_price() -> None:
    region = transposing((8, 256, 64, 64), (256, 128, 2, 2), gd.float32, stride=2)
    answer = NvrtcEngine().supports(region, H200, Policy(precision="tf32"))
    assert isinstance(answer, Support)
    assert answer.last_resort
    assert answer.estimated_us > 1e6 * 2 * 8 * 256 * 64 * 64 * 128 * 4 / H200.rate("float32")


def test_work_before_it_is_declined() -> None:
    g = gd.GraphBuilder()
    x, w = g.input("x", (2, 4, 5, 5), gd.float32), g.input("w", (4, 3, 2, 2), gd.float32)
    answer = family_of(whole(g.build({"y": g.conv_transpose(g.relu(x), w)}), row_major))
    assert isinstance(answer, Decline)
