"""A "no" that many regions share is told in each region's own names, as the engine would say it there."""

import re

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.compiler import Problem, Selector, fitted
from graphdnn.engines.manifest import engines_for
from graphdnn.ir.graph import Graph
from graphdnn.report.user_words import own_answer
from tests.models.convolutional import NETWORKS
from tests.passes.random_graphs import random_graph

SPELLED = re.compile(r":[\d,]+(?=\])")
"""The strides of a type as messages show it."""


def check(graph: Graph) -> int:
    """Compares every "no" with what the engine says when asked anew; how many of them had to be told in other names.

    Strides that are row-major may be spelled or not: passes ask before layouts are decided.
    """
    target, options = gd.Target.named("h200"), gd.CompileOptions()
    selector = Selector(engines_for(target.kind, ()), target, options.policy())
    made, _ = fitted(Problem(graph, selector, None, options))
    engines = {e.name: e for e in selector.engines}
    renamed = 0
    for proposal in made.proposals:
        for name, answer in selector.support.answers(proposal.region).items():
            if isinstance(answer, Decline):
                own = own_answer(selector, name, proposal.region, answer)
                asked = engines[name].supports(proposal.region, target, selector.policy)
                assert isinstance(asked, Decline)
                assert (own.code, own.fix) == (asked.code, asked.fix)
                assert SPELLED.sub("", own.reason) == SPELLED.sub("", asked.reason)
                renamed += own != answer
    return renamed


@pytest.mark.parametrize("name", ["resnet50", "mobilenet", "u_net_block"])
def test_in_networks(name: str) -> None:
    assert check(NETWORKS[name].graph(2)) > 5


@pytest.mark.parametrize("number", range(12))
def test_in_random_graphs(number: int, seed: int) -> None:
    check(random_graph(np.random.default_rng([seed, number]), steps=20))


@pytest.mark.parametrize("name", ["two words", "a%b", "%x", "dot.", "-", "über.1"])
def test_with_names_that_no_sentence_can_tell_apart(name: str) -> None:
    g = gd.GraphBuilder()
    x = g.input(name, (4, 64), gd.float16)
    y = g.softmax(x, name=f"{name} first")
    for i in range(3):
        y = g.softmax(g.add(y, x, name=f"{name} sum {i}"), name=f"{name} {i}")
    check(g.build({"y": y}))


def test_views_name_what_they_lie_in() -> None:
    """Two misaligned views of two buffers: a fix names the buffer, which stands outside the region."""
    g = gd.GraphBuilder()
    ys = {}
    for side in ("left", "right"):
        x = g.input(side, (4, 64 * 64 + 8), gd.float16)
        part = g.reshape(g.slice(g.reshape(x, (4 * (64 * 64 + 8),)), (4,), (4 + 64 * 64,)), (64, 64))
        ys[f"y {side}"] = g.matmul(part, g.constant(np.ones((64, 64), np.float16)))
    check(g.build(ys))


@pytest.mark.parametrize("name", ["resnet50", "mobilenet", "u_net_block"])
def test_what_passes_changed_in_networks_is_told_without_names_that_they_made(name: str) -> None:
    assert made_names_in_changes(NETWORKS[name].graph(2)) == set()


@pytest.mark.parametrize("number", range(12))
def test_what_passes_changed_in_random_graphs_is_told_without_names_that_they_made(number: int, seed: int) -> None:
    assert made_names_in_changes(random_graph(np.random.default_rng([seed, number]), steps=20)) == set()


def made_names_in_changes(graph: Graph) -> set[str]:
    """Names with a number that stand in the passes' sentences and are of the prepared graph, not of the user's."""
    target, options = gd.Target.named("h200"), gd.CompileOptions()
    selector = Selector(engines_for(target.kind, ()), target, options.policy())
    made, _ = fitted(Problem(graph, selector, None, options))
    said = " ".join(change for record in made.records for change in record.changes)
    words = set(re.findall(r"[\w.]*_\d+(?:\.\d+)?", said))
    return words & (names(made.prepared) - names(graph))


def names(graph: Graph) -> set[str]:
    nodes = {n.name for n in graph.nodes} | {v.name for n in graph.nodes for v in n.results}
    return nodes | set(graph.inputs) | set(graph.constants) | set(graph.states)


def test_slices_of_merged_products_are_called_after_the_products_they_replace() -> None:
    """Of the gate and the up projection, which become one product, each reader names the one it reads."""
    g = gd.GraphBuilder()
    x = g.input("x", (1, 512, 1024), gd.float16)
    w = [g.constant(np.full((1024, 4096), value, np.float16)) for value in (0.5, 0.25)]
    y = g.mul(g.silu(g.matmul(x, w[0], name="gate"), name="act"), g.matmul(x, w[1], name="up"), name="gated")
    report = gd.compile(g.build({"y": g.reduce_max(y, axes=-1)}), target=gd.Target.named("h200")).report
    assert any(p.name == "merge" and p.changes for p in report.passes)
    reasons = {c.nodes: c.reason for c in report.candidates if c.engine == "cudnn" and c.code == "layout"}
    for nodes, name in ((("act",), "gate"), (("gated",), "up")):
        assert f"%{name} has gaps between its elements (strides (4194304, 8192, 1))" in reasons[nodes]
