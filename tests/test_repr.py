"""What a notebook or a debugger shows of an object: one line that says what it is."""

import re
from typing import Any

import numpy as np
import pytest

import graphdnn as gd

H200 = gd.Target.named("h200")


def builder() -> gd.GraphBuilder:
    g = gd.GraphBuilder("block")
    w = g.constant(np.ones((8, 4), np.float32), name="w")
    g.relu(g.matmul(g.input("x", (2, 8), gd.float32), w))
    return g


def graph() -> gd.Graph:
    g = gd.GraphBuilder("block")
    w = g.constant(np.ones((8, 4), np.float32), name="w")
    k = g.state("k", (2, 4), gd.float32)
    y = g.relu(g.matmul(g.input("x", (2, 8), gd.float32), w))
    return g.build({"y": g.add(y, k)}, {"k": y})


def exe(target: Any = "cpu") -> gd.Executable:
    return gd.compile(graph(), target=target)


def jitted() -> Any:
    f = gd.jit(lambda g, x, y=None: {"z": g.relu(x)}, target="cpu")
    f({"x": np.ones(3, np.float32)})
    return f


X = {"x": np.ones((2, 8), np.float32)}
SIGNATURE = r"x f32\[2x8(:8,1)?\] -> y f32\[2x4\]"
"""Of a graph behind the passes, strides are set."""

SHOWN = {
    "builder": (builder, r"<GraphBuilder block: 1 input, 1 constant, 2 nodes>"),
    "empty builder": (gd.GraphBuilder, r"<GraphBuilder graph: empty>"),
    "graph": (graph, rf"<Graph block: 3 nodes; {SIGNATURE}>"),
    "value": (lambda: graph().inputs["x"], r"<Value %x: f32\[2x8\]>"),
    "node": (lambda: graph().nodes[0], r"<Node matmul %matmul: 2 operands -> f32\[2x4\]>"),
    "constant": (lambda: graph().payloads["w"], r"<Payload f32\[8x4\]>"),
    "executable": (exe, rf"<Executable block for cpu: \d kernels? in \d regions?; {SIGNATURE}>"),
    "described": (lambda: exe(H200), rf"<Executable block for h200 \(described\): \d regions?; {SIGNATURE}>"),
    "context": (lambda: exe().context(), rf"<Executable block for cpu: .*{SIGNATURE}>"),
    "states": (lambda: exe().state, r"<states of block: k f32\[2x4(:4,1)?\]>"),
    "bound": (lambda: exe().bind(X), rf"<bound call of block on cpu: {SIGNATURE}>"),
    "jitted": (jitted, r"<jit lambda\(x, y\) for cpu: 1 build kept>"),
    "report": (
        lambda: exe(H200).report,
        r"<CompileReport block for h200 \(described\): \d+ kernels? \(unfused 3\) in \d+ regions?, "
        r"\d+ candidates, estimated \d+\.\d us>",
    ),
}


@pytest.mark.parametrize("what", SHOWN)
def test_a_line_that_says_what_it_is(what: str) -> None:
    make, pattern = SHOWN[what]
    shown = repr(make())
    assert re.fullmatch(pattern, shown), shown


def test_a_report_prints_its_line_and_a_region_not_its_alternatives() -> None:
    report = exe(H200).report
    assert str(report) == repr(report)
    assert report.regions[0].alternatives
    assert len(repr(report.regions[0])) < 1000


def test_of_many_inputs_the_first_are_shown() -> None:
    g = gd.GraphBuilder()
    xs = [g.input(f"x{i}", (3,), gd.float32) for i in range(100)]
    made = g.build({"y": g.concat(xs, axis=0)})
    assert (
        repr(made)
        == "<Graph graph: 1 node; x0 f32[3], x1 f32[3], x2 f32[3], x3 f32[3], ... (100 in all) -> y f32[300]>"
    )


def test_an_executable_shows_itself_without_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    made = exe(H200)
    monkeypatch.setattr(type(made), "report", None)
    assert "block" in repr(made)
