"""Attention, in one operation of the frontend."""

from __future__ import annotations

from typing import Any

from graphdnn.engines.cudnn.frames import Description, canonical_strides
from graphdnn.engines.cudnn.lower import Emitter, Handle, rule
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.types import float32

ARGUMENTS = {"q": "q", "k": "k", "v": "v", "bias": "bias", "q_lengths": "seq_len_q", "kv_lengths": "seq_len_kv"}
"""What the frontend calls an attention's operands."""


@rule(Attention)
def attention(emit: Emitter, node: Node) -> tuple[Handle, ...]:
    """o and, where asked for, the log-sum-exp as (B, H, Sq, 1)."""
    op = node.op
    assert isinstance(op, Attention)
    arguments: dict[str, Any] = {
        ARGUMENTS[name]: emit.read(node, index, described(name, node.operands[index]))
        for index, name in enumerate(op.operand_names)
    }
    if "kv_lengths" in op.extras:
        arguments["use_padding_mask"] = True
    arguments.update(band(emit, op, node.operands[0].type.shape[2], node.operands[1].type.shape[2]))
    o, stats = emit.graph.sdpa(**arguments, attn_scale=op.scale, generate_stats=op.return_lse, name=node.name)
    emit.told[node.results[0]] = as_it_lies(node.results[0])
    if not op.return_lse:
        return (o,)
    lse = node.results[1].type
    emit.told[node.results[1]] = Description((*lse.shape, 1), (*lse.layout, 1))
    return (o, stats.set_data_type(emit.dtype(float32)))


def band(emit: Emitter, op: Attention, sq: int, skv: int) -> dict[str, Any]:
    """Causal flag and window as bounds of a band: the frontend's left bound is exclusive, ours is inclusive."""
    low, high = op.bounds(sq, skv)
    corner = "BOTTOM_RIGHT" if op.causal == "bottom_right" else "TOP_LEFT"
    found: dict[str, Any] = {"diagonal_alignment": getattr(emit.cudnn.diagonal_alignment, corner)}
    if low is not None:
        found["diagonal_band_left_bound"] = 1 - low
    if high is not None:
        found["diagonal_band_right_bound"] = high
    return found


def described(name: str, value: Value) -> Description:
    if name == "bias":
        return against_scores(value)
    return per_batch(value) if name.endswith("lengths") else as_it_lies(value)


def as_it_lies(value: Value) -> Description:
    """(B, H, S, D) with its own strides."""
    shape = value.type.shape
    order = sorted(range(4), key=lambda a: (-value.type.layout[a], a))
    return Description(shape, canonical_strides(shape, value.type.layout, order))


def against_scores(value: Value) -> Description:
    """A bias with its axes filled up to four."""
    missing = 4 - value.type.rank
    shape = (1,) * missing + value.type.shape
    return Description(shape, canonical_strides(shape, (0,) * missing + value.type.layout, range(4)))


def per_batch(value: Value) -> Description:
    """Lengths (B,) as (B, 1, 1, 1)."""
    return Description((value.type.size, 1, 1, 1), (1, 1, 1, 1))
