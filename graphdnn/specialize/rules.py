"""What each op needs so that padding its operands changes none of the elements that the exact graph has.

The claim that the rules keep up, node by node: the exact value is the leading corner of the padded one.  A rule gets
two nodes whose operands fulfil it and says why the results would not; None means that they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from graphdnn.ir.op import Op
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.movement import (
    Concat,
    Expand,
    Gather,
    Iota,
    Pad,
    Reshape,
    Slice,
    Split,
    Squeeze,
    Transpose,
    Unsqueeze,
    WriteSlice,
)
from graphdnn.ir.ops.norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm
from graphdnn.ir.ops.pointwise import Bias, Cast, Pointwise, Select
from graphdnn.ir.ops.pool import AvgPool, MaxPool
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.specialize.axes import Pair, Shape, regrouped
from graphdnn.specialize.facts import Knowledge

Rule = Callable[[Pair, Knowledge], str | None]


def across(pair: Pair, index: int, axis: int, does: str = "computes across") -> str:
    """The reason why an axis may not be longer."""
    exact, padded = pair.extents(index)
    names = pair.exact.op.operand_names
    operand = names[index] if index < len(names) else f"operand {index}"
    return f"{pair.exact} {does} axis {axis} of its {operand}, which is {exact[axis]} long and padded to {padded[axis]}"


def stretched(pair: Pair, index: int, shapes: tuple[Shape, Shape], results: tuple[Shape, Shape]) -> str | None:
    """Why an operand that the exact graph repeats is not repeated in the padded one; shapes of equal rank."""
    for axis, (n, m, size) in enumerate(zip(*shapes, results[0], strict=True)):
        if n == 1 < size and m != 1:
            return f"{pair.exact} repeats operand {index} along axis {axis} of its result, and padding ends that"
    return None


def pointwise(pair: Pair, knowledge: Knowledge) -> str | None:
    op: Any = pair.exact.op
    results = pair.results()
    for index, value in enumerate(pair.exact.operands):
        if value.literal is None:
            exact, padded = (op.aligned(index, s, len(results[0])) for s in pair.extents(index))
            if reason := stretched(pair, index, (exact, padded), results):
                return reason
    return None


def whole(axes: Callable[[Any, int], Iterable[int]]) -> Rule:
    """The rule of an op that computes across some axes of its first operand and along all others entry by entry.

    Its other operands have an entry for each entry of axes of the first.
    """

    def rule(pair: Pair, knowledge: Knowledge) -> str | None:
        op = pair.exact.op
        found = set(axes(op, len(pair.extents(0)[0])))
        return next((across(pair, 0, a) for a in pair.grown(0) if a in found), None)

    return rule


def reduced(pair: Pair, knowledge: Knowledge) -> str | None:
    op = pair.exact.op
    assert isinstance(op, Reduce)
    facts = knowledge.of(pair.padded.operands[0])
    idle = {"sum": facts.cleared, "max": facts.sunk}.get(op.fn, frozenset())
    return next((across(pair, 0, a) for a in pair.grown(0) if a in op.axes and a not in idle), None)


def normalized(pair: Pair, knowledge: Knowledge) -> str | None:
    """A softmax; minus infinity adds nothing to its sum."""
    op = pair.exact.op
    assert isinstance(op, Softmax)
    sunk = knowledge.of(pair.padded.operands[0]).sunk
    return across(pair, 0, op.axis) if op.axis in pair.grown(0) and op.axis not in sunk else None


def convolved(pair: Pair, knowledge: Knowledge) -> str | None:
    if grown := pair.grown(1):
        return across(pair, 1, grown[0])
    return next((across(pair, 0, a) for a in pair.grown(0) if a > 0), None)


def multiplied(pair: Pair, knowledge: Knowledge) -> str | None:
    (a, _), results = pair.extents(0), pair.results()
    rank = len(results[0]) - 2
    if len(a) - 1 in pair.grown(0):
        return across(pair, 0, len(a) - 1, "sums over")
    for index in (0, 1):
        exact, padded = ((1,) * (rank + 2 - len(s)) + s[:-2] for s in pair.extents(index))
        if reason := stretched(pair, index, (exact, padded), (results[0][:-2], results[1][:-2])):
            return reason
    return None


def reshaped(pair: Pair, knowledge: Knowledge) -> str | None:
    """Of axes that lie one after the other as one, only the outermost may be longer: what is added then comes last."""
    source, target = set(pair.grown(0)), set(grown_results(pair))
    for group in regrouped(pair):
        for axis in group.before[1:]:
            if axis in source:
                return across(pair, 0, axis, "joins to the axis before it")
        if target.intersection(group.after[1:]):
            return across(pair, 0, next(iter(source.intersection(group.before)), 0), "divides")
    return None


def grown_results(pair: Pair) -> tuple[int, ...]:
    return tuple(a for a, (n, m) in enumerate(zip(*pair.results(), strict=True)) if n != m)


def expanded(pair: Pair, knowledge: Knowledge) -> str | None:
    results = pair.results()
    rank = len(results[0])
    exact, padded = ((1,) * (rank - len(s)) + s for s in pair.extents(0))
    return stretched(pair, 0, (exact, padded), results)


def split(pair: Pair, knowledge: Knowledge) -> str | None:
    op, other = pair.exact.op, pair.padded.op
    assert isinstance(op, Split)
    assert isinstance(other, Split)
    if op.sizes[:-1] != other.sizes[:-1]:
        return across(pair, 0, op.axis, "divides")
    return None


def joined(pair: Pair, knowledge: Knowledge) -> str | None:
    op = pair.exact.op
    assert isinstance(op, Concat)
    inner = range(len(pair.exact.operands) - 1)
    return next((across(pair, i, op.axis, "puts more behind") for i in inner if op.axis in pair.grown(i)), None)


def bordered(pair: Pair, knowledge: Knowledge) -> str | None:
    op = pair.exact.op
    assert isinstance(op, Pad)
    return next((across(pair, 0, a, "puts more behind") for a in pair.grown(0) if op.padding[a][1]), None)


def gathered(pair: Pair, knowledge: Knowledge) -> str | None:
    op = pair.exact.op
    assert isinstance(op, Gather)
    return across(pair, 0, op.axis, "looks up along") if op.axis in pair.grown(0) else None


def written(pair: Pair, knowledge: Knowledge) -> str | None:
    op = pair.exact.op
    assert isinstance(op, WriteSlice)
    return next((across(pair, i, op.axis, "writes into") for i in (0, 1) if op.axis in pair.grown(i)), None)


def always(pair: Pair, knowledge: Knowledge) -> str | None:
    return None


def attended(pair: Pair, knowledge: Knowledge) -> str | None:
    op = pair.exact.op
    assert isinstance(op, Attention)
    for index, axes in ((0, (1, 3)), (1, (1, 3)), (2, (1,))):
        for axis in pair.grown(index):
            if axis in axes:
                return across(pair, index, axis)
    (b, heads, queries, _), (_, _, keys, _) = pair.extents(0)[0], pair.extents(1)[0]
    places = {name: 3 + i for i, name in enumerate(op.extras)}
    keys_fit = 2 not in pair.grown(1) or limited(pair, knowledge, places.get("kv_lengths"), keys)
    if not keys_fit:
        return f"{across(pair, 1, 2, 'attends along')}; kv_lengths that jit fills in (lengths=) leave the padding out"
    queries_fit = 2 not in pair.grown(0) or limited(pair, knowledge, places.get("q_lengths"), queries)
    if op.causal == "bottom_right" and not queries_fit:
        return f"{across(pair, 0, 2, 'counts from the end of')}; q_lengths that jit fills in say where that is"
    padded_b, padded_heads, padded_queries, _ = pair.extents(0)[1]
    scores = (b, heads, queries, keys), (padded_b, padded_heads, padded_queries, pair.extents(1)[1][2])
    for name in ("bias", "mask"):
        if name in places:
            exact, padded = ((1,) * (4 - len(s)) + s for s in pair.extents(places[name]))
            if reason := stretched(pair, places[name], (exact, padded), scores):
                return reason
    return None


def limited(pair: Pair, knowledge: Knowledge, index: int | None, extent: int) -> bool:
    """Whether an operand of lengths is known never to reach into the padding."""
    limit = None if index is None else knowledge.of(pair.padded.operands[index]).limit
    return limit is not None and limit <= extent


RULES: dict[type[Op], Rule] = {
    Pointwise: pointwise,
    Select: pointwise,
    Bias: pointwise,
    Cast: pointwise,
    Reduce: reduced,
    Softmax: normalized,
    LayerNorm: whole(lambda op, rank: op.axes),
    RmsNorm: whole(lambda op, rank: op.axes),
    BatchNorm: always,
    InstanceNorm: whole(lambda op, rank: range(2, rank)),
    GroupNorm: whole(lambda op, rank: range(1, rank)),
    MaxPool: whole(lambda op, rank: range(2, rank)),
    AvgPool: whole(lambda op, rank: range(2, rank)),
    Conv: convolved,
    ConvTranspose: convolved,
    MatMul: multiplied,
    Attention: attended,
    Transpose: always,
    Unsqueeze: always,
    Squeeze: always,
    Reshape: reshaped,
    Expand: expanded,
    Split: split,
    Slice: always,
    Concat: joined,
    Pad: bordered,
    Gather: gathered,
    WriteSlice: written,
    Iota: always,
}
"""The rule of each op by its class; an op without one is never padded."""

SIZED: dict[type[Op], tuple[str, ...]] = {
    Reshape: ("shape",),
    Expand: ("shape",),
    Split: ("sizes",),
    Slice: ("stops",),
    Iota: ("size",),
}
"""Attributes that spell out extents, and so may differ where padding makes them longer.

Their rules see to what may not: stops of a slice may all differ, and so may the extent of positions.
"""
