"""Completion spells lengths out and changes no number."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.passes.attention.lengths import complete


def attention(**lengths: tuple[int, ...]) -> gd.Graph:
    g = gd.GraphBuilder()
    q = g.input("q", (3, 4, 5, 8), gd.float32)
    k = g.input("k", (3, 2, 7, 8), gd.float32)
    v = g.input("v", (3, 2, 7, 6), gd.float32)
    given = {name: g.input(name, (3,), gd.int32) for name in lengths}
    o, lse = g.attention(q, k, v, causal="bottom_right", return_lse=True, **given)
    return g.build({"o": o, "lse": lse})


@pytest.mark.parametrize("name", ["q_lengths", "kv_lengths"])
def test_the_absent_length_is_the_full_extent(name: str, rng: np.random.Generator) -> None:
    graph = attention(**{name: (1,)})
    inputs = {n: rng.standard_normal(v.type.shape).astype(np.float32) for n, v in graph.inputs.items() if len(n) == 1}
    inputs[name] = np.array([5, 1, 3], np.int32)
    done = complete(graph)
    node = done.graph.nodes[-1]
    assert node.op.extras == ("q_lengths", "kv_lengths")
    assert node.origins == graph.nodes[0].origins
    before, after = gd.evaluate(graph, inputs, gd.float64), gd.evaluate(done.graph, inputs, gd.float64)
    for output in before:
        np.testing.assert_array_equal(before[output], after[output])


def test_lengths_are_held_inside(rng: np.random.Generator) -> None:
    """Beyond the extent means all of it, below 0 means none; a library must not see either."""
    graph = attention(q_lengths=(1,), kv_lengths=(1,))
    inputs = {n: rng.standard_normal(v.type.shape).astype(np.float32) for n, v in graph.inputs.items() if len(n) == 1}
    inputs |= {"q_lengths": np.array([9, -1, 5], np.int32), "kv_lengths": np.array([100, 3, -7], np.int32)}
    done = complete(graph)
    assert [n.op.label for n in done.graph.nodes] == ["clip", "clip", "attention"]
    before, after = gd.evaluate(graph, inputs, gd.float64), gd.evaluate(done.graph, inputs, gd.float64)
    np.testing.assert_array_equal(before["o"], after["o"])


@pytest.mark.parametrize("names", [("kv_lengths",), ("q_lengths",), ("q_lengths", "kv_lengths")])
def test_a_second_application_changes_nothing(names: tuple[str, ...]) -> None:
    once = complete(attention(**dict.fromkeys(names, (1,)))).graph
    assert complete(once).graph is once


def test_products_that_may_be_negative_are_held() -> None:
    g = gd.GraphBuilder()
    q, n = g.input("q", (2, 4, 16, 8), gd.float16), g.input("n", (2,), gd.int32)
    lengths = g.minimum(g.constant(np.array([16, 16], np.int32)), g.mul(n, 16))
    graph = g.build({"o": g.attention(q, q, q, q_lengths=lengths, kv_lengths=g.constant(np.array([16, 9], np.int32)))})
    assert "clip" in [node.op.label for node in complete(graph).graph.nodes]


def test_without_lengths_nothing_happens() -> None:
    graph = attention()
    assert complete(graph).graph is graph


@pytest.mark.parametrize("given", ["q_lengths", "kv_lengths"])
def test_lengths_of_other_extents_are_others(given: str, rng: np.random.Generator) -> None:
    """One tensor of lengths for two attentions, of 5 queries on 7 keys and of 7 on 5: each is completed for itself."""
    g = gd.GraphBuilder()
    lengths = g.input("n", (3,), gd.int32)
    five, seven = (g.input(name, (3, 2, size, 8), gd.float32) for name, size in (("five", 5), ("seven", 7)))
    outputs = {
        "few": g.attention(five, seven, seven, **{given: lengths}),
        "many": g.attention(seven, five, five, **{given: lengths}),
    }
    graph = g.build(outputs)
    done = complete(graph).graph
    held = {n.op.parameters for n in done.nodes if n.op.label == "clip"}
    full = sorted(int(p.array()[0]) for p in done.payloads.values())
    assert (held, full) == ({(0, 5), (0, 7)}, [5, 7])
    inputs = {n: rng.standard_normal(v.type.shape).astype(np.float32) for n, v in graph.inputs.items() if n != "n"}
    inputs["n"] = np.array([6, 7, 2], np.int32)
    before, after = gd.evaluate(graph, inputs, gd.float64), gd.evaluate(done, inputs, gd.float64)
    for output in before:
        np.testing.assert_array_equal(before[output], after[output])
