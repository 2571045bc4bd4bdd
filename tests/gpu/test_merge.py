"""Merged products on the device: attention, rotary positions and SiLU read slices of one buffer."""

import numpy as np
import pytest

import graphdnn as gd
from examples.models import bert, llama
from tests.numbers import relative_error

pytestmark = pytest.mark.gpu

LIMIT = {"float16": 5e-3, "bfloat16": 4e-2}


def checked(graph: gd.Graph, x: np.ndarray) -> gd.CompileReport:
    """Products are merged, and the numbers are right with and without that."""
    wanted = gd.evaluate(graph, {"x": x}, dtype=gd.float64)["y"]
    limit = LIMIT[graph.inputs["x"].type.dtype.name]
    apart = gd.compile(graph, "cuda", gd.CompileOptions(disabled_passes=("merge",)))
    exe = gd.compile(graph, "cuda")
    assert relative_error(apart({"x": x})["y"], wanted) <= limit
    assert relative_error(exe({"x": x})["y"], wanted) <= limit
    (record,) = (p for p in exe.report.passes if p.name == "merge")
    assert record.changes, record
    assert exe.report.kernel_count <= apart.report.kernel_count
    assert not [r for r in exe.report.regions if r.pattern in ("convert", "reshape", "transpose", "split")]
    return exe.report


@pytest.mark.parametrize(("batch", "tokens"), [(1, 128), (3, 65), (2, 1)])
def test_bert_layer(batch: int, tokens: int, rng: np.random.Generator) -> None:
    sizes = bert.Config(hidden=256, heads=4, inner=520)
    weights = bert.random_layer_weights(1, sizes, gd.float16)
    x = rng.standard_normal((batch, tokens, sizes.hidden)).astype(np.float16)
    report = checked(bert.bert_layer(weights, batch, tokens, sizes, gd.float16), x)
    assert [r.engine for r in report.regions if r.pattern == "attention"] == ["cudnn"]


@pytest.mark.parametrize(("batch", "tokens"), [(1, 33), (2, 127)])
def test_llama_layer(batch: int, tokens: int, rng: np.random.Generator) -> None:
    sizes = llama.Config(hidden=512, heads=8, kv_heads=2, head_dim=64, inner=1400)
    weights = llama.random_weights(1, sizes, gd.bfloat16)
    x = rng.standard_normal((batch, tokens, sizes.hidden)).astype(gd.bfloat16.numpy)
    checked(llama.layer(weights, batch, tokens, sizes, gd.bfloat16), x)


@pytest.mark.parametrize("rows", [1, 7, 65])
def test_gate_and_up(rows: int, rng: np.random.Generator) -> None:
    """SiLU and product over two strided slices."""
    g = gd.GraphBuilder()
    x = g.input("x", (1, rows, 128), gd.float16)
    gate, up = (g.constant((rng.standard_normal((128, 24)) / 11).astype(np.float16)) for _ in range(2))
    graph = g.build({"y": g.softmax(g.silu(g.matmul(x, gate)) * g.matmul(x, up))})
    checked(graph, rng.standard_normal((1, rows, 128)).astype(np.float16))
