"""What is known of integers holds for every draw of them."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.passes.intervals import ANYTHING, interval

KNOWN = {
    "clip": (lambda g, n: g.clip(n, min=0, max=9), (0, 9)),
    "clip from below": (lambda g, n: g.clip(n, min=1), (1, np.inf)),
    "counts": (lambda g, n: g.minimum(g.clip(n, min=0, max=9), 1), (0, 1)),
    "their product": (lambda g, n: g.mul(g.minimum(g.clip(n, min=0, max=9), 1), 70), (0, 70)),
    "greater of": (lambda g, n: g.maximum(n, 1), (1, np.inf)),
    "of two": (lambda g, n: g.maximum(g.clip(n, min=-3, max=4), g.clip(n, min=2, max=3)), (2, 4)),
    "negative product": (lambda g, n: g.mul(g.clip(n, min=-3, max=2), -5), (-10, 15)),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known(name: str, rng: np.random.Generator) -> None:
    make, wanted = KNOWN[name]
    g = gd.GraphBuilder()
    y = make(g, g.input("n", (64,), gd.int32))
    graph = g.build({"y": y})
    low, high = found = interval(graph, graph.outputs["y"])
    assert found == wanted
    for scale in (3, 30, 2**31):
        drawn = gd.evaluate(graph, {"n": rng.integers(-scale, scale, 64).astype(np.int32)})["y"]
        assert low <= drawn.min()
        assert drawn.max() <= high


@pytest.mark.parametrize(
    "make",
    [
        lambda g, n: n,
        lambda g, n: g.mul(n, 16),
        lambda g, n: g.mul(g.clip(n, min=0, max=65536), 65536),  # wraps around
        lambda g, n: g.add(n, 1),
        lambda g, n: g.mul(g.minimum(n, 1), 0),
    ],
)
def test_unknown(make: object) -> None:
    g = gd.GraphBuilder()
    graph = g.build({"y": make(g, g.input("n", (4,), gd.int32))})  # type: ignore[operator]
    assert interval(graph, graph.outputs["y"]) == ANYTHING


def test_a_long_chain_is_given_up() -> None:
    g = gd.GraphBuilder()
    y = g.clip(g.input("n", (4,), gd.int32), min=0, max=1)
    for _ in range(2000):
        y = g.minimum(y, 5)
    graph = g.build({"y": y})
    assert interval(graph, graph.outputs["y"])[1] == 5
