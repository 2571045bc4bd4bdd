"""GraphBuilder, the way to write a graph in Python; its methods stand in one file a family."""

from graphdnn.ir.builder.attention import AttentionMethods
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.builder.linear import LinearMethods
from graphdnn.ir.builder.movement import MovementMethods
from graphdnn.ir.builder.norm import NormMethods
from graphdnn.ir.builder.pointwise import PointwiseMethods
from graphdnn.ir.builder.pool import PoolMethods
from graphdnn.ir.builder.reduction import ReductionMethods
from graphdnn.ir.builder.softmax import SoftmaxMethods
from graphdnn.ir.builder.transposed import TransposedMethods

__all__ = ["GraphBuilder"]


class GraphBuilder(
    PointwiseMethods,
    LinearMethods,
    TransposedMethods,
    ReductionMethods,
    SoftmaxMethods,
    NormMethods,
    PoolMethods,
    AttentionMethods,
    MovementMethods,
    BuilderCore,
):
    """Builds one graph: `input`, `constant` and `state` make values, the other methods apply ops, `build` freezes.

    Every method takes `name=` for its node.  A call that does not fit raises GraphError at the line that made it.
    """
