"""How long cuBLASLt takes, estimated from tiles, waves and bytes; calibrated on an H200 (tests hold the figures)."""

from __future__ import annotations

from dataclasses import dataclass

from graphdnn.engines.cost import RESIDUAL_US
from graphdnn.engines.cublaslt.problem import Problem
from graphdnn.ir.region import Region
from graphdnn.ir.types import float32
from graphdnn.target import Target

FIXED_US = 1.7
"""Start of a kernel, first loads and the last stores: what the smallest products take beside the launch.  128 rows of
1024 times 3072, 1024 and 4096 columns took 4.7, 3.9 and 5.2 us without the gap between kernels."""

BANDWIDTH_REACH = 0.94
"""Fraction of copy bandwidth that skinny products reach."""

TILES: tuple[tuple[int, int, float], ...] = ((256, 128, 0.97), (128, 128, 0.87), (128, 64, 0.7), (64, 64, 0.5))
"""Rows and columns of a block's tile and the fraction of a multiprocessor's matrix rate it reaches, largest first."""

PLAIN_TILES: tuple[tuple[int, int, float], ...] = (*TILES[:2], (128, 64, 0.8), (64, 64, 0.7))
"""The same outside the matrix units, whose small tiles wait less for memory.  In float32 1024 cubed took 61.0 us in one
wave of 128x64, 512x768x768 20.9 us in three blocks of 64x64 a multiprocessor, K in four parts."""

SPLITS = (1, 2, 4, 8, 16)
"""Parts into which K may be divided; from two on a second kernel adds up the parts."""

LEAST_PART, LEAST_PLAIN_PART = 256, 192
"""A part of K shorter than this gains nothing; outside the matrix units the library was seen to make parts of 192."""

PLAIN = "float32"
"""The unit that is none of the matrix units."""

SPECIAL = {"gelu_tanh": 2}
"""Special-function operations per element of an activation; they are not hidden behind the product."""


@dataclass(frozen=True)
class Estimate:
    """Microseconds, kernels and scratch bytes of the best way found, of all calls together; scratch they share."""

    us: float
    kernels: int
    workspace_bytes: int


def estimate(problem: Problem, region: Region, target: Target, unit: str, limit: int) -> Estimate:
    """The cheapest of all tiles and splits whose scratch fits into `limit` bytes.  `unit` is a key of Target.rates.

    Calls follow one another, in a captured graph too: each has a start, and waves of blocks of its own.
    """
    residual = residual_bytes(problem)
    moved = (region.read_bytes + region.written_bytes) / problem.calls - residual
    elements = problem.m * problem.n * problem.batch
    per_us = target.bandwidth * BANDWIDTH_REACH / 1e6
    rate = target.rate(unit) / target.sm_count / 1e6
    tiles, least = (PLAIN_TILES, LEAST_PLAIN_PART) if unit == PLAIN else (TILES, LEAST_PART)
    splits = [s for s in SPLITS if s == 1 or problem.k >= s * least]
    best: tuple[float, int, int] | None = None
    for split in splits:
        # Parts that are written and read again mostly stay in the second-level cache, so they count once.
        parts = split * elements * float32.itemsize if split > 1 else 0
        if parts > limit:
            continue
        kernels = 1 if split == 1 else 2
        waves = min(tiled_us(problem, rows, columns, split, rate * reach, target) for rows, columns, reach in tiles)
        us = kernels * target.launch_us + max(waves, (moved + parts) / per_us)
        us += RESIDUAL_US + residual / per_us if residual else 0.0
        if best is None or us < best[0]:
            best = us, kernels, parts
    assert best is not None
    us, kernels, parts = best
    special = 1e6 * SPECIAL.get(problem.activation, 0) * elements / target.rate("special")
    return Estimate(problem.calls * (us + FIXED_US + special), problem.calls * kernels, parts)


def residual_bytes(problem: Problem) -> int:
    """Bytes of C that one call reads."""
    if not problem.beta:
        return 0
    return problem.m * problem.n * (problem.batch if problem.c.batch_stride else 1) * problem.c.dtype.itemsize


def tiled_us(problem: Problem, rows: int, columns: int, split: int, rate: float, target: Target) -> float:
    """Arithmetic in tiles of rows x columns, K in `split` parts, by multiprocessors of `rate` operations a microsecond:
    whole waves of blocks, the last one as long as the others."""
    blocks = -(-problem.m // rows) * -(-problem.n // columns) * problem.batch * split
    waves = -(-blocks // target.sm_count)
    return waves * 2 * rows * columns * -(-problem.k // split) / rate
