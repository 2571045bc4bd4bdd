"""Masks that jit puts into a padded graph: what lies behind the exact extents is replaced where it would matter.

Extents arrive as int32 inputs of the build, so that one build serves every exact shape.  With the exact extents of its
own shapes a masked graph computes what the unmasked one does: nothing is replaced then, and only a mean, which becomes
a sum over a count, may round differently in the last bit, and overflows where the sum does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.movement import Expand, Iota, Reshape
from graphdnn.ir.ops.pointwise import Cast, Pointwise, Select
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.types import TensorType, int32
from graphdnn.ir.writer import Rewriter
from graphdnn.specialize.proof import Mask
from graphdnn.specialize.rules import neutral

Ends = list[tuple[int, int, Value]]
"""What to mask of one node: operand, axis, and the value that holds the exact extent."""


@dataclass(frozen=True)
class Masking:
    """The masks of one build, each with the name of the input that holds its extent.

    Masks whose extents were equal in every exact shape so far share an input.
    """

    inputs: Mapping[Mask, str] = field(default_factory=dict)

    def extents(self, exact: Graph) -> dict[str, int]:
        """What the inputs hold for a graph of exact shapes."""
        return {name: extent_of(mask, exact) for mask, name in self.inputs.items()}

    def fits(self, masks: Iterable[Mask], exact: Graph) -> bool:
        """Whether these masks are among ours and each input can hold the extents of its masks for `exact`."""
        extents = self.extents(exact)
        return all(mask in self.inputs for mask in masks) and all(
            extents[name] == extent_of(mask, exact) for mask, name in self.inputs.items()
        )

    def extended(self, masks: Iterable[Mask], exact: Graph, taken: Iterable[str]) -> Masking:
        """With these masks too, and inputs divided so that they can hold the extents for `exact`.

        `taken` are names that no input may have.
        """
        if self.fits(masks, exact):
            return self
        unavailable = set(taken)
        names: dict[tuple[str | None, int], str] = {}
        inputs: dict[Mask, str] = {}
        for mask in dict.fromkeys((*self.inputs, *masks)):
            key = self.inputs.get(mask), extent_of(mask, exact)
            if key not in names:
                names[key] = next(n for i in range(len(unavailable) + 1) if (n := f"jit.extent_{i}") not in unavailable)
                unavailable.add(names[key])
            inputs[mask] = names[key]
        return Masking(inputs)

    def applied(self, graph: Graph) -> Graph:
        """The graph with the masks, and their inputs behind its own."""
        if not self.inputs:
            return graph
        to = Rewriter(graph)
        extents = {name: to.writer.input(name, TensorType((), int32)) for name in dict.fromkeys(self.inputs.values())}
        by_node: dict[int, Ends] = {}
        for mask, name in self.inputs.items():
            by_node.setdefault(mask.node, []).append((mask.operand, mask.axis, extents[name]))
        for index, node in enumerate(graph.nodes):
            if index in by_node:
                MASKED.get(kind_of(node.op), with_operands_masked)(to, node, by_node[index])
            else:
                to.keep(node)
        return to.finish()


def extent_of(mask: Mask, graph: Graph) -> int:
    return graph.nodes[mask.node].operands[mask.operand].type.shape[mask.axis]


def names_of(graph: Graph) -> set[str]:
    """Names that inputs of masks may not have."""
    values = (v.name for n in graph.nodes for v in n.results)
    return {*graph.inputs, *graph.constants, *(n.name for n in graph.nodes), *values}


def kind_of(op: Op) -> str:
    return f"reduce_{op.fn}" if isinstance(op, Reduce) else op.kind


def filled(to: Rewriter, x: Value, ends: Iterable[tuple[int, Value]], number: float, origins: tuple[str, ...]) -> Value:
    """x with a number behind the extent of each axis; for bool the only one is 0, False."""
    is_bool = x.type.dtype.kind == "bool"
    for axis, extent in ends:
        (positions,) = to.emit(Iota(size=x.type.shape[axis]), origins=origins)
        shape = tuple(n if a == axis else 1 for a, n in enumerate(x.type.shape))
        # Before the comparison, so that this and the select join the kernel of whatever reads them.
        (positions,) = to.emit(Reshape(shape=shape), positions, origins=origins)
        (live,) = to.emit(Pointwise(fn="less"), positions, extent, origins=origins)
        masked = (Pointwise(fn="logical_and"), live, x) if is_bool else (Select(), live, x, number)
        (x,) = to.emit(*masked, origins=origins)
    return x


def with_operands_masked(to: Rewriter, node: Node, ends: Ends) -> None:
    """The node on operands that hold its neutral number behind their extents."""
    number = neutral(node)
    assert number is not None
    operands = [to[v] for v in node.operands]
    for index in dict.fromkeys(index for index, _, _ in ends):
        along = [(axis, extent) for operand, axis, extent in ends if operand == index]
        operands[index] = filled(to, operands[index], along, number, node.origins)
    to.keep(node, operands=operands)


def as_sum_over_count(to: Rewriter, node: Node, ends: Ends) -> None:
    """A mean: the sum of the elements that there are, over how many they are, in float32 or wider."""
    op, x = node.op, to[node.operands[0]]
    assert isinstance(op, Reduce)
    narrow, wide = x.type.dtype, x.type.dtype.compute
    widened = x if wide == narrow else to.emit(Cast(dtype=wide.name), x, origins=node.origins)[0]
    kept = filled(to, widened, [(axis, extent) for _, axis, extent in ends], 0.0, node.origins)
    (y,) = to.emit(replace(op, fn="sum"), kept, origins=node.origins)
    masked = {axis for _, axis, _ in ends}
    others = prod(n for axis, n in enumerate(x.type.shape) if axis in op.axes and axis not in masked)
    divisors: list[Any] = [to.emit(Cast(dtype=wide.name), extent, origins=node.origins)[0] for _, _, extent in ends]
    for divisor in (*divisors, *([float(others)] if others > 1 else [])):
        (y,) = to.emit(Pointwise(fn="div"), y, divisor, origins=node.origins)
    if wide != narrow:
        (y,) = to.emit(Cast(dtype=narrow.name), y, origins=node.origins)
    to.replace(node.result, y)


def with_lengths(to: Rewriter, node: Node, ends: Ends) -> None:
    """An attention whose keys, and queries where those count, end at the extents, or at its own lengths before them."""
    op = node.op
    assert isinstance(op, Attention)
    operands = [to[v] for v in node.operands]
    given = op.optional(operands)
    batch = operands[0].type.shape[:1]
    for operand, _, extent in ends:
        name = "q_lengths" if operand == 0 else "kv_lengths"
        if name in given:
            (given[name],) = to.emit(Pointwise(fn="minimum"), given[name], extent, origins=node.origins)
        else:
            (given[name],) = to.emit(Expand(shape=batch), extent, origins=node.origins)
    ended, optional = op.with_optional(given)
    results = to.emit(ended, *operands[:3], *optional, origins=node.origins)
    for old, new in zip(node.results, results, strict=True):
        to.replace(old, new)


MASKED: dict[str, Callable[[Rewriter, Node, Ends], None]] = {
    "reduce_mean": as_sum_over_count,
    "attention": with_lengths,
}
"""How nodes are masked for which a neutral number in their operands is not enough."""
