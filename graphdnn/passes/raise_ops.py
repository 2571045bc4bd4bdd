"""Raising: functions that were spelled out become the ops that engines know, where the definition holds exactly."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from graphdnn.answer import Code, Decline
from graphdnn.ir.graph import Graph
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.region import Region
from graphdnn.passes.attention.masks import masks_as_biases
from graphdnn.passes.pattern import Match
from graphdnn.passes.rewrite import Ask, Rewritten, Rule, rewrite
from graphdnn.passes.rules.activation import ACTIVATIONS
from graphdnn.passes.rules.attention import ATTENTION
from graphdnn.passes.rules.norm import NORM
from graphdnn.passes.rules.softmax import SOFTMAX

RAISINGS = (*ATTENTION, *SOFTMAX, *NORM, *ACTIVATIONS)
"""The larger ops first; what one rule leaves may be a part of what another one looks for in the next sweep."""


def raise_ops(graph: Graph, ask: Ask) -> Rewritten:
    """The graph with spelled-out functions recognised, and the near misses as refusals.

    Attention that `ask` knows no engine for stays as it was spelled: its expansion computes in float32 and keeps the
    scores in memory, and took up to four times as long as half precision products with a softmax between them.
    """
    given = {origin for n in graph.nodes if isinstance(n.op, Attention) for origin in n.origins}
    untaken: set[str] = set()
    while True:
        done = rewrite(graph, tuple(unless(untaken, r) if r.name == "attention" else r for r in RAISINGS))
        ready = masks_as_biases(done.graph, ask).graph
        alone = {
            origin
            for n in ready.nodes
            if isinstance(n.op, Attention) and given.isdisjoint(n.origins) and ask(Region(ready, (n,))) is None
            for origin in n.origins
        }
        if not alone:
            return done
        untaken |= alone


def unless(untaken: Set[str], rule: Rule) -> Rule:
    """The same rule, which leaves alone the roots that do the work of these nodes."""

    def where(found: Match) -> Decline | None:
        problem = rule.where(found) if rule.where is not None else None
        if problem is not None or untaken.isdisjoint(found.root.origins):
            return problem
        return Decline(Code.PATTERN, "no engine takes it as one attention; it stays as it is spelled")

    return replace(rule, where=where)
