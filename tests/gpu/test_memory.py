"""Device memory that one executable really takes, counted at the allocations themselves, against its report."""

import gc
import weakref

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines.contract import MEMORY_ALIGNMENT
from graphdnn.runtime.buffers import Memory
from graphdnn.runtime.device import CudaDevice
from tests.models.convolutional import NETWORKS

pytestmark = pytest.mark.gpu


class Meter:
    """Device memory that was asked for through any view of the device and is still held."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Memory]] = []

    @property
    def sizes(self) -> list[int]:
        gc.collect()
        return [m.nbytes for ref in self.made if (m := ref()) is not None and m.owner is not None]


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    counted, allocate = Meter(), CudaDevice.allocate

    def noted(device: CudaDevice, nbytes: int) -> Memory:
        memory = allocate(device, nbytes)
        counted.made.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(CudaDevice, "allocate", noted)
    return counted


def slack(report_graph: gd.Graph) -> int:
    """What rounding each constant up to the alignment may add."""
    return MEMORY_ALIGNMENT * (4 * len(report_graph.nodes) + 8)


@pytest.mark.parametrize("name", ["resnet50", "u_net_block"])
def test_a_call_holds_what_the_report_says(name: str, meter: Meter, rng: np.random.Generator) -> None:
    network = NETWORKS[name]
    batch, size = (2, 64) if name == "resnet50" else (1, 32)
    graph = network.build(network.parameters, batch, gd.float16, size)
    exe = gd.compile(graph, target="cuda")
    x = rng.standard_normal((batch, network.channels, size, size)).astype(np.float16)
    for _ in range(3):
        exe({"x": x})
    held = meter.sizes
    assert exe.report.arena_bytes in held
    assert exe.report.peak_bytes <= sum(held) <= exe.report.peak_bytes + slack(graph)
    del exe
    assert sum(meter.sizes) == 0


def test_a_second_context_adds_its_arena_and_what_it_hands_out(meter: Meter, rng: np.random.Generator) -> None:
    network = NETWORKS["u_net_block"]
    graph = network.build(network.parameters, 1, gd.float16, 32)
    exe = gd.compile(graph, target="cuda")
    x = rng.standard_normal((1, 128, 32, 32)).astype(np.float16)
    exe({"x": x})
    before = sum(meter.sizes)
    other = exe.context()
    other({"x": x})
    assert sum(meter.sizes) - before == exe.report.arena_bytes + 2 * x.nbytes


def test_a_chain_of_generated_kernels_works_in_place(meter: Meter, rng: np.random.Generator) -> None:
    """Sums over other axes part it into kernels; each writes over what it reads for the last time."""
    g = gd.GraphBuilder()
    x = g.input("x", (512, 512), gd.float32)
    y = x
    for axis in (0, 1, 0, 1):
        y = g.sub(g.exp(g.mul(y, 0.1)), g.reduce_mean(y, axes=axis, keepdims=True))
    graph = g.build({"y": g.reduce_sum(y, axes=1)})
    exe = gd.compile(graph, target="cuda")
    array = rng.standard_normal((512, 512), np.float32)
    found = exe({"x": array})["y"]
    expected = gd.evaluate(graph, {"x": array}, dtype=gd.float64)["y"]
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    assert exe.report.arena_bytes < 1.5 * array.nbytes
    assert exe.report.arena_bytes in meter.sizes
