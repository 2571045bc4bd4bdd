"""Masks become biases where that finds an engine, and attention is raised only where one takes it."""

import math

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.passes.attention.masks import masks_as_biases
from graphdnn.passes.raise_ops import raise_ops
from tests.passes.random_graphs import assert_same_meaning
from tests.planned import answers, h200_report

B, H, SQ, SKV, D = 2, 3, 5, 7, 8


def no_masks(region):
    """Engines that take an additive bias and no mask."""
    return None if "mask" in region.nodes[0].op.extras else 1.0


def masked(*, bias: bool = False, mask=(B, 1, 1, SKV), dtype=gd.float64, count: int = 1, **attributes) -> gd.Graph:
    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (B, H, s, D), dtype) for n, s in (("q", SQ), ("k", SKV), ("v", SKV)))
    keep = g.input("m", mask, gd.bool) if isinstance(mask, tuple) else g.constant(mask, name="m")
    more = {"bias": g.input("bias", (H, SQ, SKV), dtype)} if bias else {}
    for index in range(count):
        q = g.attention(q, k, v, mask=keep, name=f"att{index}", **more, **attributes)
    return g.build({"o": q})


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
def test_a_mask_is_a_bias_of_0_and_minus_infinity(bias, causal, rng):
    graph = masked(bias=bias, causal=causal)
    done = masks_as_biases(graph, no_masks)
    assert [n.op.label for n in done.graph.nodes] == ["select", "attention"]
    node = done.graph.nodes[-1]
    assert node.op.extras == ("bias",)
    assert node.operands[-1].type.shape == ((B, H, SQ, SKV) if bias else (B, 1, 1, SKV))
    assert all(n.origins == ("att0",) for n in done.graph.nodes)
    assert done.changes == ("att0: no engine takes a boolean mask; it is added to the scores as 0 and -inf",)
    assert_same_meaning(graph, done.graph, rng)


@pytest.mark.parametrize("bias", [False, True])
def test_rows_that_are_wholly_hidden_stay_zero(bias, rng):
    graph = masked(bias=bias, mask=(B, H, SQ, SKV), return_lse=False)
    inputs = {n: rng.normal(size=v.type.shape) for n, v in graph.inputs.items() if n != "m"}
    inputs["m"] = rng.random((B, H, SQ, SKV)) < 0.5
    inputs["m"][0, 1, 2] = inputs["m"][1] = False
    before, after = (gd.evaluate(x, inputs)["o"] for x in (graph, masks_as_biases(graph, no_masks).graph))
    assert not after[1].any()
    assert not after[0, 1, 2].any()
    assert after[0, 0].any()
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-12)


def test_one_bias_serves_all_who_share_a_mask_and_a_constant_is_computed_when_compiled():
    shared = masks_as_biases(masked(count=3), no_masks).graph
    assert [n.op.label for n in shared.nodes].count("select") == 1
    keep = np.ones((SQ, SKV), bool)
    keep[2] = False
    known = masks_as_biases(masked(mask=keep, count=2), no_masks).graph
    assert [n.op.label for n in known.nodes] == ["attention"] * 2
    (bias,) = (p.array() for p in known.payloads.values())
    np.testing.assert_array_equal(bias, np.where(keep, 0, -np.inf))


def test_a_mask_stays_where_engines_take_it_or_take_neither():
    graph = masked()
    assert masks_as_biases(graph, lambda region: 1.0).graph is graph
    assert masks_as_biases(graph, lambda region: None).graph is graph


def test_only_the_attention_that_gains_changes():
    """No engine takes the other one whatever it hides."""

    def ask(region):
        node = region.nodes[0]
        return None if "mask" in node.op.extras or node.op.return_lse else 1.0

    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (B, H, s, D), gd.float16) for n, s in (("q", SQ), ("k", SKV), ("v", SKV)))
    m = g.input("m", (B, 1, 1, SKV), gd.bool)
    o, _ = g.attention(q, k, v, mask=m, causal="bottom_right", return_lse=True)
    done = masks_as_biases(g.build({"a": g.attention(q, k, v, mask=m), "b": o}), ask)
    assert sorted(n.op.extras for n in done.graph.nodes if n.op.label == "attention") == [("bias",), ("mask",)]
    assert len(done.changes) == 1


def no_lengths_at_the_last_key(region):
    """As cuDNN: no masks, and neither lengths nor a bias with bottom-right alignment or a window to the right."""
    op = region.nodes[0].op
    if "mask" in op.extras:
        return None
    aside = op.causal == "bottom_right" or (op.window is not None and op.causal is None)
    return None if aside and {"bias", "kv_lengths"} & set(op.extras) else 1.0


BANDS = (
    {"causal": "bottom_right"},
    {"causal": "bottom_right", "window": (2, None)},
    {"causal": None, "window": (3, 1)},
    {"causal": None, "window": (None, 0)},
)


@pytest.mark.parametrize("band", BANDS, ids=str)
@pytest.mark.parametrize("extras", [("kv_lengths",), ("q_lengths", "kv_lengths"), ("bias",), ("mask", "kv_lengths")])
def test_a_band_that_no_engine_takes_with_the_rest_is_a_bias(band, extras, rng):
    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (3, 4, s, D), gd.float64) for n, s in (("q", SQ), ("k", SKV), ("v", SKV)))
    made = {
        "bias": lambda: g.input("bias", (4, 1, SKV), gd.float64),
        "mask": lambda: g.input("mask", (3, 1, 1, SKV), gd.bool),
        "q_lengths": lambda: g.input("q_lengths", (3,), gd.int32),
        "kv_lengths": lambda: g.input("kv_lengths", (3,), gd.int32),
    }
    o, lse = g.attention(q, k, v, return_lse=True, name="att", **band, **{n: made[n]() for n in extras})
    graph = g.build({"o": o, "lse": lse})
    done = masks_as_biases(graph, no_lengths_at_the_last_key)
    node = done.graph.nodes[-1]
    assert (node.op.causal, node.op.window) == (None, None)
    assert set(node.op.extras) == {"bias"} | (set(extras) & {"q_lengths", "kv_lengths"})
    assert all(n.origins == ("att",) for n in done.graph.nodes)
    assert done.changes[-1].startswith("att: no engine takes its causal flag or window beside what else it has; ")
    inputs = {n: rng.normal(size=v.type.shape) for n, v in graph.inputs.items()}
    if "mask" in inputs:
        inputs["mask"] = rng.random((3, 1, 1, SKV)) < 0.5
    for queries, keys in (((5, 2, 3), (7, 1, 4)), ((0, 5, 9), (5, 0, -2))):
        lengths = {"q_lengths": np.array(queries, np.int32), "kv_lengths": np.array(keys, np.int32)}
        inputs |= {n: lengths[n] for n in lengths if n in extras}
        before, after = (gd.evaluate(x, inputs, gd.float64) for x in (graph, done.graph))
        for name in before:
            np.testing.assert_allclose(after[name], before[name], rtol=0, atol=1e-12)


def test_layers_beside_caches_of_one_length_share_the_bias():
    g = gd.GraphBuilder()
    q, n = g.input("q", (2, 4, 16, 64), gd.float16), g.input("n", (2,), gd.int32)
    for layer in range(3):
        k, v = (g.input(f"{name}{layer}", (2, 2, 512, 64), gd.float16) for name in "kv")
        q = g.attention(q, k, v, causal="bottom_right", kv_lengths=n, name=f"att{layer}")
    report = h200_report(g.build({"o": q}))
    assert [r.pattern for r in report.regions if r.engine == "cudnn"] == ["attention"] * 3
    assert report.kernel_count == 3 + 3, "lengths, lengths of queries, the bias"


def test_a_constant_band_is_added_when_compiled():
    g = gd.GraphBuilder()
    q = g.input("q", (2, 4, 96, 64), gd.float16)
    k = g.input("k", (2, 4, 32, 64), gd.float16)
    report = h200_report(g.build({"o": g.attention(q, k, k, causal="bottom_right")}))
    assert [(r.engine, r.pattern) for r in report.regions] == [("cudnn", "attention")]


def spelled(dtype, shape, mask=None) -> gd.Graph:
    b, h, sq, skv, d = shape
    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (b, h, s, d), dtype) for n, s in (("q", sq), ("k", skv), ("v", skv)))
    s = g.mul(g.matmul(q, g.transpose(k, (0, 1, 3, 2)), name="scores"), d**-0.5)
    if mask == "selected":
        s = g.select(g.input("m", (b, 1, 1, skv), gd.bool), s, -math.inf)
    if mask == "triangle":
        s = g.select(g.constant(np.tri(sq, skv, skv - sq, dtype=bool)), s, -math.inf)
    if mask == "finite":
        s = g.select(g.input("m", (b, 1, 1, skv), gd.bool), s, -1e4)
    if mask == "added":
        s = s + g.input("m", (b, 1, 1, skv), dtype)
    return g.build({"y": g.matmul(g.softmax(s), v, name="mixed")})


SHAPES = ((2, 12, 128, 128, 64), (1, 8, 1, 1024, 128), (2, 4, 64, 64, 7), (2, 4, 64, 64, 320))


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mask", [None, "selected", "triangle", "added", "finite"])
def test_raising_costs_nothing_by_our_own_estimates(dtype, shape, mask):
    graph = spelled(dtype, shape, mask)
    with_it, without = h200_report(graph), h200_report(graph, disabled_passes=("raise",))
    assert with_it.estimated_us <= without.estimated_us * (1 + 1e-9)
    assert with_it.kernel_count <= without.kernel_count


def test_a_selected_mask_is_two_kernels():
    report = h200_report(spelled(gd.float16, SHAPES[0], "selected"))
    assert [r.pattern for r in report.regions] == ["select", "attention"]


def test_what_stays_as_spelled_says_why():
    report = h200_report(spelled(gd.float16, SHAPES[2]))
    (record,) = (p for p in report.passes if p.name == "raise")
    assert [r.reason for r in record.refusals] == ["no engine takes it as one attention; it stays as it is spelled"]
    assert "attention" not in {r.pattern for r in report.regions}
    whole = [c for c in report.candidates if c.engine == "cudnn" and c.pattern == "attention"]
    assert len(whole) == 1
    assert "7 features a head" in whole[0].reason
    assert {"scores", "mixed"} <= set(whole[0].nodes)


def test_attention_that_one_engine_takes_is_raised_beside_one_that_stays():
    g = gd.GraphBuilder()
    outputs = {}
    for name, features in (("near", 8), ("odd", 7)):
        q, k, v = (g.input(f"{name}_{n}", (1, 2, 16, features), gd.float16) for n in "qkv")
        outputs[name] = g.matmul(g.softmax(g.matmul(q, g.transpose(k, (0, 1, 3, 2)))), v, name=name)
    done = raise_ops(g.build(outputs), lambda region: None if region.nodes[0].operands[0].type.shape[3] % 8 else 1.0)
    assert sorted(n.op.label for n in done.graph.nodes) == ["attention", "matmul", "matmul", "softmax", "transpose"]
    assert [r.nodes[-1] for r in done.refusals] == ["odd"]


def test_the_users_own_attention_is_no_reason_to_leave_others():
    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (1, 2, 16, 7), gd.float16) for n in "qkv")
    graph = g.build({"y": g.attention(q, k, v, name="mine")})
    done = raise_ops(graph, lambda region: None)
    assert done.graph is graph
    assert not done.refusals


def test_explain_names_the_mask():
    graph = masked(dtype=gd.float16)
    report = h200_report(graph)
    assert [r.pattern for r in report.regions] == ["select", "attention"]
    assert any("boolean mask" in c.reason for c in answers(report, "cudnn", "att0"))
