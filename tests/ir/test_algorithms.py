"""The networkx view: every node, edge and boundary of a graph, two edges where an operand is read twice."""

import networkx as nx
import numpy as np
import pytest

import graphdnn as gd


def test_the_view_has_every_operand_as_an_edge() -> None:
    g = gd.GraphBuilder("twice")
    x = g.input("x", (3, 5), gd.float32)
    w = g.constant(np.ones(5, np.float32), name="w")
    s = g.state("s", (3, 5), gd.float32)
    doubled = g.add(x, x, name="doubled")
    y = g.mul(g.add(doubled, s, name="summed"), w, name="scaled")
    view = g.build({"y": g.add(y, 1.0, name="shifted")}, updates={"s": doubled}).to_networkx()
    assert view.number_of_edges(("input", "x"), ("node", "doubled")) == 2
    assert sorted(e["operand"] for e in view[("input", "x")][("node", "doubled")].values()) == [0, 1]
    assert set(view.predecessors(("node", "summed"))) == {("node", "doubled"), ("state", "s")}
    assert set(view.predecessors(("node", "scaled"))) == {("node", "summed"), ("constant", "w")}
    assert view.in_degree(("node", "shifted")) == 1  # a number is no operand
    assert set(view.predecessors(("output", "y"))) == {("node", "shifted")}
    assert set(view.predecessors(("update", "s"))) == {("node", "doubled")}
    assert view.nodes[("node", "scaled")] == {"op": "mul", "type": "f32[3x5]"}
    assert nx.is_directed_acyclic_graph(view)


@pytest.mark.parametrize("seed", range(5))
def test_ancestors_agree(seed: int) -> None:
    graph = random_graph(np.random.default_rng(seed))
    view = graph.to_networkx()
    for node, mask in graph.ancestors.items():
        found = {key[1] for key in nx.ancestors(view, ("node", node.name)) if key[0] == "node"}
        assert found == {n.name for i, n in enumerate(graph.nodes) if mask >> i & 1}


def random_graph(rng: np.random.Generator) -> gd.Graph:
    """Thirty sums of earlier values."""
    g = gd.GraphBuilder("random")
    values = [g.input("x", (2, 3), gd.float32)]
    for _ in range(30):
        a, b = rng.integers(0, len(values), 2)
        values.append(g.add(values[a], values[b]))
    return g.build({f"y{i}": v for i, v in enumerate(values[-3:])})
