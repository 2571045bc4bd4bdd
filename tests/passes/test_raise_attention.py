import math
from functools import partial

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.passes.canonicalize import canonicalize
from graphdnn.passes.raise_ops import raise_ops as raise_with
from tests.passes.random_graphs import assert_same_meaning

raise_ops = partial(raise_with, ask=lambda region: 1.0)
"""With engines that take every op whole."""

B, H, SQ, SKV, D, DV = 2, 3, 5, 7, 4, 6


def operands(g, lead=(B, H), dtype=gd.float64, sq=SQ, skv=SKV):
    """q, K transposed by a node, and v."""
    q, v = g.input("q", (*lead, sq, D), dtype), g.input("v", (*lead, skv, DV), dtype)
    k = g.input("k", (*lead, skv, D), dtype)
    return q, g.transpose(k, (*range(len(lead)), len(lead) + 1, len(lead))), v


def spelled(g, q, kt, v, scores=lambda g, s: s / math.sqrt(D)):
    return g.matmul(g.softmax(scores(g, g.matmul(q, kt))), v)


def graph_of(scores, **given) -> gd.Graph:
    g = gd.GraphBuilder()
    return g.build({"o": spelled(g, *operands(g, **given), scores)})


def raised(graph: gd.Graph) -> gd.Graph:
    return canonicalize(raise_ops(canonicalize(graph).graph).graph).graph


def attention_in(graph: gd.Graph) -> gd.Node:
    """The one attention of a graph that has nothing else but views."""
    (node,) = (n for n in graph.nodes if not n.op.is_renaming)
    assert node.op.label == "attention"
    return node


def reasons(graph: gd.Graph) -> list[str]:
    return [r.reason for r in raise_ops(canonicalize(graph).graph).refusals if r.rule == "attention"]


def additive(g, s):
    return s * 0.3 + g.input("bias", (1, H, SQ, SKV), gd.float64)


def selected(g, s):
    return g.select(g.input("mask", (B, 1, 1, SKV), gd.bool), s / 2, -math.inf)


def hidden(g, s):
    return g.select(g.input("mask", (SQ, SKV), gd.bool), -math.inf, s / 2)


@pytest.mark.parametrize(
    ("scores", "scale", "extras"),
    [
        (lambda g, s: s, 1.0, ()),
        (lambda g, s: s / 2.0, 0.5, ()),
        (lambda g, s: 0.125 * s, 0.125, ()),
        (additive, 0.3, ("bias",)),
        (selected, 0.5, ("mask",)),
    ],
)
def test_scale_bias_and_mask(scores, scale, extras, rng):
    graph = graph_of(scores)
    done = raised(graph)
    node = attention_in(done)
    assert len(done.nodes) == 1
    assert (node.op.scale, node.op.extras, node.op.causal) == (scale, extras, None)
    assert [v.name for v in node.operands] == ["q", "k", "v", *({"bias": "bias", "mask": "mask"}[e] for e in extras)]
    assert set(node.origins) == {n.name for n in graph.nodes}
    inputs = {n: rng.normal(size=v.type.shape) for n, v in graph.inputs.items() if n != "mask"}
    if extras == ("mask",):
        inputs["mask"] = np.arange(SKV) < rng.integers(1, SKV, (B, 1, 1, 1))
    before, after = (gd.evaluate(x, inputs)["o"] for x in (graph, done))
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-12)


def test_a_mask_of_what_is_hidden(rng):
    done = raised(graph_of(hidden))
    assert [n.op.label for n in done.nodes if not n.op.is_renaming] == ["logical_not", "attention"]
    inputs = {n: rng.normal(size=v.type.shape) for n, v in done.inputs.items() if n != "mask"}
    inputs["mask"] = np.arange(SKV) > np.arange(SQ)[:, None]
    before, after = (gd.evaluate(x, inputs)["o"] for x in (graph_of(hidden), done))
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("where", ["q", "k", "both", "k before its transpose"])
def test_a_scale_before_the_product(where, rng):
    g = gd.GraphBuilder()
    q, kt, v = operands(g)
    if where in ("q", "both"):
        q = q * 0.5
    if where in ("k", "both"):
        kt = kt / 4
    if where == "k before its transpose":
        kt = g.transpose(g.input("other", (B, H, SKV, D), gd.float64) * 0.25, (0, 1, 3, 2))
    graph = g.build({"o": spelled(g, q, kt, v, lambda g, s: s)})
    done = raised(graph)
    expected = {"q": 0.5, "k": 0.25, "both": 0.125, "k before its transpose": 0.25}[where]
    assert attention_in(done).op.scale == expected
    assert_same_meaning(graph, done, rng)


def test_a_divisor_before_the_product_divides_the_scale(rng):
    """No power of two, which would have become a factor before."""
    g = gd.GraphBuilder()
    q, kt, v = operands(g)
    graph = g.build({"o": spelled(g, q / 3.0, kt / 0.7, v, lambda g, s: s)})
    done = raised(graph)
    assert attention_in(done).op.scale == pytest.approx(1 / 2.1, rel=1e-15)
    assert_same_meaning(graph, done, rng)


def test_a_number_divided_by_q_is_no_scale(rng):
    g = gd.GraphBuilder()
    q, kt, v = operands(g)
    graph = g.build({"o": spelled(g, 3.0 / (2.0 + g.sigmoid(q)), kt, v, lambda g, s: s)})
    done = raised(graph)
    assert [n.op.scale for n in done.nodes if n.op.label == "attention"] == [1.0]
    assert_same_meaning(graph, done, rng)


@pytest.mark.parametrize("lead", [(), (6,), (B, H)])
def test_two_to_four_axes(lead, rng):
    def scores(g, s):
        return s * 0.5 + g.input("bias", (SQ, SKV) if len(lead) < 2 else (H, SQ, SKV), gd.float64)

    graph = graph_of(scores, lead=lead)
    done = raised(graph)
    node = attention_in(done)
    assert node.operands[0].type.shape == (*(1,) * (2 - len(lead)), *lead, SQ, D)
    assert_same_meaning(graph, done, rng)


def test_k_with_strides_of_a_transpose(rng):
    """K arrives as (D, Skv) in memory order (Skv, D): the product reads it as it is, attention its transpose."""
    g = gd.GraphBuilder()
    q, v = g.input("q", (B, H, SQ, D), gd.float64), g.input("v", (B, H, SKV, DV), gd.float64)
    kt = g.input("k", (B, H, D, SKV), gd.float64, strides=(H * SKV * D, SKV * D, 1, D))
    graph = g.build({"o": spelled(g, q, kt, v)})
    done = raised(graph)
    assert [n.op.label for n in done.nodes] == ["transpose", "attention"]
    assert_same_meaning(graph, done, rng)


def test_heads_split_and_merged(rng):
    """As in BERT: projections, reshapes and transposes around it; K's two transposes become one."""
    g = gd.GraphBuilder()
    x = g.input("x", (B, SQ, 12), gd.float64)

    def projected(name):
        w = g.constant(rng.normal(size=(12, 12)))
        return g.transpose(g.reshape(g.matmul(x, w, name=name), (B, SQ, 3, 4)), (0, 2, 1, 3))

    q, k, v = (projected(n) for n in ("wq", "wk", "wv"))
    o = spelled(g, q, g.transpose(k, (0, 1, 3, 2)), v)
    graph = g.build({"y": g.reshape(g.transpose(o, (0, 2, 1, 3)), (B, SQ, 12))})
    done = raised(graph)
    assert sum(n.op.label == "transpose" for n in done.nodes) == 4
    (node,) = (n for n in done.nodes if n.op.label == "attention")
    assert [done.producer[v].op.label for v in node.operands] == ["transpose"] * 3
    assert_same_meaning(graph, done, rng)


def known_mask(allowed, how):
    def scores(g, s):
        if how == "additive":
            return s + g.constant(np.where(allowed, 0.0, -math.inf))
        if how == "lowest":
            return s + g.constant(np.where(allowed, 0.0, float(np.finfo(np.float32).min)))
        if how == "hidden":
            return g.select(g.constant(~allowed), -1e9, s)
        return g.select(g.constant(allowed), s, -1e9 if how == "finite" else -math.inf)

    return scores


@pytest.mark.parametrize("how", ["additive", "lowest", "hidden", "finite", "infinite"])
@pytest.mark.parametrize(
    ("sq", "skv", "offset", "causal"),
    [(5, 5, 0, "top_left"), (3, 7, 0, "top_left"), (3, 7, 4, "bottom_right"), (3, 7, 2, None)],
)
def test_a_triangle_is_causal(how, sq, skv, offset, causal, rng):
    allowed = np.tri(sq, skv, offset, dtype=bool)[None, None]
    graph = graph_of(known_mask(allowed, how), sq=sq, skv=skv)
    node = attention_in(raised(graph))
    assert node.op.causal == causal
    extra = "bias" if how in ("additive", "lowest") else "mask"
    assert node.op.extras == (() if causal else (extra,))
    assert_same_meaning(graph, raised(graph), rng)


@pytest.mark.parametrize("size", [5, 200])
def test_a_triangle_of_positions_is_causal(size, rng):
    """The mask is computed from positions; the larger one is no stored constant."""

    def scores(g, s):
        positions = g.iota(size)
        return g.select(g.less_equal(positions, g.unsqueeze(positions, 1)), s * 0.5, float(np.finfo(np.float32).min))

    graph = graph_of(scores, sq=size, skv=size, lead=(1, 1))
    done = raised(graph)
    assert attention_in(done).op.causal == "top_left"
    assert_same_meaning(graph, done, rng)


def test_a_mask_that_differs_by_batch_stays_a_mask(rng):
    allowed = np.tri(SQ, SKV, dtype=bool) & (np.arange(B)[:, None, None, None] >= 0)
    graph = graph_of(known_mask(allowed, "finite"))
    assert attention_in(raised(graph)).op.extras == ("mask",)
    assert_same_meaning(graph, raised(graph), rng)


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16])
@pytest.mark.parametrize("early", [True, False])
def test_a_softmax_in_float32(dtype, early, rng):
    def scores(g, s):
        return g.cast(s, gd.float32) * 0.5 if early else g.cast(s * 0.5, gd.float32)

    g = gd.GraphBuilder()
    q, kt, v = operands(g, dtype=dtype)
    weights = g.cast(g.softmax(scores(g, g.matmul(q, kt))), dtype)
    graph = g.build({"o": g.matmul(weights, v)})
    node = attention_in(raised(graph))
    assert node.op.scale == 0.5
    assert node.result.type.dtype == dtype
    assert_same_meaning(graph, raised(graph), rng, 2**-8 if dtype == gd.bfloat16 else 2**-10)


def spelled_softmax(g, s):
    powers = g.exp(s - g.reduce_max(s, axes=-1, keepdims=True))
    return powers / g.reduce_sum(powers, axes=-1, keepdims=True)


def test_a_softmax_that_is_spelled_out_too(rng):
    g = gd.GraphBuilder()
    q, kt, v = operands(g)
    graph = g.build({"o": g.matmul(spelled_softmax(g, g.matmul(q, kt) / 2), v)})
    node = attention_in(raised(graph))
    assert set(node.origins) == {n.name for n in graph.nodes}
    assert_same_meaning(graph, raised(graph), rng)


def test_one_transposed_k_for_two(rng):
    g = gd.GraphBuilder()
    q, kt, v = operands(g)
    other = g.input("other", (B, H, SQ, D), gd.float64)
    graph = g.build({"a": spelled(g, q, kt, v), "b": spelled(g, other, kt, v)})
    done = raised(graph)
    assert [n.op.label for n in done.nodes] == ["attention"] * 2
    assert all("transpose" in n.origins for n in done.nodes)
    assert_same_meaning(graph, done, rng)


# refusals


def test_weights_that_leave_are_refused():
    g = gd.GraphBuilder()
    q, kt, v = operands(g)
    weights = g.softmax(g.matmul(q, kt), name="weights")
    graph = g.build({"o": g.matmul(weights, v), "weights": weights})
    assert raise_ops(graph).graph is graph
    assert reasons(graph) == ["%weights is needed outside the match: it is output weights"]


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (graph_of(lambda g, s: g.div(s, 0.0)), "the scores are scaled by {'divisor': 0.0}; a finite scale is needed"),
        (
            graph_of(lambda g, s: g.mul(s, math.inf)),
            "the scores are scaled by {'scale': inf}; a finite scale is needed",
        ),
        (
            graph_of(lambda g, s: g.select(g.input("mask", (SQ, SKV), gd.bool), s, -1e9)),
            "hidden scores are -1000000000.0 and the mask is known at run time only",
        ),
        (
            graph_of(lambda g, s: g.select(g.input("mask", (SQ, SKV), gd.bool), s, -5)),
            "hidden scores are -5.0; at most -30000 is needed to be no score at all",
        ),
        (graph_of(lambda g, s: g.select(g.input("mask", (SQ, SKV), gd.bool), s, math.inf)), "hidden scores are +inf"),
        (
            graph_of(known_mask(np.arange(SQ)[:, None] + 0 * np.arange(SKV) > 0, "finite")),
            "the mask hides all keys of a row, which then averages all values",
        ),
        (
            graph_of(lambda g, s: s, lead=(2, B, H)),
            "q is f64[2x2x3x5x4], k f64[2x2x3x4x7], v f64[2x2x3x7x6]; two to four axes",
        ),
    ],
)
def test_what_is_no_attention(graph, reason):
    before = canonicalize(graph).graph
    done = raise_ops(before)
    assert "attention" not in [n.op.label for n in done.graph.nodes]
    assert len(reasons(graph)) == 1
    assert reasons(graph)[0].startswith(reason)


def hidden_beside(bias, fill=-1e9, allowed=None):
    """A known mask over scores with a bias, None for one that is known at run time only."""

    def scores(g, s):
        added = g.input("bias", (SQ, SKV), gd.float64) if bias is None else g.constant(bias)
        mask = np.tri(SQ, SKV, dtype=bool) if allowed is None else allowed
        return g.select(g.constant(mask), s * 0.5 + added, fill)

    return graph_of(scores)


def test_a_bias_of_the_run_beside_a_finite_fill_keeps_its_numbers(rng):
    """The bias hides what the mask leaves of the first row: the spelling averages the masked, attention gives 0."""
    graph = hidden_beside(None)
    (reason,) = reasons(graph)
    assert reason.startswith("hidden scores are -1000000000.0 and the bias is known at run time only: a row whose")
    arrays = {n: rng.normal(size=v.type.shape) for n, v in graph.inputs.items()}
    for lowest in (-np.inf, -1e10):
        arrays["bias"][0, 0] = lowest
        wanted = gd.evaluate(graph, arrays)["o"]
        assert np.abs(wanted[:, :, 0]).max() > 0
        np.testing.assert_allclose(gd.evaluate(raised(graph), arrays)["o"], wanted, rtol=0, atol=1e-12)


def first_key_hidden(lowest):
    bias = np.zeros((SQ, SKV))
    bias[0, 0] = lowest
    return bias


@pytest.mark.parametrize("lowest", [-np.inf, -1e10, -6e8])
def test_a_known_bias_that_hides_what_the_mask_leaves_is_refused(lowest):
    graph = hidden_beside(first_key_hidden(lowest))
    assert reasons(graph) == ["the bias hides the keys that the mask leaves a row, which then averages others"]


@pytest.mark.parametrize(
    "graph",
    [
        hidden_beside(first_key_hidden(-50.0)),
        hidden_beside(np.full((H, 1, 1), -3.0), fill=-3e4),
        hidden_beside(None, fill=-math.inf),
        hidden_beside(np.full((SQ, SKV), -1e10), allowed=np.ones((SQ, SKV), bool)),
    ],
)
def test_a_bias_that_leaves_a_key_beside_a_finite_fill(graph, rng):
    done = raised(graph)
    assert "bias" in attention_in(done).op.extras
    assert_same_meaning(graph, done, rng)


def test_a_softmax_over_queries_is_refused():
    g = gd.GraphBuilder()
    q, kt, v = operands(g, sq=SKV)
    graph = g.build({"o": g.matmul(g.softmax(g.matmul(q, kt), axis=2), v)})
    assert reasons(graph) == ["the softmax is along axis 2; the last one, of keys, is needed"]


def test_a_bias_that_makes_the_scores_larger_is_refused():
    g = gd.GraphBuilder()
    q, kt, v = operands(g, lead=(1, H))
    bias = g.input("bias", (2, H, SQ, SKV), gd.float64)
    v = g.input("wide", (2, H, SKV, DV), gd.float64)
    graph = g.build({"o": spelled(g, q, kt, v, lambda g, s: s + bias)})
    (reason,) = reasons(graph)
    assert reason.startswith("q is f64[1x3x5x4], k f64[1x3x4x7], v f64[2x3x7x6]")


def test_a_batch_of_k_for_all_is_refused():
    g = gd.GraphBuilder()
    q = g.input("q", (B, H, SQ, D), gd.float64)
    kt, v = g.input("kt", (1, H, D, SKV), gd.float64), g.input("v", (1, H, SKV, DV), gd.float64)
    graph = g.build({"o": spelled(g, q, kt, v)})
    (reason,) = reasons(graph)
    assert reason.endswith("one batch, and heads of q a multiple of k's and v's, are needed")


def test_other_types_are_refused():
    g = gd.GraphBuilder()
    q, kt, v = operands(g, dtype=gd.float16)
    graph = g.build({"o": g.matmul(g.softmax(g.cast(g.matmul(q, kt), gd.float32)), g.cast(v, gd.float32))})
    assert reasons(graph) == ["q, k, v and the result are float16, float32; one float type is needed"]


def test_a_row_of_hidden_keys_gives_zeros_instead_of_nan():
    """The one difference: a spelling with -inf gives NaN where no key is left, attention 0 (as its definition says)."""
    graph = graph_of(selected)
    inputs = {n: np.ones(v.type.shape) for n, v in graph.inputs.items() if n != "mask"}
    inputs["mask"] = np.zeros((B, 1, 1, SKV), bool)
    assert np.isnan(gd.evaluate(graph, inputs)["o"]).all()
    np.testing.assert_array_equal(gd.evaluate(raised(graph), inputs)["o"], 0)


def test_scales_that_are_too_large_together_stay_apart(rng):
    g = gd.GraphBuilder()
    q, kt, v = operands(g)
    graph = g.build({"o": g.matmul(g.softmax(g.mul(g.matmul(g.mul(q, 1e200), kt), 1e200)), v)})
    (attention,) = [n for n in raised(graph).nodes if n.op.label == "attention"]
    assert attention.op.scale == 1e200


def test_a_bias_of_many_paths_from_a_constant_is_looked_at_once():
    g = gd.GraphBuilder()
    q, kt, v = operands(g)
    bias = g.constant(np.zeros((SQ, SKV)))
    for _ in range(64):
        bias = g.add(bias, bias)
    for _ in range(1200):
        bias = g.neg(bias)
    graph = g.build({"o": g.matmul(g.softmax(g.add(g.matmul(q, kt), bias)), v)})
    assert any(n.op.label == "attention" for n in raised(graph).nodes)
