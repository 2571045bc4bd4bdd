"""Where each value of a row program lies: places are carried both ways, since a fold stands between operand and result.

An axis lies along one axis of the space as a rule, along none for extent 1, along several where a reshape has split it
(the groups of a group norm).
"""

from __future__ import annotations

from collections.abc import Sequence

from graphdnn.answer import Decline
from graphdnn.engines.nvrtc.places import Cut, Grid, Place, Run, outside, pointwise_operand, reshaped
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.movement import Reshape
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.ops.reduction import Reduce


def result_place(node: Node, places: dict[Value, Place]) -> Place | None:
    """Where a pointwise node's result lies, as far as its operands tell."""
    assert isinstance(node.op, Elementwise)
    shape = node.result.type.shape
    found: list[Run | None] = [Run() if n == 1 else None for n in shape]
    for index, value in enumerate(node.operands):
        if value not in places:
            continue
        padded = node.op.aligned(index, value.type.shape, len(shape))
        wide = iter([run for run in places[value] if run.axes])
        for axis, n in enumerate(padded):
            if n != 1:
                found[axis] = next(wide)
    place = tuple(run for run in found if run is not None)
    atoms = [a for run in place for a in run.axes]
    # Two axes along one axis of the space would be a diagonal.
    return None if None in found or len(set(atoms)) < len(atoms) else place


def reshaped_place(place: Place, shape: Sequence[int], wanted: Sequence[int], space: Sequence[int]) -> Place | None:
    """The place of the same elements in another shape, or None where an axis would take part of a space's axis."""
    found = reshaped(place, shape, wanted, space)
    return None if isinstance(found, Cut) else found


def forward(node: Node, places: dict[Value, Place], space: Sequence[int]) -> Place | None:
    """The place of a node's result, where its operands give it away."""
    if isinstance(node.op, Elementwise):
        return result_place(node, places)
    place = places.get(node.operands[0])
    if place is None:
        return None
    if isinstance(node.op, Reshape):
        return reshaped_place(place, node.operands[0].type.shape, node.op.shape, space)
    assert isinstance(node.op, Reduce)
    if node.op.keepdims:
        return tuple(Run() if a in node.op.axes else run for a, run in enumerate(place))
    return tuple(run for a, run in enumerate(place) if a not in node.op.axes)


def backward(node: Node, places: dict[Value, Place], space: Sequence[int]) -> dict[Value, Place]:
    """The places of a node's operands, where its result gives them away."""
    place = places[node.result]
    if isinstance(node.op, Elementwise):
        known = ((v, pointwise_operand(node, i, place)) for i, v in enumerate(node.operands) if v.literal is None)
        return {v: p for v, p in known if v not in places}
    if isinstance(node.op, Reshape) and node.operands[0] not in places:
        found = reshaped_place(place, node.op.shape, node.operands[0].type.shape, space)
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
    grid = Grid.of(root.type.shape)
    whole = grid.aligned(grid.shape)
    assert whole is not None
    places = {root: whole}
    spread(nodes, places, grid.extents)
    for node in nodes:
        # What a fold reads may be an input that the rest says nothing of.
        for value in (*(node.operands if isinstance(node.op, Reduce) else ()), node.result):
            if value in places:
                continue
            found = grid.aligned(value.type.shape)
            if found is None:
                return outside(node, value, grid)
            places[value] = found
            spread(nodes, places, grid.extents)
    return places
