"""Attention, in one operation of the frontend."""

from __future__ import annotations

from typing import Any

from graphdnn.engines.cudnn.frames import Description, spelled
from graphdnn.engines.cudnn.lower import Emit, Handle, rule
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.types import float32


@rule(Attention)
def attention(emit: Emit, node: Node) -> tuple[Handle, ...]:
    """o and, where asked for, the log-sum-exp as (B, H, Sq, 1)."""
    op = node.op
    assert isinstance(op, Attention)
    q, k, v, *rest = node.operands
    given = dict(zip(op.extras, rest, strict=True))
    # Tensors of their own also where two of them are one value: engine 8 has no address for a tensor that stands twice.
    arguments: dict[str, Any] = {name: emit.read(x, as_it_lies(x), name) for name, x in (("q", q), ("k", k), ("v", v))}
    if "bias" in given:
        arguments["bias"] = emit.read(given["bias"], against_scores(given["bias"]))
    if "kv_lengths" in given:
        arguments.update(
            use_padding_mask=True,
            seq_len_q=emit.read(given["q_lengths"], per_batch(given["q_lengths"])),
            seq_len_kv=emit.read(given["kv_lengths"], per_batch(given["kv_lengths"])),
        )
    arguments.update(band(emit, op))
    o, stats = emit.graph.sdpa(**arguments, attn_scale=op.scale, generate_stats=op.return_lse, name=node.name)
    emit.told[node.results[0]] = as_it_lies(node.results[0])
    if not op.return_lse:
        return (o,)
    lse = node.results[1].type
    emit.told[node.results[1]] = Description((*lse.shape, 1), (*lse.layout, 1))
    return (o, stats.set_data_type(emit.dtype(float32)))


def band(emit: Emit, op: Attention) -> dict[str, Any]:
    """Causal flag and window as bounds of a band: the frontend's left bound is exclusive, ours is inclusive."""
    low, high = op.bounds
    corner = "BOTTOM_RIGHT" if op.causal == "bottom_right" else "TOP_LEFT"
    found: dict[str, Any] = {"diagonal_alignment": getattr(emit.cudnn.diagonal_alignment, corner)}
    if low is not None:
        found["diagonal_band_left_bound"] = 1 - low
    if high is not None:
        found["diagonal_band_right_bound"] = high
    return found


def as_it_lies(value: Value) -> Description:
    """(B, H, S, D) with its own strides."""
    shape = value.type.shape
    order = sorted(range(4), key=lambda a: (-value.type.layout[a], a))
    return Description(shape, spelled(shape, value.type.layout, order))


def against_scores(value: Value) -> Description:
    """A bias with its axes filled up to four."""
    missing = 4 - value.type.rank
    shape = (1,) * missing + value.type.shape
    return Description(shape, spelled(shape, (0,) * missing + value.type.layout, range(4)))


def per_batch(value: Value) -> Description:
    """Lengths (B,) as (B, 1, 1, 1)."""
    return Description((value.type.size, 1, 1, 1), (1, 1, 1, 1))
