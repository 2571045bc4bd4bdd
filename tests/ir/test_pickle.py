"""Graphs go to other processes by pickle, and are not copied, since nothing changes them."""

import copy
import multiprocessing
import pickle

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.graph import Graph


def block(size: int = 40) -> gd.Graph:
    g = gd.GraphBuilder("block")
    w = g.constant(np.random.default_rng(1).standard_normal((size, 24)).astype(np.float16), name="w")
    small = g.constant(np.array([1.5, np.nan, np.inf], np.float32), name="small")
    k = g.state("k", (3,), gd.float32)
    y = g.matmul(g.input("x", (7, size), gd.float16, strides=(1, 7)), w, name="mm")
    return g.build({"y": y * 2.0, "s": g.add(small, k)}, {"k": small}, strides={"y": (1, 7)})


def test_a_graph_comes_back_with_its_data() -> None:
    made = block()
    again = pickle.loads(pickle.dumps(made))
    assert str(again) == str(made)
    assert again.to_json() == made.to_json()
    x = {"x": np.random.default_rng(2).standard_normal((7, 40)).astype(np.float16)}
    found, expected = gd.evaluate(again, x), gd.evaluate(made, x)
    assert all(np.array_equal(found[name], expected[name], equal_nan=True) for name in expected)


def test_a_constant_without_data_stays_without() -> None:
    made = Graph.from_json(block().to_json())
    again = pickle.loads(pickle.dumps(made))
    assert not again.payloads["w"].has_data
    assert again.payloads["small"].has_data
    assert again.payloads["w"].digest == made.payloads["w"].digest


def test_a_graph_behind_the_passes_is_pickled_too() -> None:
    """With constants that are computed from others, whose digests are not of their content."""
    g = gd.GraphBuilder("folded")
    w = g.constant(np.random.default_rng(1).standard_normal((40, 24)).astype(np.float32))
    made = gd.compile(
        g.build({"y": g.matmul(g.input("x", (7, 40), gd.float32), g.exp(w * 2.0))}), target="cpu"
    ).compilation.prepared
    assert any(payload._compute for payload in made.payloads.values())
    again = pickle.loads(pickle.dumps(made))
    x = {"x": np.ones((7, 40), np.float32)}
    np.testing.assert_array_equal(gd.evaluate(again, x)["y"], gd.evaluate(made, x)["y"])


def test_a_copy_is_the_graph_itself() -> None:
    made = block()
    assert copy.copy(made) is made
    assert copy.deepcopy([made])[0] is made


@pytest.mark.slow
def test_another_process_evaluates_it() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        out = pool.apply(gd.evaluate, (block(), {"x": np.ones((7, 40), np.float16)}))
    assert out["y"].shape == (7, 24)
