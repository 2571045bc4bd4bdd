"""Every change of element types that a report proposes is accepted when it is made in the user's graph."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.manifest import load_engine
from graphdnn.ir.graph import Graph
from graphdnn.ir.ops.movement import Convert
from graphdnn.ir.ops.pointwise import Cast
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType
from graphdnn.report.model import CandidateReport, CompileReport
from tests.passes.random_graphs import FAMILIES, Draw, random_graph
from tests.planned import H200, answers, h200_report
from tests.report.changed import ADDED, Change

FLOATS = (gd.float16, gd.float32, gd.float64, gd.bfloat16)


def cast(draw: Draw) -> gd.Value | None:
    x = draw.pick()
    return None if x is None else draw.g.cast(x, FLOATS[int(draw.rng.integers(len(FLOATS)))])


def twin_products(draw: Draw) -> list[gd.Value] | None:
    """Two products of one matrix, which may be merged."""
    x = draw.pick(int(draw.rng.integers(2, 4)))
    n = draw.extent()
    return None if x is None else [draw.g.matmul(x, draw.weight((x.type.shape[-1], n))) for _ in range(2)]


def attention(draw: Draw) -> gd.Value:
    shape = (2, 2, draw.extent(), int(draw.rng.choice([8, 36, 64])))
    q, k, v = (draw.g.input(f"{n}{len(draw.pool)}", shape, draw.dtype) for n in "qkv")
    return draw.g.attention(q, k, v)


def check(graph: Graph) -> int:
    """Makes each proposed change of types; how many there were."""
    report = h200_report(graph)
    proposed = {(c.engine, c.nodes, c.pattern): c for c in report.candidates if c.fix and c.fix.attribute == "dtype"}
    for c in proposed.values():
        check_one(graph, c)
    return len(proposed)


def check_one(graph: Graph, asked: CandidateReport) -> None:
    assert asked.fix is not None
    changed = Change(graph, asked.nodes, asked.fix).made()
    exe = gd.compile(changed, target=H200)
    wanted = set(asked.nodes)
    found = [c for c in exe.report.candidates if c.engine == asked.engine]
    said = [(c.code, c.reason) for c in found if wanted == {n for n in c.nodes if not n.startswith(ADDED)}]
    if not said and does_nothing_now(changed, wanted):
        return
    if not said:
        answer = asked_alone(exe.compilation.prepared, asked.engine, wanted)
        said = [(answer.code, answer.reason) if isinstance(answer, Decline) else (None, "")]
    # How tensors lie is decided anew for the changed graph.
    assert any(code in (None, Code.LAYOUT) for code, _ in said), f"{asked.nodes}: {asked.fix.sentence}: {said}"


def asked_alone(prepared: Graph, engine: str, nodes: set[str]) -> Support | Decline:
    """What an engine says to the work of these nodes, which was not among the proposals: their number is bounded."""
    inside = [n for n in prepared.nodes if nodes.intersection(n.origins) and not isinstance(n.op, Convert)]
    return load_engine(engine).supports(Region.of(prepared, inside), H200, Policy())


def does_nothing_now(graph: Graph, nodes: set[str]) -> bool:
    """Whether some of the work is gone with the change: a cast to the type that is there, and back."""
    return any(isinstance(n.op, Cast) or n.op.label == "identity" for n in graph.nodes if n.name in nodes)


@pytest.mark.parametrize("number", range(40))
def test_in_random_graphs(number: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng([seed, number])
    if number % 4:
        for name, action in (("cast", cast), ("twins", twin_products), ("attention", attention)):
            monkeypatch.setitem(FAMILIES, name, action)
    check(random_graph(rng, dtype=FLOATS[number % len(FLOATS)], families=(*FAMILIES, *list(FAMILIES)[11:])))


def whole(report: CompileReport, *nodes: str) -> CandidateReport:
    (found,) = answers(report, "cudnn", *nodes)
    return found


def test_merged_twins_are_changed_together() -> None:
    """What is computed once is two tensors of the user's, and with one of them changed the other would be too wide."""
    g = gd.GraphBuilder("twins")
    x = g.input("x", (8, 64), gd.float64)
    left, right = g.softmax(x, name="left"), g.softmax(x, name="right")
    graph = g.build({"y": g.tanh(left, name="a"), "z": g.cos(right, name="b")})
    asked = whole(h200_report(graph), "a")
    assert asked.fix is not None
    assert asked.fix.sentence == "change dtype of left from float64 to float16"
    check(graph)
    both = g.build({"y": g.minimum(left, right, name="c")})
    asked = whole(h200_report(both), "c")
    assert asked.fix is not None
    assert asked.fix.sentence == "change dtype of left and right from float64 to float16"
    check(both)


def test_casts_to_a_wide_type_are_named_with_what_is_read() -> None:
    g = gd.GraphBuilder("casts")
    x, w = g.input("x", (64, 64), gd.float16), g.input("w", (64, 64), gd.float64)
    wide = g.cast(x, gd.float64, name="wide")
    graph = g.build({"y": g.matmul(wide, w, name="product")})
    asked = whole(h200_report(graph), "wide", "product")
    assert asked.fix is not None
    assert asked.fix.sentence == "change dtype of w and wide from float64 to float16"
    check(graph)


def test_nothing_is_proposed_where_the_product_would_be_in_float32() -> None:
    """With x in float16 the weights, float32 and part of a float64 product until then, make it a float32 product."""
    g = gd.GraphBuilder("promoted")
    x, w = g.input("x", (64, 64), gd.float64), g.input("w", (64, 64), gd.float32)
    report = h200_report(g.build({"y": g.matmul(x, w, name="product")}))
    assert [c.fix for c in answers(report, "cudnn", "product")] == [None] * 3


def test_nothing_is_proposed_for_a_part_of_an_op() -> None:
    """The products of a float64 attention: in float16 it would run whole."""
    g = gd.GraphBuilder("parts")
    q, k, v = (g.input(n, (1, 2, 64, 64), gd.float64) for n in "qkv")
    report = h200_report(g.build({"y": g.attention(q, k, v, name="att")}))
    fixes = {(c.engine, c.pattern) for c in report.candidates if c.fix is not None}
    assert fixes == {("cudnn", "attention")}


@pytest.mark.parametrize("dtype", [gd.float64, gd.float32])
def test_a_state_of_a_wide_type_is_changed_by_its_name(dtype: DType) -> None:
    g = gd.GraphBuilder("kept")
    seen = g.state("seen", (64, 64), dtype)
    now = g.add(seen, g.input("x", (64, 64), dtype), name="sum")
    graph = g.build({"y": g.relu(now, name="relu")}, {"seen": now})
    assert check(graph) == (dtype == gd.float64) * 3


def test_a_norm_needs_two_changes_or_is_told_one() -> None:
    """Rows of 105 and a float32 scale: neither change suffices alone, so both reasons stand and none is proposed."""

    def asked(length: int, dtype: DType) -> CandidateReport:
        g = gd.GraphBuilder("norm")
        x, r = (g.input(n, (8, length), gd.float16) for n in "xr")
        scale = g.input("scale", (length,), dtype)
        return whole(
            h200_report(g.build({"y": g.rms_norm(g.add(x, r, name="sum"), scale, name="norm")})), "sum", "norm"
        )

    both = asked(105, gd.float32)
    assert both.fix is None
    assert "rows of 105" in both.reason
    assert "one type" in both.reason
    for one, attribute in ((asked(105, gd.float16), "row length"), (asked(128, gd.float32), "dtype")):
        assert one.fix is not None
        assert one.fix.attribute == attribute
    assert asked(128, gd.float16).code is None
