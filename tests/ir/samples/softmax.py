"""Samples of softmax."""

from __future__ import annotations

import graphdnn as gd
from graphdnn.ir.types import DType
from tests.ir.samples.sample import Sample


def softmax(shape: tuple[int, ...], axis: int, dtype: DType, spread: float = 3) -> Sample:
    """Softmax of an input with elements in -spread .. spread."""
    return Sample(
        f"softmax_{'x'.join(map(str, shape))}_along_{axis}_{dtype}_{spread:g}",
        lambda g, rng: g.softmax(g.input("x", shape, dtype), axis=axis),
        {"x": (-spread, spread)},
    )


SAMPLES = [
    softmax((5, 7), -1, gd.float32),
    softmax((5, 7), 0, gd.float32),
    softmax((3, 4, 65), -1, gd.float16),
    softmax((3, 33, 5), 1, gd.bfloat16),
    softmax((6,), 0, gd.float64),
    softmax((4, 1), 1, gd.float32),
    softmax((2, 3, 4, 129), 3, gd.float32, 1000),
]
