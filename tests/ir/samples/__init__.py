"""Samples of every op, one list a family: laws of the ops and engines are tested over all of them."""

from tests.ir.samples import attention, linear, movement, norm, pointwise, pool, reduction, softmax, transposed
from tests.ir.samples.sample import Sample, draw

__all__ = ["SAMPLES", "Sample", "draw"]

SAMPLES: list[Sample] = [
    *linear.SAMPLES,
    *pointwise.SAMPLES,
    *reduction.SAMPLES,
    *softmax.SAMPLES,
    *norm.SAMPLES,
    *pool.SAMPLES,
    *attention.SAMPLES,
    *transposed.SAMPLES,
    *movement.SAMPLES,
]
"""Every sample, by family; names are unique."""
