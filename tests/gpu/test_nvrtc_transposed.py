"""Generated transposed convolution on the device: every tiling, type, layout and phase, with work behind it."""

from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines.nvrtc import tiled
from graphdnn.engines.nvrtc.tiling import MATRIX_TILINGS, TILINGS
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, channels_last, row_major
from graphdnn.runtime.device import CudaDevice
from tests.engines.cudnn.layouts import Layout, spatial_last, whole
from tests.gpu.region_runs import check_region
from tests.ir.samples import draw

pytestmark = pytest.mark.gpu

Rng = np.random.Generator
Shape = tuple[int, ...]
Layouts = tuple[Layout, Layout, Layout]
FIRST: Layouts = (row_major, row_major, row_major)
LAST: Layouts = (channels_last, channels_last, spatial_last)
LAST_BUT_FILTERS: Layouts = (channels_last, row_major, spatial_last)


def transposing(
    x: Shape, w: Shape, dtype: DType, layouts: Layouts, epilogue: bool = True, second: DType | None = None, **more: Any
) -> Region:
    """x, w and everything behind them in these layouts; the sum before the activation is an output too."""
    g = gd.GraphBuilder()
    image = g.input("x", x, dtype, strides=layouts[0](x))
    filters = g.input("w", w, second or dtype, strides=layouts[1](w))
    y = g.conv_transpose(image, filters, **more)
    if not epilogue:
        return whole(g.build({"y": y}), layouts[2])
    z = g.bias(y, g.input("bias", (y.type.shape[1],), y.type.dtype), axis=1)
    residual = g.input("residual", y.type.shape, y.type.dtype, strides=layouts[2](y.type.shape))
    return whole(g.build({"y": g.relu(z + residual), "z": z}), layouts[2])


def check(device: CudaDevice, region: Region, rng: Rng, shift: int = 0) -> None:
    arrays = {v.name: draw(v.type, rng) for v in region.inputs}
    node = next(n for n in region.nodes if n.op.label == "conv_transpose")
    scale = 0.0
    if arrays["x"].dtype.kind not in "iu":
        wide = [np.abs(arrays[n].astype(np.float64)) for n in "xw"]
        scale = float(node.op.reference(*wide)[0].max())
    check_region(device, region, arrays, shift, dict.fromkeys(("y", "z"), scale))


CASES: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((2, 8, 9, 11), (8, 12, 2, 2), {"stride": 2}),
    ((2, 5, 9, 7), (5, 12, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    ((2, 12, 5, 8), (12, 4, 3, 2), {"groups": 3, "dilation": (2, 1), "padding": 1}),
    ((1, 6, 5, 4), (6, 3, 3, 3), {"groups": 3, "stride": (3, 2), "padding": ((0, 2), (1, 0))}),
    ((1, 7, 4, 5), (7, 9, 2, 1), {"stride": (3, 4), "output_padding": (2, 1)}),
    ((2, 4, 5, 4), (4, 6, 4, 4), {"stride": (4, 2), "dilation": (2, 3), "padding": 2}),
]


@pytest.mark.parametrize("tiling", [*TILINGS, *MATRIX_TILINGS], ids=lambda t: "x".join(map(str, t.block)))
@pytest.mark.parametrize("layouts", [FIRST, LAST, LAST_BUT_FILTERS], ids=["first", "last", "last_but_filters"])
def test_every_tiling(
    device: CudaDevice, rng: Rng, monkeypatch: pytest.MonkeyPatch, tiling: Any, layouts: Layouts
) -> None:
    monkeypatch.setattr(tiled, "best_tiling", lambda *_: tiling)
    for x, w, attributes in CASES:
        check(device, transposing(x, w, gd.float16, layouts, **attributes), rng)


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32, gd.float64, gd.int8, gd.int32], ids=str)
@pytest.mark.parametrize("layouts", [FIRST, LAST], ids=["first", "last"])
def test_every_type(device: CudaDevice, rng: Rng, dtype: DType, layouts: Layouts) -> None:
    for x, w, attributes in CASES[:3]:
        check(device, transposing(x, w, dtype, layouts, epilogue=dtype.is_float, **attributes), rng)
    deep = transposing((2, 3, 3, 4, 5), (3, 6, 2, 3, 2), dtype, layouts, False, stride=(1, 2, 3), padding=(0, 1, 0))
    check(device, deep, rng)


@pytest.mark.parametrize("channels", [1, 3, 5, 7, 23, 24, 25, 31, 33])
def test_channels(device: CudaDevice, rng: Rng, channels: int) -> None:
    for layouts in (FIRST, LAST):
        check(device, transposing((3, channels, 7, 5), (channels, 33, 3, 3), gd.float16, layouts, stride=2), rng)
        check(device, transposing((3, 33, 7, 5), (33, channels, 3, 3), gd.float16, layouts, stride=2), rng)


@pytest.mark.parametrize("shift", [2, 4])
def test_odd_addresses(device: CudaDevice, rng: Rng, shift: int) -> None:
    check(device, transposing((2, 8, 9, 11), (8, 12, 3, 3), gd.float16, LAST, stride=2, padding=1), rng, shift)


def test_large(device: CudaDevice, rng: Rng) -> None:
    """More rows, columns and taps than any tile has."""
    check(device, transposing((2, 150, 33, 29), (150, 140, 3, 3), gd.float32, LAST, stride=2, padding=1), rng)


def test_places_that_no_tap_reaches_hold_the_epilogue_of_zero(device: CudaDevice, rng: Rng) -> None:
    region = transposing((1, 3, 4, 5), (3, 4, 1, 1), gd.float32, FIRST, stride=3, output_padding=2)
    check(device, region, rng)
