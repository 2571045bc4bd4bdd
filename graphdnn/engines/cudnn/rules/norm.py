"""Norms over the last axes, and instance norm."""

from __future__ import annotations

from graphdnn.engines.cudnn.frames import Description
from graphdnn.engines.cudnn.lower import Emit, Handle, rule
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.norm import InstanceNorm, LayerNorm, RmsNorm


@rule(LayerNorm)
def layer_norm(emit: Emit, node: Node) -> tuple[Handle, ...]:
    """In inference phase, so that no statistics are stored."""
    op = node.op
    assert isinstance(op, LayerNorm)
    x, scale, bias = node.operands
    y, _, _ = emit.graph.layernorm(
        norm_forward_phase=emit.cudnn.norm_forward_phase.INFERENCE,
        input=whole(emit, x),
        scale=parameter(emit, scale),
        bias=parameter(emit, bias),
        epsilon=emit.scalar(op.eps),
        name=node.name,
    )
    return (y,)


@rule(RmsNorm)
def rms_norm(emit: Emit, node: Node) -> tuple[Handle, ...]:
    op = node.op
    assert isinstance(op, RmsNorm)
    x, scale = node.operands
    y, _ = emit.graph.rmsnorm(
        norm_forward_phase=emit.cudnn.norm_forward_phase.INFERENCE,
        input=whole(emit, x),
        scale=parameter(emit, scale),
        epsilon=emit.scalar(op.eps),
        name=node.name,
    )
    return (y,)


@rule(InstanceNorm)
def instance_norm(emit: Emit, node: Node) -> tuple[Handle, ...]:
    op = node.op
    assert isinstance(op, InstanceNorm)
    x, scale, bias = node.operands
    rank = x.type.rank
    y, _, _ = emit.graph.instancenorm(
        norm_forward_phase=emit.cudnn.norm_forward_phase.INFERENCE,
        input=whole(emit, x),
        scale=parameter(emit, scale, rank),
        bias=parameter(emit, bias, rank),
        epsilon=emit.scalar(op.eps, rank),
        name=node.name,
    )
    return (y,)


def whole(emit: Emit, value: Value) -> Handle:
    """x in the region's frame."""
    return emit.read(value, emit.place(value.type, value.type.shape, value.type.shape))


def parameter(emit: Emit, value: Value, rank: int = 4) -> Handle:
    """Scale or bias as (1, C, 1, ...)."""
    size = value.type.size
    ones = (1,) * (rank - 2)
    return emit.read(value, Description((1, size, *ones), (size, 1, *(size,) * (rank - 2))))
