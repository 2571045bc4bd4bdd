"""Generated matmul and convolution on the device: every tiling, type and layout, with work behind them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy
from graphdnn.engines.nvrtc import conv, depthwise, tiled
from graphdnn.engines.nvrtc.engine import NvrtcEngine, family_of
from graphdnn.engines.nvrtc.launch import NvrtcPlan
from graphdnn.engines.nvrtc.recipe import Anchored
from graphdnn.engines.nvrtc.tiling import MATRIX_TILINGS, MOST_FOLDED, TILINGS
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, DType, channels_last, row_major
from graphdnn.runtime.device import CudaDevice
from graphdnn.target import Target
from tests.engines.cudnn.layouts import Layout, spatial_last, whole
from tests.gpu.region_runs import Placed, check_region, run_region
from tests.ir.samples import draw

pytestmark = pytest.mark.gpu

Rng = np.random.Generator
Shape = tuple[int, ...]
Tail = Callable[[gd.GraphBuilder, Value], Mapping[str, Value]]
FLOATS = (gd.float16, gd.bfloat16, gd.float32, gd.float64)


def nothing(g: gd.GraphBuilder, y: Value) -> Mapping[str, Value]:
    return {"y": y}


def bias_gelu_residual(g: gd.GraphBuilder, y: Value) -> Mapping[str, Value]:
    """Case N10's kind: a value that is needed before and after the activation."""
    axis = 1 if y.type.rank > 3 else y.type.rank - 1
    dtype = y.type.dtype
    z = g.bias(y, g.input("bias", (y.type.shape[axis],), dtype), axis=axis)
    return {"y": g.gelu(z) + g.input("residual", y.type.shape, dtype), "z": z}


def scaled_rows(g: gd.GraphBuilder, y: Value) -> Mapping[str, Value]:
    """An operand that broadcasts, and an output smaller than the product."""
    s = g.sigmoid(g.input("s", (y.type.shape[-2], 1), y.type.dtype))
    return {"y": y * s, "s": s, "raw": y}


def residual_per_image(g: gd.GraphBuilder, y: Value) -> Mapping[str, Value]:
    """Case N5: a residual that varies over batch and channel only."""
    return {"y": g.relu(y + g.input("r", (*y.type.shape[:2], *(1 for _ in y.type.shape[2:])), y.type.dtype))}


def peak_of_products(a: Array, b: Array) -> float:
    """Peak of |A| |B|, the scale of a matmul's rounding errors."""
    if a.dtype.kind in "iu":
        return 0.0
    return float(np.max(np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))))


def product(
    a: Shape,
    b: Shape,
    dtype: DType,
    tail: Tail = nothing,
    *,
    strides: tuple[Shape | None, Shape | None] = (None, None),
    second: DType | None = None,
) -> Region:
    g = gd.GraphBuilder()
    x, y = g.input("a", a, dtype, strides=strides[0]), g.input("b", b, second or dtype, strides=strides[1])
    return whole(g.build(tail(g, g.matmul(x, y))), row_major)


def check_product(device: CudaDevice, region: Region, rng: Rng, shift: int = 0) -> None:
    arrays = {v.name: draw(v.type, rng) for v in region.inputs}
    scale = peak_of_products(arrays["a"], arrays["b"])
    check_region(device, region, arrays, shift, dict.fromkeys(("y", "z", "raw"), scale))


def named(thing: Any) -> str:
    return "x".join(map(str, thing.block)) if hasattr(thing, "block") else str(thing)


@pytest.mark.parametrize(
    ("tiling", "dtype"),
    [
        *((tiling, dtype) for tiling in TILINGS for dtype in (*FLOATS, gd.int8, gd.int32, gd.int64)),
        *((tiling, dtype) for tiling in MATRIX_TILINGS for dtype in (gd.float16, gd.bfloat16)),
    ],
    ids=named,
)
def test_matmul_in_every_tiling_and_type(
    device: CudaDevice, rng: Rng, monkeypatch: pytest.MonkeyPatch, tiling: Any, dtype: DType
) -> None:
    monkeypatch.setattr(tiled, "best_tiling", lambda *_: tiling)
    tail = bias_gelu_residual if dtype.is_float else nothing
    for a, b in (((132, 64), (64, 136)), ((33, 65), (65, 47))):
        check_product(device, product(a, b, dtype, tail), rng)


@pytest.mark.parametrize("inner", [9216, 9001, 1025])
@pytest.mark.parametrize("tiling", [t for t in TILINGS if t.sums <= MOST_FOLDED], ids=named)
def test_long_float32_sums_are_sums_of_sums(
    device: CudaDevice, rng: Rng, monkeypatch: pytest.MonkeyPatch, tiling: Any, inner: int
) -> None:
    """One sum of 9216 products is off by 2.6e-6 of the peak, a sum of sums of 512 by 5e-7."""
    monkeypatch.setattr(tiled, "best_tiling", lambda *_: tiling)
    region = product((130, inner), (inner, 133), gd.float32)
    arrays = {v.name: rng.standard_normal(v.type.shape).astype(np.float32) for v in region.inputs}
    (found,) = run_region(device, region, arrays).values()
    wanted = arrays["a"].astype(np.float64) @ arrays["b"].astype(np.float64)
    assert np.max(np.abs(found - wanted)) <= 1e-6 * np.max(np.abs(wanted))


@pytest.mark.parametrize("shift", [0, 4])
@pytest.mark.parametrize("tiling", [*TILINGS, *MATRIX_TILINGS], ids=named)
def test_matmul_with_transposed_operands(
    device: CudaDevice, rng: Rng, monkeypatch: pytest.MonkeyPatch, tiling: Any, shift: int
) -> None:
    monkeypatch.setattr(tiled, "best_tiling", lambda *_: tiling)
    for strides in (((1, 132), None), (None, (1, 64)), ((1, 132), (1, 64))):
        dtype = gd.float16 if tiling.matrix else gd.float32
        region = product((132, 64), (64, 136), dtype, scaled_rows, strides=strides)
        check_product(device, region, rng, shift)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4, 7, 9), (3, 4, 9, 5)),
        ((3, 1, 7, 9), (4, 9, 5)),
        ((7, 9), (3, 4, 9, 5)),
        ((2, 5, 1, 300), (300, 33)),
        ((1, 1), (1, 1)),
        ((5, 1), (1, 3)),
        ((1, 129), (129, 1)),
        ((300, 23), (23, 7)),
        ((7, 23), (23, 300)),
        ((257, 300), (300, 259)),
    ],
)
def test_matmul_over_shapes(device: CudaDevice, rng: Rng, a: Shape, b: Shape) -> None:
    check_product(device, product(a, b, gd.float32, bias_gelu_residual), rng)


def test_matmul_of_strided_operands(device: CudaDevice, rng: Rng) -> None:
    """Case T5 and views: free strides, every second element, one operand for the whole batch."""
    for a, b, strides in (
        ((16, 1), (1, 16), ((1, 1), (1, 1))),
        ((2, 5, 8), (2, 8, 6), ((200, 17, 2), (100, 1, 11))),
        ((2, 5, 8), (2, 8, 6), ((0, 8, 1), (48, 6, 1))),
    ):
        check_product(device, product(a, b, gd.float32, strides=strides), rng)


def test_matmul_of_two_integer_types(device: CudaDevice, rng: Rng) -> None:
    check_product(device, product((7, 9), (9, 5), gd.uint8, second=gd.int8), rng)


def test_integers_wrap(device: CudaDevice) -> None:
    """Sums that leave int32 and int64 come back as numpy's do."""
    for dtype in (gd.int32, gd.int64):
        largest = np.iinfo(dtype.numpy).max
        a = np.full((3, 70), largest, dtype.numpy)
        b = np.arange(70 * 5).reshape(70, 5).astype(dtype.numpy)
        check_region(device, product((3, 70), (70, 5), dtype), {"a": a, "b": b})


def test_nan_and_infinity_reach_their_row_and_column_only(device: CudaDevice, rng: Rng) -> None:
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((33, 20), (20, 35)))
    a[5, 7], b[3, 9] = np.nan, np.inf
    check_region(device, product((33, 20), (20, 35), gd.float32), {"a": a, "b": b})


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 31, 33, 127, 129])
@pytest.mark.parametrize("k", [1, 7, 8, 9, 65, 300])
@pytest.mark.parametrize("m", [1, 5, 63, 65, 300])
def test_matmul_sweep(device: CudaDevice, rng: Rng, m: int, n: int, k: int) -> None:
    for dtype in (gd.float16, gd.float32):
        check_product(device, product((m, k), (k, n), dtype), rng)


def convolution(
    x: Shape,
    w: Shape,
    dtype: DType,
    tail: Tail = nothing,
    *,
    layouts: tuple[Layout, Layout, Layout],
    second: DType | None = None,
    **attributes: Any,
) -> Region:
    """A convolution with the layouts of x, w and everything behind it."""
    g = gd.GraphBuilder()
    image = g.input("x", x, dtype, strides=layouts[0](x))
    filters = g.input("w", w, second or dtype, strides=layouts[1](w))
    return whole(g.build(tail(g, g.conv(image, filters, **attributes))), layouts[2])


def check_convolution(device: CudaDevice, region: Region, rng: Rng, shift: int = 0) -> None:
    arrays = {v.name: draw(v.type, rng) for v in region.inputs}
    node = next(n for n in region.nodes if n.op.label == "conv")
    scale = 0.0
    if arrays["x"].dtype.kind not in "iu":
        wide = [np.abs(arrays[n].astype(np.float64)) for n in "xw"]
        scale = float(node.op.reference(*wide)[0].max())
    check_region(device, region, arrays, shift, dict.fromkeys(("y", "z"), scale))


FIRST = (row_major, row_major, row_major)
LAST = (channels_last, channels_last, spatial_last)
LAST_BUT_FILTERS = (channels_last, row_major, spatial_last)


def swapped_filters(shape: Shape) -> Shape:
    """Output channels innermost."""
    k, c, _, w = shape
    return (1, k, k * c * w, k * c)


@pytest.mark.parametrize("tiling", [*TILINGS, *MATRIX_TILINGS], ids=named)
@pytest.mark.parametrize("layouts", [FIRST, LAST, LAST_BUT_FILTERS], ids=["first", "last", "last_but_filters"])
def test_conv_in_every_tiling(
    device: CudaDevice, rng: Rng, monkeypatch: pytest.MonkeyPatch, tiling: Any, layouts: tuple[Layout, Layout, Layout]
) -> None:
    monkeypatch.setattr(tiled, "best_tiling", lambda *_: tiling)
    cases: list[tuple[Shape, Shape, Tail, dict[str, Any]]] = [
        ((2, 8, 9, 11), (12, 8, 3, 3), bias_gelu_residual, {"padding": 1}),
        ((2, 5, 9, 11), (12, 5, 3, 3), residual_per_image, {"padding": ((1, 2), (0, 1)), "stride": (2, 1)}),
        ((2, 12, 9, 8), (6, 4, 3, 2), bias_gelu_residual, {"groups": 3, "dilation": (2, 1), "padding": 1}),
        ((2, 6, 5, 5), (9, 2, 3, 3), bias_gelu_residual, {"groups": 3, "padding": 1}),
    ]
    for x, w, tail, attributes in cases:
        check_convolution(device, convolution(x, w, gd.float16, tail, layouts=layouts, **attributes), rng)


@pytest.mark.parametrize("dtype", [*FLOATS, gd.int8, gd.int32], ids=str)
@pytest.mark.parametrize("layouts", [FIRST, LAST], ids=["first", "last"])
def test_conv_in_every_type(device: CudaDevice, rng: Rng, dtype: DType, layouts: tuple[Layout, Layout, Layout]) -> None:
    region = convolution((2, 12, 9, 8), (8, 12, 3, 2), dtype, layouts=layouts, padding=1)
    check_convolution(device, region, rng)
    deep = convolution((2, 3, 4, 5, 6), (8, 3, 2, 3, 2), dtype, layouts=layouts, padding=(0, 1, 1), stride=(1, 2, 1))
    check_convolution(device, deep, rng)


def test_conv_of_mixed_layouts(device: CudaDevice, rng: Rng) -> None:
    for layouts in (
        (channels_last, row_major, row_major),
        (row_major, channels_last, spatial_last),
        (row_major, swapped_filters, row_major),
    ):
        region = convolution((2, 12, 9, 8), (8, 12, 3, 2), gd.float32, bias_gelu_residual, layouts=layouts, padding=1)
        check_convolution(device, region, rng)


@pytest.mark.parametrize("shift", [2, 4])
def test_conv_at_odd_addresses(device: CudaDevice, rng: Rng, shift: int) -> None:
    region = convolution((2, 8, 9, 11), (12, 8, 3, 3), gd.float16, bias_gelu_residual, layouts=LAST, padding=1)
    check_convolution(device, region, rng, shift)
    narrow = convolution(
        (3, 20, 9, 9), (20, 1, 3, 3), gd.float16, bias_gelu_residual, layouts=LAST, padding=1, groups=20
    )
    check_convolution(device, narrow, rng, shift)


def test_ieee_float32(device: CudaDevice, rng: Rng) -> None:
    """Case N9: nothing is rounded to TF32 on the way."""
    region = convolution((1, 64, 16, 16), (64, 64, 3, 3), gd.float32, layouts=LAST, padding=1)
    check_convolution(device, region, rng)


@pytest.mark.parametrize("channels", [1, 3, 5, 7, 23, 24, 25, 31, 33])
def test_conv_over_channels(device: CudaDevice, rng: Rng, channels: int) -> None:
    for layouts in (FIRST, LAST):
        region = convolution((3, channels, 7, 5), (33, channels, 3, 3), gd.float16, layouts=layouts, padding=1)
        check_convolution(device, region, rng)


DEPTHWISE: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "7x7": ((2, 24, 14, 14), (24, 1, 7, 7), {"padding": 3}),
    "3x3_stride_2": ((2, 66, 13, 17), (66, 1, 3, 3), {"padding": 1, "stride": 2}),
    "5x5_odd_channels": ((3, 23, 7, 9), (23, 1, 5, 5), {"padding": 2}),
    "dilated": ((3, 20, 9, 9), (20, 1, 3, 3), {"padding": ((0, 2), (3, 1)), "dilation": (2, 3)}),
    "1x1": ((1, 2, 2, 2), (2, 1, 1, 1), {}),
    "skipping": ((1, 8, 9, 9), (8, 1, 2, 2), {"stride": 4}),
    "many_channels": ((1, 300, 5, 5), (300, 1, 3, 3), {"padding": 1}),
    "11x11": ((1, 40, 13, 13), (40, 1, 11, 11), {"padding": 5}),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise(device: CudaDevice, rng: Rng, name: str, dtype: DType) -> None:
    x, w, attributes = DEPTHWISE[name]
    for layouts, tail in ((LAST_BUT_FILTERS, bias_gelu_residual), (LAST, residual_per_image)):
        region = convolution(x, w, dtype, tail, layouts=layouts, groups=x[1], **attributes)
        assert family_of(region) is depthwise.FAMILY
        check_convolution(device, region, rng)


@pytest.mark.parametrize("number", range(0, 100, 7))
def test_depthwise_in_every_cut(device: CudaDevice, rng: Rng, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def one_cut(parts: Anchored, _: Target) -> list[depthwise.Strips]:
        cuts = [*depthwise.choices(parts)]
        return [cuts[number % len(cuts)]]

    monkeypatch.setattr(depthwise, "ranked", one_cut)
    for stride in (1, 2):
        region = convolution(
            (2, 24, 9, 13),
            (24, 1, 5, 5),
            gd.float16,
            bias_gelu_residual,
            layouts=LAST_BUT_FILTERS,
            groups=24,
            padding=2,
            stride=stride,
        )
        check_convolution(device, region, rng)


@pytest.mark.parametrize(
    ("x", "kernel", "stride"),
    [
        ((3, 384, 14, 14), 7, 1),
        ((2, 96, 56, 56), 7, 1),
        ((2, 240, 28, 28), 5, 1),
        ((2, 64, 112, 112), 3, 2),
        ((3, 960, 7, 7), 5, 1),
    ],
)
def test_depthwise_as_models_have_it(device: CudaDevice, rng: Rng, x: Shape, kernel: int, stride: int) -> None:
    """The measured rows at a smaller batch, in all cuts that are offered."""
    region = convolution(
        x,
        (x[1], 1, kernel, kernel),
        gd.float16,
        bias_gelu_residual,
        layouts=LAST_BUT_FILTERS,
        groups=x[1],
        padding=kernel // 2,
        stride=stride,
    )
    check_convolution(device, region, rng)
    engine = NvrtcEngine()
    arrays = {v.name: draw(v.type, rng) for v in region.inputs}
    with device:
        candidates = engine.candidates(region, device, Policy())
        assert not isinstance(candidates, Decline)
        plans = [engine.build(c, device) for c in candidates]
        results = [enqueued(device, plan, region, arrays) for plan in plans]
    for result in results[1:]:
        for found, first in zip(result, results[0], strict=True):
            np.testing.assert_allclose(found, first, rtol=2e-3, atol=2e-3)


def enqueued(device: CudaDevice, plan: object, region: Region, arrays: dict[str, Array]) -> list[Array]:
    """All outputs of a plan."""
    assert isinstance(plan, NvrtcPlan), plan
    ins = [Placed(device, v.type, 0).filled(arrays[v.name]) for v in region.inputs]
    outs = [Placed(device, v.type, 0).filled(None) for v in region.outputs]
    plan.enqueue([p.address for p in (*ins, *outs)], device.stream, 0)
    device.synchronize()
    return [out.read().astype(np.float32) for out in outs]


def test_depthwise_without_its_layout_runs_as_any_convolution(device: CudaDevice, rng: Rng) -> None:
    for w, layouts in (((7, 1, 3, 3), FIRST), ((14, 1, 3, 3), LAST)):
        region = convolution((2, 7, 9, 9), w, gd.float32, layouts=layouts, groups=7, padding=1)
        assert family_of(region) is conv.FAMILY
        check_convolution(device, region, rng)
