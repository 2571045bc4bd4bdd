"""A key for every sequence of an attention that an engine takes whole.

cuDNN's attention leaves the results of a sequence without any keys as they were, where the definition has zeros and
minus infinity.  Of one with a key and without queries it writes just these.  Expansions need no such help.
"""

from __future__ import annotations

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.attention import EXTRAS, Attention
from graphdnn.ir.ops.pointwise import Pointwise
from graphdnn.ir.region import Region
from graphdnn.ir.writer import Rewriter
from graphdnn.passes.complete import LENGTHS, is_made, known_lengths
from graphdnn.passes.rewrite import Ask, Rewritten


def give_keys(graph: Graph, ask: Ask) -> Rewritten:
    """Where a sequence may have no keys it is given one, and its queries are taken away.  Lengths must be complete."""
    lacking = [n for n in graph.nodes if may_lack_keys(graph, n) and ask(Region(graph, (n,))) is not None]
    if not lacking:
        return Rewritten(graph)
    rewriter = Rewriter(graph)
    made: dict[tuple[Value, Value], dict[str, Value]] = {}
    for node in graph.nodes:
        if node not in lacking:
            rewriter.keep(node)
            continue
        assert isinstance(node.op, Attention)
        given = {name: rewriter[v] for name, v in zip(node.op.extras, node.operands[3:], strict=True)}
        pair = given["q_lengths"], given["kv_lengths"]
        if pair not in made:
            made[pair] = with_keys(rewriter, node, *pair)
        given |= made[pair]
        operands = [*(rewriter[v] for v in node.operands[:3]), *(given[n] for n in EXTRAS if n in given)]
        results = rewriter.emit(node.op, *operands, origins=node.origins, stem=node.name)
        for old, new in zip(node.results, results, strict=True):
            rewriter.replace(old, new)
    said = "a sequence without keys is given one and no queries, which hides as much"
    return Rewritten(rewriter.finish(), tuple(f"{', '.join(n.origins)}: {said}" for n in lacking))


def with_keys(rewriter: Rewriter, node: Node, queries: Value, keys: Value) -> dict[str, Value]:
    """kv = max(kv, 1), and q = min(q, kv Sq), which is 0 where there was no key."""
    extent = node.operands[LENGTHS["q_lengths"]].type.shape[2]
    seen = rewriter.emit(Pointwise(fn="mul"), keys, extent, origins=node.origins)[0]
    return {
        "q_lengths": rewriter.emit(Pointwise(fn="minimum"), queries, seen, origins=node.origins)[0],
        "kv_lengths": rewriter.emit(Pointwise(fn="maximum"), keys, 1, origins=node.origins)[0],
    }


def may_lack_keys(graph: Graph, node: Node) -> bool:
    """Whether an attention has lengths of keys that are not known to be above 0."""
    if not isinstance(node.op, Attention) or not LENGTHS.keys() <= set(node.op.extras):
        return False
    lengths = dict(zip(node.op.extras, node.operands[3:], strict=True))["kv_lengths"]
    array = known_lengths(graph, lengths)
    return bool(array.min() < 1) if array is not None else not is_made(graph, lengths, "maximum", 1)
