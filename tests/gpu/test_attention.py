"""Attention on the device with biases and masks that broadcast over any axes, together with everything else."""

import itertools

import numpy as np
import pytest

import graphdnn as gd
from tests.numbers import TOLERANCE

pytestmark = pytest.mark.gpu

EXTENTS = B, H, SQ, SKV = 3, 4, 33, 65
D = 64
BROADCASTS = list(itertools.product((True, False), repeat=4))
"""Along which of B, H, Sq and Skv a bias or a mask varies."""


@pytest.mark.parametrize("varies", BROADCASTS, ids=lambda v: "".join("x" if along else "1" for along in v))
@pytest.mark.parametrize("what", ["bias", "mask", "both"])
def test_broadcasts(what: str, varies: tuple[bool, ...], rng: np.random.Generator) -> None:
    """The causal flag, shared heads, another width of v, lengths and the log-sum-exp are drawn, so that all meet."""
    causal = (None, "top_left", "bottom_right")[rng.integers(3)]
    group, width = (int(rng.choice(pair)) for pair in ((1, 2), (D, D // 2)))
    with_lengths, with_lse = rng.random(2) < 0.5
    shape = tuple(n if along else 1 for n, along in zip(EXTENTS, varies, strict=True))
    g = gd.GraphBuilder("attention")
    types = {"q": (B, H, SQ, D), "k": (B, H // group, SKV, D), "v": (B, H // group, SKV, width)}
    q, k, v = (g.input(n, s, gd.float16) for n, s in types.items())
    inputs = {n: rng.standard_normal(s).astype(np.float16) for n, s in types.items()}
    extras: dict[str, gd.Value] = {}
    if what != "mask":
        extras["bias"] = g.input("bias", shape, gd.float16)
        inputs["bias"] = rng.standard_normal(shape).astype(np.float16)
    if what != "bias":
        # A mask beside a bias varies along the other axes.
        other = shape if what == "mask" else tuple(1 if along else n for n, along in zip(EXTENTS, varies, strict=True))
        extras["mask"] = g.input("mask", other, gd.bool)
        inputs["mask"] = rng.random(other) < 0.7
    if with_lengths:
        for name, most in (("q_lengths", SQ), ("kv_lengths", SKV)):
            extras[name] = g.input(name, (B,), gd.int32)
            inputs[name] = rng.permutation([0, most, most // 2 + 1]).astype(np.int32)
    o, lse = g.attention(q, k, v, causal=causal, return_lse=True, **extras)
    exe = gd.compile(g.build({"o": o, "lse": lse} if with_lse else {"o": o}), target="cuda")
    engines = [(r.pattern, r.engine, r.plan) for r in exe.report.regions]
    drawn = f"{causal=} {group=} {width=} {with_lengths=} {with_lse=} by {engines}"
    found, wanted = exe(inputs), gd.evaluate(exe.graph, inputs, gd.float64)
    hidden = ~wanted["o"].any(-1)
    assert not found["o"][hidden].any(), drawn
    scale = np.maximum(np.abs(wanted["o"]).max(-1, keepdims=True), np.abs(inputs["v"]).max().astype(np.float64))
    errors = np.abs(found["o"].astype(np.float64) - wanted["o"]) / scale
    assert errors.max() <= TOLERANCE["float16"], drawn
    if with_lse:
        np.testing.assert_array_equal(np.isneginf(found["lse"]), hidden, err_msg=drawn)
        np.testing.assert_allclose(found["lse"][~hidden], wanted["lse"][~hidden], rtol=2e-3, atol=2e-3, err_msg=drawn)
