"""Replacing composite ops by their expansions, for tests that compare the two."""

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.writer import Rewriter


class Maker:
    """Emits the nodes of one node's expansion."""

    def __init__(self, rewriter: Rewriter, node: Node) -> None:
        self.rewriter, self.node = rewriter, node

    def __call__(self, op: Op, /, *operands: Value | float) -> Value:
        return self.all(op, *operands)[0]

    def all(self, op: Op, /, *operands: Value | float) -> tuple[Value, ...]:
        return self.rewriter.emit(op, *operands, origins=self.node.origins)


def expanded(graph: Graph) -> Graph:
    """The graph with every composite op replaced by its expansion, once."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        results = node.op.expand(Maker(rewriter, node), *(rewriter[v] for v in node.operands))
        if results is None:
            rewriter.keep(node)
            continue
        rewriter.replace_results(node, results)
    return rewriter.finish()
