"""Boolean masks of attention as additive biases, where engines take only those.

cuDNN's attention adds a bias to the scores and knows no mask.  A bias of 0 where a key may be attended to and minus
infinity elsewhere is the same function of finite scores, a row that is hidden wholly included: both give it 0.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

import numpy as np

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.pointwise import Select
from graphdnn.ir.payload import Payload
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, TensorType
from graphdnn.ir.writer import Rewriter
from graphdnn.passes.rewrite import Ask, Precomputed, Rewritten


def masks_as_biases(graph: Graph, ask: Ask) -> Rewritten:
    """Every attention with a mask that `ask` knows no engine for, and one with a bias in its place, gets the bias.

    A bias that is there already is hidden by the mask.  Axes along which the mask does not vary stay of extent 1, and
    what masks of several attentions have in common is computed once, or when compiled.
    """
    masked = [n for n in graph.nodes if has_mask(n) and ask(Region(graph, (n,))) is None]
    if not masked:
        return Rewritten(graph)
    trial, made = with_biases(graph, masked)
    taken = [n for n in masked if ask(Region(trial, (made[n],))) is not None]
    if not taken:
        return Rewritten(graph)
    done = trial if len(taken) == len(masked) else with_biases(graph, taken)[0]
    return Rewritten(
        done,
        tuple(
            f"{', '.join(n.origins)}: no engine takes a boolean mask; it is added to the scores as 0 and -inf"
            for n in taken
        ),
    )


def has_mask(node: Node) -> bool:
    return isinstance(node.op, Attention) and "mask" in node.op.extras


def with_biases(graph: Graph, masked: Collection[Node]) -> tuple[Graph, dict[Node, Node]]:
    """The graph with biases in place of the masks of these nodes, and what each of them became."""
    rewriter = Rewriter(graph)
    made: dict[Node, Node] = {}
    biases: dict[tuple[Value, Value | DType], Value] = {}
    for node in graph.nodes:
        if node not in masked:
            rewriter.keep(node)
            continue
        assert isinstance(node.op, Attention)
        given = node.op.optional(node.operands)
        mask = given.pop("mask")
        key = mask, given.get("bias", node.result.type.dtype)
        if key not in biases:
            biases[key] = bias_of(Precomputed(rewriter, node.origins), *key)
        given["bias"] = biases[key]
        op, optional = node.op.with_optional(given)
        operands = [rewriter[v] for v in (*node.operands[:3], *optional)]
        results = rewriter.emit(op, *operands, origins=node.origins)
        made[node] = rewriter.writer.nodes[-1]
        for old, new in zip(node.results, results, strict=True):
            rewriter.replace(old, new)
    return rewriter.finish(), made


def bias_of(make: Precomputed, mask: Value, bias: Value | DType) -> Value:
    """What is added to the scores: `bias`, or 0 in that type, where the mask is set, and minus infinity elsewhere."""
    if not isinstance(bias, Value):
        bias = make.constant(Payload(TensorType((), bias), np.zeros((), bias.numpy)))
    return make(Select(), mask, bias, -inf)
