"""Sequences of a batch that have no keys, in an attention that an engine takes whole.

The definition gives them o = 0 and lse = -inf.  cuDNN's attention writes nothing for a sequence whose key length is 0.
It does write 0 and -inf for one whose query length is 0 and whose key length is not; but where Sq is 1 some of its
engines do not look at the query length.  So each key length is raised to at least 1, and a sequence that had no keys is
given a query length of 0 instead; where Sq is 1, its results are replaced by 0 and -inf behind the attention.  An
attention that is expanded into smaller ops needs none of this.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.movement import Reshape
from graphdnn.ir.ops.pointwise import Pointwise, Select
from graphdnn.ir.region import Region
from graphdnn.ir.writer import Operand, Rewriter
from graphdnn.passes.attention.lengths import LENGTHS, full_lengths
from graphdnn.passes.intervals import interval
from graphdnn.passes.rewrite import Ask, Rewritten

EMPTY = (0.0, float("-inf"))
"""o and lse of a query that sees nothing."""


@dataclass(frozen=True)
class Lengths:
    """What an attention is given instead of the lengths that it had."""

    queries: Value
    keys: Value
    shown: Value | None = None
    """Where there is one query a head: whether it sees anything, (B,)."""


def give_keys(graph: Graph, ask: Ask) -> Rewritten:
    """The graph in which no attention that an engine takes whole meets a sequence without keys.

    Both lengths must be there wherever one is (see lengths.py).
    """
    lacking = [n for n in graph.nodes if may_show_nothing(graph, n) and ask(Region(graph, (n,))) is not None]
    if not lacking:
        return Rewritten(graph)
    rewriter = Rewriter(graph)
    made: dict[tuple[Value, Value, int], Lengths] = {}
    for node in graph.nodes:
        if node not in lacking:
            rewriter.keep(node)
            continue
        assert isinstance(node.op, Attention)
        given = node.op.optional([rewriter[v] for v in node.operands])
        key = given["q_lengths"], given["kv_lengths"], query_count(node)
        if key not in made:
            made[key] = with_keys(rewriter, node, *key)
        new = made[key]
        given |= {"q_lengths": new.queries, "kv_lengths": new.keys}
        op, optional = node.op.with_optional(given)
        operands = [*(rewriter[v] for v in node.operands[:3]), *optional]
        results = rewriter.emit(op, *operands, origins=node.origins, stem=node.name)
        for old, result, empty in zip(node.results, results, EMPTY[: len(results)], strict=True):
            rewriter.replace(old, result if new.shown is None else hidden(rewriter, node, result, new.shown, empty))
    return Rewritten(rewriter.finish(), tuple(f"{', '.join(n.origins)}: {told(n)}" for n in lacking))


def told(node: Node) -> str:
    how = "and its query's results are hidden" if query_count(node) == 1 else "and no queries, which hides as much"
    return f"a sequence without keys is given one {how}"


def query_count(node: Node) -> int:
    """Sq."""
    return node.operands[LENGTHS["q_lengths"]].type.shape[2]


def with_keys(rewriter: Rewriter, node: Node, queries: Value, keys: Value, count: int) -> Lengths:
    """kv = max(kv, 1), and q = min(q, min(kv, 1) Sq), which is 0 where there was no key; of one query q = 1."""

    def make(fn: str, left: Operand, right: Operand) -> Value:
        return rewriter.emit(Pointwise(fn=fn), left, right, origins=node.origins)[0]

    some = make("maximum", keys, 1)
    if count > 1:
        # Not kv Sq, which may be beyond int32.
        return Lengths(make("minimum", queries, make("mul", make("minimum", keys, 1), count)), some)
    shown = make("greater", make("minimum", queries, keys), 0)
    one = rewriter.constant(full_lengths(queries.type.size, 1), stem=f"{node.name}.q_lengths")
    return Lengths(one, some, shown)


def hidden(rewriter: Rewriter, node: Node, result: Value, shown: Value, empty: float) -> Value:
    """A result where it is shown, and elsewhere what a query has that sees nothing."""
    shape = (shown.type.size, *(1,) * (result.type.rank - 1))
    along = rewriter.emit(Reshape(shape=shape), shown, origins=node.origins)[0]
    return rewriter.emit(Select(), along, result, empty, origins=node.origins)[0]


def may_show_nothing(graph: Graph, node: Node) -> bool:
    """Whether an attention has sequences that are not known to have keys, or one query of an unknown length."""
    if not isinstance(node.op, Attention) or not LENGTHS.keys() <= set(node.op.extras):
        return False
    given = node.op.optional(node.operands)
    names = LENGTHS if query_count(node) == 1 else ("kv_lengths",)
    return any(interval(graph, given[name])[0] < 1 for name in names)
