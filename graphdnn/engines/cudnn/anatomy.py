"""What a region is made of, seen from cuDNN: its anchors, the pointwise work around them, the axes to tell it in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from graphdnn.answer import Code, Decline
from graphdnn.engines.cudnn.frames import Frame, Ints, Matrix, Rows, Spatial
from graphdnn.engines.cudnn.rules.linear import factors
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.norm import InstanceNorm, LayerNorm, RmsNorm
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.region import Region
from graphdnn.ir.types import aligned_strides
from graphdnn.lazy import cached_property

CONVOLUTIONS: tuple[type[Op], ...] = (Conv, ConvTranspose)
ROW_NORMS: tuple[type[Op], ...] = (LayerNorm, RmsNorm)
ANCHORS: tuple[type[Op], ...] = (*CONVOLUTIONS, MatMul, *ROW_NORMS, InstanceNorm, Attention)
"""Ops that one cuDNN operation graph is built around."""


@dataclass(frozen=True, eq=False)
class Anatomy:
    """A region's parts, found once and asked about by all rules."""

    region: Region

    @cached_property
    def anchors(self) -> tuple[Node, ...]:
        return tuple(n for n in self.region.nodes if isinstance(n.op, ANCHORS))

    @cached_property
    def pointwise(self) -> tuple[Node, ...]:
        return tuple(n for n in self.region.nodes if isinstance(n.op, Elementwise))

    @cached_property
    def reductions(self) -> tuple[Node, ...]:
        return tuple(n for n in self.region.nodes if isinstance(n.op, Reduce))

    @cached_property
    def before(self) -> tuple[Node, ...]:
        """Pointwise nodes that feed an anchor: the prologue."""
        graph, ahead = self.region.graph, 0
        for anchor in self.anchors:
            ahead |= graph.ancestors[anchor]
        return tuple(n for n in self.pointwise if ahead >> graph.position[n] & 1)

    @cached_property
    def after(self) -> tuple[Node, ...]:
        """Pointwise nodes that feed no anchor: the epilogue."""
        return tuple(n for n in self.pointwise if n not in self.before)

    @cached_property
    def behind(self) -> frozenset[Value]:
        """What anchors compute, and all that follows from it."""
        graph = self.region.graph
        anchors = sum(1 << graph.position[a] for a in self.anchors)
        follows = (n for n in self.region.nodes if n in self.anchors or graph.ancestors[n] & anchors)
        return frozenset(v for n in follows for v in n.results)

    @cached_property
    def computed(self) -> frozenset[Value]:
        """Values that the region computes."""
        return frozenset(v for n in self.region.nodes for v in n.results)

    @cached_property
    def kinds(self) -> frozenset[type[Op]]:
        """Classes of the region's ops."""
        return frozenset([type(n.op) for n in self.region.nodes])

    def has(self, *kinds: type[Op]) -> bool:
        return any(issubclass(k, kinds) for k in self.kinds)

    @cached_property
    def frame(self) -> Frame | Decline:
        """The axes in which every tensor of the region can be told, or which one cannot."""
        problem: Decline | None = None
        for frame in frames(self):
            problem = misfit(self.region, frame)
            if problem is None:
                return frame
        none = Decline(Code.PATTERN, f"{self.region.pattern}: no axes of cuDNN's fit these operations together")
        return none if problem is None else problem


def frames(anatomy: Anatomy) -> Iterator[Frame]:
    """Candidate frames, the one that cuDNN runs fastest first."""
    region = anatomy.region
    if anatomy.has(*CONVOLUTIONS, InstanceNorm):
        anchor = next(n for n in anatomy.anchors if isinstance(n.op, (*CONVOLUTIONS, InstanceNorm)))
        yield Spatial(max(anchor.operands[0].type.rank, 4))
    elif anatomy.has(MatMul):
        if all(prod(n.operands[1].type.shape[:-2]) == 1 for n in region.nodes if isinstance(n.op, MatMul)):
            yield Matrix(rows=True)
        yield Matrix()
    elif anatomy.has(*ROW_NORMS):
        first = next(n for n in region.nodes if isinstance(n.op, ROW_NORMS))
        yield Rows(first_of_row(first))
    else:
        rank = max((v.type.rank for n in region.nodes for v in n.results), default=0)
        yield Matrix(rows=True) if rank < 4 else Spatial(rank)


def long_axes(norm: Node) -> Ints:
    """The axes of more than one element that a row norm runs over; the others make no difference."""
    assert isinstance(norm.op, LayerNorm | RmsNorm)
    return tuple(a for a in norm.op.axes if norm.operands[0].type.shape[a] > 1)


def first_of_row(norm: Node) -> int:
    """The first axis of what a norm takes as a row, where it is over the last axes."""
    assert isinstance(norm.op, LayerNorm | RmsNorm)
    return next(iter(long_axes(norm)), norm.op.axes[0])


def row_length(norm: Node) -> int:
    """Elements that a norm takes together."""
    return prod(norm.operands[0].type.shape[a] for a in long_axes(norm))


def is_over_last_axes(norm: Node) -> bool:
    """Whether behind the first axis of a row there is nothing that counts rows."""
    shape = norm.operands[0].type.shape
    behind = tuple(a for a in range(first_of_row(norm), len(shape)) if shape[a] > 1)
    return behind == long_axes(norm)


def misfit(region: Region, frame: Frame) -> Decline | None:
    """The first tensor of the region that cannot be told in `frame`, if there is one."""
    for node in region.layout_nodes:
        for value, shape, full in placements(node, frame):
            if frame.describe(shape, aligned_strides(value.type, shape), full) is None:
                if shape == full:
                    reason = "whose strides do not let its axes be taken together as cuDNN needs"
                    return Decline(Code.LAYOUT, f"{node}: {value} is {value.type}, {reason}")
                reason = f"which broadcasts to {full} along some of the axes that cuDNN takes as one"
                return Decline(Code.BROADCAST, f"{node}: {value} is {value.type}, {reason}")
    return None


def placements(node: Node, frame: Frame) -> Iterator[tuple[Value, Ints, Ints]]:
    """Each tensor of a node that is told in the region's frame: value, aligned shape, full shape."""
    if isinstance(node.op, Elementwise):
        full = node.result.type.shape
        yield node.result, full, full
        for index, value in enumerate(node.operands):
            if value.literal is None:
                yield value, node.op.aligned(index, value.type.shape, len(full)), full
    elif isinstance(node.op, MatMul):
        yield node.result, node.result.type.shape, node.result.type.shape
        yield from factors(node, frame)
    elif isinstance(node.op, (*CONVOLUTIONS, *ROW_NORMS, InstanceNorm)):
        for value in (node.operands[0], *node.results):
            yield value, value.type.shape, value.type.shape
