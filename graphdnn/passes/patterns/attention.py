"""Attention with pointwise work before and behind it; engines take little of that today, and say so."""

from graphdnn.ir.ops.attention import Attention
from graphdnn.passes.patterns.fusion import Fusion

ATTENTION = Fusion("attention", (Attention,), limit=4, budget=16)
