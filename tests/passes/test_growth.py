"""What planning a large graph takes, in counts: regions a node, questions a region, steps of the search a node.

Seconds follow from these and from what one question costs: pointwise regions are priced without their kernels.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines.answers import ANSWERS
from graphdnn.engines.nvrtc import demand
from graphdnn.engines.nvrtc.engine import NvrtcEngine
from graphdnn.ir.graph import Graph
from graphdnn.passes.cover_search import CoverSearch
from graphdnn.passes.fuse import propose
from graphdnn.passes.layout.assign import assign_layouts
from tests.planned import H200

SHAPE = (64, 256)


def chain(nodes: int) -> Graph:
    g = gd.GraphBuilder()
    x = g.input("x", SHAPE, gd.float16)
    for index in range(nodes):
        x = (g.relu, g.tanh, g.sigmoid)[index % 3](x)
    return g.build({"y": x})


def web(nodes: int) -> Graph:
    """Pointwise nodes that read any two values made before them; what nobody reads leaves the graph."""
    rng = np.random.default_rng(nodes)
    g = gd.GraphBuilder()
    pool = [g.input(f"x{i}", SHAPE, gd.float16) for i in range(4)]
    read: set[gd.Value] = set()
    for _ in range(nodes):
        a, b = (pool[int(rng.integers(len(pool)))] for _ in range(2))
        is_one = rng.random() < 0.4
        pool.append(g.tanh(a) if is_one else a + b)
        read |= {a} if is_one else {a, b}
    return g.build({f"y{i}": v for i, v in enumerate(v for v in pool[4:] if v not in read)})


GRAPHS = pytest.mark.parametrize("make", [chain, web])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of a few functions is called, what earlier compilations were answered forgotten."""
    counts: Counter[str] = Counter()

    def count(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def called(*args: object) -> object:
            counts[name] += 1
            return real(*args)

        monkeypatch.setattr(owner, name, called)

    count(NvrtcEngine, "supports")
    count(CoverSearch, "extend")
    count(demand, "emit_node")
    ANSWERS.clear()
    return counts


@GRAPHS
def test_proposals_grow_with_the_graph(make: Callable[[int], Graph]) -> None:
    small, large = (len(propose(assign_layouts(make(n)).graph)) for n in (150, 600))
    assert large < 4.4 * small
    assert large < 20 * 600


@GRAPHS
def test_each_structure_is_asked_about_once(make: Callable[[int], Graph], counted: Counter[str]) -> None:
    graph = make(150)
    report = gd.compile(graph, H200).report
    asked = counted["supports"]
    structures = {p.region.key for p in propose(assign_layouts(graph).graph)}
    assert len(report.candidates) >= asked
    assert len(structures) * 0.9 < asked < len(structures) * 1.1


@GRAPHS
def test_no_kernel_is_written_to_price_a_region(make: Callable[[int], Graph], counted: Counter[str]) -> None:
    gd.compile(make(60), H200)
    assert counted["supports"]
    assert not counted["emit_node"]


@GRAPHS
def test_steps_of_the_search_grow_with_the_graph(make: Callable[[int], Graph], counted: Counter[str]) -> None:
    steps = []
    for nodes in (150, 600):
        gd.compile(make(nodes), H200)
        steps.append(counted["extend"])
        counted.clear()
    assert steps[1] < 5 * steps[0]
    assert steps[1] < 400 * 600
