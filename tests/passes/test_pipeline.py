"""The passes together: what holds whichever of them a user leaves out."""

import pytest

import graphdnn as gd
from graphdnn.passes.pipeline import OPTIONAL_PASSES, prepare


@pytest.mark.parametrize("disabled", [(), ("canonicalize",), OPTIONAL_PASSES])
def test_nodes_that_nothing_reads_reach_no_engine(disabled: tuple[str, ...]) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 3), gd.float32)
    g.softmax(g.tanh(x, name="unread too"), axis=0, name="unread")
    asked = []
    graph, _ = prepare(g.build({"y": g.softmax(x, name="read")}), lambda region: asked.append(region) or 1.0, disabled)
    assert {o for n in graph.nodes for o in n.origins} == {"read"}
    assert all(region.outputs for region in asked)
