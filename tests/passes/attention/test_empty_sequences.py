"""Every sequence is given a key, and no number changes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.region import Region
from graphdnn.passes.attention.empty_sequences import give_keys
from graphdnn.passes.attention.lengths import complete
from graphdnn.passes.canonicalize import drop_dead
from graphdnn.passes.expand import expand
from tests.passes.attention.test_lengths import attention


def taken(region: Region) -> float:
    return 1.0


def given_keys(graph: gd.Graph) -> gd.Graph:
    return give_keys(complete(graph).graph, taken).graph


def decoding(**lengths: tuple[int, ...]) -> gd.Graph:
    """One query for each of three sequences."""
    g = gd.GraphBuilder()
    q = g.input("q", (3, 4, 1, 8), gd.float32)
    k, v = (g.input(n, (3, 2, 7, 8), gd.float32) for n in "kv")
    o, lse = g.attention(q, k, v, return_lse=True, **{name: g.input(name, (3,), gd.int32) for name in lengths})
    return g.build({"o": o, "lse": lse})


@pytest.mark.parametrize("names", [("kv_lengths",), ("q_lengths",), ("q_lengths", "kv_lengths")])
def test_results_of_one_query_are_hidden_behind_it(names: tuple[str, ...], rng: np.random.Generator) -> None:
    """Some of a library's engines do not look at the length of one query, and leave results of no keys as they were."""
    graph = decoding(**dict.fromkeys(names, (1,)))
    inputs = {n: rng.standard_normal(v.type.shape).astype(np.float32) for n, v in graph.inputs.items() if len(n) == 1}
    inputs |= {"q_lengths": np.array([1, 0, 1], np.int32), "kv_lengths": np.array([0, 4, 7], np.int32)}
    inputs = {name: inputs[name] for name in graph.inputs}
    done = given_keys(graph)
    (node,) = (n for n in done.nodes if isinstance(n.op, Attention))
    shown = replace(done, outputs={**done.outputs, "q_given": node.operands[3], "kv_given": node.operands[4]})
    before, after = gd.evaluate(graph, inputs, gd.float64), gd.evaluate(shown, inputs, gd.float64)
    for output in before:
        np.testing.assert_array_equal(before[output], after[output])
    assert np.isneginf(before["lse"]).any()
    assert (after["kv_given"] >= 1).all()
    assert (after["q_given"] == 1).all()
    assert give_keys(done, taken).graph is done
    assert complete(done).graph is done


@pytest.mark.parametrize("held", [lambda g, n: g.maximum(n, 1), lambda g, n: g.clip(n, min=1, max=7)])
def test_a_graph_may_promise_keys(held: Callable[[gd.GraphBuilder, gd.Value], gd.Value]) -> None:
    g = gd.GraphBuilder()
    q, k = g.input("q", (3, 4, 1, 8), gd.float32), g.input("k", (3, 2, 7, 8), gd.float32)
    o = g.attention(q, k, k, kv_lengths=held(g, g.input("n", (3,), gd.int32)))
    assert "select" not in [n.op.label for n in given_keys(g.build({"o": o})).nodes]


def test_one_pair_of_lengths_may_stand_for_one_query_and_for_many(rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    q, k = g.input("q", (3, 4, 5, 8), gd.float32), g.input("k", (3, 2, 7, 8), gd.float32)
    lengths = {"q_lengths": np.array([1, 0, 1], np.int32), "kv_lengths": np.array([0, 1, 3], np.int32)}
    given = {name: g.constant(array) for name, array in lengths.items()}
    one = g.attention(g.slice(q, starts=(0, 0, 0, 0), stops=(3, 4, 1, 8)), k, k, **given)
    graph = g.build({"one": one, "many": g.attention(q, k, k, **given)})
    inputs = {n: rng.standard_normal(v.type.shape).astype(np.float32) for n, v in graph.inputs.items()}
    before, after = (gd.evaluate(each, inputs, gd.float64) for each in (graph, given_keys(graph)))
    for output in before:
        np.testing.assert_array_equal(before[output], after[output])


@pytest.mark.parametrize("names", [("kv_lengths",), ("q_lengths", "kv_lengths")])
def test_every_sequence_is_given_a_key(names: tuple[str, ...], rng: np.random.Generator) -> None:
    """A library leaves the results of one without any as they were."""
    graph = attention(**dict.fromkeys(names, (1,)))
    inputs = {n: rng.standard_normal(v.type.shape).astype(np.float32) for n, v in graph.inputs.items() if len(n) == 1}
    for keys in ([0, 0, 7], [0, 4, 0], [-3, 0, 1]):
        inputs["kv_lengths"] = np.array(keys, np.int32)
        if "q_lengths" in names:
            inputs["q_lengths"] = np.array([0, 3, -2], np.int32)
        done = given_keys(graph)
        node = done.nodes[-1]
        shown = replace(done, outputs={**done.outputs, "q_given": node.operands[3], "kv_given": node.operands[4]})
        before, after = gd.evaluate(graph, inputs, gd.float64), gd.evaluate(shown, inputs, gd.float64)
        for output in before:
            np.testing.assert_array_equal(before[output], after[output])
        assert (after["kv_given"] >= 1).all()
        assert (after["kv_given"] <= 7).all()
        assert (after["q_given"][np.array(keys) <= 0] == 0).all()


def test_long_sequences_are_not_hidden_by_an_overflow() -> None:
    extent = 1 << 16
    g = gd.GraphBuilder()
    q = g.input("q", (4, 1, extent, 8), gd.float32)
    done = given_keys(g.build({"o": g.attention(q, q, q, kv_lengths=g.input("n", (4,), gd.int32))}))
    lengths = done.nodes[-1].operands[3:]
    cut = drop_dead(replace(done, outputs=dict(zip(("q_given", "kv_given"), lengths, strict=True)))).graph
    inputs = {"q": np.zeros(cut.inputs["q"].type.shape, np.float32), "n": np.array([0, 1, 40000, extent], np.int32)}
    found = gd.evaluate(cut, inputs)
    assert found["q_given"].tolist() == [0, extent, extent, extent]
    assert found["kv_given"].tolist() == [1, 1, 40000, extent]


@pytest.mark.parametrize("queries", [1, 3])
def test_an_empty_cache_is_not_read(queries: int) -> None:
    g = gd.GraphBuilder()
    q, k = g.input("q", (1, 1, queries, 8), gd.float32), g.input("k", (1, 1, 4, 8), gd.float32)
    graph = g.build({"o": g.attention(q, k, k, kv_lengths=g.input("n", (1,), gd.int32))})
    inputs = {"q": np.ones((1, 1, queries, 8), np.float32), "k": np.full((1, 1, 4, 8), np.nan, np.float32)}
    inputs["n"] = np.zeros(1, np.int32)
    expanded = expand(given_keys(graph), lambda region: None).graph
    for found in (gd.evaluate(graph, inputs), gd.evaluate(expanded, inputs), gd.compile(graph, target="cpu")(inputs)):
        assert not found["o"].any()


def test_known_lengths_above_0_need_nothing_more() -> None:
    g = gd.GraphBuilder()
    q, k = g.input("q", (3, 4, 5, 8), gd.float32), g.input("k", (3, 4, 7, 8), gd.float32)
    keys = g.constant(np.array([1, 5, 2], np.int32))
    built = g.build({"o": g.attention(q, k, k, q_lengths=g.input("q_lengths", (3,), gd.int32), kv_lengths=keys)})
    assert [n.op.label for n in given_keys(built).nodes] == ["clip", "attention"]


def test_a_second_application_changes_nothing() -> None:
    once = given_keys(attention(q_lengths=(1,), kv_lengths=(1,)))
    assert give_keys(once, taken).graph is once
    assert complete(once).graph is once


def test_what_no_engine_takes_whole_stays() -> None:
    graph = complete(attention(kv_lengths=(1,))).graph
    assert give_keys(graph, lambda region: None).graph is graph


def test_two_attentions_share_their_lengths() -> None:
    g = gd.GraphBuilder()
    q, n = g.input("q", (3, 4, 5, 8), gd.float32), g.input("n", (3,), gd.int32)
    o = g.attention(q, q, q, kv_lengths=n)
    graph = given_keys(g.build({"o": g.attention(o, o, o, kv_lengths=n)}))
    assert [node.op.label for node in graph.nodes].count("maximum") == 1
