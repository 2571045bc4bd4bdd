"""What a movement op does, as copies of boxes of elements: which box goes where, from where or from which number.

Every op is a few of them: a transpose one, a concat one for each operand, a pad its inside and the slabs around it.
The boxes of one op do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod

import numpy as np

from graphdnn.engines.nvrtc.hardware import VECTOR_BYTES
from graphdnn.engines.nvrtc.indexing import Space, Strides, collapsed, ordered
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.movement import Concat, Convert, Gather, Iota, Pad, Renaming, WriteSlice, reshaped_strides
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, TensorType


@dataclass(frozen=True)
class Elements:
    """Elements of one parameter: number of the parameter, strides along the box, offset of the first."""

    parameter: int
    strides: Strides
    offset: int = 0


@dataclass(frozen=True)
class Lookup:
    """An index that is read: along its own strides, held within `extent`, each step of it `step` elements apart."""

    indices: Elements
    dtype: DType
    extent: int
    step: int


@dataclass(frozen=True)
class Start:
    """Where a window begins: a number, or the first element of a parameter; held between 0 and `last`."""

    number: int | None
    parameter: int
    dtype: DType
    last: int


@dataclass(frozen=True)
class Window:
    """A window of `extent` along one axis of the result, from `start` on, a step of the axis being `step` elements.

    As `into`, the box is written there; as `around`, the box is all of the result, and what the window covers is left
    alone; `axis` is then the window's axis in the box.
    """

    start: Start
    extent: int
    step: int
    axis: int


@dataclass(frozen=True)
class BoxCopy:
    """One box of a result: its extents, where it lies, and what goes there: elements, a number (its bits), or counting
    up.

    With `lookup` the elements come from where an index says; `reshaped` gives the extents in whose row-major order
    the source is counted where no strides do.  With `filled` the source has only so many elements along the axis that
    is innermost in the result; the number follows behind them.
    """

    extents: tuple[int, ...]
    target: Elements
    source: Elements | None = None
    bits: int = 0
    counts: bool = False
    lookup: Lookup | None = None
    into: Window | None = None
    around: Window | None = None
    reshaped: tuple[int, ...] | None = None
    filled: int | None = None

    @property
    def size(self) -> int:
        return prod(self.extents)

    @property
    def accesses(self) -> tuple[Elements, ...]:
        """What is written, and what is read: the source and the indices, where there are any."""
        indices = self.lookup.indices if self.lookup is not None else None
        return tuple(elements for elements in (self.target, self.source, indices) if elements is not None)

    @property
    def is_plain(self) -> bool:
        """Whether strides alone say where each element comes from and goes."""
        others = (self.lookup, self.into, self.around, self.reshaped)
        return self.source is not None and all(other is None for other in others)


def box_copies(region: Region, node: Node) -> tuple[BoxCopy, ...]:
    """The boxes of a node, those of results that nobody reads left out."""
    number = {v: i for i, v in enumerate((*region.inputs, *region.outputs))}
    rule = next(rule for kind, rule in RULES if isinstance(node.op, kind))
    wanted = {number[v] for v in node.results if v in number}
    return tuple(simplified(copy) for copy in rule(node, number) if copy.target.parameter in wanted)


def simplified(copy: BoxCopy) -> BoxCopy:
    """The same box with as few axes as possible, ordered as they lie in the result, largest stride first."""
    if copy.reshaped is not None:
        return copy
    rank = len(copy.extents)
    accesses = [copy.target.strides]
    if copy.source is not None:
        accesses.append(copy.source.strides)
    if copy.lookup is not None:
        accesses.append(copy.lookup.indices.strides)
    if copy.around is not None:
        # An access of its own keeps the window's axis apart from all others, and finds it again.
        accesses.append(tuple(int(a == copy.around.axis) for a in range(rank)))
    if copy.filled is not None:
        accesses.append(tuple(int(s == 1) for s in copy.target.strides))  # likewise
    space = collapsed(ordered(Space(copy.extents, tuple(accesses)), 0))
    rest = list(space.accesses)
    target = replace(copy.target, strides=rest.pop(0))
    source = None if copy.source is None else replace(copy.source, strides=rest.pop(0))
    lookup = copy.lookup and replace(copy.lookup, indices=replace(copy.lookup.indices, strides=rest.pop(0)))
    around = copy.around and replace(copy.around, axis=max(range(len(space.extents)), key=rest.pop(0).__getitem__))
    return replace(copy, extents=space.extents, target=target, source=source, lookup=lookup, around=around)


Numbers = dict[Value, int]


def copied(
    value: Value, strides: Strides, offset: int, target: Elements, shape: tuple[int, ...], number: Numbers
) -> BoxCopy:
    """A box of a value's elements, or of the number that it stands for."""
    if value.literal is not None:
        return BoxCopy(shape, target, bits=bits_of(value.literal, value.type.dtype))
    return BoxCopy(shape, target, Elements(number[value], strides, offset))


def unread(number: Numbers, value: Value) -> int:
    """The parameter of a result, or -1 for one that nobody reads."""
    return number.get(value, -1)


def renamed(node: Node, number: Numbers) -> list[BoxCopy]:
    """Results are views of the operand, but asked for in other strides."""
    operand = node.operands[0]
    views = node.op.view(operand.type)
    if views is None:
        return [reordered(operand, node.results[0], number)]
    return [
        copied(operand, v.strides, v.offset, Elements(unread(number, r), r.type.layout), r.type.shape, number)
        for v, r in zip(views, node.results, strict=True)
    ]


def reordered(x: Value, y: Value, number: Numbers) -> BoxCopy:
    """A reshape that strides cannot do: over the axes that divide both shapes, or counted where there are none."""
    target = Elements(unread(number, y), y.type.layout)
    extents = refined(x.type.shape, y.type.shape)
    if extents is None:
        return BoxCopy(y.type.shape, target, Elements(number[x], x.type.layout), reshaped=x.type.shape)
    source, goal = (reshaped_strides(t.shape, t.layout, extents) for t in (x.type, y.type))
    assert source is not None
    assert goal is not None
    return BoxCopy(extents, replace(target, strides=goal), Elements(number[x], source))


def refined(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...] | None:
    """The coarsest shape whose axes divide those of both shapes, in the same row-major order; None if there is none."""
    runs = {n for shape in (first, second) for n in accumulate(reversed(shape), lambda a, b: a * b)} | {1}
    steps = sorted(runs)
    if any(outer % inner for inner, outer in pairwise(steps)):
        return None
    return tuple(outer // inner for inner, outer in pairwise(steps))[::-1] or (1,)


def converted(node: Node, number: Numbers) -> list[BoxCopy]:
    x, y = node.operands[0], node.result
    return [copied(x, x.type.layout, 0, Elements(number[y], y.type.layout), y.type.shape, number)]


def concatenated(node: Node, number: Numbers) -> list[BoxCopy]:
    assert isinstance(node.op, Concat)
    y, axis, start = node.result, node.op.axis, 0
    copies = []
    for x in node.operands:
        target = Elements(number[y], y.type.layout, start * y.type.layout[axis])
        copies.append(copied(x, x.type.layout, 0, target, x.type.shape, number))
        start += x.type.shape[axis]
    return copies


def padded(node: Node, number: Numbers) -> list[BoxCopy]:
    """The inside, and for each axis the slabs before and behind it, within the inside along the axes before.

    What stands behind a short innermost axis that alone is padded goes with the inside.
    """
    assert isinstance(node.op, Pad)
    x, y, padding = node.operands[0], node.result, node.op.padding
    strides = y.type.layout
    inside = tuple(lo for lo, _ in padding)
    bits = bits_of(node.op.value, y.type.dtype)
    grown = [axis for axis, pair in enumerate(padding) if pair != (0, 0)]
    if len(grown) == 1 and x.literal is None and is_short(y.type, grown[0]) and not inside[grown[0]]:
        whole = copied(x, x.type.layout, 0, Elements(number[y], strides), y.type.shape, number)
        return [replace(whole, bits=bits, filled=x.type.shape[grown[0]])]
    corner = sum(n * s for n, s in zip(inside, strides, strict=True))
    copies = [copied(x, x.type.layout, 0, Elements(number[y], strides, corner), x.type.shape, number)]
    for axis, (lo, hi) in enumerate(padding):
        before = sum(n * s for n, s in zip(inside[:axis], strides, strict=False))
        for first, count in ((0, lo), (lo + x.type.shape[axis], hi)):
            if count:
                extents = (*x.type.shape[:axis], count, *y.type.shape[axis + 1 :])
                copies.append(BoxCopy(extents, Elements(number[y], strides, before + first * strides[axis]), bits=bits))
    return copies


def is_short(type: TensorType, axis: int) -> bool:
    """Whether an axis is the innermost one, and as short as what a thread writes at once."""
    innermost = [a for a, (n, s) in enumerate(zip(type.shape, type.layout, strict=True)) if n > 1 and s == 1]
    return innermost == [axis] and type.shape[axis] * type.dtype.itemsize <= VECTOR_BYTES


def gathered(node: Node, number: Numbers) -> list[BoxCopy]:
    assert isinstance(node.op, Gather)
    (x, indices), y, axis = node.operands, node.result, node.op.axis
    inner = indices.type.rank
    outer, behind = x.type.layout[:axis], x.type.layout[axis + 1 :]
    source = Elements(number[x], (*outer, *(0,) * inner, *behind))
    read = Elements(number[indices], (*(0,) * len(outer), *indices.type.layout, *(0,) * len(behind)))
    lookup = Lookup(read, indices.type.dtype, x.type.shape[axis], x.type.layout[axis])
    return [BoxCopy(y.type.shape, Elements(number[y], y.type.layout), source, lookup=lookup)]


def written(node: Node, number: Numbers) -> list[BoxCopy]:
    """The window, and the rest of x around it."""
    assert isinstance(node.op, WriteSlice)
    x, update, *dynamic = node.operands
    y, axis = node.result, node.op.axis
    extent = update.type.shape[axis]
    start = (
        Start(None, number[dynamic[0]], dynamic[0].type.dtype, x.type.shape[axis] - extent)
        if dynamic
        else Start(node.op.start, -1, update.type.dtype, x.type.shape[axis] - extent)
    )
    window = Window(start, extent, y.type.layout[axis], axis)
    target = Elements(number[y], y.type.layout)
    update_copy = copied(update, update.type.layout, 0, target, update.type.shape, number)
    rest = BoxCopy(x.type.shape, target, Elements(number[x], x.type.layout), around=window)
    return [replace(update_copy, into=window), *([rest] if extent < x.type.shape[axis] else [])]


def counted(node: Node, number: Numbers) -> list[BoxCopy]:
    type: TensorType = node.result.type
    return [BoxCopy(type.shape, Elements(number[node.result], type.layout), counts=True)]


def bits_of(value: float, dtype: DType) -> int:
    """A number of that type as the unsigned integer that its memory holds."""
    with np.errstate(over="ignore"):
        return int.from_bytes(np.asarray(value).astype(dtype.numpy).tobytes(), "little")


RULES: tuple[tuple[type, Callable[[Node, Numbers], list[BoxCopy]]], ...] = (
    (Renaming, renamed),
    (Convert, converted),
    (Concat, concatenated),
    (Pad, padded),
    (Gather, gathered),
    (WriteSlice, written),
    (Iota, counted),
)
"""Copies by op class; the classes do not overlap."""

MOVES = (*Renaming.__subclasses__(), *(kind for kind, _ in RULES if kind is not Renaming))
"""The op classes that are copies of boxes."""
