"""Completion: optional operands that mean the same when spelled out, and that libraries want spelled out.

cuDNN's attention takes the lengths of queries and of keys, or neither; the one that is absent is the full extent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphdnn.ir.graph import Graph, Node, Payload, Value
from graphdnn.ir.ops.attention import EXTRAS, Attention
from graphdnn.ir.types import TensorType, int32
from graphdnn.ir.writer import Rewriter
from graphdnn.passes.rewrite import Rewritten

LENGTHS = {"q_lengths": 0, "kv_lengths": 1}
"""The pair, and the operand (q or k) whose third axis is the full extent."""


def complete(graph: Graph) -> Rewritten:
    """Both lengths wherever an attention has one of them."""
    rewriter = Rewriter(graph)
    changes: list[str] = []
    full: dict[tuple[int, int], Value] = {}
    for node in graph.nodes:
        absent = missing_length(node)
        if absent is None:
            rewriter.keep(node)
            continue
        assert isinstance(node.op, Attention)
        batch, _, extent, _ = node.operands[LENGTHS[absent]].type.shape
        if (batch, extent) not in full:
            payload = Payload(TensorType((batch,), int32), np.full(batch, extent, np.int32))
            full[batch, extent] = rewriter.constant(payload, stem=f"{node.name}.{absent}")
        given = dict(zip(node.op.extras, node.operands[3:], strict=True)) | {absent: full[batch, extent]}
        names = tuple(n for n in EXTRAS if n in given)
        operands = [rewriter[v] for v in (*node.operands[:3], *(given[n] for n in names))]
        results = rewriter.emit(replace(node.op, extras=names), *operands, origins=node.origins)
        for old, new in zip(node.results, results, strict=True):
            rewriter.replace(old, new)
        changes.append(f"{node.name}: {absent} spelled out as the full extent, {extent}")
    return Rewritten(rewriter.finish(), tuple(changes)) if changes else Rewritten(graph)


def missing_length(node: Node) -> str | None:
    """Which of the two lengths an attention lacks while it has the other."""
    if not isinstance(node.op, Attention):
        return None
    absent = [name for name in LENGTHS if name not in node.op.extras]
    return absent[0] if len(absent) == 1 else None
