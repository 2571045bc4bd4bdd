"""Sinking: reshapes go behind the pointwise ops that follow them, so that a product and its bias can be one kernel."""

from __future__ import annotations

from graphdnn.ir.graph import Graph
from graphdnn.passes.rewrite import Rewritten, rewrite
from graphdnn.passes.rules.movement import MOVEMENT
from graphdnn.passes.rules.sinking import SINKING


def sink_views(graph: Graph) -> Rewritten:
    """The graph with reshapes as late as they can be, and chains of views in one step."""
    return rewrite(graph, (*MOVEMENT, *SINKING))
