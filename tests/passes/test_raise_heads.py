"""Heads of k and v that are repeated for those of q: shared by attention where they are repeated as it shares them."""

import numpy as np
import pytest

import graphdnn as gd
from tests.passes.random_graphs import assert_same_meaning
from tests.passes.test_raise_attention import DV, SKV, SQ, B, D, H, attention_in, raised, spelled


@pytest.mark.parametrize("groups", [2, 4])
def test_heads_repeated_by_expand(groups, rng):
    g = gd.GraphBuilder()
    q = g.input("q", (B, H * groups, SQ, D), gd.float64)

    def repeated(name, extent):
        x = g.input(name, (B, H, SKV, extent), gd.float64)
        wide = g.expand(g.unsqueeze(x, 2), (B, H, groups, SKV, extent))
        return g.reshape(wide, (B, H * groups, SKV, extent))

    graph = g.build({"o": spelled(g, q, g.transpose(repeated("k", D), (0, 1, 3, 2)), repeated("v", DV))})
    done = raised(graph)
    node = attention_in(done)
    assert len(done.nodes) == 1
    assert node.operands[1].type.shape == (B, H, SKV, D)
    assert set(node.origins) == {n.name for n in graph.nodes}
    assert_same_meaning(graph, done, rng)


def test_heads_repeated_in_turn_are_not_shared_by_neighbours(rng):
    """k's heads 0, 1, 2, 0, 1, 2: heads 0 and 3 of q share one, where attention shares one between 0 and 1."""
    g = gd.GraphBuilder()
    q = g.input("q", (B, H * 2, SQ, D), gd.float64)

    def repeated(name, extent):
        x = g.input(name, (B, H, SKV, extent), gd.float64)
        return g.reshape(g.expand(g.unsqueeze(x, 1), (B, 2, H, SKV, extent)), (B, H * 2, SKV, extent))

    graph = g.build({"o": spelled(g, q, g.transpose(repeated("k", D), (0, 1, 3, 2)), repeated("v", DV))})
    done = raised(graph)
    (node,) = (n for n in done.nodes if n.op.label == "attention")
    assert node.operands[1].type.shape == (B, H * 2, SKV, D)
    assert_same_meaning(graph, done, rng)


def assert_shared_without_loss(graph, done, arrays):
    """What the passes leave gives the graph's numbers, before and behind planning for both targets."""
    wanted = gd.evaluate(graph, arrays)["o"]
    np.testing.assert_allclose(gd.evaluate(done, arrays)["o"], wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(gd.compile(graph, target="cpu")(arrays)["o"], wanted, rtol=0, atol=1e-5)
    planned = gd.compile(graph, target=gd.Target.named("h200")).compilation.prepared
    np.testing.assert_allclose(gd.evaluate(planned, arrays)["o"], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("which", ["k", "v", "both"])
def test_heads_gathered_before_they_are_repeated_stay_gathered(which, rng):
    g = gd.GraphBuilder()
    q = g.input("q", (B, H * 2, SQ, D), gd.float32)
    positions = g.input("p", (1, SKV), gd.int32)

    def repeated(name):
        x = g.input(name, (B, H, SKV, D), gd.float32)
        x = g.gather(x, positions, axis=2) if which in (name, "both") else g.unsqueeze(x, 2)
        return g.reshape(g.expand(x, (B, H, 2, SKV, D)), (B, H * 2, SKV, D))

    graph = g.build({"o": spelled(g, q, g.transpose(repeated("k"), (0, 1, 3, 2)), repeated("v"))})
    done = raised(graph)
    assert [n.op.label for n in done.nodes].count("attention") == 1
    arrays = {n: rng.normal(size=v.type.shape).astype(np.float32) for n, v in graph.inputs.items()}
    arrays["p"] = np.arange(SKV, dtype=np.int32)[::-1].reshape(1, SKV) // 2
    assert_shared_without_loss(graph, done, arrays)


def test_one_head_scaled_by_feature_before_it_is_repeated_stays_scaled(rng):
    g = gd.GraphBuilder()
    q = g.input("q", (1, 2, SQ, D), gd.float32)
    factors = g.input("c", (1, 1, 1, 1, D), gd.float32)

    def repeated(name):
        x = g.mul(g.input(name, (1, 1, SKV, D), gd.float32), factors)
        return g.reshape(g.expand(x, (1, 1, 2, SKV, D)), (1, 2, SKV, D))

    graph = g.build({"o": spelled(g, q, g.transpose(repeated("k"), (0, 1, 3, 2)), repeated("v"))})
    done = raised(graph)
    assert [n.op.label for n in done.nodes].count("attention") == 1
    arrays = {n: rng.normal(size=v.type.shape).astype(np.float32) for n, v in graph.inputs.items()}
    assert_shared_without_loss(graph, done, arrays)


def test_one_head_of_k_and_v_for_all(rng):
    g = gd.GraphBuilder()
    q = g.input("q", (B, H, SQ, D), gd.float64)
    kt, v = g.input("kt", (B, 1, D, SKV), gd.float64), g.input("v", (B, 1, SKV, DV), gd.float64)
    graph = g.build({"o": spelled(g, q, kt, v)})
    done = raised(graph)
    assert attention_in(done).operands[1].type.shape == (B, 1, SKV, D)
    assert_same_meaning(graph, done, rng)
