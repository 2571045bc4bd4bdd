"""Float32 transformers of several sequences, planned for an H200: their heads are slices of rows, which no one batch
stride steps through, and cuDNN has neither attention nor an exact product for them."""

from collections.abc import Callable

import pytest

import graphdnn as gd
from examples.models import bert, llama
from graphdnn.report.explain import explain
from graphdnn.report.model import RegionReport
from tests.planned import h200_report

SEQUENCES = 3
LLAMA = llama.Config(hidden=512, heads=8, kv_heads=2, head_dim=64, inner=1408)


def minilm() -> gd.Graph:
    folder = bert.published_folder()
    weights, config = bert.load_weights(folder, gd.float32), bert.load_config(folder)
    return bert.sentence_encoder(weights, SEQUENCES, 64, gd.float32, config)


def bert_large() -> gd.Graph:
    weights = bert.random_layer_weights(0, bert.LARGE, gd.float32)
    return bert.bert_layer(weights, SEQUENCES, 384, bert.LARGE, gd.float32)


def llama_layer() -> gd.Graph:
    return llama.layer(llama.random_weights(0, LLAMA, gd.float32), SEQUENCES, 128, LLAMA, gd.float32)


MODELS: dict[str, tuple[Callable[[], gd.Graph], str]] = {
    "minilm": (minilm, "attention.self"),
    "bert-large": (bert_large, "attention.self"),
    "llama": (llama_layer, "self_attn"),
}
"""Each with what the names of its attentions end with."""


@pytest.fixture(scope="module", params=MODELS)
def planned(request: pytest.FixtureRequest) -> tuple[gd.CompileReport, str]:
    build, attention = MODELS[request.param]
    return h200_report(build()), attention


def products(report: gd.CompileReport) -> list[RegionReport]:
    return [r for r in report.regions if "matmul" in r.pattern.split("+")]


def test_no_region_runs_on_a_last_resort_kernel(planned: tuple[gd.CompileReport, str]) -> None:
    report, _ = planned
    assert report.last_resort_count == 0
    assert "last resort" not in explain(report)


def test_the_library_takes_every_product(planned: tuple[gd.CompileReport, str]) -> None:
    """Those of attention too: where a generated kernel runs instead, it is the cheaper one."""
    report, attention = planned
    attended = [r for r in products(report) if any(name.endswith(attention) for name in r.nodes)]
    offered = [
        c for c in report.candidates if c.engine == "cublaslt" and c.code is None and c.nodes[0].endswith(attention)
    ]
    assert len(offered) >= len(attended) >= 2
    assert {c.pattern for c in offered} == {"matmul", "matmul+mul"}
    assert {c.verdict for c in offered} <= {"chosen", "slower"}
    assert {r.engine for r in products(report) if r not in attended} == {"cublaslt"}


def test_one_sequence_takes_one_call() -> None:
    weights = bert.random_layer_weights(0, bert.LARGE, gd.float32)
    report = h200_report(bert.bert_layer(weights, 1, 384, bert.LARGE, gd.float32))
    assert {r.engine for r in products(report)} == {"cublaslt"}
    assert not [note for r in report.regions for note in r.notes if "calls" in note]


def test_calls_count_as_kernels() -> None:
    g = gd.GraphBuilder("sequences")
    packed = g.input("x", (SEQUENCES, 128, 3, 16, 64), gd.float32)
    q, k = (g.transpose(g.squeeze(g.slice(packed, [i], [i + 1], axes=[2]), axes=[2]), (0, 2, 1, 3)) for i in (0, 1))
    report = h200_report(g.build({"y": g.matmul(q, g.transpose(k, (0, 1, 3, 2)))}), disabled_engines=("nvrtc",))
    (region,) = report.regions
    assert (region.engine, region.notes[0], region.kernels) == ("cublaslt", f"{SEQUENCES} calls", SEQUENCES)
    assert report.kernel_count == SEQUENCES


def test_what_only_a_generated_kernel_takes_runs_as_a_last_resort() -> None:
    """The same choice is one for want of another where cuBLASLt is not asked."""
    weights = bert.random_layer_weights(0, bert.Config(), gd.float32)
    graph = bert.bert_layer(weights, SEQUENCES, 64, bert.Config(), gd.float32)
    attended = [r for r in products(h200_report(graph)) if "layer.attention.self" in r.nodes]
    assert [(r.engine, r.last_resort) for r in attended] == [("nvrtc", False)] * 2
    alone = h200_report(graph, disabled_engines=("cublaslt",))
    assert alone.last_resort_count == len(products(alone)) > 2
