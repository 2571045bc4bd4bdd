"""Right numbers (cases N1 to N11): on the CPU exactly as said, and what the plan for an H200 says of them."""

import numpy as np
import pytest

import graphdnn as gd
from tests.cases import graphs
from tests.cases.graphs import CASES, Case
from tests.numbers import relative_error
from tests.planned import answers, h200_report, ops


@pytest.mark.parametrize("case", CASES, ids=str)
def test_right_on_the_cpu(case: Case, rng: np.random.Generator) -> None:
    graph = case.build()
    inputs = case.inputs(graph, rng)
    case.check(graph, inputs, gd.compile(graph, target="cpu")(inputs))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_is_planned_for_an_h200(case: Case) -> None:
    """Every node that computes is done by some region, and float32 is float32."""
    graph = case.build()
    report = h200_report(graph)
    assert {n.name for n in graph.nodes} >= {n for r in report.regions for n in r.nodes}
    needed = {n.name for n in graph.nodes if any(v in graph.escaping for v in n.results)}
    assert needed <= {n for r in report.regions for n in r.nodes}
    assert "tf32" not in {r.precision for r in report.regions}


@pytest.mark.parametrize("causal", ["top_left", "bottom_right"])
def test_n1_alignment_decides_how_attention_is_told(causal: str) -> None:
    """cuDNN takes both alignments where there are no more queries than keys, and what the other hides as a bias."""
    for queries, keys in ((2, 4), (4, 2)):
        values = [float(i) for i in range(keys)]
        report = h200_report(graphs.uniform_attention(queries, values, gd.float16, 8, causal=causal))
        assert [(r.pattern, r.engine) for r in report.regions] == [("attention", "cudnn")]
        hidden = [change for p in report.passes for change in p.changes if "added to the scores" in change]
        assert len(hidden) == (causal == "bottom_right" and queries > keys)


def test_n4_the_constant_is_read_in_full_size() -> None:
    report = h200_report(graphs.depthwise_plus_constant())
    region = next(r for r in report.regions if "add" in r.nodes)
    assert region.read_bytes >= 8 * 4 + 8 * 4  # what is added to, and the constant
    assert not [change for p in report.passes if p.name == "fold" for change in p.changes]


@pytest.mark.parametrize("shape", [(2, 8, 1, 1), (1, 8, 16, 16)])
def test_n5_a_broadcast_that_cudnn_lacks_is_declined_by_its_operand(shape: tuple[int, ...]) -> None:
    report = h200_report(graphs.broadcast_residual(shape, last=True))
    (answer,) = answers(report, "cudnn", "conv", "add")
    assert (answer.verdict, answer.code) == ("declined", "broadcast")
    assert "%r" in answer.reason
    assert "x".join(map(str, shape)) in answer.reason


def test_n6_a_scale_that_widens_stays_outside_the_norm() -> None:
    report = h200_report(graphs.norm_with_wide_scale())
    assert report.written_bytes >= 2 * 4
    refusals = [r for p in report.passes if p.name == "raise" for r in p.refusals]
    assert any("scale" in r.reason and "f32[2]" in r.reason for r in refusals)


@pytest.mark.parametrize("eps", [0.1, 1e-5])
def test_n7_a_norm_over_the_last_axis_is_recognised_with_its_eps(eps: float, rng: np.random.Generator) -> None:
    graph = graphs.norm_over((3, 8), -1, eps)
    report = h200_report(graph)
    assert [r.pattern for r in report.regions] == ["layer_norm"]
    assert set(report.regions[0].nodes) == {n.name for n in graph.nodes}
    x = 0.1 * rng.standard_normal((3, 8)).astype(np.float32)
    exact = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + eps)
    assert relative_error(gd.compile(graph, target="cpu")({"x": x})["y"], exact) <= 1e-5


def test_n7_a_norm_over_another_axis_is_none_and_the_report_says_why() -> None:
    report = h200_report(graphs.norm_over((2, 3, 4), 1, 0.1))
    assert "layer_norm" not in ops(report)
    refusals = [r.reason for p in report.passes for r in p.refusals if r.rule == "layer norm"]
    assert refusals
    assert "axes (1,)" in refusals[0]


def test_n9_float32_stays_float32_unless_tf32_is_asked_for() -> None:
    graph = graphs.float32_conv()
    strict, free = h200_report(graph), h200_report(graph, precision="tf32")
    assert {r.precision for r in strict.regions} == {"float32"}
    assert next(r.precision for r in free.regions if "conv" in r.nodes) == "tf32"
    assert free.estimated_us < strict.estimated_us


@pytest.mark.parametrize("outputs", ["ab", "ya", "yab"])
@pytest.mark.parametrize("last", [False, True])
def test_n10_what_leaves_is_written(outputs: str, last: bool) -> None:
    """Channels-last, cuDNN takes all of it in one kernel that writes every output once."""
    graph = graphs.two_exits(outputs, gd.float16, last)
    report = h200_report(graph)
    needed = sum(v.type.nbytes for v in graph.outputs.values())
    assert report.written_bytes >= needed
    assert report.written_bytes == needed or not last
    fused = answers(report, "cudnn", *("yab" if "b" in outputs else "ya"))
    assert any(c.verdict in ("chosen", "slower") for c in fused) == last


def test_n11_another_mean_gives_another_result(rng: np.random.Generator) -> None:
    graph = graphs.conv_then_norm(mean_is_input=True)
    exe = gd.compile(graph, target="cpu")
    x = rng.standard_normal((2, 3, 6, 5)).astype(np.float32)
    for _ in range(3):
        inputs = {"x": x, "mean": rng.standard_normal(4).astype(np.float32)}
        assert relative_error(exe(inputs)["y"], gd.evaluate(graph, inputs, gd.float64)["y"]) <= 1e-5


def test_n11_only_constants_are_folded() -> None:
    folded = h200_report(graphs.conv_then_norm(mean_is_input=False))
    assert ops(folded).count("conv") == 1
    assert set(ops(folded)) <= {"convert", "conv", "bias", "add"}
    kept = h200_report(graphs.conv_then_norm(mean_is_input=True))
    refusals = [r for p in kept.passes if p.name == "fold" for r in p.refusals]
    assert any("mean" in r.reason and "no constant" in r.reason for r in refusals)


def test_n11_a_conv_with_two_readers_is_computed_once_and_not_folded() -> None:
    report = h200_report(graphs.conv_for_two_norms())
    assert ops(report).count("conv") == 1
    refusals = [r for p in report.passes if p.name == "fold" for r in p.refusals]
    assert {"first", "second"} <= {node for r in refusals for node in r.nodes}
    names = {node for r in report.regions for node in r.nodes}
    assert names == {"conv", "first", "second"}
