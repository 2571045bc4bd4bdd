"""Regions that row kernels and pooling kernels must run: odd extents, layouts, work before, between and behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, DType, channels_last, row_major
from tests.engines.cudnn.layouts import Layout, spatial_last, whole
from tests.ir.samples import draw

Outputs = Mapping[str, Value]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One region: what builds it, ranges of its inputs by name, and the layout of its results."""

    name: str
    build: Callable[[gd.GraphBuilder], Value | Outputs]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    layout: Layout = row_major
    scale: Callable[[Array], float] | None = None
    """The result's own scale from input x, where it may be far above the result's peak: sums cancel."""

    def region(self) -> Region:
        builder = gd.GraphBuilder(self.name)
        built = self.build(builder)
        return whole(builder.build({"y": built} if isinstance(built, Value) else dict(built)), self.layout)

    def arrays(self, region: Region, rng: np.random.Generator) -> dict[str, Array]:
        return {n: draw(v.type, rng, *self.ranges.get(n, ())) for n, v in region.graph.inputs.items()}

    def scales(self, arrays: Mapping[str, Array]) -> dict[str, float]:
        """What errors of outputs are measured against, beside their peak."""
        return {} if self.scale is None else {"y": self.scale(arrays["x"].astype(np.float64))}

    def __str__(self) -> str:
        return self.name


def softmax(shape: Shape, dtype: DType, axis: int = -1) -> Case:
    def build(g: gd.GraphBuilder) -> Value:
        return g.softmax(g.input("x", shape, dtype), axis=axis)

    return Case(f"softmax_{'x'.join(map(str, shape))}_{dtype}_{axis}", build)


def layer_norm(shape: Shape, dtype: DType, parameters: DType, axes: int | Shape = -1) -> Case:
    def build(g: gd.GraphBuilder) -> Value:
        over = (axes,) if isinstance(axes, int) else axes
        extents = tuple(shape[a] for a in over)
        scale, bias = (g.input(n, extents, parameters) for n in ("scale", "bias"))
        return g.layer_norm(g.input("x", shape, dtype), scale, bias, axes=axes)

    return Case(f"layer_norm_{'x'.join(map(str, shape))}_{dtype}_{parameters}_{axes}", build)


def rms_norm(shape: Shape, dtype: DType) -> Case:
    def build(g: gd.GraphBuilder) -> Value:
        return g.rms_norm(g.input("x", shape, dtype), g.input("scale", shape[-1:], dtype))

    return Case(f"rms_norm_{'x'.join(map(str, shape))}_{dtype}", build)


def reduction(fn: str, shape: Shape, dtype: DType, axes: Shape | int | None, keepdims: bool = False) -> Case:
    def build(g: gd.GraphBuilder) -> Value:
        made: Value = getattr(g, f"reduce_{fn}")(g.input("x", shape, dtype), axes=axes, keepdims=keepdims)
        return made

    def scale(x: Array) -> float:
        return float(np.max((np.mean if fn == "mean" else np.sum)(np.abs(x), axis=axes)))

    name = f"reduce_{fn}_{'x'.join(map(str, shape))}_{dtype}_{axes}".replace(" ", "")
    return Case(name, build, scale=scale if fn in ("sum", "mean") else None)


def image(g: gd.GraphBuilder, shape: Shape, dtype: DType, last: bool) -> Value:
    return g.input("x", shape, dtype, strides=channels_last(shape) if last else None)


def by_channel(kind: str, shape: Shape, dtype: DType, last: bool, **attributes: int) -> Case:
    """Instance, group or batch norm with float32 parameters and a SiLU behind it."""
    names = ("mean", "var", "scale", "bias") if kind == "batch_norm" else ("scale", "bias")

    def build(g: gd.GraphBuilder) -> Value:
        parameters = [g.input(n, (shape[1],), gd.float32) for n in names]
        return g.silu(getattr(g, kind)(image(g, shape, dtype, last), *parameters, **attributes))

    where = "last" if last else "first"
    name = f"{kind}_{'x'.join(map(str, shape))}_{dtype}_channels_{where}"
    return Case(name, build, {"var": (0.5, 2)}, spatial_last if last else row_major)


def pool(kind: str, shape: Shape, dtype: DType, last: bool, **attributes: object) -> Case:
    """A pooling whose result leaves beside the pointwise work behind it."""

    def build(g: gd.GraphBuilder) -> Outputs:
        pooled: Value = getattr(g, kind)(image(g, shape, dtype, last), **attributes)
        bias = g.input("b", (shape[1], *(1,) * (len(shape) - 2)), dtype)
        return {"y": pooled, "z": g.maximum(pooled + bias, 0)}

    words = "_".join(f"{k}{v}" for k, v in attributes.items()).replace(" ", "")
    name = f"{kind}_{'x'.join(map(str, shape))}_{dtype}_{'last' if last else 'first'}_{words}"
    return Case(name, build, {}, spatial_last if last else row_major)


def pool_of_work(kind: str, last: bool) -> Case:
    """Bias, relu and a broadcast product before a pooling of overlapping windows."""
    shape = (2, 24, 9, 7)

    def build(g: gd.GraphBuilder) -> Value:
        x = g.bias(image(g, shape, gd.float16, last), g.input("c", (24,), gd.float32), axis=1)
        before = g.relu(x) * g.input("m", (9, 1), gd.float16)
        made: Value = getattr(g, kind)(before, kernel=3, stride=2, padding=1)
        return made

    return Case(f"{kind}_of_work_{'last' if last else 'first'}", build, {}, spatial_last if last else row_major)


def residual_norm(g: gd.GraphBuilder) -> Outputs:
    """The sum is an output too; work behind the norm."""
    total = g.input("x", (33, 384), gd.float16) + g.input("r", (33, 384), gd.float16)
    scale, bias = (g.input(n, (384,), gd.float32) for n in ("scale", "bias"))
    return {"sum": total, "y": g.gelu(g.layer_norm(total, scale, bias)) * 2.0}


def spelled_norm(g: gd.GraphBuilder) -> Outputs:
    """Two folds with work between them; the mean is an output."""
    x = g.cast(g.input("x", (6, 5, 40), gd.float16), gd.float32)
    mean = g.reduce_mean(x, axes=-1, keepdims=True)
    centred = x - mean
    variance = g.reduce_mean(centred * centred, axes=-1, keepdims=True)
    y = centred / g.sqrt(variance + 1e-5) * g.input("scale", (40,), gd.float32)
    return {"y": g.cast(y, gd.float16), "mean": mean}


def scores(g: gd.GraphBuilder) -> Value:
    """Attention's softmax: scale and mask before, a cast behind."""
    masked = g.input("x", (2, 3, 9, 40), gd.float32) * 0.125 + g.input("mask", (2, 1, 1, 40), gd.float32)
    return g.cast(g.softmax(masked), gd.float16)


def folds_of_two_inputs(g: gd.GraphBuilder) -> Value:
    x, z = (g.input(name, (7, 129), gd.float32) for name in "xz")
    return g.add(g.reduce_max(x, axes=-1, keepdims=True), g.reduce_mean(z, axes=-1, keepdims=True))


def softmax_beside_a_fold(g: gd.GraphBuilder) -> Value:
    x, z = (g.input(name, shape, gd.float16) for name, shape in (("x", (7, 129)), ("z", (129,))))
    return g.add(g.softmax(x), g.reduce_mean(g.relu(z), axes=-1, keepdims=True))


def several_folds(g: gd.GraphBuilder) -> Outputs:
    x = g.input("x", (6, 50), gd.float32)
    return {"most": g.reduce_max(x, axes=1), "total": g.reduce_sum(g.exp(x), axes=1), "twice": x * 2.0}


def unit_length(g: gd.GraphBuilder) -> Value:
    x = g.input("x", (4, 70), gd.float32)
    return x / g.sqrt(g.reduce_sum(g.square(x), axes=1, keepdims=True))


def small_divisor(g: gd.GraphBuilder) -> Value:
    """By a number whose inverse would overflow."""
    x = g.input("x", (4, 70), gd.float32)
    return x / g.reduce_max(x, axes=1, keepdims=True)


def group_norm_of_sum(g: gd.GraphBuilder) -> Outputs:
    shape = (2, 32, 5, 4)
    total = image(g, shape, gd.float16, True) + g.input("c", (2, 32, 1, 1), gd.float16)
    scale, bias = (g.input(n, (32,), gd.float32) for n in ("scale", "bias"))
    return {"y": g.group_norm(total, scale, bias, groups=4), "sum": total}


def mean_of_relu(g: gd.GraphBuilder) -> Value:
    shape = (2, 64, 7, 5)
    other = g.input("r", shape, gd.float16, strides=channels_last(shape))
    return g.global_avg_pool(g.relu(image(g, shape, gd.float16, True) + other))


def turned(g: gd.GraphBuilder) -> Value:
    return g.softmax(g.input("x", (64, 40), gd.float32, strides=(1, 64)))


def strided(g: gd.GraphBuilder) -> Value:
    return g.reduce_mean(g.input("x", (6, 5, 7), gd.float32, strides=(80, 16, 2)), axes=(1, 2))


def norm_then_row_work(g: gd.GraphBuilder) -> Value:
    x = g.input("x", (6, 50), gd.float32)
    return g.sqrt(g.reduce_sum(g.square(x), axes=1) + g.input("e", (6,), gd.float32))


LENGTHS = (1, 3, 5, 7, 23, 33, 63, 65, 127, 129, 300)

ROWS: tuple[Case, ...] = (
    *(softmax((5, n), gd.float16) for n in LENGTHS),
    *(layer_norm((7, n), gd.bfloat16, gd.float32) for n in (1, 33, 64, 129, 300, 768)),
    softmax((3, 4096), gd.float16),
    softmax((2, 40001), gd.float32),
    softmax((3, 33, 10), gd.float32, 1),
    softmax((129, 63), gd.float16, 0),
    softmax((5, 23), gd.float64),
    layer_norm((2, 4, 1024), gd.float32, gd.float32),
    layer_norm((3, 4, 6), gd.float32, gd.float32, (0, 2)),
    layer_norm((30, 4, 6), gd.float16, gd.float32, 0),
    rms_norm((5, 5120), gd.bfloat16),
    rms_norm((3, 7, 64), gd.float16),
    *(reduction(fn, (7, 129), gd.float16, 1) for fn in ("sum", "mean", "max", "min")),
    *(reduction(fn, (129, 24), gd.float32, 0, True) for fn in ("sum", "mean", "max", "min")),
    *(reduction(fn, (3, 65, 24), gd.bfloat16, 1) for fn in ("sum", "mean", "max", "min")),
    *(reduction(fn, (3, 6, 24), gd.float32, (0, 2)) for fn in ("sum", "max")),
    *(reduction(fn, (300, 700), gd.float32, None) for fn in ("sum", "min")),
    *(reduction(fn, (33, 8), t, 0) for fn in ("sum", "max", "min") for t in (gd.int8, gd.uint8, gd.int32, gd.int64)),
    *(reduction(fn, (7, 33), gd.bool, 1) for fn in ("sum", "max", "min")),
    reduction("sum", (40000, 3), gd.float64, 0),
    by_channel("instance_norm", (2, 3, 50, 33), gd.float32, last=False),
    by_channel("instance_norm", (2, 24, 7, 5), gd.float16, last=True),
    by_channel("instance_norm", (1, 3, 300, 200), gd.float32, last=False),
    by_channel("group_norm", (2, 12, 5, 4), gd.float16, last=False, groups=3),
    by_channel("group_norm", (2, 32, 5, 4), gd.float16, last=True, groups=4),
    by_channel("batch_norm", (2, 6, 8, 4), gd.float16, last=False),
    by_channel("batch_norm", (2, 23, 8, 5), gd.bfloat16, last=True),
    Case("residual_norm", residual_norm),
    Case("spelled_norm", spelled_norm),
    Case("scores", scores),
    Case("several_folds", several_folds),
    Case("folds_of_two_inputs", folds_of_two_inputs),
    Case("softmax_beside_a_fold", softmax_beside_a_fold),
    Case("unit_length", unit_length),
    Case("small_divisor", small_divisor, {"x": (1e-36, 2e-36)}),
    Case("group_norm_of_sum", group_norm_of_sum, layout=spatial_last),
    Case("mean_of_relu", mean_of_relu, layout=spatial_last),
    Case("turned", turned),
    Case("strided", strided),
    Case("norm_then_row_work", norm_then_row_work, {"e": (0, 1)}),
)
"""Row programs, from plain to entangled; names are unique."""

POOLS: tuple[Case, ...] = (
    pool("max_pool", (2, 3, 7, 6), gd.float32, False, kernel=2),
    pool("max_pool", (2, 24, 9, 7), gd.float16, True, kernel=3, stride=2, padding=1),
    pool("max_pool", (3, 23, 9, 7), gd.bfloat16, True, kernel=(3, 2), stride=2, padding=(1, 0), ceil_mode=True),
    pool("max_pool", (1, 5, 9, 11), gd.float16, False, kernel=3, stride=1, dilation=2, padding=((1, 2), (0, 1))),
    pool("max_pool", (1, 8, 5, 6, 7), gd.float16, True, kernel=(2, 3, 2), stride=2, padding=(1, 1, 0)),
    pool("max_pool", (2, 32, 7, 5), gd.int8, True, kernel=2),
    pool("avg_pool", (2, 3, 7, 6), gd.float32, False, kernel=2),
    pool("avg_pool", (2, 24, 9, 7), gd.float16, True, kernel=3, stride=2, padding=1),
    pool("avg_pool", (2, 24, 9, 7), gd.bfloat16, True, kernel=3, stride=2, padding=1, count_include_pad=False),
    pool("avg_pool", (1, 2, 8, 10), gd.float32, False, kernel=3, stride=3, padding=((1, 0), (0, 1)), ceil_mode=True),
    pool("avg_pool", (1, 2, 6, 5, 7), gd.float64, False, kernel=(3, 2, 3), stride=2, padding=1, ceil_mode=True),
    pool("avg_pool", (1, 20, 6, 5, 7), gd.float32, True, kernel=3, stride=2, padding=1),
    pool("avg_pool", (1, 64, 7, 7), gd.float16, True, kernel=7),
    *(pool_of_work(kind, last) for kind in ("max_pool", "avg_pool") for last in (False, True)),
)
