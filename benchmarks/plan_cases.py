"""Which regions plan choice is measured on: those of well-known networks, each as a graph with one output "y"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import numpy as np

import graphdnn as gd
from examples.models import convolutional

Build = Callable[[], gd.Graph]

BOTTLENECKS = (
    # channels in and out, kernel, stride, extent of the input, what stands behind the convolution
    (3, 64, 7, 2, 224, "relu"),
    (64, 64, 1, 1, 56, "relu"),
    (64, 64, 3, 1, 56, "relu"),
    (64, 256, 1, 1, 56, "add relu"),
    (64, 256, 1, 1, 56, ""),
    (256, 64, 1, 1, 56, "relu"),
    (256, 128, 1, 1, 56, "relu"),
    (128, 128, 3, 2, 56, "relu"),
    (128, 512, 1, 1, 28, "add relu"),
    (256, 512, 1, 2, 56, ""),
    (512, 128, 1, 1, 28, "relu"),
    (128, 128, 3, 1, 28, "relu"),
    (512, 256, 1, 1, 28, "relu"),
    (256, 256, 3, 2, 28, "relu"),
    (256, 1024, 1, 1, 14, "add relu"),
    (512, 1024, 1, 2, 28, ""),
    (1024, 256, 1, 1, 14, "relu"),
    (256, 256, 3, 1, 14, "relu"),
    (1024, 512, 1, 1, 14, "relu"),
    (512, 512, 3, 2, 14, "relu"),
    (512, 2048, 1, 1, 7, "add relu"),
    (1024, 2048, 1, 2, 14, ""),
    (2048, 512, 1, 1, 7, "relu"),
    (512, 512, 3, 1, 7, "relu"),
)
"""The distinct convolutions of ResNet-50 with what it fuses to them."""

WIDE = ((128, 128, 3, 1, 128, "relu"), (256, 256, 3, 1, 64, "relu"), (256, 128, 3, 1, 128, "relu"))
"""Convolutions of a U-Net, batch 8."""

IN_FLOAT32 = ((64, 64, 3, 1, 56, "relu"), (256, 256, 3, 1, 14, "relu"), (256, 64, 1, 1, 56, "relu"))
"""Convolutions in IEEE float32, batch 32."""

DEPTHWISE = (
    # batch, channels, extent, kernel, stride, what stands behind
    (64, 384, 14, 7, 1, ""),
    (64, 96, 56, 7, 1, ""),
    (32, 16, 112, 3, 1, "relu"),
    (32, 64, 112, 3, 2, "relu"),
    (32, 72, 56, 3, 1, "relu"),
    (32, 72, 56, 5, 2, "relu"),
    (32, 120, 28, 5, 1, "relu"),
    (32, 240, 28, 5, 1, "relu"),
    (32, 240, 28, 3, 2, "hard_swish"),
    (32, 200, 14, 3, 1, "hard_swish"),
    (32, 672, 14, 3, 1, "hard_swish"),
    (32, 672, 14, 5, 2, "hard_swish"),
    (32, 960, 7, 5, 1, "relu"),
)
"""Depthwise convolutions of ConvNeXt and MobileNetV3, each with a bias."""

PRODUCTS = (
    # rows, inner extent, columns, type, what stands behind
    (8192, 1024, 3072, gd.float16, "bias"),
    (8192, 1024, 1024, gd.float16, "bias add"),
    (8192, 1024, 4096, gd.float16, "bias gelu"),
    (8192, 4096, 1024, gd.float16, "bias add"),
    (128, 1024, 3072, gd.float16, "bias"),
    (128, 1024, 1024, gd.float16, "bias add"),
    (128, 1024, 4096, gd.float16, "bias gelu"),
    (128, 4096, 1024, gd.float16, "bias add"),
    (512, 384, 1152, gd.float16, "bias"),
    (512, 384, 1536, gd.float16, "bias gelu"),
    (6304, 768, 3072, gd.float16, "bias gelu"),
    (32, 2048, 1000, gd.float16, "bias"),
    (4096, 4096, 6144, gd.bfloat16, ""),
    (4096, 4096, 4096, gd.bfloat16, "add"),
    (4096, 4096, 28672, gd.bfloat16, ""),
    (4096, 14336, 4096, gd.bfloat16, "add"),
    (16, 4096, 6144, gd.bfloat16, ""),
    (1, 4096, 4096, gd.bfloat16, "add"),
    (1, 14336, 4096, gd.bfloat16, "add"),
    (1024, 1024, 1024, gd.float32, ""),
    (512, 768, 768, gd.float32, "bias"),
    (4096, 4096, 4096, gd.float32, ""),
)
"""Matrix products of BERT, MiniLM, ViT, ResNet's classifier and Llama-3-8B, weights constant."""

ROWS = (
    # rows, width, type
    (1, 4096, gd.bfloat16),
    (128, 1024, gd.float16),
    (512, 384, gd.float16),
    (6304, 768, gd.float16),
    (8192, 1024, gd.float16),
    (4096, 4096, gd.bfloat16),
    (8192, 4096, gd.bfloat16),
    (2048, 8192, gd.bfloat16),
    (512, 16384, gd.float32),
)

HEADS = (
    # batch, query heads, key heads, queries, keys, head dimension, type, causality
    (16, 16, 16, 512, 512, 64, gd.float16, None),
    (1, 16, 16, 128, 128, 64, gd.float16, None),
    (32, 12, 12, 197, 197, 64, gd.float16, None),
    (8, 12, 12, 64, 64, 32, gd.float16, None),
    (1, 32, 8, 4096, 4096, 128, gd.bfloat16, "top_left"),
    (4, 32, 8, 1024, 1024, 128, gd.bfloat16, "top_left"),
    (1, 32, 8, 1, 4096, 128, gd.bfloat16, None),
)


def drawn(name: str, shape: tuple[int, ...], dtype: gd.DType) -> Any:
    """Random weights with variance 1 / fan-in, vectors around 1; other names have other numbers, since the compiler
    computes once what is equal."""
    numbers = np.random.default_rng(crc32(name.encode())).standard_normal(shape, np.float32)
    numbers = 1 + 0.1 * numbers if len(shape) == 1 else numbers / np.sqrt(np.prod(shape[1:]))
    return numbers.astype(dtype.numpy)


def image(g: gd.GraphBuilder, name: str, shape: tuple[int, ...], dtype: gd.DType = gd.float16) -> gd.Value:
    """A channels-last input."""
    return g.input(name, shape, dtype, strides=convolutional.channels_last(shape))


def channels_last(g: gd.GraphBuilder, y: gd.Value) -> gd.Graph:
    strides = convolutional.channels_last(y.type.shape)
    return g.build({"y": y}, strides={} if strides is None else {"y": strides})


def convolution(
    batch: int, c: int, k: int, kernel: int, stride: int, extent: int, tail: str, dtype: gd.DType = gd.float16
) -> gd.Graph:
    """A convolution with a bias and its tail."""
    g = gd.GraphBuilder("conv")
    w, b = g.constant(drawn("w", (k, c, kernel, kernel), dtype)), g.constant(drawn("b", (k,), dtype))
    x = image(g, "x", (batch, c, extent, extent), dtype)
    y = g.bias(g.conv(x, w, stride=stride, padding=kernel // 2), b, axis=1)
    if "add" in tail:
        y = g.add(y, image(g, "residual", y.type.shape, dtype))
    return channels_last(g, g.relu(y) if "relu" in tail else y)


def depthwise(batch: int, c: int, extent: int, kernel: int, stride: int, tail: str) -> gd.Graph:
    """A depthwise convolution with a bias and an activation."""
    g = gd.GraphBuilder("depthwise")
    w, b = g.constant(drawn("w", (c, 1, kernel, kernel), gd.float16)), g.constant(drawn("b", (c,), gd.float16))
    x = image(g, "x", (batch, c, extent, extent))
    y = g.bias(g.conv(x, w, stride=stride, padding=kernel // 2, groups=c), b, axis=1)
    return channels_last(g, getattr(g, tail)(y) if tail else y)


def product(m: int, k: int, n: int, dtype: gd.DType, tail: str) -> gd.Graph:
    """A matrix product with constant weights and its tail."""
    g = gd.GraphBuilder("matmul")
    y = g.matmul(g.input("x", (m, k), dtype), g.constant(drawn("w", (n, k), dtype).T.copy()))
    if "bias" in tail:
        y = g.bias(y, g.constant(drawn("b", (n,), dtype)), axis=-1)
    if "add" in tail:
        y = g.add(y, g.input("residual", (m, n), dtype))
    return g.build({"y": g.gelu(y) if "gelu" in tail else y})


def batched_product() -> gd.Graph:
    g = gd.GraphBuilder("batched")
    a, b = g.input("a", (64, 512, 64), gd.float16), g.input("b", (64, 64, 512), gd.float16)
    return g.build({"y": g.matmul(a, b)})


def swiglu(m: int, k: int, n: int) -> gd.Graph:
    """Gate and up projection of a Llama, SiLU of one times the other."""
    g = gd.GraphBuilder("swiglu")
    x = g.input("x", (m, k), gd.bfloat16)
    weights = {name: drawn(name, (n, k), gd.bfloat16).T.copy() for name in ("gate", "up")}
    gate, up = (g.matmul(x, g.constant(w, name=name)) for name, w in weights.items())
    return g.build({"y": g.mul(g.silu(gate), up)})


def norm(kind: str, rows: int, width: int, dtype: gd.DType) -> gd.Graph:
    """Layer or RMS norm, or a softmax; `add` puts a residual sum before it that is an output too."""
    g = gd.GraphBuilder(kind.replace(" ", "_"))
    x = g.input("x", (rows, width), dtype)
    outputs = {}
    if "add" in kind:
        outputs["sum"] = x = g.add(x, g.input("residual", (rows, width), dtype))
    scale = g.constant(drawn("scale", (width,), dtype))
    if "layer" in kind:
        y = g.layer_norm(x, scale, g.constant(drawn("shift", (width,), dtype) - 1))
    elif "rms" in kind:
        y = g.rms_norm(x, scale)
    else:
        y = g.softmax(x, axis=-1)
    return g.build({"y": y, **outputs})


def attention(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, dim: int, dtype: gd.DType, causal: Any
) -> gd.Graph:
    g = gd.GraphBuilder("attention")
    q = g.input("q", (batch, heads, queries, dim), dtype)
    k, v = (g.input(name, (batch, kv_heads, keys, dim), dtype) for name in "kv")
    return g.build({"y": g.attention(q, k, v, causal=causal)})


def pool(kind: str, shape: tuple[int, ...], **window: int) -> gd.Graph:
    g = gd.GraphBuilder(kind)
    return channels_last(g, getattr(g, kind)(image(g, "x", shape), **window))


def pointwise(shape: tuple[int, ...]) -> gd.Graph:
    g = gd.GraphBuilder("pointwise")
    return g.build({"y": g.relu(g.input("a", shape, gd.float16) + g.input("b", shape, gd.float16))})


def to_channels_last(shape: tuple[int, ...]) -> gd.Graph:
    g = gd.GraphBuilder("convert")
    return channels_last(g, g.input("x", shape, gd.float16))


def cases() -> Iterator[tuple[str, Build]]:
    """Every region by name."""
    half, single = gd.float16, gd.float32
    for batch, convolutions, dtype in (
        (32, BOTTLENECKS, half),
        (1, BOTTLENECKS, half),
        (8, WIDE, half),
        (32, IN_FLOAT32, single),
    ):
        for c, k, kernel, stride, extent, tail in convolutions:
            name = f"conv {kernel}x{kernel} s{stride} n{batch} {c}->{k} {extent}x{extent} {tail}".strip()
            name += f" {dtype}" if dtype is single else ""
            yield name, lambda a=(batch, c, k, kernel, stride, extent, tail, dtype): convolution(*a)
    for row in DEPTHWISE:
        batch, c, extent, kernel, stride, tail = row
        name = f"depthwise {kernel}x{kernel} s{stride} n{batch} {c} {extent}x{extent} {tail}".strip()
        yield name, lambda a=row: depthwise(*a)
    for m, k, n, dtype, tail in PRODUCTS:
        yield f"matmul {m}x{k}x{n} {dtype} {tail}".strip(), lambda a=(m, k, n, dtype, tail): product(*a)
    yield "matmul 64x512x64x512 float16", batched_product
    yield "swiglu 4096x4096x14336 bfloat16", lambda: swiglu(4096, 4096, 14336)
    for rows, width, dtype in ROWS:
        for kind in ("layer norm", "rms norm", "add layer norm", "softmax"):
            yield f"{kind} {rows}x{width} {dtype}", lambda a=(kind, rows, width, dtype): norm(*a)
    for head in HEADS:
        b, h, hk, sq, sk, d, dtype, causal = head
        name = f"attention {b}x{h}/{hk}x{sq}x{sk}x{d} {dtype}{' causal' if causal else ''}"
        yield name, lambda a=head: attention(*a)
    yield "max pool 3x3 s2 32x64x112x112", lambda: pool("max_pool", (32, 64, 112, 112), kernel=3, stride=2, padding=1)
    yield "max pool 2x2 s2 8x128x128x128", lambda: pool("max_pool", (8, 128, 128, 128), kernel=2, stride=2)
    yield "global average pool 32x2048x7x7", lambda: pool("global_avg_pool", (32, 2048, 7, 7))
    yield "add relu 8192x4096", lambda: pointwise((8192, 4096))
    yield "add relu 128x1024", lambda: pointwise((128, 1024))
    yield "to channels-last 32x3x224x224", lambda: to_channels_last((32, 3, 224, 224))
    yield "to channels-last 32x64x56x56", lambda: to_channels_last((32, 64, 56, 56))


CASES: dict[str, Build] = dict(cases())
