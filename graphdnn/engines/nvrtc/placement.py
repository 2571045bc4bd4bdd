"""Where each value of a pointwise graph lies in an index space: broadcasting and bias axes, resolved.

A placement names, for each axis of a value, the axis of the space that it lies along, or None for an axis of size 1.
One value may have several: a vector can be a bias along axis 1 here and along the last axis there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphdnn.answer import Code, Decline
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.pointwise import Elementwise

Placement = tuple[int | None, ...]


def right_aligned(shape: Sequence[int], space: Sequence[int]) -> Placement | None:
    """The placement that numpy broadcasting gives, or None where the shape does not broadcast to the space.

    Leading axes of size 1 may go beyond the space.
    """
    first = len(space) - len(shape)
    placement = tuple(None if n == 1 else first + i for i, n in enumerate(shape))
    fits = all(a is None or (a >= 0 and space[a] == n) for a, n in zip(placement, shape, strict=True))
    return placement if fits else None


def operand_placement(node: Node, index: int, placement: Placement) -> Placement:
    """Where operand `index` of a pointwise node lies when the node's result lies at `placement`."""
    assert isinstance(node.op, Elementwise)
    shape = node.operands[index].type.shape
    padded = node.op.aligned(index, shape, len(placement))
    wide = iter([placement[axis] for axis, n in enumerate(padded) if n != 1])
    return tuple(None if n == 1 else next(wide) for n in shape)


def placed_strides(value: Value, placement: Placement, rank: int) -> tuple[int, ...]:
    """How far the value's address moves along each axis of the space, in elements."""
    strides = [0] * rank
    for axis, stride in zip(placement, value.type.layout, strict=True):
        if axis is not None:
            strides[axis] = stride
    return tuple(strides)


def place_results(
    nodes: Sequence[Node], roots: Mapping[Value, Placement], space: Sequence[int]
) -> dict[Value, Placement] | Decline:
    """A placement for the result of every node: as its users see it, else `roots`, else right-aligned in the space.

    Declines when a result does not fit the space.
    """
    placements: dict[Value, Placement] = dict(roots)
    for node in reversed(nodes):
        place = placements.get(node.result)
        if place is None:
            place = right_aligned(node.result.type.shape, space)
        if place is None:
            return Decline(
                Code.BROADCAST,
                f"{node} has shape {node.result.type.shape}, which does not broadcast to "
                f"{tuple(space)}; one kernel walks one index space",
            )
        placements[node.result] = place
        for index, value in enumerate(node.operands):
            if value.literal is None:
                placements.setdefault(value, operand_placement(node, index, place))
    return placements
