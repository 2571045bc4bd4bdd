"""Promotion: which operands are of a narrower float type than their op computes in, and the casts that say so.

Pointwise ops read mixed types as they are; every other op that promotes gets explicit casts, so that engines see
one type.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.pointwise import Cast, Elementwise
from graphdnn.ir.types import DType
from graphdnn.ir.types import promote as common_type
from graphdnn.ir.writer import Rewriter
from graphdnn.passes.rewrite import Rewritten


@dataclass(frozen=True)
class Promotion:
    """An operand that takes part as `after`, though it is `before`."""

    node: str
    operand: str
    before: DType
    after: DType


def promotions(graph: Graph) -> tuple[Promotion, ...]:
    """Every promotion in a user's graph, those of pointwise ops and the builder's casts included."""
    found: list[Promotion] = []
    casts = implied_casts(graph)
    for node in graph.nodes:
        wanted = promoted(node)
        for index, value in enumerate(node.operands):
            source = casts.get(value, value)
            after = wanted.get(index, value.type.dtype)
            if after != source.type.dtype:
                found.append(Promotion(node.name, operand_name(node, index), source.type.dtype, after))
    return tuple(found)


def implied_casts(graph: Graph) -> dict[Value, Value]:
    """What the builder cast, by the result of the cast: it is part of the node that reads it, and no user's node."""
    made = {n.result: n for n in graph.nodes if isinstance(n.op, Cast) and n.origins != (n.name,)}
    return {
        value: made[value].operands[0]
        for node in graph.nodes
        for value in node.operands
        if value in made and made[value].origins == (node.name,)
    }


def promote(graph: Graph) -> Rewritten:
    """Casts in front of the ops that need operands of one type."""
    rewriter = Rewriter(graph)
    changes: list[str] = []
    for node in graph.nodes:
        wanted = {} if isinstance(node.op, Elementwise) else promoted(node)
        if not wanted:
            rewriter.keep(node)
            continue
        operands = [rewriter[v] for v in node.operands]
        for index, dtype in wanted.items():
            (operands[index],) = rewriter.emit(Cast(dtype=dtype.name), operands[index], origins=node.origins)
            before = node.operands[index].type.dtype
            changes.append(f"{node.name}: operand {operand_name(node, index)} cast from {before} to {dtype}")
        rewriter.keep(node, operands=operands)
    return Rewritten(rewriter.finish(), tuple(changes)) if changes else Rewritten(graph)


def promoted(node: Node) -> dict[int, DType]:
    """The type that an operand takes part as, by index, where that is not its own."""
    floats = {i: v.type.dtype for i, v in enumerate(node.operands) if v.type.dtype.is_float and v.literal is None}
    if isinstance(node.op, Elementwise):
        common = common_type(*floats.values()) if floats else None
        return {i: common for i, dtype in floats.items() if common is not None and dtype != common}
    after = node.result.type.dtype
    if not node.op.promotes or not after.is_float:
        return {}
    return {i: after for i, dtype in floats.items() if dtype != after and common_type(dtype, after) == after}


def operand_name(node: Node, index: int) -> str:
    """What the op calls the operand; its place where it has no name."""
    names = node.op.operand_names
    return names[index] if index < len(names) else str(index)
