"""How axes of a node's operands become axes of its result: the arithmetic that facts and rules of padding share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphdnn.ir.graph import Node
from graphdnn.ir.op import Op
from graphdnn.ir.ops.movement import Expand, Reshape, Squeeze, Transpose, Unsqueeze
from graphdnn.ir.ops.pointwise import Elementwise

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """One node of the exact graph beside the node of the padded graph that does the same on longer axes."""

    exact: Node
    padded: Node

    def extents(self, index: int) -> tuple[Shape, Shape]:
        """Exact and padded shape of operand `index`."""
        return self.exact.operands[index].type.shape, self.padded.operands[index].type.shape

    def results(self, index: int = 0) -> tuple[Shape, Shape]:
        """Exact and padded shape of result `index`."""
        return self.exact.results[index].type.shape, self.padded.results[index].type.shape

    def grown(self, index: int) -> tuple[int, ...]:
        """Axes of operand `index` that padding lengthens."""
        return differing(*self.extents(index))


def differing(exact: Shape, padded: Shape) -> tuple[int, ...]:
    return tuple(a for a, (n, m) in enumerate(zip(exact, padded, strict=True)) if n != m)


@dataclass(frozen=True)
class Group:
    """Neighbouring axes of one shape that a reshape turns into neighbouring axes of another, size-1 axes left out."""

    before: tuple[int, ...]
    after: tuple[int, ...]


def regrouped(pair: Pair) -> list[Group]:
    """The smallest groups of axes that a reshape keeps apart in the exact and in the padded graph alike."""
    source = wide_axes(*pair.extents(0))
    target = wide_axes(*pair.results())
    groups: list[Group] = []
    while source or target:
        before: list[int] = []
        after: list[int] = []
        have, want = (1, 1), (1, 1)
        while not before or have != want:
            if source and (have[1] <= want[1] or not target):
                axis, n, m = source.pop(0)
                before.append(axis)
                have = (have[0] * n, have[1] * m)
            else:
                axis, n, m = target.pop(0)
                after.append(axis)
                want = (want[0] * n, want[1] * m)
        groups.append(Group(tuple(before), tuple(after)))
    return groups


def wide_axes(exact: Shape, padded: Shape) -> list[tuple[int, int, int]]:
    """Axis, exact and padded extent of every axis that is not of size 1 in both."""
    return [(a, n, m) for a, (n, m) in enumerate(zip(exact, padded, strict=True)) if m > 1]


Axes = dict[int, int]
"""Axes of an operand that are axes of the first result as they are, by their numbers: same positions, same extents."""


def carried(pair: Pair, index: int) -> Axes:
    """The axes of operand `index` that the op carries over to its first result; none where nothing is known of it."""
    rule = next((rule for kind, rule in CARRYING if isinstance(pair.exact.op, kind)), None)
    return {} if rule is None else rule(pair, index)


def transposed(pair: Pair, index: int) -> Axes:
    op = pair.exact.op
    assert isinstance(op, Transpose)
    return {old: new for new, old in enumerate(op.axes)}


def unsqueezed(pair: Pair, index: int) -> Axes:
    op, rank = pair.exact.op, len(pair.results()[0])
    assert isinstance(op, Unsqueeze)
    return dict(enumerate(a for a in range(rank) if a not in op.axes))


def squeezed(pair: Pair, index: int) -> Axes:
    op, rank = pair.exact.op, len(pair.extents(index)[0])
    assert isinstance(op, Squeeze)
    return {old: new for new, old in enumerate(a for a in range(rank) if a not in op.axes)}


def reshaped(pair: Pair, index: int) -> Axes:
    return {g.before[0]: g.after[0] for g in regrouped(pair) if len(g.before) == len(g.after) == 1}


def expanded(pair: Pair, index: int) -> Axes:
    before, after = pair.extents(index)[1], pair.results()[1]
    shift = len(after) - len(before)
    return {a: a + shift for a, n in enumerate(before) if n == after[a + shift]}


def aligned(pair: Pair, index: int) -> Axes:
    """Of a pointwise op, whose rules of broadcasting are asked with a shape of which each extent marks its own axis."""
    op, (before, after) = pair.exact.op, (pair.extents(index)[1], pair.results()[1])
    assert isinstance(op, Elementwise)
    marks = op.aligned(index, tuple(range(2, len(before) + 2)), len(after)) if before else ()
    found = {mark - 2: axis for axis, mark in enumerate(marks) if mark > 1}
    return {old: new for old, new in found.items() if before[old] == after[new]}


CARRYING: tuple[tuple[type[Op], Callable[[Pair, int], Axes]], ...] = (
    (Transpose, transposed),
    (Unsqueeze, unsqueezed),
    (Squeeze, squeezed),
    (Reshape, reshaped),
    (Expand, expanded),
    (Elementwise, aligned),
)
"""How each op carries axes over; the classes do not overlap."""
