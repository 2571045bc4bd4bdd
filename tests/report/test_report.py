"""What holds of every report: nothing listed twice, nothing lost, everything with a reason."""

import re
from collections import Counter
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
import torch

import graphdnn as gd
from examples.models.bert import load_config, load_weights, published_folder, sentence_encoder
from examples.models.resnet import build, random_parameters
from graphdnn import compiler
from graphdnn.answer import FIXABLE
from graphdnn.engines.contract import Support
from graphdnn.engines.cudnn.engine import CudnnEngine
from graphdnn.ir.graph import Graph
from graphdnn.ir.types import DType
from graphdnn.passes.pipeline import OPTIONAL_PASSES
from graphdnn.report.account import account
from graphdnn.report.explain import explain
from graphdnn.report.model import CandidateReport, CompileReport, Verdict
from tests.ir.samples import SAMPLES, Sample
from tests.passes.random_graphs import random_graph
from tests.planned import H200, h200_report

PASSES = ("promote", "canonicalize", "raise", "fold", "complete", "expand", "sink", "layout")


def check(graph: Graph, report: CompileReport) -> None:
    """Every promise about a report of this graph."""
    check_candidates(report)
    check_regions(report)
    check_nothing_is_lost(graph, report)
    check_fixes(graph, report)
    check_names(graph, report)
    assert CompileReport.model_validate_json(report.model_dump_json()) == report
    check_text(report)


def check_candidates(report: CompileReport) -> None:
    ids = [c.id for c in report.candidates]
    assert len(set(ids)) == len(ids)
    by_engine: dict[str, Counter] = {}
    for c in report.candidates:
        by_engine.setdefault(c.engine, Counter())[c.nodes, c.pattern] += 1
        assert c.verdict in get_args(Verdict)
        offered = c.verdict in ("chosen", "slower", "conflict")
        assert (c.estimated_us is not None) == offered
        assert (c.code is None) == offered
        assert bool(c.reason) == (c.verdict != "chosen")
        assert "\n" not in c.reason
    # Each engine answered for each set of nodes, and as often as the others.
    first, *others = by_engine.values()
    assert all(other == first for other in others)


def check_regions(report: CompileReport) -> None:
    names = [r.name for r in report.regions]
    assert len(set(names)) == len(names)
    chosen = Counter((c.engine, c.pattern, c.nodes) for c in report.candidates if c.verdict == "chosen")
    assert chosen == Counter((r.engine, r.pattern, r.nodes) for r in report.regions)
    assert report.kernel_count == sum(r.kernels for r in report.regions)
    assert report.read_bytes == sum(r.read_bytes for r in report.regions)
    assert report.written_bytes == sum(r.written_bytes for r in report.regions)
    assert report.last_resort_count == sum(r.last_resort for r in report.regions)
    assert report.estimated_us == pytest.approx(sum(r.estimated_us for r in report.regions))
    listed = {c.id: c for c in report.candidates}
    for region in report.regions:
        assert region.kernels >= 1
        assert region.precision
        for other in region.alternatives:
            assert listed[other.id] == other
            assert other.verdict != "chosen"
            made = not (region.nodes and other.nodes)  # a padding or conversion that a pass put in is nobody's
            assert made or set(other.nodes) & set(region.nodes)
        same = {c.engine for c in region.alternatives if (c.nodes, c.pattern) == (region.nodes, region.pattern)}
        assert same | {region.engine} == {c.engine for c in report.candidates}


def check_nothing_is_lost(graph: Graph, report: CompileReport) -> None:
    """A node that the outputs need, and that computes from inputs or states, is done by a region; otherwise a pass says
    what became of it.  Nodes that rename memory may have nothing to do."""
    regions = {name for r in report.regions for name in r.nodes}
    assert regions <= {n.name for n in graph.nodes}
    said = {name for p in report.passes for change in p.changes for name in re.split(r"[\s,:]+", change)}
    needed = set(graph.escaping)
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.results):
            continue
        needed.update(node.operands)
        if not node.op.is_renaming:
            assert not (regions | said).isdisjoint(node.origins), f"nothing tells what became of {node}"


def check_fixes(graph: Graph, report: CompileReport) -> None:
    """A code that always has a remedy comes with it, unless it is about a tensor that a pass made; a fix names what the
    user knows."""
    values = {*graph.inputs, *graph.constants, *graph.states, *(v.name for n in graph.nodes for v in n.results)}
    known = values | {n.name for n in graph.nodes}
    for c in report.candidates:
        if c.fix is not None:
            assert c.fix.before != c.fix.after
            assert set(c.fix.target.split(" and ")) <= known | {"options"}
            assert all(word in c.fix.sentence for word in (c.fix.target, c.fix.attribute, c.fix.before, c.fix.after))
        elif c.code in FIXABLE:
            assert not set(re.findall(r"%([\w.]*\w)", c.reason)) <= known, c.reason


def check_names(graph: Graph, report: CompileReport) -> None:
    """Reasons name what the user named, and nothing that passes made of it."""
    known = {*graph.inputs, *graph.constants, *graph.states, *(n.name for n in graph.nodes)}
    known.update(v.name for n in graph.nodes for v in n.results)
    reasons = [c.reason for c in report.candidates] + [r.reason for p in report.passes for r in p.refusals]
    for reason in reasons:
        assert set(re.findall(r"%([\w.]*\w)", reason)) <= known, reason


def check_text(report: CompileReport) -> None:
    text = explain(report)
    assert all(re.search(rf"^ {re.escape(r.name)} ", text, re.MULTILINE) for r in report.regions)
    assert str(report.kernel_count) in text


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_reports_of_every_op(sample: Sample, rng: np.random.Generator) -> None:
    graph = sample.graph(rng)
    check(graph, h200_report(graph))


@pytest.mark.parametrize("sample", SAMPLES[::5], ids=str)
def test_reports_on_the_cpu(sample: Sample, rng: np.random.Generator) -> None:
    graph = sample.graph(rng)
    check(graph, gd.compile(graph, target="cpu").report)


@pytest.mark.parametrize("number", range(20))
def test_reports_of_random_graphs(number: int, seed: int) -> None:
    graph = random_graph(np.random.default_rng([seed, number]), dtype=(gd.float16, gd.float32)[number % 2])
    report = h200_report(graph)
    check_candidates(report)
    check_regions(report)
    check_fixes(graph, report)
    check_names(graph, report)


def test_reasons_name_what_the_user_named() -> None:
    """A condition that is computed once from constants, a relu that was raised, a product with a few columns."""
    g = gd.GraphBuilder("named")
    x, rng = g.input("x", (65, 24), gd.float16), np.random.default_rng(0)
    near = g.maximum(g.add(x, 3.0), 0.0, name="near")
    swish = g.div(g.mul(x, g.minimum(near, 6.0)), 6.0)
    shown = g.select(g.less(g.iota(24), 20, name="few"), swish, 0.0)
    twice = g.matmul(
        g.matmul(shown, 1.0 * g.constant(rng.normal(size=(24, 2)).astype(np.float16), name="w")),
        g.constant(rng.normal(size=(2, 8)).astype(np.float16), name="v"),
    )
    graph = g.build({"near": near, "y": twice})
    report = h200_report(graph)
    check_names(graph, report)
    told = [c.reason for c in report.candidates] + [r.reason for p in report.passes for r in p.refusals]
    assert any("%few is b8" in reason for reason in told)
    assert any("%near is needed outside" in reason for reason in told)


@pytest.fixture(scope="module")
def resnet() -> Graph:
    return build(random_parameters(seed=0), 1, gd.float16, size=64)


@pytest.fixture(scope="module")
def minilm() -> Graph:
    folder = published_folder()
    return sentence_encoder(load_weights(folder, gd.float16), 2, 40, gd.float16, load_config(folder))


@pytest.mark.parametrize("model", [pytest.param("resnet", marks=pytest.mark.slow), "minilm"])
def test_reports_of_models(model: str, request: pytest.FixtureRequest) -> None:
    graph = request.getfixturevalue(model)
    report = h200_report(graph)
    check(graph, report)
    assert len(explain(report).splitlines()) < 4 * len(report.regions)


def promoted(first: gd.DType, second: gd.DType) -> CompileReport:
    g = gd.GraphBuilder("promoted")
    a, b = g.input("a", (3, 5), first), g.input("b", (3, 5), second)
    return h200_report(g.build({"y": g.add(a, b, name="sum")}))


@pytest.mark.parametrize("second", [gd.float16, gd.bfloat16, gd.float32, gd.float64], ids=str)
@pytest.mark.parametrize("first", [gd.float16, gd.bfloat16, gd.float32, gd.float64], ids=str)
def test_promotions_are_those_of_pytorch(first: gd.DType, second: gd.DType) -> None:
    wanted = torch.promote_types(getattr(torch, first.name), getattr(torch, second.name))
    common = str(wanted).removeprefix("torch.")
    expected = [("sum", n, t.name, common) for n, t in (("a", first), ("b", second)) if t.name != common]
    report = promoted(first, second)
    assert [(p.node, p.operand, p.before, p.after) for p in report.promotions] == expected
    for p in report.promotions:
        assert f"{p.node}: {p.operand} is {p.before} and is computed in {p.after}" in explain(report)


def relu(**options: object) -> CompileReport:
    g = gd.GraphBuilder("small")
    return h200_report(g.build({"y": g.relu(g.input("x", (3, 5), gd.float16), name="relu")}), **options)


def test_report_says_with_what_it_was_made() -> None:
    report = relu(workspace_limit=4096, disabled_passes=("fold",))
    assert report.graph == "small"
    assert report.target == "h200 (described)"
    assert report.options == gd.CompileOptions(workspace_limit=4096, disabled_passes=("fold",)).model_dump(mode="json")
    assert report.versions["numpy"] == np.__version__
    assert {"graphdnn", "scipy"} <= set(report.versions)
    assert {f"target {n}": v for n, v in H200.versions.items()}.items() <= report.versions.items()


def test_every_pass_that_ran_is_listed_in_order() -> None:
    listed = [p.name for p in relu().passes]
    assert [name for name in listed if name in PASSES] == list(PASSES)
    for left_out in set(OPTIONAL_PASSES) - {"fuse", "layout"}:
        assert [p.name for p in relu(disabled_passes=(left_out,)).passes] == [n for n in listed if n != left_out]
    assert [p.name for p in relu(disabled_passes=("layout",)).passes] == listed


def test_without_the_layout_pass_images_stay_as_the_caller_has_them() -> None:
    g = gd.GraphBuilder("image")
    x, w = g.input("x", (4, 16, 14, 14), gd.float16), g.input("w", (24, 16, 3, 3), gd.float16)
    graph = g.build({"y": g.relu(g.conv(x, w, padding=1))})
    assert "convert" in {r.pattern for r in h200_report(graph).regions}
    assert "convert" not in {r.pattern for r in h200_report(graph, disabled_passes=("layout",)).regions}


def test_each_pass_goes_on_from_the_nodes_of_the_one_before() -> None:
    graph = twins()
    passes = h200_report(graph).passes
    assert passes[0].nodes_before == len(graph.nodes)
    for before, after in pairwise(passes):
        assert before.nodes_after == after.nodes_before
    expanded = next(p for p in passes if p.name == "expand")
    assert expanded.nodes_after > expanded.nodes_before
    assert expanded.changes


def twins() -> Graph:
    """Two equal attentions in float32, which nobody takes whole, and which share every answer."""
    g = gd.GraphBuilder("twins")
    outputs = {}
    for name in ("left", "right"):
        q, k, v = (g.input(f"{name}_{n}", (2, 3, 33, 64), gd.float32) for n in "qkv")
        outputs[name] = g.attention(q, k, v, name=name)
    return g.build(outputs)


def test_equal_regions_are_declined_by_their_own_names() -> None:
    """The answer is asked for once; its reason and its fix name the nodes that the candidate is about."""
    report = h200_report(twins())
    told = [c for c in report.candidates if "%" in c.reason]
    assert {c.nodes for c in told} == {("left",), ("right",)}
    for c in told:
        assert f"%{c.nodes[0]}" in c.reason
        assert c.fix is None or c.fix.target in ("options", *c.nodes)


def test_no_set_of_nodes_is_asked_about_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(compiler, "account", lambda decisions: made.append(decisions) or account(decisions))
    report = h200_report(twins())
    (decisions,) = made
    regions = [(p.region.graph, p.region.mask) for p in decisions.proposals]
    assert len(set(regions)) == len(regions)
    assert len(report.candidates) == len(decisions.selector.engines) * (len(regions) + len(decisions.expanded))


@pytest.mark.parametrize(
    ("options", "word"), [({"workspace_limit": 0}, "workspace_limit"), ({"deterministic": True}, "deterministic")]
)
def test_what_an_option_rules_out_is_excluded(
    options: dict[str, object], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hungry(self: object, region: object, target: object, policy: object) -> Support:
        return Support(0.1, "float16", workspace_bytes=1024, deterministic=False)

    monkeypatch.setattr(CudnnEngine, "supports", hungry)
    (entry,) = [c for c in relu(**options).candidates if c.engine == "cudnn"]
    assert (entry.verdict, entry.code) == ("excluded", "option")
    assert word in entry.reason
    assert entry.fix is not None
    assert (entry.fix.target, entry.fix.attribute) == ("options", word)
    assert [r.engine for r in relu(**options).regions] == ["nvrtc"]


def test_a_composite_that_nobody_takes_whole_is_listed_with_the_reasons() -> None:
    """What runs are its parts; why it does not run whole, and what would let it, is said all the same."""
    report = h200_report(twins())
    for name in ("left", "right"):
        whole = {c.engine: c for c in report.candidates if (c.pattern, c.nodes) == ("attention", (name,))}
        assert set(whole) == {"cudnn", "cublaslt", "nvrtc"}
        assert whole["cudnn"].fix is not None
        assert whole["cudnn"].fix.sentence == f"change dtype of {name} from float32 to float16"
        assert all(whole["cudnn"] in r.alternatives for r in report.regions if name in r.nodes)
    assert explain(report).count("to have it: change dtype of left from float32 to float16") == 1


@pytest.mark.parametrize(("dtype", "features"), [(gd.float16, 7), (gd.float16, 36), (gd.float32, 7), (gd.float32, 264)])
def test_no_fix_is_about_a_part_of_an_expansion(dtype: DType, features: int) -> None:
    """The cast at an expansion's end is no choice of the user's; what is proposed is about the attention itself."""
    g = gd.GraphBuilder("heads")
    q, k, v = (g.input(n, (1, 2, 64, features), dtype) for n in "qkv")
    graph = g.build({"y": g.attention(q, k, v, name="att")})
    report = h200_report(graph)
    about = {(c.engine, c.pattern) for c in report.candidates if c.fix is not None and c.fix.target == "att"}
    assert about == ({("cudnn", "attention")} if dtype == gd.float16 else set())
    check_fixes(graph, report)


def test_a_fix_suffices_alone() -> None:
    """float32 with 7 features needs two changes, so none is proposed and the reason has both."""
    g = gd.GraphBuilder("heads")
    q, k, v = (g.input(n, (1, 2, 64, 7), gd.float32) for n in "qkv")
    report = h200_report(g.build({"y": g.attention(q, k, v, name="att")}))
    (whole,) = [c for c in report.candidates if (c.engine, c.pattern) == ("cudnn", "attention")]
    assert whole.fix is None
    assert "in float32" in whole.reason
    assert "7 features a head" in whole.reason


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ('"kernel_count":1', '"kernel_count":"1"'),
        ('"kernel_count":1', '"kernel_count":1.0'),
        ('"kernels":1', '"kernels":true'),
        ('"deterministic":true', '"deterministic":1'),
        ('"nodes":["relu"]', '"nodes":[1]'),
        ('"nodes":["relu"]', '"nodes":"relu"'),
        ('"nodes":["relu"]', '"nodes":["relu"],"note":""'),
    ],
)
def test_a_report_of_other_types_is_refused(found: str, wrong: str) -> None:
    g = gd.GraphBuilder("strict")
    text = h200_report(g.build({"y": g.relu(g.input("x", (3, 5), gd.float32), name="relu")})).model_dump_json()
    assert found in text
    assert CompileReport.model_validate_json(text)
    with pytest.raises(ValueError, match="validation error"):
        CompileReport.model_validate_json(text.replace(found, wrong))


def test_a_fix_of_the_type_names_every_tensor_that_is_too_wide() -> None:
    """A float64 product with a float64 bias: with the product alone in float16 the bias would still be float64."""

    def asked(product: DType, bias: DType) -> CandidateReport:
        g = gd.GraphBuilder("wide")
        x, w = (g.cast(g.input(n, (64, 64), gd.float64), product, name=f"{n}c") for n in ("x", "w"))
        b = g.cast(g.input("b", (64,), gd.float64), bias, name="bc")
        report = h200_report(g.build({"y": g.bias(g.matmul(x, w, name="product"), b, axis=-1, name="added")}))
        return next(c for c in report.candidates if c.engine == "cudnn" and c.nodes == ("product", "added"))

    fix = asked(gd.float64, gd.float64).fix
    assert fix is not None
    assert fix.sentence == "change dtype of xc and wc and bc from float64 to float16"
    assert asked(gd.float16, gd.float64).verdict == "declined"
    assert asked(gd.float16, gd.float16).verdict in ("chosen", "slower")


def test_types_of_what_passes_made_are_told_by_the_op_that_reads_them() -> None:
    """What holds the lengths of an attention is no value of the user's, and the attention itself is no int32."""
    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (2, 4, 64, 64), gd.float16) for n in "qkv")
    lengths = g.input("lengths", (2,), gd.int32)
    o = g.attention(q, k, v, q_lengths=lengths, kv_lengths=lengths, name="attention")
    report = gd.compile(g.build({"o": o}), target=gd.Target.named("h200")).report
    reasons = {c.pattern: c.reason for c in report.candidates if c.engine == "cudnn" and "i32" in c.reason}
    assert "minimum %attention: its a is i32[2:1]; cuDNN takes float16, bfloat16, float32 here" in reasons.values()
    assert not [r for r in reasons.values() if r.startswith("%attention")]
