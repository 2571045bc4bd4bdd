"""Islands: pointwise nodes with the movement among them, begun at each of them and grown forward.

Within a kernel that computes, movement only says where an element comes from: a concat is a choice, a view an index.
"""

from graphdnn.ir.graph import Node
from graphdnn.ir.ops.movement import Concat, Pad, Renaming
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.passes.patterns.fusion import Fusion

ISLANDERS = (Elementwise, Concat, Pad, Renaming)


def is_islander(node: Node) -> bool:
    return isinstance(node.op, ISLANDERS)


ISLAND = Fusion("pointwise", ISLANDERS, is_islander, is_islander, limit=32, budget=12, across_views=True, forward=True)
