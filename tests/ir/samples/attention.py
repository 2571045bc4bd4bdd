"""Samples of attention."""

from __future__ import annotations

from typing import Any

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.types import DType
from tests.ir.samples.sample import Sample

Shapes = tuple[int, int, int, int, int, int, int]
"""B, Hq, Hkv, Sq, Skv, D, Dv."""


def attention(
    name: str,
    sizes: Shapes,
    dtype: DType = gd.float32,
    *,
    bias: tuple[int, ...] | None = None,
    mask: tuple[int, ...] | None = None,
    lengths: str = "",
    **attributes: Any,
) -> Sample:
    """Attention on inputs of these sizes; `lengths` has a q and a k for the lengths that are given."""
    b, hq, hkv, sq, skv, d, dv = sizes

    def build(g: gd.GraphBuilder, rng: object) -> Value | tuple[Value, Value]:
        q = g.input("q", (b, hq, sq, d), dtype)
        k, v = g.input("k", (b, hkv, skv, d), dtype), g.input("v", (b, hkv, skv, dv), dtype)
        extras: dict[str, Value] = {}
        if bias is not None:
            extras["bias"] = g.input("bias", bias, dtype)
        if mask is not None:
            extras["mask"] = g.input("mask", mask, gd.bool)
        if "q" in lengths:
            extras["q_lengths"] = g.input("q_lengths", (b,), gd.int32)
        if "k" in lengths:
            extras["kv_lengths"] = g.input("kv_lengths", (b,), gd.int32)
        return g.attention(q, k, v, **extras, **attributes)

    return Sample(f"attention_{name}_{dtype}", build, {"q_lengths": (0, sq), "kv_lengths": (0, skv)})


SAMPLES = [
    attention("plain", (2, 3, 3, 5, 7, 8, 8)),
    attention("plain", (1, 2, 2, 33, 65, 16, 16), gd.float16),
    attention("plain", (1, 2, 2, 9, 5, 8, 24), gd.bfloat16),
    attention("scaled", (1, 2, 2, 4, 6, 8, 8), gd.float64, scale=0.3),
    attention("grouped_heads", (2, 6, 2, 5, 7, 8, 16), gd.float16),
    attention("top_left", (1, 2, 1, 6, 9, 8, 8), causal="top_left"),
    attention("bottom_right", (1, 2, 1, 6, 9, 8, 8), gd.float16, causal="bottom_right"),
    attention("bottom_right_long", (1, 2, 1, 9, 6, 8, 8), causal="bottom_right"),
    attention("window", (1, 2, 2, 9, 11, 8, 8), gd.bfloat16, window=(2, 1)),
    attention("window_causal", (1, 2, 2, 9, 9, 8, 8), window=(3, None), causal="top_left"),
    attention("bias", (2, 3, 3, 5, 7, 8, 8), bias=(1, 3, 5, 7)),
    attention("bias_row", (2, 3, 3, 5, 7, 8, 8), gd.float16, bias=(2, 1, 1, 7)),
    attention("mask", (2, 4, 2, 5, 7, 8, 8), mask=(2, 1, 5, 7)),
    attention("mask_bias_lengths", (3, 4, 2, 5, 7, 8, 8), gd.float16, mask=(5, 1), bias=(4, 1, 7), lengths="qk"),
    attention("key_lengths", (3, 2, 2, 1, 9, 8, 8), gd.bfloat16, lengths="k"),
    attention("lengths_bottom_right", (3, 2, 2, 5, 9, 8, 8), lengths="qk", causal="bottom_right"),
    attention("query_lengths_bottom_right", (3, 2, 2, 7, 5, 8, 8), gd.float64, lengths="q", causal="bottom_right"),
    attention("with_lse", (2, 4, 2, 5, 7, 8, 16), gd.float16, causal="top_left", return_lse=True),
    attention("with_lse_bias", (2, 4, 2, 5, 7, 8, 16), bias=(5, 7), return_lse=True),
]
