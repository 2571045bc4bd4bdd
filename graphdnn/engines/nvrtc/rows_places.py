"""Where each value of a row program lies in its space, through broadcasting, reductions and reshapes.

A place names, for each axis of a value, the axes of the space that it runs over, outermost first: one as a rule, none
for extent 1, several where a reshape has split the axis (the groups of a group norm).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from graphdnn.answer import Code, Decline
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.movement import Reshape
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.ops.reduction import Reduce

Place = tuple[tuple[int, ...], ...]


def whole(shape: Sequence[int]) -> Place:
    """The place of a value that has the space's own shape."""
    return tuple((a,) if n != 1 else () for a, n in enumerate(shape))


def right_aligned(shape: Sequence[int], space: Sequence[int]) -> Place | None:
    """The place that numpy broadcasting gives, or None where the shape does not fit."""
    first = len(space) - len(shape)
    if first < 0 or any(n not in (1, space[first + a]) for a, n in enumerate(shape)):
        return None
    return tuple(() if n == 1 else (first + a,) for a, n in enumerate(shape))


def operand_place(node: Node, index: int, place: Place) -> Place:
    """Where operand `index` of a pointwise node lies when the node's result lies at `place`."""
    assert isinstance(node.op, Elementwise)
    shape = node.operands[index].type.shape
    padded = node.op.aligned(index, shape, len(place))
    wide = iter([place[axis] for axis, n in enumerate(padded) if n != 1])
    return tuple(() if n == 1 else next(wide) for n in shape)


def result_place(node: Node, places: dict[Value, Place]) -> Place | None:
    """Where a pointwise node's result lies, as far as its operands tell."""
    assert isinstance(node.op, Elementwise)
    shape = node.result.type.shape
    found: list[tuple[int, ...] | None] = [() if n == 1 else None for n in shape]
    for index, value in enumerate(node.operands):
        if value not in places:
            continue
        padded = node.op.aligned(index, value.type.shape, len(shape))
        wide = iter([entry for entry in places[value] if entry])
        for axis, n in enumerate(padded):
            if n != 1:
                found[axis] = next(wide)
    place = tuple(e for e in found if e is not None)
    atoms = [a for entry in place for a in entry]
    # Two axes along one axis of the space would be a diagonal.
    return None if None in found or len(set(atoms)) < len(atoms) else place


def reshaped_place(place: Place, shape: Sequence[int], space: Sequence[int]) -> Place | None:
    """The place of the same elements in another shape, or None where an axis would take part of a space's axis."""
    atoms = [a for entry in place for a in entry]
    out: list[tuple[int, ...]] = []
    for n in shape:
        entry: list[int] = []
        while prod(space[a] for a in entry) < n and atoms:
            entry.append(atoms.pop(0))
        if prod(space[a] for a in entry) != n:
            return None
        out.append(tuple(entry))
    return None if atoms else tuple(out)


def place_strides(layout: Sequence[int], place: Place, space: Sequence[int]) -> tuple[int, ...]:
    """How far an address moves along each axis of the space, in elements."""
    strides = [0] * len(space)
    for stride, entry in zip(layout, place, strict=True):
        for axis in reversed(entry):
            strides[axis] = stride
            stride *= space[axis]
    return tuple(strides)


def forward(node: Node, places: dict[Value, Place], space: Sequence[int]) -> Place | None:
    """The place of a node's result, where its operands give it away."""
    if isinstance(node.op, Elementwise):
        return result_place(node, places)
    place = places.get(node.operands[0])
    if place is None:
        return None
    if isinstance(node.op, Reshape):
        return reshaped_place(place, node.op.shape, space)
    assert isinstance(node.op, Reduce)
    if node.op.keepdims:
        return tuple(() if a in node.op.axes else entry for a, entry in enumerate(place))
    return tuple(entry for a, entry in enumerate(place) if a not in node.op.axes)


def backward(node: Node, places: dict[Value, Place], space: Sequence[int]) -> dict[Value, Place]:
    """The places of a node's operands, where its result gives them away."""
    place = places[node.result]
    if isinstance(node.op, Elementwise):
        known = ((v, operand_place(node, i, place)) for i, v in enumerate(node.operands) if v.literal is None)
        return {v: p for v, p in known if v not in places}
    if isinstance(node.op, Reshape) and node.operands[0] not in places:
        found = reshaped_place(place, node.operands[0].type.shape, space)
        return {} if found is None else {node.operands[0]: found}
    return {}


def spread(nodes: Sequence[Node], places: dict[Value, Place], space: Sequence[int]) -> None:
    """Carries places from node to node until nothing new comes of it."""
    known = -1
    while known != len(places):
        known = len(places)
        for node in reversed(nodes):
            if node.result in places:
                places.update(backward(node, places, space))
        for node in nodes:
            if node.result not in places and (found := forward(node, places, space)) is not None:
                places[node.result] = found


def place_all(nodes: Sequence[Node], root: Value) -> dict[Value, Place] | Decline:
    """A place for every value in the space that is `root`'s shape; what nothing ties to it is right-aligned there."""
    space = root.type.shape
    places = {root: whole(space)}
    spread(nodes, places, space)
    for node in nodes:
        if node.result in places:
            continue
        found = right_aligned(node.result.type.shape, space)
        if found is None:
            return Decline(
                Code.BROADCAST,
                f"{node.op.label} has shape {node.result.type.shape}, which does not broadcast to {tuple(space)}; one "
                "kernel walks one index space",
            )
        places[node.result] = found
        spread(nodes, places, space)
    return places
