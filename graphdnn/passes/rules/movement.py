"""Chains of views: reshapes and transposes that undo or repeat each other, and expansions that broadcasting does."""

from __future__ import annotations

from graphdnn.ir.graph import Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.movement import Concat, Expand, Pad, Reshape, Slice, Split, Squeeze, Transpose, Unsqueeze
from graphdnn.ir.ops.pointwise import Pointwise, Select
from graphdnn.ir.types import broadcast_shapes
from graphdnn.passes.pattern import Is, Match, Var
from graphdnn.passes.rewrite import Emitter, Rule
from graphdnn.passes.rules.pointwise import leaves_x, x_itself

RESHAPES = (Reshape, Squeeze, Unsqueeze)
"""Ops that keep the row-major order of the elements."""


def moves_nothing(node: Node) -> bool:
    """Whether the op gives its only operand as it is; with the operand's shape most of them can do nothing else."""
    if isinstance(node.op, Transpose):
        return node.op.axes == tuple(range(len(node.op.axes)))
    return node.operands[0].type.shape == node.result.type.shape


def reorders_nothing(node: Node) -> bool:
    """Whether a transpose leaves the axes longer than one in their order, and so is a reshape."""
    assert isinstance(node.op, Transpose)
    long = [a for a in node.op.axes if node.operands[0].type.shape[a] > 1]
    return long == sorted(long) and not moves_nothing(node)


def reshaped(make: Emitter, found: Match) -> Value:
    return make(Reshape(shape=found.root.result.type.shape), found["x"])


def transposed(make: Emitter, found: Match) -> Value:
    outer, inner = found.root.op, found.node("inner").op
    assert isinstance(outer, Transpose)
    assert isinstance(inner, Transpose)
    return make(Transpose(axes=tuple(inner.axes[a] for a in outer.axes)), found["x"])


def needless_expansions(found: Match) -> tuple[Node, ...]:
    """Expansions among the operands without which the result would have the same shape."""
    node, producer = found.root, found.graph.producer
    made = [producer.get(v) for v in node.operands]
    expansions = [n for n in made if n is not None and isinstance(n.op, Expand)]
    shapes = [
        n.operands[0].type.shape if n in expansions and n is not None else v.type.shape
        for n, v in zip(made, node.operands, strict=True)
    ]
    return tuple(expansions) if broadcast_shapes(*shapes) == node.result.type.shape else ()


def broadcast(make: Emitter, found: Match) -> Value:
    expansions = needless_expansions(found)
    short = {n.result: n.operands[0] for n in expansions}
    make.also(expansions)
    return make(found.root.op, *(short.get(v, v) for v in found.root.operands))


STILL: tuple[type[Op], ...] = (Reshape, Squeeze, Unsqueeze, Transpose, Expand, Slice, Split, Pad, Concat)

MOVEMENT = (
    Rule("moves nothing", "moves nothing", Is(STILL, (Var("x"),), where=moves_nothing), x_itself, where=leaves_x),
    Rule("reshape of a reshape", "reshaped at once", Is(RESHAPES, (Is(RESHAPES, (Var("x"),), shared=True),)), reshaped),
    Rule(
        "transpose of a transpose",
        "transposed at once",
        Is(Transpose, (Is(Transpose, (Var("x"),), name="inner", shared=True),)),
        transposed,
    ),
    Rule("transpose of short axes", "a reshape", Is(Transpose, (Var("x"),), where=reorders_nothing), reshaped),
    Rule(
        "expansion before a pointwise op",
        "broadcast instead of expanded",
        Is((Pointwise, Select)),
        broadcast,
        fits=lambda found: bool(needless_expansions(found)),
    ),
)
"""What moves nothing goes first, so that chains do not compose with it."""
