"""Expansion: a composite op that no engine takes whole becomes the smaller ops that it stands for."""

from __future__ import annotations

from graphdnn.errors import CompileError
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.region import Region
from graphdnn.ir.writer import Rewriter
from graphdnn.passes.canonicalize import fold_constants, merge_equal
from graphdnn.passes.rewrite import Ask, Emitter, Rewritten, finish

DEPTH = 16
"""Expansions within expansions, more than which no op has."""


def expand(graph: Graph, ask: Ask) -> Rewritten:
    """Every composite node that `ask` knows no engine for replaced by its expansion, and so on within that.

    What several expansions have in common (the positions behind a causal mask) is computed once, or when compiled.
    """
    changes: list[str] = []
    taken: set[Node] = set()
    for _ in range(DEPTH):
        rewriter = Rewriter(graph)
        before = len(changes)
        for node in graph.nodes:
            smaller = None if node in taken or not needs_expansion(node, graph, ask) else in_smaller_ops(node, rewriter)
            if smaller is None:
                rewriter.keep(node)
                taken.add(rewriter.writer.nodes[-1])
                continue
            results, ops = smaller
            rewriter.replace_results(node, results)
            changes.append(f"{', '.join(node.origins)}: no engine takes {node.op} whole; now {', '.join(ops)}")
        if len(changes) == before:
            done = Rewritten(graph, tuple(changes))
            return done.then(merge_equal).then(fold_constants) if changes else done
        graph = finish(rewriter)
    raise CompileError(f"graph {graph.name}: expansions are more than {DEPTH} deep; an op expands into itself")


def needs_expansion(node: Node, graph: Graph, ask: Ask) -> bool:
    """Whether a composite node is taken by no engine as it stands."""
    return type(node.op).expand is not Op.expand and ask(Region(graph, (node,))) is None


def in_smaller_ops(node: Node, rewriter: Rewriter) -> tuple[tuple[Value, ...], tuple[str, ...]] | None:
    """Results of the node's expansion and the ops in it; None where this node has none."""
    start = len(rewriter.writer.nodes)
    results = node.op.expand(Emitter(rewriter, node.origins), *(rewriter[v] for v in node.operands))
    if results is None:
        return None
    return results, tuple(n.op.label for n in rewriter.writer.nodes[start:])
