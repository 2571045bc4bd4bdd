"""Matrix products with pointwise work before and behind them, and two of one left operand joined by it."""

from graphdnn.ir.graph import Node
from graphdnn.ir.ops.linear import MatMul
from graphdnn.passes.patterns.fusion import Fusion


def share_left_operand(anchor: Node, other: Node) -> bool:
    """Whether both multiply the same A, as gate and up projection of a gated layer do."""
    return isinstance(other.op, MatMul) and other.operands[0] is anchor.operands[0]


MATMUL = Fusion("matmul", (MatMul,), joins=share_left_operand, partners=1)
