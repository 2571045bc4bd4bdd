"""Attention on the device with biases and masks that broadcast over any axes, together with everything else, and every
plan of it."""

import itertools

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, row_major
from graphdnn.runtime.device import CudaDevice
from tests.engines.cudnn.regions import attention, closed
from tests.gpu.plan_runs import Stage, offered
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
    scale = np.maximum(np.abs(wanted["o"]).max(-1, keepdims=True), np.nanmax(np.abs(inputs["v"])).astype(np.float64))
    errors = np.abs(found["o"].astype(np.float64) - wanted["o"]) / scale
    assert errors.max() <= TOLERANCE["float16"], drawn
    if with_lse:
        np.testing.assert_array_equal(np.isneginf(found["lse"]), hidden, err_msg=drawn)
        np.testing.assert_allclose(found["lse"][~hidden], wanted["lse"][~hidden], rtol=2e-3, atol=2e-3, err_msg=drawn)


def check_every_plan(device: CudaDevice, region: Region, inputs: dict[str, Array]) -> None:
    """Each plan's results, into memory that held NaN, against the definition; what is hidden is 0, -inf its lse."""
    o, *lse = region.graph.outputs
    wanted = gd.evaluate(region.graph, inputs, gd.float64)[o]
    hidden = ~wanted.any(-1)
    scale = np.maximum(np.abs(wanted).max(-1, keepdims=True), np.nanmax(np.abs(inputs["v"])).astype(np.float64))
    wrong = []
    with device:
        stage = Stage(device, region, inputs)
        for one in offered(device, region, Policy()):
            if isinstance(one.plan, Decline):
                print(one, one.plan)
                continue
            found = {value.name: array for value, array in stage.run(one.plan).items()}
            named = {name: found[value.name] for name, value in region.graph.outputs.items()}
            off = np.abs(named[o].astype(np.float64) - wanted) / scale
            is_right = not named[o][hidden].any() and off.max() <= TOLERANCE["float16"]
            is_right &= all((np.isneginf(named[name]) == hidden).all() for name in lse)
            print(one, f"{off.max():.1e}", "" if is_right else "wrong")
            if not is_right:
                wrong.append(str(one))
    assert not wrong


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("varies", BROADCASTS, ids=lambda v: "".join("x" if along else "1" for along in v))
def test_every_plan_with_a_bias(
    varies: tuple[bool, ...], group: int, device: CudaDevice, rng: np.random.Generator
) -> None:
    shape = tuple(n if along else 1 for n, along in zip(EXTENTS, varies, strict=True))
    region = attention((B, H, SQ, D), (B, H // group, SKV, D), D // 2, extras=("bias",), bias_shape=shape)
    inputs = {v.name: rng.standard_normal(v.type.shape).astype(np.float16) for v in region.inputs}
    inputs["bias"][rng.random(shape) < 0.3] = -np.inf
    check_every_plan(device, region, inputs)


@pytest.mark.parametrize("group", [1, H])
@pytest.mark.parametrize("causal", [None, "top_left"])
@pytest.mark.parametrize("queries", [1, 2, SQ])
def test_every_plan_where_nobody_asks(
    queries: int, causal: str | None, group: int, device: CudaDevice, rng: np.random.Generator
) -> None:
    """Sequences of no queries and of one key, as passes make them where there are no keys; one query is left asking."""
    q, k = (B, H, queries, D), (B, H // group, SKV, D)
    region = attention(q, k, D, extras=("q_lengths", "kv_lengths"), causal=causal, return_lse=True)
    inputs = {v.name: rng.standard_normal(v.type.shape).astype(np.float16) for v in region.inputs}
    inputs["q_lengths"] = np.array([0 if queries > 1 else 1, queries, queries], np.int32)
    inputs["kv_lengths"] = np.array([1, 1, SKV], np.int32)
    if queries > 1:  # a cache that nobody has written to
        inputs["k"][0] = inputs["v"][0] = np.nan
    check_every_plan(device, region, inputs)


@pytest.mark.parametrize("group", [1, H])
@pytest.mark.parametrize("names", [("kv_lengths",), ("q_lengths",), ("q_lengths", "kv_lengths")])
def test_one_query_beside_a_cache_that_may_be_empty(
    names: tuple[str, ...], group: int, rng: np.random.Generator
) -> None:
    g = gd.GraphBuilder("decoding")
    q = g.input("q", (B, H, 1, D), gd.float16)
    k, v = (g.input(n, (B, H // group, SKV, D), gd.float16) for n in "kv")
    o, lse = g.attention(q, k, v, return_lse=True, **{name: g.input(name, (B,), gd.int32) for name in names})
    exe = gd.compile(g.build({"o": o, "lse": lse}), target="cuda")
    assert ("attention", "cudnn") in {(r.pattern, r.engine) for r in exe.report.regions}
    inputs = {n: rng.standard_normal(v.type.shape).astype(np.float16) for n, v in exe.graph.inputs.items()}
    lengths = {"q_lengths": [1, 0, 1], "kv_lengths": [0, SKV // 2, SKV]}
    inputs |= {name: np.array(lengths[name], np.int32) for name in names}
    for name in "kv":
        if "kv_lengths" in names:
            inputs[name][1, :, SKV // 2 :] = inputs[name][0] = np.nan
    found, wanted = exe(inputs), gd.evaluate(exe.graph, inputs, gd.float64)
    np.testing.assert_allclose(found["o"], wanted["o"], rtol=0, atol=4 * TOLERANCE["float16"])
    np.testing.assert_array_equal(np.isneginf(found["lse"]), np.isneginf(wanted["lse"]))
    np.testing.assert_allclose(found["lse"], wanted["lse"], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("queries", [1, 128])
def test_every_plan_of_one_tensor_in_two_roles(queries: int, device: CudaDevice, rng: np.random.Generator) -> None:
    """k and v, which a decoder without a value projection reads from one cache."""
    g = gd.GraphBuilder("alike")
    q, k = g.input("q", (2, 4, queries, D), gd.float16), g.input("v", (2, 4, 128, D), gd.float16)
    region = closed(g, {"o": g.attention(q, k, k)}, row_major)
    check_every_plan(
        device, region, {v.name: rng.standard_normal(v.type.shape).astype(np.float16) for v in region.inputs}
    )
