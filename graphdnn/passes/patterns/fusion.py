"""What a fusion is: an anchor, and which neighbours a region around it may take in.  No row names a whole pattern."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphdnn.ir.graph import Node
from graphdnn.ir.op import Op
from graphdnn.ir.ops.pointwise import Elementwise


def is_pointwise(node: Node) -> bool:
    return isinstance(node.op, Elementwise)


def nothing(node: Node) -> bool:
    return False


def no_join(anchor: Node, other: Node) -> bool:
    return False


@dataclass(frozen=True)
class Fusion:
    """Regions grow around a node of class `anchors`, one neighbour at a time.

    A node that reads a value of the region joins where `epilogue` holds, one that makes a value for it where `prologue`
    does; at most `limit` of both.  Up to `partners` further anchors join where `joins(anchor, other)` holds.  All
    small regions up to `budget` of them are proposed, and a series of ever larger ones up to the largest.

    With `across_views` a region may hold the views between its nodes.  With `forward` only what stands behind the
    anchor in the graph's order joins, so that nodes which all are anchors are not found once each.
    """

    name: str
    anchors: tuple[type[Op], ...]
    prologue: Callable[[Node], bool] = is_pointwise
    epilogue: Callable[[Node], bool] = is_pointwise
    limit: int = 16
    joins: Callable[[Node, Node], bool] = no_join
    partners: int = 0
    budget: int = 64
    across_views: bool = False
    forward: bool = False
