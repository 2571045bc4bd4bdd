"""Completion: lengths of attention spelled out and held inside their tensor, which means the same and is safe.

cuDNN's attention takes the lengths of queries and of keys, or neither; the one that is absent is the full extent.
Given a length beyond the extent it reads outside, where the definition only sees every key.
"""

from __future__ import annotations

import numpy as np

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.pointwise import Pointwise
from graphdnn.ir.payload import Payload
from graphdnn.ir.types import TensorType, int32
from graphdnn.ir.writer import Rewriter
from graphdnn.passes.intervals import interval
from graphdnn.passes.rewrite import Rewritten

LENGTHS = {"q_lengths": 0, "kv_lengths": 1}
"""The pair, and the operand (q or k) whose third axis is the full extent."""


def complete(graph: Graph) -> Rewritten:
    """Both lengths wherever an attention has one of them, each between 0 and the extent."""
    rewriter = Rewriter(graph)
    changes: list[str] = []
    made: dict[tuple[Value | None, int, int], Value] = {}

    def full(node: Node, name: str, batch: int, extent: int) -> Value:
        changes.append(f"{', '.join(node.origins)}: {name} spelled out as the full extent, {extent}")
        return rewriter.constant(full_lengths(batch, extent), stem=f"{node.name}.{name}")

    def held(node: Node, name: str, given: Value, extent: int) -> Value:
        changes.append(f"{', '.join(node.origins)}: {name} held between 0 and {extent}")
        clip = Pointwise(fn="clip", parameters=(0, extent))
        return rewriter.emit(clip, rewriter[given], origins=node.origins)[0]

    for node in graph.nodes:
        wanted = lengths_to_complete(graph, node)
        if not wanted:
            rewriter.keep(node)
            continue
        assert isinstance(node.op, Attention)
        operands = node.op.optional(node.operands)
        new = {name: rewriter[v] for name, v in operands.items()}
        for name in wanted:
            batch, _, extent, _ = node.operands[LENGTHS[name]].type.shape
            given = operands.get(name)
            key = (given, batch, extent)
            if key not in made:
                made[key] = full(node, name, batch, extent) if given is None else held(node, name, given, extent)
            new[name] = made[key]
        op, optional = node.op.with_optional(new)
        results = rewriter.emit(op, *(rewriter[v] for v in node.operands[:3]), *optional, origins=node.origins)
        rewriter.replace_results(node, results)
    return Rewritten(rewriter.finish(), tuple(changes)) if changes else Rewritten(graph)


def full_lengths(batch: int, extent: int) -> Payload:
    """Lengths that hide nothing."""
    return Payload(TensorType((batch,), int32), np.full(batch, extent, np.int32))


def lengths_to_complete(graph: Graph, node: Node) -> list[str]:
    """Names of an attention's lengths that are absent beside the other, or not known to lie inside the extent."""
    if not isinstance(node.op, Attention) or not LENGTHS.keys() & set(node.op.extras):
        return []
    given = node.op.optional(node.operands)
    return [
        name
        for name, index in LENGTHS.items()
        if name not in given or not is_inside(graph, given[name], node.operands[index].type.shape[2])
    ]


def is_inside(graph: Graph, lengths: Value, extent: int) -> bool:
    """Whether lengths are known to lie between 0 and `extent`."""
    low, high = interval(graph, lengths)
    return low >= 0 and high <= extent
