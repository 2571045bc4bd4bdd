"""How far found numbers are from a float64 reference, and how far they may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import graphdnn as gd

Array = npt.NDArray[Any]

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "tf32": 1e-3, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Largest error relative to the peak, by the narrowest type that the arithmetic passes through."""


def relative_error(found: Array, expected: Array, scale: float = 0.0) -> float:
    """Largest difference over the larger of the reference's peak and `scale`; infinite where only one is finite.

    Equal infinities and NaNs in the same places count as equal.
    """
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan=True) or not np.isfinite(found[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    difference = float(np.abs(found[finite] - expected[finite]).max())
    peak = max(float(np.abs(expected[finite]).max()), scale)
    return difference / peak if difference else 0.0


def narrowest(graph: gd.Graph) -> str:
    """Name of the narrowest float type in a graph; float64 where there is none."""
    values = [*graph.inputs.values(), *(v for n in graph.nodes for v in n.results)]
    floats = [v.type.dtype for v in values if v.type.dtype.is_float]
    return min(floats, key=lambda t: list(TOLERANCE).index(t.name) * -1).name if floats else "float64"
