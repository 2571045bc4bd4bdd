"""Norms over the last axes, and instance norm."""

from __future__ import annotations

from graphdnn.engines.cudnn.frames import Description
from graphdnn.engines.cudnn.lower import Emitter, Handle, rule
from graphdnn.ir.graph import Node
from graphdnn.ir.ops.norm import InstanceNorm, LayerNorm, RmsNorm


@rule(LayerNorm)
def layer_norm(emit: Emitter, node: Node) -> tuple[Handle, ...]:
    """In inference phase, so that no statistics are stored."""
    op = node.op
    assert isinstance(op, LayerNorm)
    y, _, _ = emit.graph.layernorm(
        norm_forward_phase=emit.cudnn.norm_forward_phase.INFERENCE,
        input=emit.whole(node, 0),
        scale=parameter(emit, node, 1),
        bias=parameter(emit, node, 2),
        epsilon=emit.scalar(op.eps),
        name=node.name,
    )
    return (y,)


@rule(RmsNorm)
def rms_norm(emit: Emitter, node: Node) -> tuple[Handle, ...]:
    op = node.op
    assert isinstance(op, RmsNorm)
    y, _ = emit.graph.rmsnorm(
        norm_forward_phase=emit.cudnn.norm_forward_phase.INFERENCE,
        input=emit.whole(node, 0),
        scale=parameter(emit, node, 1),
        epsilon=emit.scalar(op.eps),
        name=node.name,
    )
    return (y,)


@rule(InstanceNorm)
def instance_norm(emit: Emitter, node: Node) -> tuple[Handle, ...]:
    op = node.op
    assert isinstance(op, InstanceNorm)
    rank = node.result.type.rank
    y, _, _ = emit.graph.instancenorm(
        norm_forward_phase=emit.cudnn.norm_forward_phase.INFERENCE,
        input=emit.whole(node, 0),
        scale=parameter(emit, node, 1, rank),
        bias=parameter(emit, node, 2, rank),
        epsilon=emit.scalar(op.eps, rank),
        name=node.name,
    )
    return (y,)


def parameter(emit: Emitter, node: Node, index: int, rank: int = 4) -> Handle:
    """Scale or bias as (1, C, 1, ...)."""
    size = node.operands[index].type.size
    ones = (1,) * (rank - 2)
    return emit.read(node, index, Description((1, size, *ones), (size, 1, *(size,) * (rank - 2))))
