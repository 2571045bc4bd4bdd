"""Masks that became biases on the device, rows that are wholly hidden among them: those give 0, and -inf as lse."""

import math
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.types import DType
from tests.numbers import TOLERANCE

pytestmark = pytest.mark.gpu

B, H, SQ, SKV, D = 3, 4, 65, 130, 64
MASKS = {
    "keys": (B, 1, 1, SKV),
    "queries": (B, 1, SQ, 1),
    "all": (B, H, SQ, SKV),
    "one for all": (SQ, SKV),
    "heads": (1, H, 1, 1),
}


def hiding(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A mask of which the first entry along its first long axis hides all there is, the last nothing, others half."""
    mask = rng.random(shape) < 0.5
    axis = next(a for a, n in enumerate(shape) if n > 1)
    mask[(slice(None),) * axis + (0,)] = False
    mask[(slice(None),) * axis + (-1,)] = True
    return mask


def check(graph: gd.Graph, inputs: dict[str, np.ndarray], dtype: DType) -> np.ndarray:
    """The output o of the device, right by row and exactly 0 where the definition is; that is where, too."""
    exe = gd.compile(graph, target="cuda")
    assert ("attention", "cudnn") in {(r.pattern, r.engine) for r in exe.report.regions}
    found, wanted = exe(inputs), gd.evaluate(graph, inputs, gd.float64)
    hidden = ~wanted["o"].any(-1)
    assert not found["o"][hidden].any()
    scale = np.maximum(np.abs(wanted["o"]).max(-1, keepdims=True), np.abs(inputs["v"]).max().astype(np.float64))
    assert (np.abs(found["o"].astype(np.float64) - wanted["o"]) / scale).max() <= TOLERANCE[dtype.name]
    if "lse" in found:
        np.testing.assert_array_equal(np.isneginf(found["lse"]), hidden)
        np.testing.assert_allclose(found["lse"][~hidden], wanted["lse"][~hidden], rtol=2e-3, atol=2e-3)
    return hidden


def drawn(graph: gd.Graph, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        n: hiding(v.type.shape, rng)
        if v.type.dtype == gd.bool
        else rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy)
        for n, v in graph.inputs.items()
    }


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16], ids=str)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("more", ["", "bias", "lse", "top_left"])
def test_masks_that_hide_whole_rows(name: str, more: str, dtype: DType, rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (B, H, s, D), dtype) for n, s in (("q", SQ), ("k", SKV), ("v", SKV)))
    keep = g.input("mask", MASKS[name], gd.bool)
    if more == "lse":
        o, lse = g.attention(q, k, v, mask=keep, return_lse=True)
        graph = g.build({"o": o, "lse": lse})
    else:
        bias = g.input("bias", (1, H, SQ, SKV), dtype) if more == "bias" else None
        causal = more if more == "top_left" else None
        graph = g.build({"o": g.attention(q, k, v, mask=keep, bias=bias, causal=causal)})
    hidden = check(graph, drawn(graph, rng), dtype)
    assert hidden.any()
    assert not hidden.all()


@pytest.mark.parametrize(
    "band", [{"causal": "bottom_right"}, {"causal": "bottom_right", "window": (9, None)}, {"window": (9, 5)}]
)
@pytest.mark.parametrize("queries", [1, SQ])
@pytest.mark.parametrize("more", ["", "bias", "lse"])
def test_bands_beside_a_cache(more: str, queries: int, band: dict[str, Any], rng: np.random.Generator) -> None:
    """New queries at the end of a cache that is filled in part: fewer keys than queries hide whole rows."""
    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (B, H, s, D), gd.float16) for n, s in (("q", queries), ("k", SKV), ("v", SKV)))
    n = g.input("n", (B,), gd.int32)
    bias = g.input("bias", (1, H, 1, SKV), gd.float16) if more == "bias" else None
    if more == "lse":
        o, lse = g.attention(q, k, v, kv_lengths=n, return_lse=True, **band)
        graph = g.build({"o": o, "lse": lse})
    else:
        graph = g.build({"o": g.attention(q, k, v, kv_lengths=n, bias=bias, **band)})
    inputs = drawn(graph, rng)
    for filled in ([0, 1, SKV], [SQ, SQ - 7, SKV - 1]):
        inputs["n"] = np.array(filled, np.int32)
        hidden = check(graph, inputs, gd.float16)
        assert hidden[filled.index(0)].all() if 0 in filled else not hidden.all()


@pytest.mark.parametrize("length", [1, 65])
def test_a_mask_that_was_spelled_out(length: int, rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (B, H, s, D), gd.float16) for n, s in (("q", length), ("k", SKV), ("v", SKV)))
    keep = g.input("mask", (B, 1, 1, SKV), gd.bool)
    s = g.select(keep, g.matmul(q, g.transpose(k, (0, 1, 3, 2))) * D**-0.5, -math.inf)
    graph = g.build({"o": g.matmul(g.softmax(s), v)})
    inputs = drawn(graph, rng)
    inputs["mask"][:, ..., 0] = True  # as it is spelled, a row that is wholly hidden is NaN
    assert not check(graph, inputs, gd.float16).any()


def test_a_constant_mask_is_a_constant_bias(rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (B, H, s, D), gd.float16) for n, s in (("q", SQ), ("k", SKV), ("v", SKV)))
    graph = g.build({"o": g.attention(q, k, v, mask=g.constant(hiding((SQ, SKV), rng)))})
    assert gd.compile(graph, target=gd.Target.named("h200")).report.kernel_count == 1
    assert check(graph, drawn(graph, rng), gd.float16).any()
