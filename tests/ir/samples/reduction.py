"""Samples of the reductions."""

from __future__ import annotations

import graphdnn as gd
from graphdnn.ir.types import DType
from tests.ir.samples.sample import Sample


def reduce(fn: str, shape: tuple[int, ...], axes: object, dtype: DType = gd.float32, keepdims: bool = False) -> Sample:
    """One reduction of an input."""
    kept = "_kept" if keepdims else ""
    return Sample(
        f"reduce_{fn}_{'x'.join(map(str, shape))}_over_{axes}{kept}_{dtype}",
        lambda g, rng: getattr(g, f"reduce_{fn}")(g.input("x", shape, dtype), axes=axes, keepdims=keepdims),
    )


SAMPLES = [
    *(reduce(fn, (3, 5, 7), -1) for fn in ("sum", "mean", "max", "min")),
    *(reduce(fn, (3, 5, 7), (0, 2), gd.float16, keepdims=True) for fn in ("sum", "mean", "max", "min")),
    *(reduce(fn, (4, 33), None, gd.bfloat16) for fn in ("sum", "mean", "max", "min")),
    *(reduce(fn, (5, 1, 6), (1,), gd.float64) for fn in ("sum", "mean", "max", "min")),
    *(reduce(fn, (7, 3), 0, gd.int8) for fn in ("sum", "max", "min")),
    reduce("sum", (7, 3), 0, gd.int32),
    reduce("sum", (7, 3), 1, gd.int64, keepdims=True),
    reduce("sum", (7, 3), 1, gd.uint8),
    reduce("sum", (7, 3), 1, gd.bool),
    reduce("max", (7, 3), 1, gd.bool),
    reduce("min", (129,), 0, gd.uint8),
    reduce("mean", (2, 6, 5, 4), (2, 3), gd.float16, keepdims=True),
    reduce("sum", (300, 3), 0, gd.float16),
    reduce("sum", (3, 300), 1, gd.float16),
]
