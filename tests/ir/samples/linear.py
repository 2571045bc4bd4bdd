"""Samples of convolution and matrix product."""

from __future__ import annotations

import numpy as np

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.types import DType
from tests.ir.samples.sample import Sample

Rng = np.random.Generator


def matmul(a: tuple[int, ...], b: tuple[int, ...], dtype: DType = gd.float32, other: DType | None = None) -> Sample:
    """A product of inputs of these shapes."""

    def build(g: gd.GraphBuilder, rng: Rng) -> Value:
        return g.matmul(g.input("a", a, dtype), g.input("b", b, other or dtype))

    shapes = "_by_".join("x".join(map(str, s)) for s in (a, b))
    return Sample(f"matmul_{shapes}_{dtype}" + (f"_{other}" if other else ""), build)


def conv(name: str, x: tuple[int, ...], w: tuple[int, ...], dtype: DType = gd.float32, **attributes: object) -> Sample:
    """A convolution of an input with a constant filter."""

    def build(g: gd.GraphBuilder, rng: Rng) -> Value:
        values = rng.standard_normal(w) if dtype.is_float else rng.integers(-9, 9, w)
        filter = g.constant(values.astype(dtype.numpy), name="w")
        return g.conv(g.input("x", x, dtype), filter, **attributes)  # type: ignore[arg-type]

    return Sample(f"conv_{name}_{dtype}", build)


SAMPLES = [
    matmul((5, 7), (7, 3)),
    matmul((5, 7), (7, 3), gd.float16),
    matmul((5, 7), (7, 3), gd.bfloat16),
    matmul((2, 33, 65), (65, 17), gd.float64),
    matmul((3, 1, 4, 6), (2, 6, 5)),
    matmul((1, 63), (63, 1), gd.float16),
    matmul((4, 9), (9, 6), gd.int8),
    matmul((4, 9), (9, 6), gd.int32),
    matmul((4, 9), (9, 6), gd.float16, gd.float32),
    conv("plain", (2, 3, 7, 6), (5, 3, 3, 2)),
    conv("padded", (2, 8, 9, 7), (6, 8, 3, 3), gd.float16, padding=1),
    conv("strided", (1, 4, 11, 8), (6, 4, 3, 3), gd.bfloat16, stride=(2, 1), padding=((1, 0), (0, 2))),
    conv("dilated", (1, 2, 9, 12), (3, 2, 2, 3), dilation=(3, 2)),
    conv("grouped", (3, 6, 5, 8), (9, 2, 3, 3), groups=3, padding=1),
    conv("depthwise", (2, 5, 6, 7), (5, 1, 3, 3), gd.float16, groups=5, padding=1),
    conv("one_by_one", (2, 7, 5, 3), (4, 7, 1, 1)),
    conv("volume", (1, 3, 5, 6, 4), (2, 3, 3, 2, 2), padding=(1, 0, 1)),
    conv("integer", (1, 3, 6, 5), (4, 3, 3, 3), gd.int8, padding=1),
    conv("double", (1, 3, 6, 5), (4, 3, 3, 3), gd.float64),
]
