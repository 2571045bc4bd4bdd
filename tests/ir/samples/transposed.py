"""Samples of transposed convolution."""

from __future__ import annotations

import numpy as np

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.types import DType
from tests.ir.samples.sample import Sample


def conv_transpose(
    name: str, x: tuple[int, ...], w: tuple[int, ...], dtype: DType = gd.float32, **attributes: object
) -> Sample:
    """A transposed convolution of an input with a constant filter."""

    def build(g: gd.GraphBuilder, rng: np.random.Generator) -> Value:
        values = rng.standard_normal(w) if dtype.is_float else rng.integers(-9, 9, w)
        filter = g.constant(values.astype(dtype.numpy), name="w")
        return g.conv_transpose(g.input("x", x, dtype), filter, **attributes)  # type: ignore[arg-type]

    return Sample(f"conv_transpose_{name}_{dtype}", build)


SAMPLES = [
    conv_transpose("plain", (2, 3, 5, 6), (3, 4, 3, 2)),
    conv_transpose("doubling", (2, 7, 5, 3), (7, 5, 2, 2), gd.float16, stride=2),
    conv_transpose("uneven_blocks", (2, 3, 5, 4), (3, 5, 3, 1), stride=(3, 1)),
    conv_transpose("strided", (1, 4, 5, 7), (4, 6, 3, 3), gd.float16, stride=2, padding=1, output_padding=1),
    conv_transpose("gaps", (1, 2, 4, 3), (2, 3, 2, 2), gd.bfloat16, stride=3, output_padding=(2, 0)),
    conv_transpose("uneven_padding", (2, 3, 6, 5), (3, 5, 3, 3), stride=(2, 1), padding=((0, 2), (1, 0))),
    conv_transpose("dilated", (1, 3, 5, 4), (3, 2, 3, 2), dilation=(2, 3), stride=2, padding=1),
    conv_transpose("grouped", (2, 6, 5, 4), (6, 2, 3, 3), gd.float64, groups=3, padding=1),
    conv_transpose("depthwise", (1, 5, 4, 3), (5, 1, 3, 3), gd.float16, groups=5, stride=2),
    conv_transpose("volume", (1, 3, 3, 4, 2), (3, 2, 2, 3, 2), stride=(2, 1, 2)),
    conv_transpose("volume_blocks", (1, 3, 3, 4, 2), (3, 2, 2, 1, 3), gd.float16, stride=(2, 1, 3)),
    conv_transpose("integer", (1, 3, 4, 5), (3, 4, 3, 3), gd.int8, stride=2),
]
