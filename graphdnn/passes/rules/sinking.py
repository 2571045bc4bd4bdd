"""Reshapes moved behind pointwise ops, so that what computes and what follows it stand together.

No region around a product holds a view.  Runs after raising, whose patterns expect reshapes where people write them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.movement import Reshape
from graphdnn.ir.ops.pointwise import Bias, Elementwise
from graphdnn.passes.pattern import Is, Match
from graphdnn.passes.rewrite import Emitter, Precomputed, Rule
from graphdnn.passes.rules.movement import RESHAPES

Shape = tuple[int, ...]


def runs(before: Shape, after: Shape) -> list[tuple[range, range]]:
    """Axes of `before` and of `after` that hold the same elements: the shortest runs with equal products."""
    found: list[tuple[range, range]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        first, second = i, j
        have, want = 1, 1
        if i < len(before):
            have, i = before[i], i + 1
        if j < len(after):
            want, j = after[j], j + 1
        while have != want:
            if have < want:
                have, i = have * before[i], i + 1
            else:
                want, j = want * after[j], j + 1
        found.append((range(first, i), range(second, j)))
    return found


def before_reshape(shape: Shape, before: Shape, after: Shape) -> Shape | None:
    """The shape under which an operand that broadcasts to `after` broadcasts to `before` in the same way.

    None where it varies along some of the axes of a run and not along others.
    """
    out = [1] * len(before)
    for olds, news in runs(before, after):
        part, whole = [shape[a] for a in news], [after[a] for a in news]
        if part == whole:
            for a in olds:
                out[a] = before[a]
        elif any(n != 1 for n in part):
            return None
    return tuple(out)


@dataclass(frozen=True)
class Operand:
    """What a pointwise node reads in front of the reshape: `value`, itself to be reshaped where `shape` is set.

    `axis` is that of a bias; `bypassed` the reshape that is left out here.
    """

    value: Value
    shape: Shape | None = None
    axis: int | None = None
    bypassed: Node | None = None


def sinking(found: Match) -> tuple[Operand, ...] | None:
    """How the node looks in front of an operand's reshape; None where no operand is such that it can move."""
    node, graph = found.root, found.graph
    for value in node.operands:
        reshape = graph.producer.get(value)
        if reshape is None or not isinstance(reshape.op, RESHAPES) or value.type.shape != node.result.type.shape:
            continue
        source = graph.producer.get(reshape.operands[0])
        if source is None or source.op.is_renaming:
            continue
        before = reshape.operands[0].type.shape
        moved = [operand_before(node, index, before, graph) for index in range(len(node.operands))]
        if all(operand is not None for operand in moved):
            return tuple(operand for operand in moved if operand is not None)
    return None


def operand_before(node: Node, index: int, before: Shape, graph: Graph) -> Operand | None:
    """Operand `index` in front of a reshape from `before` to the node's shape; None where it cannot be put so."""
    assert isinstance(node.op, Elementwise)
    value, after = node.operands[index], node.result.type.shape
    if value.literal is not None:
        return Operand(value)
    made = graph.producer.get(value)
    if made is not None and isinstance(made.op, RESHAPES) and made.operands[0].type.shape == before:
        return Operand(made.operands[0], bypassed=made) if value.type.shape == after else None
    shape = before_reshape(node.op.aligned(index, value.type.shape, len(after)), before, after)
    if shape is None or (value.type.shape == after and not may_be_reshaped(value, len(before), graph)):
        return None
    if index == 1 and isinstance(node.op, Bias) and node.op.axis is not None:
        along = [a for a, n in enumerate(shape) if n > 1]
        if len(along) == 1:
            return Operand(value, axis=along[0])
    padded = (1,) * (len(before) - value.type.rank) + value.type.shape
    return Operand(value, None if padded == shape else shape)


def may_be_reshaped(value: Value, rank: int, graph: Graph) -> bool:
    """Whether an operand of full size can take the reshape in turn.

    What a node makes may so only toward fewer axes (else two reshapes would chase each other), and not where a
    pointwise node makes it for this one alone, which would part the two.
    """
    made = graph.producer.get(value)
    if made is None:
        return True
    alone = isinstance(made.op, Elementwise) and len(graph.users[value]) == 1 and value not in graph.escaping
    return rank < value.type.rank and not alone


def sink(make: Emitter, found: Match) -> Value:
    node, operands = found.root, sinking(found)
    assert operands is not None
    bypassed = dict.fromkeys(operand.bypassed for operand in operands if operand.bypassed is not None)
    reshaped = Precomputed(make.rewriter, (o for n in bypassed for o in n.origins))
    reads = [o.value if o.shape is None else reshaped(Reshape(shape=o.shape), o.value) for o in operands]
    op = replace(node.op, axis=operands[1].axis) if isinstance(node.op, Bias) else node.op
    return reshaped(Reshape(shape=node.result.type.shape), make(op, *reads))


SINKING = (
    Rule(
        "reshape before a pointwise op",
        "computed before the reshape",
        Is(Elementwise),
        sink,
        fits=lambda found: sinking(found) is not None,
    ),
)
