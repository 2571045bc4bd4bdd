"""A BERT layer: equal to PyTorch on the CPU, and planned for an H200 at BERT-large's sizes without gaps."""

import numpy as np
import pytest
import torch

import graphdnn as gd
from benchmarks.torch_peers import BertLayer, tensor
from examples.models.bert import LARGE, Config, bert_layer, random_layer_weights
from tests.numbers import TOLERANCE, relative_error

SMALL = Config(hidden=48, heads=6, inner=130)


@pytest.mark.parametrize("dtype", [gd.float32, gd.bfloat16], ids=str)
@pytest.mark.parametrize(("batch", "tokens"), [(1, 33), (3, 7), (2, 1)])
def test_equals_pytorch_on_the_cpu(batch: int, tokens: int, dtype: gd.DType, rng: np.random.Generator) -> None:
    weights = random_layer_weights(1, SMALL, dtype)
    x = rng.standard_normal((batch, tokens, SMALL.hidden)).astype(dtype.numpy)
    found = gd.compile(bert_layer(weights, batch, tokens, SMALL, dtype), target="cpu")({"x": x})["y"]
    expected = BertLayer(weights, SMALL, "cpu", torch.float64)(tensor(x, "cpu", torch.float64)).numpy()
    assert relative_error(found, expected) <= TOLERANCE[dtype.name]


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    return random_layer_weights(0, LARGE, gd.float16)


@pytest.mark.parametrize(("batch", "tokens"), [(1, 128), (16, 512)])
def test_planned_for_an_h200_without_gaps(batch: int, tokens: int, weights) -> None:
    graph = bert_layer(weights, batch, tokens, LARGE, gd.float16)
    report = gd.compile(graph, target=gd.Target.named("h200")).report
    assert report.last_resort_count == 0
    assert not [r.name for r in report.regions if r.pattern == "convert"]
    products = [r for r in report.regions if "matmul" in r.pattern.split("+")]
    assert all("bias" in r.pattern.split("+") for r in products)
    norms = [r for r in report.regions if r.pattern == "add+layer_norm"]
    with_products = sum("add" in r.pattern.split("+") for r in products)
    assert (with_products, len(norms)) == ((0, 2) if batch * tokens == 128 else (2, 0))
    assert sum(r.pattern == "attention" for r in report.regions) == 1
    parts = {f"layer.attention.self.{name}" for name in ("query", "key", "value")}
    (merged,) = (r for r in report.regions if parts & set(r.nodes))
    assert parts <= set(merged.nodes)
    assert (merged.pattern, merged.kernels) == ("matmul+bias", 1)
    assert merged.written_bytes == 3 * batch * tokens * LARGE.hidden * 2
