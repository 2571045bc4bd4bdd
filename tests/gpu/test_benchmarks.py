"""Layers and chains that the benchmarks run, on the device: numbers against float64, kernel counts, clocks."""

from pathlib import Path

import numpy as np
import pytest
import torch

import graphdnn as gd
from benchmarks import compile_time, kernel_cases, kernels, launch, layers
from benchmarks.timing import Ceilings, DeviceClock, Machine, WarmClock, captured, host_clock, interleaved, medians
from examples.models import bert, llama
from tests.numbers import TOLERANCE

pytestmark = pytest.mark.gpu

CEILINGS = Ceilings(4e12, {"float16": 8e14, "bfloat16": 8e14, "float32": 5e13})
BERT = bert.Config(hidden=384, heads=6, inner=1536)
LLAMA = llama.Config(hidden=512, heads=8, kv_heads=2, head_dim=64, inner=1408)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(lambda: layers.bert_case(3, 127, BERT), id="bert"),
        pytest.param(lambda: layers.llama_case(2, 300, LLAMA), id="llama"),
        pytest.param(lambda: layers.RESNET50.case(3), id="resnet"),
        pytest.param(lambda: layers.MOBILENET_V3.case(3), id="mobilenet"),
        pytest.param(lambda: layers.U_NET_BLOCK.case(2, 96), id="u_net_block"),
    ],
)
def test_a_layer_is_measured(case) -> None:
    found = layers.measure(Machine(), case(), "layer", CEILINGS, samples=3, skip_inductor=True)
    assert found.error <= TOLERANCE["bfloat16"]
    assert found.peers.keys() == {"eager"}
    assert found.peer_error <= TOLERANCE["bfloat16"]
    assert 0 < found.ours_us < 1e5


def test_a_kernel_is_measured_on_rotated_inputs() -> None:
    found = kernels.measure(Machine(), kernel_cases.depthwise(3, 33, 23, 5, relu=True), "kernel", CEILINGS, 3, True)
    assert found.settings["rotated sets"] == kernels.MOST
    assert found.error <= TOLERANCE["float16"]


@pytest.mark.parametrize("count", [1, 10])
def test_chains_run_as_many_kernels_as_they_say(count: int) -> None:
    found = launch.Measured(samples=20).of(count)
    assert found["kernels"] == count
    assert found["peer_nodes"] == count, found["failures"]
    assert max(found["errors"].values()) <= TOLERANCE["float32"]


@pytest.mark.alone
def test_clocks_measure_the_device_and_the_host_apart() -> None:
    x = torch.zeros(64 << 20, device="cuda")
    runs = {"once": captured(lambda: x.add_(1)), "twice": captured(lambda: x.add_(1).mul_(2))}
    for clock in (DeviceClock(), WarmClock()):
        found = medians(interleaved(runs, clock, samples=9))
        assert found["twice"] == pytest.approx(2 * found["once"], rel=0.2)
    host = medians(interleaved(runs, host_clock, samples=9))
    assert host["twice"] < found["twice"]


def test_bound_chain_equals_the_definition(rng: np.random.Generator) -> None:
    graph = launch.chain(7)
    x = rng.standard_normal(launch.SHAPE).astype(np.float32)
    found = gd.compile(graph, target="cuda")({"x": x})["y"]
    expected = gd.evaluate(graph, {"x": x}, dtype=gd.float64)["y"]
    assert np.abs(found - expected).max() <= TOLERANCE["float32"] * expected.max()


def test_a_compile_is_timed_in_a_process_of_its_own(tmp_path: Path) -> None:
    cold = compile_time.in_a_process("cold", tmp_path)
    warm = compile_time.in_a_process("warm", tmp_path)
    assert 0 < warm["seconds"] < cold["seconds"]
    assert cold["estimated_us"] == warm["estimated_us"] > 0
