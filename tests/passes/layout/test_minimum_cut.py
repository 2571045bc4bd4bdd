"""The minimum cut of the layout pass: against networkx, ties and edges without limit included."""

import time

import networkx as nx
import numpy as np
import pytest

from graphdnn.passes.layout.minimum_cut import source_side

SOURCE, SINK = -1, -2


def random_network(rng: np.random.Generator, nodes: int, edges: int, largest: int) -> dict[tuple[int, int], int | None]:
    """Small capacities, so that there are many cuts of one size; edges without limit between inner nodes only."""
    inner = range(nodes)
    found: dict[tuple[int, int], int | None] = {}
    for _ in range(edges):
        a, b = rng.choice([SOURCE, SINK, *inner], 2, replace=False).tolist()
        is_inner = a >= 0 and b >= 0
        found[a, b] = None if is_inner and rng.random() < 0.3 else int(rng.integers(0, largest))
    return found


def by_networkx(capacities: dict[tuple[int, int], int | None]) -> tuple[int, set[int]]:
    network = nx.DiGraph()
    network.add_nodes_from((SOURCE, SINK))
    for (a, b), capacity in capacities.items():
        network.add_edge(a, b, **({} if capacity is None else {"capacity": capacity}))
    size, (side, _) = nx.minimum_cut(network, SOURCE, SINK)
    return size, side


def size_of(capacities: dict[tuple[int, int], int | None], side: set[int]) -> float:
    crossing = [c for (a, b), c in capacities.items() if a in side and b not in side]
    return float("inf") if None in crossing else sum(c for c in crossing if c is not None)


@pytest.mark.parametrize("largest", [2, 4, 1 << 40])
@pytest.mark.parametrize("number", range(60))
def test_equals_networkx(number: int, largest: int, rng: np.random.Generator) -> None:
    nodes = 2 + number % 12
    network = random_network(rng, nodes, int(rng.integers(nodes, 5 * nodes)), largest)
    size, side = by_networkx(network)
    found = source_side(network, SOURCE, SINK)
    assert found == side
    assert size_of(network, found) == size


def test_of_equal_cuts_the_one_nearest_the_sink_is_taken() -> None:
    chain: dict[tuple[int, int], int | None] = {(SOURCE, 0): 3, (0, 1): 3, (1, 2): 3, (2, SINK): 3}
    assert source_side(chain, SOURCE, SINK) == {SOURCE, 0, 1, 2}


def test_what_hangs_on_nothing_is_on_the_sources_side() -> None:
    assert source_side({(0, 1): None}, SOURCE, SINK) == {SOURCE, 0, 1}
    assert source_side({}, SOURCE, SINK) == {SOURCE}


def test_long_chains_take_linear_time() -> None:
    """Two thousand values, each with a reader on either side; no recursion."""
    edges: dict[tuple[int, int], int | None] = {}
    for i in range(2000):
        edges[SOURCE, i] = 2
        edges[i, i + 1] = edges[i + 1, i] = 1
        edges[i, SINK] = i % 3
    started = time.process_time()
    source_side(edges, SOURCE, SINK)
    assert time.process_time() - started < 2
