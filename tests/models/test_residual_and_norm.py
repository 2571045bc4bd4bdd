"""Residual add and norm as one kernel: offered with its cost in every layer, chosen for few rows and where no product
makes the summand."""

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from examples.models import llama
from examples.models.bert import LARGE, bert_layer, random_layer_weights
from graphdnn.report.model import CandidateReport, CompileReport
from tests.planned import answers, h200_report

ROWS, WIDTH = 8192, 1024
TENSOR = ROWS * WIDTH * 2


def bert(batch: int, tokens: int) -> CompileReport:
    return h200_report(bert_layer(random_layer_weights(0, LARGE, gd.float16), batch, tokens, LARGE, gd.float16))


def llama_layer(tokens: int) -> CompileReport:
    """Planned for Llama-3-8B's sizes; weights that differ from one another suffice, since no number is computed."""
    config = llama.Config()
    weights = {n: np.full(s, i + 1, gd.bfloat16.numpy) for i, (n, s) in enumerate(llama.shapes(config).items())}
    return h200_report(llama.layer(weights, 1, tokens, config, gd.bfloat16))


BERT_SITES = (
    (("layer.attention.output.dense", "bias_3"), "add", "layer.attention.output.LayerNorm"),
    (("layer.output.dense", "bias_5"), "add_1", "layer.output.LayerNorm"),
)
LLAMA_SITES = ((("self_attn.o_proj",), "add_2", "post_attention_layernorm"),)
"""A product with its bias, the residual add behind it, and the norm of the sum."""

LAYERS = {
    "bert 16x512": (lambda: bert(16, 512), BERT_SITES, 0.5),
    "llama 1x4096": (lambda: llama_layer(4096), LLAMA_SITES, 5.0),
}
"""How to plan one, where its residuals are, and how many us at least a cover with the add in the norm costs more."""


def offers(report: CompileReport, *nodes: str) -> list[CandidateReport]:
    """What engines would run these nodes with, cheapest first."""
    asked = (answers(report, engine, *nodes) for engine in ("cudnn", "cublaslt", "nvrtc"))
    taken = [c for found in asked for c in found if c.verdict in ("chosen", "slower")]
    return sorted(taken, key=cost)


def cost(candidate: CandidateReport) -> float:
    assert candidate.estimated_us is not None
    return candidate.estimated_us


@pytest.mark.parametrize(("plan", "sites", "dearer_us"), LAYERS.values(), ids=LAYERS)
def test_layers_are_offered_it_and_take_the_add_with_the_product(
    plan: Callable[[], CompileReport], sites: tuple, dearer_us: float
) -> None:
    report = plan()
    for product, add, norm in sites:
        fused = offers(report, add, norm)
        assert {c.engine for c in fused} == {"cudnn", "nvrtc"}
        assert {c.verdict for c in fused} == {"slower"}
        beside = next(r for r in report.regions if r.nodes == (norm,))
        assert {c.id for c in fused} <= {c.id for c in beside.alternatives}
        riding = offers(report, *product, add)[0]
        alone = offers(report, norm)[0]
        assert (riding.engine, riding.verdict, alone.verdict) == ("cublaslt", "chosen", "chosen")
        apart = cost(offers(report, *product)[0]) + cost(fused[0])
        assert apart - cost(riding) - cost(alone) >= dearer_us - 0.01  # covers are compared in hundredths


def test_a_layer_of_few_rows_takes_the_add_with_the_norm() -> None:
    """Where nothing hides the latency of reading a residual behind a product."""
    report = bert(1, 128)
    for product, add, norm in BERT_SITES:
        fused = offers(report, add, norm)[0]
        assert (fused.engine, fused.verdict) == ("nvrtc", "chosen")
        riding = offers(report, *product, add)[0]
        assert riding.verdict == "slower"
        apart = cost(riding) + cost(offers(report, norm)[0])
        assert cost(offers(report, *product)[0]) + cost(fused) < apart - 0.1


def test_what_it_is_offered_for_is_told_in_the_layers_explanation() -> None:
    graph = bert_layer(random_layer_weights(0, LARGE, gd.float16), 16, 512, LARGE, gd.float16)
    lines = gd.compile(graph, target=gd.Target.named("h200")).explain().splitlines()
    assert [line for line in lines if "slower: " in line and "add+layer_norm at " in line]


def summed(g: gd.GraphBuilder, left: gd.Value, norm: str, keep: bool) -> gd.Graph:
    """The norm of `left` and a residual; with `keep` the sum is needed too, as in a layer with its norm in front."""
    total = g.add(left, g.input("residual", left.type.shape, gd.float16))
    scale = g.constant(np.ones(WIDTH, np.float16), name="scale")
    shift = g.constant(np.zeros(WIDTH, np.float16), name="shift")
    y = g.layer_norm(total, scale, shift) if norm == "layer_norm" else g.rms_norm(total, scale)
    return g.build({"sum": total, "y": y} if keep else {"y": y})


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_it_is_chosen_for_the_sum_of_two_inputs(norm: str, keep: bool) -> None:
    g = gd.GraphBuilder()
    report = h200_report(summed(g, g.input("x", (ROWS, WIDTH), gd.float16), norm, keep))
    (region,) = report.regions
    assert (region.pattern, region.kernels) == (f"add+{norm}", 1)
    assert region.written_bytes == (2 if keep else 1) * TENSOR
    assert 2 * TENSOR <= region.read_bytes <= 2 * TENSOR + 4 * WIDTH


@pytest.mark.parametrize("keep", [False, True])
def test_it_is_chosen_behind_attention(keep: bool) -> None:
    """Heads lie side by side, as a product wrote them, so that what attention writes is read as it is."""
    g = gd.GraphBuilder()
    heads = (
        g.transpose(g.reshape(g.input(name, (16, 512, WIDTH), gd.float16), (16, 512, 16, 64)), (0, 2, 1, 3))
        for name in "qkv"
    )
    attended = g.reshape(g.transpose(g.attention(*heads), (0, 2, 1, 3)), (16, 512, WIDTH))
    report = h200_report(summed(g, attended, "rms_norm", keep))
    assert [r.pattern for r in report.regions] == ["attention", "add+rms_norm"]
    apart = cost(offers(report, "add")[0]) + cost(offers(report, "rms_norm")[0])
    assert cost(offers(report, "add", "rms_norm")[0]) < apart - 1
