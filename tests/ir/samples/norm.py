"""Samples of the normalisations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.types import DType
from tests.ir.samples.sample import Sample

Rng = np.random.Generator
Shape = tuple[int, ...]
POSITIVE: Mapping[str, tuple[float, float]] = {"var": (0.5, 2)}


def batch(shape: Shape, dtype: DType, parameters: DType | None = None, eps: float = 1e-5) -> Sample:
    def build(g: gd.GraphBuilder, rng: Rng) -> Value:
        x = g.input("x", shape, dtype)
        given = [g.input(n, (shape[1],), parameters or dtype) for n in ("mean", "var", "scale", "bias")]
        return g.batch_norm(x, *given, eps=eps)

    return Sample(f"batch_norm_{label(shape, dtype, parameters)}_{eps:g}", build, POSITIVE)


def layer(shape: Shape, axes: int | Shape, dtype: DType, affine: Shape = (1, 1), parameters: DType | None = None,
          eps: float = 1e-5) -> Sample:  # fmt: skip
    """`affine` says whether there is a scale and whether there is a bias."""

    def build(g: gd.GraphBuilder, rng: Rng) -> Value:
        over = (axes,) if isinstance(axes, int) else axes
        extents = tuple(shape[a] for a in sorted(a % len(shape) for a in over))
        scale, bias = (
            g.input(n, extents, parameters or dtype) if wanted else None
            for n, wanted in zip(("scale", "bias"), affine, strict=True)
        )
        return g.layer_norm(g.input("x", shape, dtype), scale, bias, axes=axes, eps=eps)

    return Sample(f"layer_norm_{label(shape, dtype, parameters)}_over_{axes}_{affine}_{eps:g}", build)


def rms(shape: Shape, axes: int | Shape, dtype: DType, scaled: bool = True, parameters: DType | None = None) -> Sample:
    def build(g: gd.GraphBuilder, rng: Rng) -> Value:
        over = (axes,) if isinstance(axes, int) else axes
        extents = tuple(shape[a] for a in sorted(a % len(shape) for a in over))
        scale = g.input("scale", extents, parameters or dtype) if scaled else None
        return g.rms_norm(g.input("x", shape, dtype), scale, axes=axes)

    return Sample(f"rms_norm_{label(shape, dtype, parameters)}_over_{axes}{'_scaled' * scaled}", build)


def by_channel(kind: str, shape: Shape, dtype: DType, parameters: DType | None = None, **attributes: int) -> Sample:
    """instance_norm or group_norm."""

    def build(g: gd.GraphBuilder, rng: Rng) -> Value:
        given = [g.input(n, (shape[1],), parameters or dtype) for n in ("scale", "bias")]
        made: Value = getattr(g, kind)(g.input("x", shape, dtype), *given, **attributes)
        return made

    return Sample(f"{kind}_{label(shape, dtype, parameters)}" + "".join(f"_{v}" for v in attributes.values()), build)


def label(shape: Shape, dtype: DType, parameters: DType | None) -> str:
    return f"{'x'.join(map(str, shape))}_{dtype}" + (f"_{parameters}" if parameters else "")


SAMPLES = [
    batch((3, 5, 4, 2), gd.float32),
    batch((3, 5, 4, 2), gd.float16, gd.float32),
    batch((2, 7), gd.bfloat16, eps=0.1),
    batch((2, 3, 2, 4, 5), gd.float64),
    layer((5, 33), -1, gd.float32),
    layer((5, 33), -1, gd.float16, (1, 0)),
    layer((5, 33), -1, gd.bfloat16, (0, 1), gd.float32),
    layer((5, 33), -1, gd.float64, (0, 0), eps=0.1),
    layer((3, 4, 6), (1, 2), gd.float32),
    layer((3, 4, 6), (0, 2), gd.float32),
    layer((3, 4, 6), 1, gd.float16),
    layer((7, 1), -1, gd.float32),
    layer((2, 300), -1, gd.float32, (1, 1), gd.float16),
    rms((5, 33), -1, gd.float32),
    rms((5, 33), -1, gd.float16, parameters=gd.float32),
    rms((5, 33), -1, gd.bfloat16, scaled=False),
    rms((3, 4, 6), (0, 1), gd.float64),
    rms((3, 4, 6), 1, gd.float16),
    by_channel("instance_norm", (2, 3, 5, 4), gd.float32),
    by_channel("instance_norm", (2, 3, 7), gd.float16, gd.float32),
    by_channel("instance_norm", (1, 2, 3, 4, 5), gd.bfloat16),
    by_channel("group_norm", (2, 6, 5, 4), gd.float32, groups=3),
    by_channel("group_norm", (2, 6, 7), gd.float16, groups=1),
    by_channel("group_norm", (3, 8), gd.float32, groups=4),
    by_channel("group_norm", (1, 4, 3, 5), gd.bfloat16, gd.float32, groups=4),
    by_channel("group_norm", (1, 6, 3, 5), gd.float32, groups=1),
]
