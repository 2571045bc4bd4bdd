"""Attention spelled out with more than one bias: of positions and of padding, or of heads and of shifted windows."""

import math

import numpy as np
import pytest

import graphdnn as gd
from tests.passes.random_graphs import assert_same_meaning
from tests.passes.test_raise_attention import SKV, SQ, B, H, graph_of, raised, reasons
from tests.planned import h200_report

TRIANGLE = np.tri(SQ, SKV, SKV - SQ, dtype=bool)


def attentions(graph: gd.Graph) -> list[gd.Node]:
    return [n for n in graph.nodes if n.op.label == "attention"]


def two(first, second):
    """Scores with two biases: an array, or the shape of one that is known at run time only."""

    def scores(g, s):
        for name, bias in (("first", first), ("second", second)):
            s = s + (g.input(name, bias, gd.float64) if isinstance(bias, tuple) else g.constant(bias))
        return s

    return graph_of(scores)


@pytest.mark.parametrize(
    ("first", "second"), [((H, SQ, SKV), (B, 1, 1, SKV)), ((B, 1, 1, SKV), (SQ, SKV)), ((SKV,), (B, H, SQ, SKV))]
)
def test_two_biases_are_one(first, second, rng):
    graph = two(first, second)
    done = raised(graph)
    (node,) = attentions(done)
    assert [n.op.label for n in done.nodes if not n.op.is_renaming] == ["add", "attention"]
    assert node.op.extras == ("bias",)
    assert set(node.origins) == {n.name for n in graph.nodes}
    assert_same_meaning(graph, done, rng)


@pytest.mark.parametrize("triangle_first", [False, True])
@pytest.mark.parametrize(("hidden", "causal"), [(-math.inf, "bottom_right"), (-1e9, None)])
def test_a_triangle_beside_a_bias_is_causal_where_it_is_of_minus_infinity(hidden, causal, triangle_first, rng):
    """With a finite score a row that the other bias hides averages what the triangle hides."""
    biases = np.where(TRIANGLE, 0.0, hidden), (B, 1, 1, SKV)
    graph = two(*(biases if triangle_first else biases[::-1]))
    done = raised(graph)
    (node,) = attentions(done)
    assert (node.op.causal, node.op.extras) == (causal, ("bias",))
    assert_same_meaning(graph, done, rng)


def test_known_biases_are_added_when_compiled(rng):
    graph = two(rng.normal(size=(H, SQ, SKV)), rng.normal(size=(1, SKV)))
    done = raised(graph)
    assert [n.op.label for n in done.nodes if not n.op.is_renaming] == ["attention"]
    assert_same_meaning(graph, done, rng)


@pytest.mark.parametrize("lowest", [0.0, -1e10])
def test_both_biases_count_beside_a_finite_fill(lowest, rng):
    """Together they must leave a key that the mask shows."""
    second = np.zeros((SQ, SKV))
    second[0, 0] = lowest

    def scores(g, s):
        added = s + g.constant(rng.normal(size=(SKV,))) + g.constant(second)
        return g.select(g.constant(np.tri(SQ, SKV, dtype=bool)), added, -1e9)

    graph = graph_of(scores)
    assert len(attentions(raised(graph))) == (lowest == 0)
    assert len(reasons(graph)) == (lowest != 0)
    assert_same_meaning(graph, raised(graph), rng)


WINDOWS = 3


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("lead", [(WINDOWS, 1), (1, WINDOWS, 1), (WINDOWS, H)])
def test_a_bias_for_each_window_is_repeated_for_the_batch(batch, with_bias, lead, rng):
    """Shifted windows: their scores are split into batch and windows, what hides other windows is added, and back."""
    n = batch * WINDOWS

    def scores(g, s):
        if with_bias:
            s = s * 0.5 + g.input("bias", (H, SQ, SKV), gd.float64)
        split = g.reshape(s, (batch, WINDOWS, H, SQ, SKV))
        return g.reshape(split + g.input("windows", (*lead, SQ, SKV), gd.float64), (n, H, SQ, SKV))

    graph = graph_of(scores, lead=(n, H))
    done = raised(graph)
    (node,) = attentions(done)
    assert node.op.extras == ("bias",)
    assert node.operands[3].type.shape == (n, H if with_bias or lead[-1] == H else 1, SQ, SKV)
    assert_same_meaning(graph, done, rng)


def test_a_bias_across_joined_heads_is_refused():
    def scores(g, s):
        joined = g.reshape(s, (B, H * SQ, SKV))
        return g.reshape(joined + g.input("bias", (H * SQ, SKV), gd.float64), (B, H, SQ, SKV))

    graph = graph_of(scores)
    assert not attentions(raised(graph))
    assert reasons(graph) == [
        f"a bias is added to scores of shape {(B, H, SQ, SKV)} in another shape, {(B, H * SQ, SKV)}; only their first "
        "axis may be split for it"
    ]


@pytest.mark.parametrize("windows", [1, 4])
def test_it_pays_on_a_described_device(windows):
    """No kernel of the last resort for shifted windows, and less time by our estimates than the spelling takes."""
    g = gd.GraphBuilder("windows")
    x = g.input("x", (2 * windows, 49, 3 * 96), gd.float16)
    heads = g.transpose(g.reshape(x, (2 * windows, 49, 3, 3, 32)), (2, 0, 3, 1, 4))
    q, k, v = (g.squeeze(t, 0) for t in g.split(heads, 3, axis=0))
    s = g.matmul(q * 32**-0.5, g.transpose(k, (0, 1, 3, 2))) + g.constant(np.ones((3, 49, 49), np.float16))
    hidden = g.constant(
        np.where(np.tri(49, dtype=bool), 0, -100).astype(np.float16) * np.ones((windows, 1, 1, 1), np.float16)
    )
    s = g.reshape(g.reshape(s, (2, windows, 3, 49, 49)) + hidden, (2 * windows, 3, 49, 49))
    graph = g.build({"o": g.matmul(g.softmax(s), v)})
    with_it, without = h200_report(graph), h200_report(graph, disabled_passes=("raise",))
    assert with_it.estimated_us < without.estimated_us
    assert with_it.last_resort_count == 0
    assert [r.engine for r in with_it.regions if "attention" in r.pattern] == ["cudnn"]
