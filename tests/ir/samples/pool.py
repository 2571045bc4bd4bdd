"""Samples of pooling."""

from __future__ import annotations

import graphdnn as gd
from graphdnn.ir.types import DType
from tests.ir.samples.sample import Sample


def pool(kind: str, shape: tuple[int, ...], dtype: DType = gd.float32, **attributes: object) -> Sample:
    """One pooling of an input."""
    words = "_".join(f"{k}_{v}" for k, v in attributes.items()).replace(" ", "")
    return Sample(
        f"{kind}_{'x'.join(map(str, shape))}_{dtype}_{words}",
        lambda g, rng: getattr(g, kind)(g.input("x", shape, dtype), **attributes),
    )


SAMPLES = [
    pool("max_pool", (2, 3, 7, 6), kernel=2),
    pool("max_pool", (2, 8, 9, 7), gd.float16, kernel=3, stride=2, padding=1),
    pool("max_pool", (1, 5, 8, 10), gd.bfloat16, kernel=(3, 2), stride=(2, 3), padding=(1, 0), ceil_mode=True),
    pool("max_pool", (1, 2, 9, 11), kernel=3, stride=1, dilation=2, padding=((1, 2), (0, 1))),
    pool("max_pool", (1, 3, 5, 6, 7), gd.float64, kernel=(2, 3, 2), stride=2, padding=(1, 1, 0)),
    pool("max_pool", (1, 3, 7, 6), gd.int8, kernel=3, padding=1),
    pool("avg_pool", (2, 3, 7, 6), kernel=2),
    pool("avg_pool", (2, 8, 9, 7), gd.float16, kernel=3, stride=2, padding=1),
    pool("avg_pool", (2, 8, 9, 7), gd.bfloat16, kernel=3, stride=2, padding=1, count_include_pad=False),
    pool("avg_pool", (1, 2, 8, 10), kernel=3, stride=3, padding=((1, 0), (0, 1)), ceil_mode=True),
    pool("avg_pool", (1, 2, 6, 5, 7), gd.float64, kernel=(3, 2, 3), stride=2, padding=1, ceil_mode=True),
    pool("global_avg_pool", (2, 5, 7, 3), gd.float16),
    pool("global_max_pool", (2, 5, 3, 4, 2)),
]
