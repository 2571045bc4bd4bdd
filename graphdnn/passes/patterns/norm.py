"""Norms with pointwise work before them, such as a residual sum that is needed elsewhere too, and behind them."""

from graphdnn.ir.ops.norm import Norm
from graphdnn.passes.patterns.fusion import Fusion

NORM = Fusion("norm", (Norm,), limit=12)
