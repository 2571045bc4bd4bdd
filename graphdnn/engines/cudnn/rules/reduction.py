"""Reductions over axes, which stay with extent 1 in cuDNN's eyes."""

from __future__ import annotations

from graphdnn.engines.cudnn.lower import Emitter, Handle, rule
from graphdnn.ir.graph import Node
from graphdnn.ir.ops.reduction import Reduce, reduced_shape

REDUCTION: dict[str, str] = {"sum": "ADD", "mean": "AVG", "max": "MAX", "min": "MIN"}
"""The frontend's mode of each reduction."""


@rule(Reduce)
def reduce(emit: Emitter, node: Node) -> tuple[Handle, ...]:
    """The result's extents and strides are ours to set; it is accumulated in float32."""
    op = node.op
    assert isinstance(op, Reduce)
    x = node.operands[0]
    mode = getattr(emit.cudnn.reduction_mode, REDUCTION[op.fn])
    made = emit.graph.reduction(input=emit.whole(node, 0), mode=mode, name=node.name)
    told = emit.place(node.result.type, reduced_shape(x.type.shape, op.axes, True), x.type.shape)
    emit.told[node.result] = told
    return (made.set_dim(list(told.dims)).set_stride(list(told.strides)),)
