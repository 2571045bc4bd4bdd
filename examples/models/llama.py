"""One decoder layer of Llama 3 written with the builder: rotary positions, grouped causal attention, SwiGLU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import graphdnn as gd

Array = npt.NDArray[np.floating]
Weights = Mapping[str, Array]


@dataclass(frozen=True)
class Config:
    """Sizes of a Llama layer; the defaults are Llama-3-8B's."""

    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    inner: int = 14336
    eps: float = 1e-5
    theta: float = 500000.0


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Shape of each weight of one layer under its published name; matrices are (out, in)."""
    wide, narrow = config.heads * config.head_dim, config.kv_heads * config.head_dim
    return {
        "self_attn.q_proj.weight": (wide, config.hidden),
        "self_attn.k_proj.weight": (narrow, config.hidden),
        "self_attn.v_proj.weight": (narrow, config.hidden),
        "self_attn.o_proj.weight": (config.hidden, wide),
        "mlp.gate_proj.weight": (config.inner, config.hidden),
        "mlp.up_proj.weight": (config.inner, config.hidden),
        "mlp.down_proj.weight": (config.hidden, config.inner),
        "input_layernorm.weight": (config.hidden,),
        "post_attention_layernorm.weight": (config.hidden,),
    }


def random_weights(seed: int, config: Config, dtype: gd.DType) -> dict[str, Array]:
    """Weights of one layer in `dtype`: matrices normal with variance 1 / fan-in, norms between 0.5 and 1.5."""
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    for name, shape in shapes(config).items():
        if len(shape) == 1:
            weights[name] = rng.uniform(0.5, 1.5, shape).astype(dtype.numpy)
        else:
            drawn = rng.standard_normal(shape, np.float32)
            weights[name] = (drawn / np.float32(np.sqrt(shape[1]))).astype(dtype.numpy)
    return weights


def rotary_table(tokens: int, config: Config, dtype: gd.DType) -> tuple[Array, Array]:
    """cos and sin, (tokens, head_dim) each: pair i of position p turns by p * theta^(-2 i / head_dim)."""
    pairs = np.arange(0, config.head_dim, 2) / config.head_dim
    angles = np.arange(tokens)[:, None] * config.theta**-pairs
    angles = np.concatenate([angles, angles], axis=-1)
    return np.cos(angles).astype(dtype.numpy), np.sin(angles).astype(dtype.numpy)


def rotate(g: gd.GraphBuilder, x: gd.Value, cos: gd.Value, sin: gd.Value) -> gd.Value:
    """Rotary positions of x (B, H, S, D): x * cos + (-second half, first half) * sin."""
    half = x.type.shape[-1] // 2
    first = g.slice(x, [0], [half], axes=[-1])
    second = g.slice(x, [half], [None], axes=[-1])
    return x * cos + g.concat([-second, first], axis=-1) * sin


def decoder_layer(
    g: gd.GraphBuilder, x: gd.Value, cos: gd.Value, sin: gd.Value, weights: Weights, config: Config
) -> gd.Value:
    """Causal attention of the normed x added to x, then SwiGLU of the normed sum added to the sum."""
    batch, tokens, _ = x.type.shape

    def linear(value: gd.Value, name: str) -> gd.Value:
        w = g.constant(np.ascontiguousarray(weights[f"{name}.weight"].T), name=f"{name}.weight")
        return g.matmul(value, w, name=name)

    def norm(value: gd.Value, name: str) -> gd.Value:
        scale = g.constant(weights[f"{name}.weight"], name=f"{name}.weight")
        return g.rms_norm(value, scale, eps=config.eps, name=name)

    def heads(value: gd.Value, count: int) -> gd.Value:
        return g.transpose(g.reshape(value, (batch, tokens, count, config.head_dim)), (0, 2, 1, 3))

    normed = norm(x, "input_layernorm")
    q = rotate(g, heads(linear(normed, "self_attn.q_proj"), config.heads), cos, sin)
    k = rotate(g, heads(linear(normed, "self_attn.k_proj"), config.kv_heads), cos, sin)
    v = heads(linear(normed, "self_attn.v_proj"), config.kv_heads)
    mixed = g.attention(q, k, v, causal="top_left", name="self_attn")
    merged = g.reshape(g.transpose(mixed, (0, 2, 1, 3)), (batch, tokens, config.heads * config.head_dim))
    x = x + linear(merged, "self_attn.o_proj")
    normed = norm(x, "post_attention_layernorm")
    gated = g.silu(linear(normed, "mlp.gate_proj")) * linear(normed, "mlp.up_proj")
    return x + linear(gated, "mlp.down_proj")


def layer(weights: Weights, batch: int, tokens: int, config: Config, dtype: gd.DType) -> gd.Graph:
    """The graph of one layer: input "x" (batch, tokens, hidden) at positions 0, 1, ..., output "y" of the same type."""
    g = gd.GraphBuilder("llama_layer")
    x = g.input("x", (batch, tokens, config.hidden), dtype)
    cos, sin = (g.constant(t, name=n) for n, t in zip(("cos", "sin"), rotary_table(tokens, config, dtype), strict=True))
    return g.build({"y": decoder_layer(g, x, cos, sin, weights, config)})
