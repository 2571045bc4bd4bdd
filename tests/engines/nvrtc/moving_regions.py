"""Regions of pointwise work with movement among it, all one kernel: every axis, odd boundaries, nested, shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, DType, row_major
from tests.engines.cudnn.layouts import Layout, spatial_last, whole
from tests.ir.samples import draw

Shape = tuple[int, ...]
Outputs = Value | Mapping[str, Value]


@dataclass(frozen=True)
class Moving:
    """One region: what builds it, and the layout of its results."""

    name: str
    build: Callable[[gd.GraphBuilder], Outputs]
    layout: Layout = row_major

    def region(self) -> Region:
        builder = gd.GraphBuilder(self.name)
        built = self.build(builder)
        return whole(builder.build({"y": built} if isinstance(built, Value) else dict(built)), self.layout)

    def arrays(self, region: Region, rng: np.random.Generator) -> dict[str, Array]:
        return {n: draw(v.type, rng) for n, v in region.graph.inputs.items()}

    def __str__(self) -> str:
        return self.name


def rotary(shape: Shape, dtype: DType, strided: bool = False) -> Moving:
    """x * cos + (-second half, first half) * sin; strided: heads of a wider product's result."""
    _, heads, tokens, dim = shape
    row = (heads + 3) * dim

    def build(g: gd.GraphBuilder) -> Value:
        x = g.input("x", shape, dtype, strides=(tokens * row, dim, row, 1) if strided else None)
        cos, sin = (g.input(n, (tokens, dim), dtype) for n in ("cos", "sin"))
        first, second = g.slice(x, [0], [dim // 2], axes=[-1]), g.slice(x, [dim // 2], [None], axes=[-1])
        return x * cos + g.concat([-second, first], axis=-1) * sin

    return Moving(f"rotary_{'x'.join(map(str, shape))}_{dtype}{'_strided' if strided else ''}", build)


def joined(axis: int, dtype: DType, sizes: Shape = (3, 8, 5)) -> Moving:
    """Work on three tensors of unequal extents, one after the other, and work behind."""

    def build(g: gd.GraphBuilder) -> Value:
        shapes = [tuple(n if a == axis else m for a, m in enumerate((4, 6, 24))) for n in sizes]
        x, y, z = (g.input(n, s, dtype) for n, s in zip("xyz", shapes, strict=True))
        whole = g.concat([g.neg(x), y, z + z], axis=axis)
        return whole + g.input("b", (whole.type.shape[-1],), dtype)

    return Moving(f"joined_{axis}_{dtype}_{'_'.join(map(str, sizes))}", build)


def padded(padding: tuple[tuple[int, int], ...], dtype: DType, value: float = 0.0) -> Moving:
    def build(g: gd.GraphBuilder) -> Value:
        x = g.pad(g.input("x", (3, 5, 16), dtype) * 2, padding, value=value)
        return x + g.input("c", x.type.shape, dtype)

    words = "_".join(f"{lo}{hi}" for lo, hi in padding)
    return Moving(f"padded_{words}_{dtype}_{value}", build)


def steps(g: gd.GraphBuilder) -> Value:
    """Every second and every third element."""
    x = g.relu(g.input("x", (9, 7, 40), gd.float32))
    taken = g.slice(x, [1, 0, 3], [None, 7, 40], axes=[0, 1, 2], steps=[2, 3, 5])
    return taken * g.input("s", taken.type.shape, gd.float32)


def shifted_sum(g: gd.GraphBuilder) -> Value:
    """Neighbours of one tensor, by an odd distance."""
    x = g.exp(g.input("x", (6, 67), gd.float16))
    return g.slice(x, [1], [None], axes=[1]) + g.slice(x, [0], [66], axes=[1])


def turned(g: gd.GraphBuilder) -> Value:
    x = g.transpose(g.sigmoid(g.input("x", (6, 5, 8), gd.float16)), (2, 0, 1))
    return x + g.input("y", (8, 6, 5), gd.float16)


def reshaped_between(g: gd.GraphBuilder) -> Value:
    """Work in heads, between reshapes that split and join an axis."""
    x = g.neg(g.input("x", (2, 7, 24), gd.float16))
    heads = g.transpose(g.reshape(x, (2, 7, 3, 8)), (0, 2, 1, 3)) * g.input("c", (7, 8), gd.float16)
    return g.reshape(g.transpose(heads, (0, 2, 1, 3)), (2, 7, 24)) + x


def rotary_in_rows(g: gd.GraphBuilder) -> Value:
    """Rotation of heads whose results are joined to rows."""
    x = g.input("x", (2, 9, 3, 16), gd.bfloat16)
    cos, sin = (g.input(n, (9, 1, 16), gd.bfloat16) for n in ("cos", "sin"))
    first, second = g.split(x, [8, 8], axis=-1)
    return g.reshape(x * cos + g.concat([-second, first], axis=-1) * sin, (2, 9, 48))


def expanded(g: gd.GraphBuilder) -> Value:
    x = g.expand(g.unsqueeze(g.tanh(g.input("x", (5, 12), gd.float32)), [1]), (4, 5, 3, 12))
    return x * g.squeeze(g.input("s", (4, 5, 3, 1, 12), gd.float32), [3])


def gated(g: gd.GraphBuilder) -> Value:
    """Halves of a wide tensor, one through an activation: a gate and up projection in one."""
    up, gate = g.split(g.input("x", (7, 48), gd.float16), [24, 24], axis=-1)
    return up * g.gelu(gate)


def parts_that_leave(g: gd.GraphBuilder) -> Mapping[str, Value]:
    """Outputs that are joined and cut inside too."""
    x, y = g.input("x", (4, 9), gd.float32), g.input("y", (4, 23), gd.float32)
    minus = g.neg(x)
    both = g.concat([minus, g.relu(y)], axis=1)
    return {"minus": minus, "both": both * 2}


def cut_and_whole(g: gd.GraphBuilder) -> Mapping[str, Value]:
    x = g.neg(g.input("x", (6, 32), gd.float16))
    tail = g.pad(g.slice(x, [8], [None], axes=[1]), ((0, 0), (8, 0)))
    return {"whole": x, "tail": tail + x}


def nested(g: gd.GraphBuilder) -> Value:
    a, b, c = (g.input(n, (3, k), gd.float16) for n, k in (("a", 8), ("b", 16), ("c", 8)))
    inner = g.concat([g.neg(b), c], axis=1)
    outer = g.concat([a, inner, g.pad(c, ((0, 0), (4, 4)), value=-1.5)], axis=1)
    return g.slice(g.relu(outer), [4], [44], axes=[1])


def single_elements(g: gd.GraphBuilder) -> Value:
    """Extents of 1, of which one is joined, one padded, one spread."""
    x, y = g.input("x", (5, 1, 6), gd.float32), g.input("y", (5, 4, 6), gd.float32)
    return g.concat([g.neg(x), y, g.pad(x, ((0, 0), (1, 0), (0, 0)), value=7)], axis=1) * x


def chosen(g: gd.GraphBuilder) -> Value:
    """Integers and booleans; a select between a joined and a cut tensor."""
    i, k = g.input("i", (5, 12), gd.int32), g.input("k", (5, 5), gd.int32)
    ends = g.concat([k, g.neg(k), g.slice(i, [0], [2], axes=[1])], axis=1)
    return g.select(g.less(ends, i), g.cast(ends, gd.int64), g.cast(i, gd.int64) * 3)


def images(g: gd.GraphBuilder) -> Value:
    """Channels of images side by side, with a bias."""
    shapes = ((2, 16, 5, 7), (2, 8, 5, 7))
    x, y = (g.input(n, s, gd.float16, strides=spatial_last(s)) for n, s in zip("xy", shapes, strict=True))
    return g.bias(g.concat([x, g.silu(y)], axis=1), g.input("b", (24,), gd.float32), axis=1)


def odd_length(g: gd.GraphBuilder) -> Value:
    """The last group of a walk along one axis is part of a vector."""
    return g.relu(g.input("x", (1029,), gd.float16)) + g.input("y", (1029,), gd.float16)


def same_twice(g: gd.GraphBuilder) -> Value:
    x = g.neg(g.input("x", (5, 16), gd.float16))
    return g.concat([x, x], axis=0) + g.concat([x, x], axis=0)


MOVING: tuple[Moving, ...] = (
    *(rotary((2, 3, 5, 16), t) for t in (gd.float16, gd.bfloat16, gd.float32, gd.float64)),
    rotary((2, 3, 5, 66), gd.float16),
    rotary((1, 2, 129, 128), gd.bfloat16, strided=True),
    *(joined(axis, t) for axis in (0, 1, 2) for t in (gd.float16, gd.int32)),
    joined(2, gd.bfloat16, (8, 16, 8)),
    joined(2, gd.int8, (16, 32, 16)),
    joined(1, gd.float32, (1, 1, 2)),
    padded(((0, 0), (0, 0), (8, 8)), gd.float16),
    padded(((0, 0), (0, 0), (1, 2)), gd.float16, 0.1),
    padded(((2, 0), (1, 3), (0, 0)), gd.float32, float("inf")),
    padded(((1, 1), (1, 1), (1, 1)), gd.int32, -7),
    *(
        Moving(build.__name__, build)
        for build in (
            steps,
            odd_length,
            shifted_sum,
            turned,
            reshaped_between,
            rotary_in_rows,
            expanded,
            gated,
            parts_that_leave,
            cut_and_whole,
            nested,
            single_elements,
            chosen,
            same_twice,
        )
    ),
    Moving("images", images, spatial_last),
)
"""From plain to entangled; names are unique."""
