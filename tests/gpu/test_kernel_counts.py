"""The report's number of kernels is that of the whole captured graph, conversions and libraries' second kernels too;
models run no kernel of last resort."""

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from examples.models import bert, llama, resnet, unet
from tests.gpu.test_limits import convolution
from tests.ir.samples import draw

pytestmark = pytest.mark.gpu

BERT = bert.Config(hidden=384, heads=6, inner=1536)
LLAMA = llama.Config(hidden=512, heads=8, kv_heads=2, head_dim=64, inner=1408)


def bert_layer() -> gd.Graph:
    return bert.bert_layer(bert.random_layer_weights(0, BERT, gd.float16), 3, 127, BERT, gd.float16)


def llama_layer() -> gd.Graph:
    return llama.layer(llama.random_weights(0, LLAMA, gd.bfloat16), 2, 65, LLAMA, gd.bfloat16)


def deep_product() -> gd.Graph:
    """Few results of many terms each, which libraries sum in several kernels."""
    g = gd.GraphBuilder("deep_product")
    a, b = g.input("a", (64, 16384), gd.float16), g.input("b", (16384, 64), gd.float16)
    return g.build({"y": g.matmul(a, b)})


def cache() -> gd.Graph:
    """A state that is read and written."""
    g = gd.GraphBuilder("cache")
    q, k = (g.input(n, (2, 4, 1, 64), gd.float16) for n in ("q", "k"))
    keys = g.write_slice(g.state("keys", (2, 4, 128, 64), gd.float16), k, g.input("at", (), gd.int32), axis=2)
    return g.build({"o": g.attention(q, keys, keys)}, updates={"keys": keys})


MODELS: dict[str, Callable[[], gd.Graph]] = {
    "resnet50": lambda: resnet.build(resnet.random_parameters(seed=0), 1, gd.float16),
    "u_net_block": lambda: unet.build_block(unet.random_block_parameters(seed=0), 1, gd.float16, 32),
    "bert": bert_layer,
    "llama": llama_layer,
}
GRAPHS: dict[str, Callable[[], gd.Graph]] = {
    **MODELS,
    "deep product": deep_product,
    "row-major conv": convolution,  # images that are converted on their way in and out
    "cache": cache,
}


@pytest.mark.parametrize("name", GRAPHS)
def test_as_many_kernels_are_captured_as_the_report_says(name: str, rng: np.random.Generator) -> None:
    """numpy arrays are bound: their copies are nodes of the graph and count apart."""
    graph = GRAPHS[name]()
    exe = gd.compile(graph, target="cuda")
    run = exe.bind({n: draw(v.type, rng) for n, v in graph.inputs.items()})
    run()
    told = [(r.pattern, r.engine, r.plan, r.kernels) for r in exe.report.regions]
    assert run.kernels == exe.report.kernel_count, told
    assert exe.report.kernel_count == sum(r.kernels for r in exe.report.regions)
    if name in MODELS:
        assert exe.report.last_resort_count == 0, told
