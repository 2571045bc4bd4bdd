"""Properties of the rewriting passes on seeded random graphs."""

from functools import cache, partial

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.verify import verify
from graphdnn.passes.canonicalize import canonicalize
from graphdnn.passes.expand import expand
from graphdnn.passes.fold import fold
from graphdnn.passes.promote import promote
from graphdnn.passes.raise_ops import raise_ops
from graphdnn.passes.sink import sink_views
from tests.passes.random_graphs import assert_close, assert_same_meaning, random_arrays, random_graph, results

PASSES = {
    "promote": promote,
    "canonicalize": canonicalize,
    "raise": partial(raise_ops, ask=lambda region: 1.0),
    "fold": fold,
    "expand": partial(expand, ask=lambda region: None),
    "sink": sink_views,
}
GRAPHS = 100


@cache
def drawn(seed: int):
    """Random graphs with arrays and what they give; half of the graphs in canonical form."""
    cases = []
    for index in range(GRAPHS):
        rng = np.random.default_rng([seed, index])
        graph = random_graph(rng)
        graph = canonicalize(graph).graph if index % 2 else graph
        arrays = random_arrays(graph, rng)
        cases.append((graph, arrays, results(graph, arrays)))
    return cases


@pytest.mark.parametrize("name", PASSES)
def test_meaning_is_kept_and_a_second_application_changes_nothing(name: str, seed: int):
    changed = 0
    for graph, arrays, wanted in drawn(seed):
        done = PASSES[name](graph)
        if done.graph is not graph:
            verify(done.graph)
            assert_close(wanted, results(done.graph, arrays))
        again = PASSES[name](done.graph)
        assert (again.graph is done.graph, again.changes) == (True, ())
        assert bool(done.changes) == (done.graph is not graph)
        changed += bool(done.changes)
    assert changed >= {"promote": 0, "sink": GRAPHS // 10}.get(name, GRAPHS // 4)


@pytest.mark.parametrize("name", PASSES)
def test_origins_are_names_of_the_users_nodes(name: str, seed: int):
    """Nothing is made up, and what an output depends on keeps a node that does its work."""
    for graph, _, _ in drawn(seed)[:50]:
        done = PASSES[name](graph).graph
        known = {o for n in graph.nodes for o in n.origins}
        found = {o for n in done.nodes for o in n.origins}
        assert found <= known
        assert all(n.origins for n in done.nodes)
        if name in ("promote", "raise", "fold"):  # the others leave out what does nothing, or is a constant
            assert needed(graph) <= found


def needed(graph: gd.Graph) -> set[str]:
    """Origins of the nodes that outputs and next states depend on."""
    mask = 0
    for value in graph.escaping:
        node = graph.producer.get(value)
        if node is not None:
            mask |= graph.ancestors[node] | 1 << graph.position[node]
    return {o for n in graph.nodes if mask >> graph.position[n] & 1 for o in n.origins}


def test_the_passes_in_their_order(seed: int):
    for graph, arrays, wanted in drawn(seed)[:50]:
        done = graph
        for run in PASSES.values():
            done = run(done).graph
        verify(done)
        assert_close(wanted, results(done, arrays), 1e-11)
        assert list(done.outputs) == list(graph.outputs)
        assert [v.type for v in done.outputs.values()] == [v.type for v in graph.outputs.values()]
        assert list(done.inputs) == list(graph.inputs)
        assert list(done.states) == list(graph.states)
        assert list(done.updates) == list(graph.updates)


@pytest.mark.parametrize("dtype", [gd.float32, gd.float16, gd.bfloat16])
def test_narrow_types_keep_their_types(dtype, seed: int):
    for index in range(25):
        graph = random_graph(np.random.default_rng([seed, index]), dtype=dtype)
        done = graph
        for run in PASSES.values():
            done = run(done).graph
        assert [v.type for v in done.outputs.values()] == [v.type for v in graph.outputs.values()]


@pytest.mark.slow
@pytest.mark.parametrize("name", PASSES)
def test_many_large_graphs(name: str, seed: int):
    for index in range(60):
        rng = np.random.default_rng([seed, index, 7])
        graph = random_graph(rng, steps=60)
        done = PASSES[name](graph)
        assert_same_meaning(graph, done.graph, rng, 1e-10)
        assert PASSES[name](done.graph).graph is done.graph
