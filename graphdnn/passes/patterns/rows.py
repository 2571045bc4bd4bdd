"""Row-wise work: softmax, reductions, and several reductions over the same rows with pointwise work between them."""

from graphdnn.ir.graph import Node
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.passes.patterns.fusion import Fusion


def reduce_same_rows(anchor: Node, other: Node) -> bool:
    """Whether both reduce tensors of one shape over the same axes, as a softmax's or a norm's parts do."""
    return rows_of(anchor) is not None and rows_of(anchor) == rows_of(other)


def rows_of(node: Node) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Shape and reduced axes; None for an op that reduces nothing."""
    shape = node.operands[0].type.shape if node.operands else ()
    if isinstance(node.op, Reduce):
        return shape, node.op.axes
    if isinstance(node.op, Softmax):
        return shape, (node.op.axis,)
    return None


ROWS = Fusion("rows", (Softmax, Reduce), joins=reduce_same_rows, partners=5)
