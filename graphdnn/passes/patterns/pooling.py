"""Pooling with pointwise work before and behind it."""

from graphdnn.ir.ops.pool import Pool
from graphdnn.passes.patterns.fusion import Fusion

POOLING = Fusion("pooling", (Pool,), limit=8, budget=24)
