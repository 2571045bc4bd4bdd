"""Causal flags that another one says as well, since fewer of them stand in an engine's way.

cuDNN's attention takes neither lengths nor a bias together with bottom-right alignment.  One query is aligned to the
last key, so that it may attend to all of them: a step of decoding beside a cache needs no flag.  As many queries as
keys are aligned from the top left too.
"""

from __future__ import annotations

from dataclasses import replace

from graphdnn.ir.graph import Graph, Node
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.writer import Rewriter
from graphdnn.passes.rewrite import Rewritten


def plain_bands(graph: Graph) -> Rewritten:
    """Attention without bottom-right alignment wherever its band is the same without."""
    plain = {n: found for n in graph.nodes if (found := plain_band(n)) is not None}
    if not plain:
        return Rewritten(graph)
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node not in plain:
            rewriter.keep(node)
            continue
        operands = [rewriter[v] for v in node.operands]
        results = rewriter.emit(plain[node][0], *operands, origins=node.origins, stem=node.name)
        rewriter.replace_results(node, results)
    return Rewritten(rewriter.finish(), tuple(f"{', '.join(n.origins)}: {said}" for n, (_, said) in plain.items()))


def plain_band(node: Node) -> tuple[Attention, str] | None:
    """The same attention without bottom-right alignment and the reason, where there is one."""
    op = node.op
    if not isinstance(op, Attention) or op.causal != "bottom_right":
        return None
    sq, skv = (v.type.shape[2] for v in node.operands[:2])
    if sq == 1 and op.bounds(sq, skv)[0] is None:
        return replace(op, causal=None, window=None), "one query at the last key sees all keys without a causal flag"
    given = op.optional(node.operands)
    if sq == skv and given.get("q_lengths") is given.get("kv_lengths"):
        return replace(op, causal="top_left"), "as many queries as keys are aligned from the top left too"
    return None
