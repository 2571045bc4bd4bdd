"""What attention hides as additive biases, where engines take only those.

cuDNN's attention adds a bias to the scores and knows no mask, and takes neither lengths nor a bias together with a band
that is aligned to the last key.  A bias of 0 where a key may be attended to and minus infinity elsewhere is the same
function of finite scores, a row that is hidden wholly included: both give it 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import inf

import numpy as np

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.op import Make
from graphdnn.ir.ops.attention import Attention, per_batch, positions
from graphdnn.ir.ops.pointwise import Pointwise, Select
from graphdnn.ir.payload import Payload
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, TensorType
from graphdnn.ir.writer import Rewriter
from graphdnn.passes.attention.lengths import LENGTHS
from graphdnn.passes.rewrite import Ask, Precomputed, Rewritten


@dataclass(frozen=True)
class Hidden:
    """What a bias hides: where `mask` is not set, and what is outside the band of `band`, whose lengths are `lengths`.

    `scores` are (Sq, Skv).  Two that are equal hide the same keys.
    """

    scores: tuple[int, int]
    mask: Value | None
    band: Attention | None = None
    lengths: tuple[tuple[str, Value], ...] = ()


def masks_as_biases(graph: Graph, ask: Ask) -> Rewritten:
    """Every attention that `ask` knows no engine for, and one with a bias in place of what it hides, gets the bias.

    A bias instead of the mask is tried first, then one that hides what is outside causal flag and window too; lengths
    stay as they are.  A bias that is there already is hidden where these hide.  Axes along which none of them varies
    stay of extent 1, and what several attentions have in common is computed once, or when compiled.
    """
    done = Rewritten(graph)
    for hidden, reason in WAYS:
        done = done.then(partial(hidden_by_biases, ask=ask, hidden=hidden, reason=reason))
    return done


def hidden_by_biases(graph: Graph, ask: Ask, hidden: Callable[[Node], Hidden | None], reason: str) -> Rewritten:
    """Biases for what `hidden` says of those attentions that no engine takes with it and one takes without."""
    wanted = {n: what for n in graph.nodes if (what := hidden(n)) is not None and ask(Region(graph, (n,))) is None}
    if not wanted:
        return Rewritten(graph)
    trial, made = with_biases(graph, wanted)
    taken = {n: what for n, what in wanted.items() if ask(Region(trial, (made[n],))) is not None}
    if not taken:
        return Rewritten(graph)
    done = trial if len(taken) == len(wanted) else with_biases(graph, taken)[0]
    return Rewritten(done, tuple(f"{', '.join(n.origins)}: {reason}" for n in taken))


def by_mask(node: Node) -> Hidden | None:
    """An attention's mask, where it has one."""
    if not isinstance(node.op, Attention) or "mask" not in node.op.extras:
        return None
    return Hidden(scores_of(node), node.op.optional(node.operands)["mask"])


def by_mask_and_band(node: Node) -> Hidden | None:
    """An attention's causal flag and window, where it has any, and its mask."""
    if not isinstance(node.op, Attention) or node.op.bounds(*scores_of(node)) == (None, None):
        return None
    given = node.op.optional(node.operands)
    # The rest of an attention's attributes changes nothing of its band.
    band = Attention(scale=1.0, causal=node.op.causal, window=node.op.window)
    counted = tuple((n, given[n]) for n in LENGTHS if n in given) if band.causal == "bottom_right" else ()
    return Hidden(scores_of(node), given.get("mask"), band, counted)


WAYS: tuple[tuple[Callable[[Node], Hidden | None], str], ...] = (
    (by_mask, "no engine takes a boolean mask; it is added to the scores as 0 and -inf"),
    (
        by_mask_and_band,
        "no engine takes its causal flag or window beside what else it has; it is added to the scores as 0 and -inf",
    ),
)
"""What hides the least first: engines skip the keys outside a band that they know of."""


def scores_of(node: Node) -> tuple[int, int]:
    """(Sq, Skv)."""
    return node.operands[0].type.shape[2], node.operands[1].type.shape[2]


def with_biases(graph: Graph, hidden: Mapping[Node, Hidden]) -> tuple[Graph, dict[Node, Node]]:
    """The graph with biases in place of what these nodes hide, and what each of them became."""
    rewriter = Rewriter(graph)
    made: dict[Node, Node] = {}
    biases: dict[tuple[Hidden, Value | DType], Value] = {}
    for node in graph.nodes:
        if node not in hidden:
            rewriter.keep(node)
            continue
        assert isinstance(node.op, Attention)
        given = node.op.optional(node.operands)
        given.pop("mask", None)
        key = hidden[node], given.get("bias", node.result.type.dtype)
        if key not in biases:
            biases[key] = bias_of(Precomputed(rewriter, node.origins), *key)
        given["bias"] = biases[key]
        op, optional = node.op.with_optional(given)
        if hidden[node].band is not None:
            op = replace(op, causal=None, window=None)
        operands = [rewriter[v] for v in (*node.operands[:3], *optional)]
        results = rewriter.emit(op, *operands, origins=node.origins)
        made[node] = rewriter.writer.nodes[-1]
        rewriter.replace_results(node, results)
    return rewriter.finish(), made


def bias_of(make: Precomputed, hidden: Hidden, bias: Value | DType) -> Value:
    """What is added to the scores: `bias`, or 0 in that type, where a key is shown, and minus infinity elsewhere."""
    if not isinstance(bias, Value):
        bias = make.constant(Payload(TensorType((), bias), np.zeros((), bias.numpy)))
    return make(Select(), shown(make, hidden), bias, -inf)


def shown(make: Make, hidden: Hidden) -> Value:
    """Where keys are not hidden, broadcasting to the scores."""
    conditions = [] if hidden.mask is None else [hidden.mask]
    if hidden.band is not None:
        extents = dict(zip(LENGTHS, hidden.scores, strict=True))
        lengths = {name: per_batch(make, value, extents[name]) for name, value in hidden.lengths}
        conditions += hidden.band.in_band(make, *positions(make, *hidden.scores), lengths)
    return reduce(partial(make, Pointwise(fn="logical_and")), conditions)
