"""Raising: functions that were spelled out become the ops that engines know, where the definition holds exactly."""

from __future__ import annotations

from graphdnn.ir.graph import Graph
from graphdnn.passes.rewrite import Rewritten, rewrite
from graphdnn.passes.rules.activation import ACTIVATIONS
from graphdnn.passes.rules.attention import ATTENTION
from graphdnn.passes.rules.norm import NORM
from graphdnn.passes.rules.softmax import SOFTMAX

RAISINGS = (*ATTENTION, *SOFTMAX, *NORM, *ACTIVATIONS)
"""The larger ops first; what one rule leaves may be a part of what another one looks for in the next sweep."""


def raise_ops(graph: Graph) -> Rewritten:
    """The graph with spelled-out functions recognised, and the near misses as refusals."""
    return rewrite(graph, RAISINGS)
