"""The float64 definition of a region, of all of it or of a block of its batch, and how long numpy takes for it.

That has little to do with counted operations: for each of them a depthwise convolution takes 400 times as long as a
matrix product, since its windows are copied out and its products have one column.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphdnn.ir.evaluate import apply, operand, widened
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.norm import Norm
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.ops.pool import Pool
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array

ELEMENT_S = 2e-8
"""Seconds of one core for each element that an op reads or writes."""

COLUMN_S = 4e-8
"""Seconds for each element of the windows that a convolution copies out; 2e-8 to 8e-8 were measured."""

PRODUCT_S = 1e-10
"""Seconds for each operation of a large matrix product."""

ATTENTION_S = 1e-9
"""Seconds for each operation of attention, which is products for the most part."""

OPERATION_S = 4e-9
"""Seconds for each operation of other ops."""


def seconds(region: Region) -> float:
    """What computing the definition takes on one core, within a factor of about three."""
    return sum(map(node_seconds, region.nodes))


def node_seconds(node: Node) -> float:
    op, flops = node.op, node.flops
    touched = ELEMENT_S * sum(v.type.size for v in (*node.operands, *node.results))
    if isinstance(op, MatMul):
        return touched + PRODUCT_S * flops
    if isinstance(op, Conv | ConvTranspose):
        columns = flops // (2 * max(1, node.operand_types[1].shape[0] // op.groups))
        return touched + COLUMN_S * columns + PRODUCT_S * flops
    return touched + (ATTENTION_S if isinstance(op, Attention) else OPERATION_S) * flops


def entries(region: Region) -> int:
    """Length of the first axis of every result, where entries along it are computed each by itself; else 1."""
    count = next((n.results[0].type.shape[0] for n in region.nodes if n.results[0].type.shape), 1)
    made = {v for n in region.nodes for v in n.results}
    for node in region.nodes:
        if any(t.shape[:1] != (count,) for t in node.result_types):
            return 1
        along = follows(node, count)
        if not any(along) or any(v in made and not a for v, a in zip(node.operands, along, strict=True)):
            return 1
    return count


def follows(node: Node, count: int) -> tuple[bool, ...]:
    """Operands of which an entry of the results' first axis needs the same entry only, the others being needed whole;
    none where such an entry is not computed by itself."""
    op, shapes = node.op, [t.shape for t in node.operand_types]
    rank = node.result_types[0].rank
    if isinstance(op, Elementwise):
        return tuple(op.aligned(i, s, rank)[0] == count for i, s in enumerate(shapes))
    if isinstance(op, Conv | ConvTranspose | Pool | Norm | Softmax | Reduce):
        mixed = (op.axis,) if isinstance(op, Softmax) else getattr(op, "axes", ())
        return (0 not in mixed, *(False for _ in shapes[1:]))
    if isinstance(op, MatMul):
        return (True, False) if rank == 2 else tuple(len(s) == rank and s[0] == count for s in shapes)
    if isinstance(op, Attention):
        named = zip(op.operand_names, shapes, strict=True)
        return tuple((len(s) == rank or name.endswith("lengths")) and s[0] == count for name, s in named)
    return tuple(False for _ in shapes)


def definition(region: Region, inputs: Sequence[Array], block: slice | None = None) -> list[Array]:
    """The region's outputs by the ops' definitions in float64; of those `entries` only that the block names, if any."""
    given = dict(zip(region.inputs, inputs, strict=True))
    values: dict[Value, Array] = {}
    cut: dict[Value, Array] = {}
    for node in region.nodes:
        along = [False] * len(node.operands) if block is None else follows(node, node.result_types[0].shape[0])
        operands = []
        for value, is_cut in zip(node.operands, along, strict=True):
            home = cut if is_cut and value in given else values
            if value in given and value not in home:
                home[value] = widened(given[value][block] if is_cut else given[value])
            operands.append(operand(value, home, True))
        for value, array in zip(node.results, apply(node.op, operands, None), strict=True):
            own = value.type.dtype
            values[value] = widened(array) if own.is_float else array.astype(own.numpy, copy=False)
    return [values[v] for v in region.outputs]
