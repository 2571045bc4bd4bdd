"""Where each value lies in the index space of a kernel: through broadcasting, bias axes, reshapes, slices and concats.

A place says for each axis of a value how its coordinate follows from the axes of the space.  One value may have many:
a vector can be a bias along axis 1 here and along the last axis there, a tensor can be read whole and by halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from graphdnn.answer import Code, Decline
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.movement import Concat, Expand, Pad, Reshape, Slice, Split, Squeeze, Transpose, Unsqueeze
from graphdnn.ir.ops.pointwise import Elementwise


class Run(NamedTuple):
    """One axis of a value: its coordinate is `first + step * i`, i counting through the space's `axes` together,
    outermost first.  Without axes it stands still; an axis of extent 1 is Run()."""

    axes: tuple[int, ...] = ()
    first: int = 0
    step: int = 1


Place = tuple[Run, ...]


class Cut(NamedTuple):
    """An axis of the space must be two, the inner one of extent `inner`, for a value to have a place."""

    axis: int
    inner: int


@dataclass(frozen=True)
class Grid:
    """An index space: the axes of one value's shape, some of them split; `pieces` are extents, outermost first."""

    pieces: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(shape: Sequence[int]) -> Grid:
        return Grid(tuple((n,) for n in shape))

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(n for axis in self.pieces for n in axis)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the axes before they were split."""
        return tuple(map(prod, self.pieces))

    def cut(self, cut: Cut) -> Grid:
        """The space with one axis split."""
        pieces, first = list(self.pieces), 0
        for i, axis in enumerate(pieces):
            if first <= cut.axis < first + len(axis):
                at = cut.axis - first
                pieces[i] = (*axis[:at], axis[at] // cut.inner, cut.inner, *axis[at + 1 :])
                break
            first += len(axis)
        return replace(self, pieces=tuple(pieces))

    def aligned(self, shape: Sequence[int]) -> Place | None:
        """The place that numpy broadcasting gives, or None where the shape does not broadcast to the space.

        Leading axes of size 1 may go beyond the space.
        """
        whole, first = self.shape, len(self.pieces) - len(shape)
        if any(n != 1 and (first + i < 0 or whole[first + i] != n) for i, n in enumerate(shape)):
            return None
        starts = [0]
        for axis in self.pieces:
            starts.append(starts[-1] + len(axis))
        return tuple(
            Run() if n == 1 else Run(tuple(range(starts[first + i], starts[first + i + 1])))
            for i, n in enumerate(shape)
        )


def pointwise_operand(node: Node, index: int, place: Place) -> Place:
    """Where operand `index` of a pointwise node lies when the node's result lies at `place`."""
    assert isinstance(node.op, Elementwise)
    shape = node.operands[index].type.shape
    padded = node.op.aligned(index, shape, len(place))
    wide = iter([place[axis] for axis, n in enumerate(padded) if n != 1])
    return tuple(Run() if n == 1 else next(wide) for n in shape)


def strides_at(layout: Sequence[int], place: Place, extents: Sequence[int]) -> tuple[int, ...]:
    """How far an address moves along each axis of the space, in elements."""
    strides = [0] * len(extents)
    for stride, run in zip(layout, place, strict=True):
        stride *= run.step
        for axis in reversed(run.axes):
            strides[axis] = stride
            stride *= extents[axis]
    return tuple(strides)


def offset_at(layout: Sequence[int], place: Place) -> int:
    """Where the address stands at the space's origin, in elements."""
    return sum(stride * run.first for stride, run in zip(layout, place, strict=True))


def runs(before: Sequence[int], after: Sequence[int]) -> Iterable[tuple[range, range]]:
    """Axes of two shapes that hold the same elements: the shortest runs with equal products; ones at the end alone."""
    i = j = 0
    while i < len(before) and j < len(after):
        first, second = i, j
        have, want, i, j = before[i], after[j], i + 1, j + 1
        while have != want:
            if have < want:
                have, i = have * before[i], i + 1
            else:
                want, j = want * after[j], j + 1
        yield range(first, i), range(second, j)
    if i < len(before) or j < len(after):
        yield range(i, len(before)), range(j, len(after))


def reshaped(place: Place, shape: Sequence[int], wanted: Sequence[int], extents: Sequence[int]) -> Place | Cut | None:
    """The place of the same elements, row-major in the shape `wanted`.

    A Cut where an axis of the space has to be split for it, None where no split helps.
    """
    out: list[Run] = []
    for olds, news in runs(shape, wanted):
        long_old, long_new = [a for a in olds if shape[a] > 1], [a for a in news if wanted[a] > 1]
        if len(long_old) == 1 == len(long_new):
            out += (place[long_old[0]] if a == long_new[0] else Run() for a in news)
            continue
        if not all(is_whole(place[a], shape[a], extents) for a in long_old):
            return None
        shared = split_up([axis for a in long_old for axis in place[a].axes], [wanted[a] for a in news], extents)
        if not isinstance(shared, list):
            return shared
        out += shared
    return tuple(out)


def split_up(axes: Sequence[int], wanted: Sequence[int], extents: Sequence[int]) -> list[Run] | Cut | None:
    """Axes of the space dealt out to axes of the extents `wanted`, in order."""
    left, out = list(axes), []
    for n in wanted:
        taken: list[int] = []
        while (have := prod(extents[a] for a in taken)) < n:
            axis = left.pop(0)
            need, rest = divmod(n, have)
            if rest:
                return None
            if extents[axis] > need:
                return None if extents[axis] % need else Cut(axis, extents[axis] // need)
            taken.append(axis)
        if have != n:
            return None
        out.append(Run(tuple(taken)))
    return out


def is_whole(run: Run, extent: int, extents: Sequence[int]) -> bool:
    """Whether a run goes through all of an axis in order."""
    return bool(run.axes) and run.first == 0 and run.step == 1 and prod(extents[a] for a in run.axes) == extent


def covers(place: Place, shape: Sequence[int], extents: Sequence[int]) -> bool:
    """Whether every element of a value of that shape has its place, and by itself."""
    for run, n in zip(place, shape, strict=True):
        last = run.first + prod(extents[a] for a in run.axes) - 1
        if n > 1 and (not run.axes or run.step != 1 or run.first > 0 or last < n - 1):
            return False
    return True


# --- movement: from the place of a result to that of an operand ------------------------------------------------------

Moved = Place | Cut | None


def of_slice(node: Node, index: int, place: Place, extents: Sequence[int]) -> Moved:
    op = node.op
    assert isinstance(op, Slice)
    return tuple(
        Run(run.axes, start + step * run.first, step * run.step)
        for run, start, step in zip(place, op.starts, op.steps, strict=True)
    )


def of_split(node: Node, index: int, place: Place, extents: Sequence[int]) -> Moved:
    op = node.op
    assert isinstance(op, Split)
    return shifted(place, op.axis, sum(op.sizes[:index]))


def of_concat(node: Node, index: int, place: Place, extents: Sequence[int]) -> Moved:
    op = node.op
    assert isinstance(op, Concat)
    start = sum(v.type.shape[op.axis] for v in node.operands[:index])
    alone = node.operands[index].type.shape[op.axis] == 1
    return shifted(place, op.axis, -start, alone)


def of_pad(node: Node, index: int, place: Place, extents: Sequence[int]) -> Moved:
    op = node.op
    assert isinstance(op, Pad)
    shape = node.operands[0].type.shape
    for axis, (lo, _) in enumerate(op.padding):
        place = shifted(place, axis, -lo, shape[axis] == 1)
    return place


def shifted(place: Place, axis: int, by: int, alone: bool = False) -> Place:
    """The place with one coordinate moved; the one coordinate of an axis of extent 1 is 0."""
    run = place[axis]
    moved = Run() if alone else Run(run.axes, run.first + by, run.step)
    return (*place[:axis], moved, *place[axis + 1 :])


def of_transpose(node: Node, index: int, place: Place, extents: Sequence[int]) -> Moved:
    op = node.op
    assert isinstance(op, Transpose)
    return tuple(place[op.axes.index(a)] for a in range(len(place)))


def of_expand(node: Node, index: int, place: Place, extents: Sequence[int]) -> Moved:
    shape = node.operands[0].type.shape
    return tuple(Run() if n == 1 else run for n, run in zip(shape, place[len(place) - len(shape) :], strict=True))


def of_squeeze(node: Node, index: int, place: Place, extents: Sequence[int]) -> Moved:
    op = node.op
    assert isinstance(op, Squeeze)
    rest = iter(place)
    return tuple(Run() if a in op.axes else next(rest) for a in range(node.operands[0].type.rank))


def of_unsqueeze(node: Node, index: int, place: Place, extents: Sequence[int]) -> Moved:
    op = node.op
    assert isinstance(op, Unsqueeze)
    return tuple(run for a, run in enumerate(place) if a not in op.axes)


def of_reshape(node: Node, index: int, place: Place, extents: Sequence[int]) -> Moved:
    return reshaped(place, node.result.type.shape, node.operands[0].type.shape, extents)


MOVES: dict[type, Callable[[Node, int, Place, Sequence[int]], Moved]] = {
    Slice: of_slice,
    Split: of_split,
    Concat: of_concat,
    Pad: of_pad,
    Transpose: of_transpose,
    Expand: of_expand,
    Squeeze: of_squeeze,
    Unsqueeze: of_unsqueeze,
    Reshape: of_reshape,
}
"""By op class, the place of an operand; `index` is that of the operand, for a split that of the result."""


class Misplaced(Exception):
    """No value can be found where the region needs it: why, or how the space would have to be split first.

    It leaves a recursion, and is caught where that began.
    """

    def __init__(self, cause: Decline | Cut) -> None:
        super().__init__(str(cause))
        self.cause = cause


def operand_place(node: Node, index: int, result: int, place: Place, extents: Sequence[int]) -> Place:
    """Where operand `index` of a node lies when its result of number `result` lies at `place`.  Raises Misplaced."""
    if isinstance(node.op, Elementwise):
        return pointwise_operand(node, index, place)
    found = MOVES[type(node.op)](node, result if isinstance(node.op, Split) else index, place, extents)
    if isinstance(found, Cut):
        raise Misplaced(found)
    if found is None:
        raise Misplaced(
            Decline(
                Code.PATTERN,
                f"{node} takes {node.operands[0].type.shape} to {node.result.type.shape} across the axes of "
                f"{tuple(extents)}, which one kernel walks; the two need to be kernels of their own",
            )
        )
    return found


def outside(node: Node, value: Value, grid: Grid) -> Decline:
    """The refusal of a result that does not fit the space."""
    return Decline(
        Code.BROADCAST,
        f"{node} has shape {value.type.shape}, which does not broadcast to "
        f"{grid.shape}; one kernel walks one index space",
    )


def placed_results(nodes: Sequence[Node], root: Value, grid: Grid, outputs: Sequence[Value]) -> dict[Value, Place]:
    """A place for every result that is read in the space of `root`, or is one of `outputs`.

    It is where its last reader sees it, for an output as long as that is all of it, else right-aligned.  Raises
    Misplaced for a result that has none.
    """
    whole = grid.aligned(root.type.shape)
    assert whole is not None
    places: dict[Value, Place] = {root: whole}
    leaving = set(outputs)
    for node in reversed(nodes):
        for number, result in enumerate(node.results):
            place = places.get(result)
            if place is None and result not in leaving:
                continue
            if place is None or (result in leaving and not covers(place, result.type.shape, grid.extents)):
                place = grid.aligned(result.type.shape)
                if place is None:
                    raise Misplaced(outside(node, result, grid))
                places[result] = place
            for index, value in enumerate(node.operands):
                if value.literal is None and value not in places:
                    places[value] = operand_place(node, index, number, place, grid.extents)
    return places
