"""Completion: lengths of attention spelled out and held inside their tensor, which means the same and is safe.

cuDNN's attention takes the lengths of queries and of keys, or neither; the one that is absent is the full extent.
Given a length beyond the extent it reads outside, where the definition only sees every key.  Given neither queries nor
keys of a sequence it leaves what stood in the results, where the definition has zeros; with a key it writes them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphdnn.ir.graph import Graph, Node, Payload, Value
from graphdnn.ir.ops.attention import EXTRAS, Attention
from graphdnn.ir.ops.pointwise import Pointwise
from graphdnn.ir.types import Array, TensorType, int32
from graphdnn.ir.writer import Rewriter
from graphdnn.passes.rewrite import Rewritten
from graphdnn.passes.rules.folding import is_constant

LENGTHS = {"q_lengths": 0, "kv_lengths": 1}
"""The pair, and the operand (q or k) whose third axis is the full extent."""


def complete(graph: Graph) -> Rewritten:
    """Both lengths wherever an attention has one of them, each between 0 and the extent, and never both 0."""
    rewriter = Rewriter(graph)
    changes: list[str] = []
    made: dict[tuple[Value | None, int, int], Value] = {}
    apart: dict[tuple[Value, Value], Value] = {}

    def full(node: Node, name: str, batch: int, extent: int) -> Value:
        changes.append(f"{node.name}: {name} spelled out as the full extent, {extent}")
        payload = Payload(TensorType((batch,), int32), np.full(batch, extent, np.int32))
        return rewriter.constant(payload, stem=f"{node.name}.{name}")

    def held(node: Node, name: str, given: Value, extent: int) -> Value:
        changes.append(f"{node.name}: {name} held between 0 and {extent}")
        clip = Pointwise(fn="clip", parameters=(0, extent))
        return rewriter.emit(clip, rewriter[given], origins=node.origins)[0]

    def kept_apart(node: Node, queries: Value, keys: Value) -> Value:
        changes.append(f"{node.name}: where q_lengths is 0, kv_lengths is 1, which hides as much")
        least = rewriter.emit(Pointwise(fn="sub"), 1, queries, origins=node.origins)[0]
        return rewriter.emit(Pointwise(fn="maximum"), keys, least, origins=node.origins)[0]

    for node in graph.nodes:
        wanted, is_safe = lengths_to_complete(graph, node), are_apart(graph, node)
        if not wanted and is_safe:
            rewriter.keep(node)
            continue
        assert isinstance(node.op, Attention)
        operands = dict(zip(node.op.extras, node.operands[3:], strict=True))
        new = {name: rewriter[v] for name, v in operands.items()}
        for name in wanted:
            batch, _, extent, _ = node.operands[LENGTHS[name]].type.shape
            given = operands.get(name)
            key = (given, batch, extent)
            if key not in made:
                made[key] = full(node, name, batch, extent) if given is None else held(node, name, given, extent)
            new[name] = made[key]
        if not is_safe:
            pair = new["q_lengths"], new["kv_lengths"]
            if pair not in apart:
                apart[pair] = kept_apart(node, *pair)
            new["kv_lengths"] = apart[pair]
        names = tuple(n for n in EXTRAS if n in new)
        values = [*(rewriter[v] for v in node.operands[:3]), *(new[n] for n in names)]
        results = rewriter.emit(replace(node.op, extras=names), *values, origins=node.origins)
        for old, result in zip(node.results, results, strict=True):
            rewriter.replace(old, result)
    return Rewritten(rewriter.finish(), tuple(changes)) if changes else Rewritten(graph)


def lengths_to_complete(graph: Graph, node: Node) -> list[str]:
    """Names of an attention's lengths that are absent beside the other, or not known to lie inside the extent."""
    if not isinstance(node.op, Attention) or not LENGTHS.keys() & set(node.op.extras):
        return []
    given = dict(zip(node.op.extras, node.operands[3:], strict=True))
    return [
        name
        for name, index in LENGTHS.items()
        if name not in given or not is_inside(graph, given[name], node.operands[index].type.shape[2])
    ]


def are_apart(graph: Graph, node: Node) -> bool:
    """Whether no sequence of an attention can have neither queries nor keys."""
    if not isinstance(node.op, Attention) or not LENGTHS.keys() <= set(node.op.extras):
        return True
    given = dict(zip(node.op.extras, node.operands[3:], strict=True))
    known = [known_lengths(graph, given[name]) for name in LENGTHS]
    if any(array is not None and array.min() > 0 for array in known):
        return True
    parts = parts_of(graph, given["kv_lengths"])
    return parts is not None and parts[1] is given["q_lengths"]


def parts_of(graph: Graph, lengths: Value) -> tuple[Value, Value] | None:
    """The lengths of keys and of queries that `kept_apart` made these of."""
    producer = graph.producer.get(lengths)
    if producer is None or producer.op != Pointwise(fn="maximum"):
        return None
    keys, least = producer.operands
    maker = graph.producer.get(least)
    if maker is None or maker.op != Pointwise(fn="sub") or maker.operands[0].literal != 1:
        return None
    return keys, maker.operands[1]


def known_lengths(graph: Graph, lengths: Value) -> Array | None:
    """Lengths that are constants."""
    payload = graph.payloads.get(lengths.name) if is_constant(lengths, graph) else None
    return payload.array() if payload is not None and payload.has_data else None


def is_inside(graph: Graph, lengths: Value, extent: int) -> bool:
    """Whether lengths are known to lie between 0 and `extent`: constants that do, and what this pass has made."""
    array = known_lengths(graph, lengths)
    if array is not None:
        return bool(array.min() >= 0 and array.max() <= extent)
    parts = parts_of(graph, lengths)
    if parts is not None:
        return is_inside(graph, parts[0], extent)
    producer = graph.producer.get(lengths)
    op = producer.op if producer is not None else None
    return isinstance(op, Pointwise) and op.fn == "clip" and op.parameters == (0, extent)
