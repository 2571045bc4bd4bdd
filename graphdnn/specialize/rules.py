"""What each op needs so that padding its operands changes none of the elements that the exact graph has.

The claim that the rules keep up, node by node: the exact value is the leading corner of the padded one.  A rule gets
two nodes whose operands fulfil it and says why the results would not; None means that they do.  Where the results
would, if operands held a neutral number behind their exact extents, the refusal names those operands and axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from graphdnn.ir.graph import Node
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
from graphdnn.ir.ops.pool import AvgPool, MaxPool, lowest
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.specialize.axes import Pair, Shape, regrouped
from graphdnn.specialize.facts import Knowledge


@dataclass(frozen=True)
class Refusal:
    """Why a node may not be padded.  It may where each (operand, axis) of `maskable` is masked, if there are any."""

    reason: str
    maskable: tuple[tuple[int, int], ...] = ()


Rule = Callable[[Pair, Knowledge], Refusal | None]


def across(pair: Pair, index: int, axis: int, does: str = "computes across") -> Refusal:
    """The refusal of an axis that may not be longer."""
    exact, padded = pair.extents(index)
    names = pair.exact.op.operand_names
    operand = names[index] if index < len(names) else f"operand {index}"
    return Refusal(
        f"{pair.exact} {does} axis {axis} of its {operand}, which is {exact[axis]} long and padded to {padded[axis]}"
    )


def stretched(pair: Pair, index: int, shapes: tuple[Shape, Shape], results: tuple[Shape, Shape]) -> Refusal | None:
    """Why an operand that the exact graph repeats is not repeated in the padded one; shapes of equal rank."""
    for axis, (n, m, size) in enumerate(zip(*shapes, results[0], strict=True)):
        if n == 1 < size and m != 1:
            return Refusal(
                f"{pair.exact} repeats operand {index} along axis {axis} of its result, and padding ends that"
            )
    return None


def pointwise(pair: Pair, knowledge: Knowledge) -> Refusal | None:
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

    def rule(pair: Pair, knowledge: Knowledge) -> Refusal | None:
        op = pair.exact.op
        found = set(axes(op, len(pair.extents(0)[0])))
        return next((across(pair, 0, a) for a in pair.grown(0) if a in found), None)

    return rule


def neutral(node: Node) -> float | None:
    """What changes nothing of the node's results where it stands behind the exact extent of an operand; None where
    there is no such number."""
    op, dtype = node.op, node.operands[0].type.dtype
    if isinstance(op, AvgPool) and (op.ceil_mode or not op.count_include_pad):
        return None  # how many elements a window counts depends on where x ends
    number = NEUTRAL.get(op.fn if isinstance(op, Reduce) else type(op))
    if number is None or not number or dtype.is_float:
        return number
    return None if dtype.kind == "bool" else lowest(dtype.numpy) if number < 0 else np.iinfo(dtype.numpy).max


NEUTRAL: dict[str | type[Op], float] = {
    "sum": 0.0,
    "mean": 0.0,
    "max": -inf,
    "min": inf,
    Softmax: -inf,
    MatMul: 0.0,
    Conv: 0.0,
    MaxPool: -inf,
    AvgPool: 0.0,
}
"""Neutral numbers by op, or by a reduction's function; an infinity stands for the extreme of an integer type.  A mean
is one of its sum, which is then divided by how many elements there are."""


def reached(pair: Pair, knowledge: Knowledge, axes: Iterable[tuple[int, int]], does: str) -> Refusal | None:
    """Why (operand, axis) among `axes` may not be longer unless what lies behind them is neutral."""
    number = neutral(pair.exact)
    found = []
    for index, axis in axes:
        facts = knowledge.of(pair.padded.operands[index])
        if axis in pair.grown(index) and (number is None or axis not in facts.filled_with(number)):
            found.append((index, axis))
    if not found:
        return None
    refusal = across(pair, *found[0], does)
    return refusal if number is None else replace(refusal, maskable=tuple(found))


def reduced(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    op = pair.exact.op
    assert isinstance(op, Reduce)
    if op.fn == "mean":
        grown = tuple((0, axis) for axis in pair.grown(0) if axis in op.axes)
        return replace(across(pair, *grown[0]), maskable=grown) if grown else None
    return reached(pair, knowledge, ((0, axis) for axis in op.axes), "computes across")


def normalized(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    """A softmax; minus infinity adds nothing to its sum."""
    op = pair.exact.op
    assert isinstance(op, Softmax)
    return reached(pair, knowledge, [(0, op.axis)], "computes across")


def convolved(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    """A convolution reads 0 where its windows reach behind x, and so may read it there inside a longer x."""
    op = pair.exact.op
    assert isinstance(op, Conv)
    if grown := pair.grown(1):
        return across(pair, 1, grown[0])
    if 1 in pair.grown(0):
        return across(pair, 0, 1)
    return reached(pair, knowledge, overrun(pair), "computes across")


def pooled(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    return reached(pair, knowledge, overrun(pair), "computes across")


def overrun(pair: Pair) -> list[tuple[int, int]]:
    """Spatial axes of x behind whose end windows may reach, into padding of their own, or with `ceil_mode` beyond."""
    op: Any = pair.exact.op
    ceil_mode = getattr(op, "ceil_mode", False)
    return [(0, 2 + i) for i, (_, hi) in enumerate(op.padding) if hi > 0 or ceil_mode]


def transposed(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    """What stands behind x adds to elements from its place times the stride on.  Zeros there would do for finite
    weights only, and exact shapes multiply nothing there."""
    op = pair.exact.op
    assert isinstance(op, ConvTranspose)
    if grown := pair.grown(1):
        return across(pair, 1, grown[0])
    x, y = pair.extents(0)[0], pair.results()[0]
    along = zip(x[2:], y[2:], op.stride, op.padding, strict=True)
    overlapping = {2 + i for i, (n, m, s, (lo, _)) in enumerate(along) if n * s - lo < m}
    return next((across(pair, 0, a) for a in pair.grown(0) if a == 1 or a in overlapping), None)


def multiplied(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    """Beyond the inner extent both operands must be 0: what one of them is multiplied by may be infinite or NaN."""
    (a, _), (b, _), results = pair.extents(0), pair.extents(1), pair.results()
    rank = len(results[0]) - 2
    for index in (0, 1):
        exact, padded = ((1,) * (rank + 2 - len(s)) + s[:-2] for s in pair.extents(index))
        if reason := stretched(pair, index, (exact, padded), (results[0][:-2], results[1][:-2])):
            return reason
    return reached(pair, knowledge, [(0, len(a) - 1), (1, len(b) - 2)], "sums over")


def reshaped(pair: Pair, knowledge: Knowledge) -> Refusal | None:
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


def expanded(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    results = pair.results()
    rank = len(results[0])
    exact, padded = ((1,) * (rank - len(s)) + s for s in pair.extents(0))
    return stretched(pair, 0, (exact, padded), results)


def split(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    op, other = pair.exact.op, pair.padded.op
    assert isinstance(op, Split)
    assert isinstance(other, Split)
    if op.sizes[:-1] != other.sizes[:-1]:
        return across(pair, 0, op.axis, "divides")
    return None


def joined(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    op = pair.exact.op
    assert isinstance(op, Concat)
    inner = range(len(pair.exact.operands) - 1)
    return next((across(pair, i, op.axis, "puts more behind") for i in inner if op.axis in pair.grown(i)), None)


def bordered(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    op = pair.exact.op
    assert isinstance(op, Pad)
    return next((across(pair, 0, a, "puts more behind") for a in pair.grown(0) if op.padding[a][1]), None)


def gathered(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    op = pair.exact.op
    assert isinstance(op, Gather)
    return across(pair, 0, op.axis, "looks up along") if op.axis in pair.grown(0) else None


def written(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    op = pair.exact.op
    assert isinstance(op, WriteSlice)
    return next((across(pair, i, op.axis, "writes into") for i in (0, 1) if op.axis in pair.grown(i)), None)


def always(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    return None


def attended(pair: Pair, knowledge: Knowledge) -> Refusal | None:
    op = pair.exact.op
    assert isinstance(op, Attention)
    for index, axes in ((0, (1, 3)), (1, (1, 3)), (2, (1,))):
        for axis in pair.grown(index):
            if axis in axes:
                return across(pair, index, axis)
    (b, heads, queries, _), (_, _, keys, _) = pair.extents(0)[0], pair.extents(1)[0]
    places = {name: 3 + i for i, name in enumerate(op.extras)}
    padded_b, padded_heads, padded_queries, _ = pair.extents(0)[1]
    scores = (b, heads, queries, keys), (padded_b, padded_heads, padded_queries, pair.extents(1)[1][2])
    for name in ("bias", "mask"):
        if name in places:
            exact, padded = ((1,) * (4 - len(s)) + s for s in pair.extents(places[name]))
            if reason := stretched(pair, places[name], (exact, padded), scores):
                return reason
    if 2 in pair.grown(1) and not limited(pair, knowledge, places.get("kv_lengths"), keys):
        return replace(across(pair, 1, 2, "attends along"), maskable=ends(pair, op))
    ends_count = op.causal == "bottom_right" and 2 in pair.grown(0)
    if ends_count and not limited(pair, knowledge, places.get("q_lengths"), queries):
        return replace(across(pair, 0, 2, "counts from the end of"), maskable=ends(pair, op))
    return None


def ends(pair: Pair, op: Attention) -> tuple[tuple[int, int], ...]:
    """Operands of an attention that lengths have to end: keys, and queries where causality counts from their end."""
    counted = (1, 0) if op.causal == "bottom_right" else (1,)
    return tuple((index, 2) for index in counted if 2 in pair.grown(index))


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
    MaxPool: pooled,
    AvgPool: pooled,
    Conv: convolved,
    ConvTranspose: transposed,
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
