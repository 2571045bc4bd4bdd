"""GraphBuilder, the way to write a graph in Python; its methods stand in one file a family."""

from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.builder.linear import LinearMethods
from graphdnn.ir.builder.pointwise import PointwiseMethods

__all__ = ["GraphBuilder"]


class GraphBuilder(PointwiseMethods, LinearMethods, BuilderCore):
    """Builds one graph: `input`, `constant` and `state` make values, the other methods apply ops, `build` freezes.

    Every method takes `name=` for its node.  A call that does not fit raises GraphError at the line that made it.
    """
