"""Kernels that really fault, in a child process: this process's context lives on, and the plan is named."""

from pathlib import Path

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.commands.replay import replay
from graphdnn.engines.contract import Policy
from graphdnn.engines.cudnn.engine import CudnnEngine
from graphdnn.engines.manifest import MANIFEST
from graphdnn.ir.region import Region
from graphdnn.runtime.cache import DIRECTORY_VARIABLE, DiskStore
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.probe import KIND, ChildProber
from tests.engines.cudnn.layouts import whole
from tests.engines.cudnn.regions import bias, convolution
from tests.gpu.faulting import PLACE, PLACE_OF_NVRTC

pytestmark = pytest.mark.gpu

FAULTS = {"writes to nowhere": "ILLEGAL_ADDRESS", "traps": "CUDA_ERROR", "is off by two bytes": "MISALIGNED_ADDRESS"}


def some_region() -> Region:
    g = gd.GraphBuilder("plain")
    return whole(g.build({"y": g.exp(g.input("x", (33, 40), gd.float32))}))


def works(device: CudaDevice) -> bool:
    """Whether this process still computes on the device."""
    g = gd.GraphBuilder("alive")
    graph = g.build({"y": g.relu(g.input("x", (4, 5), gd.float32))})
    x = np.full((4, 5), 2.0, np.float32)
    return np.array_equal(gd.compile(graph, target="cuda")({"x": x})["y"], x)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskStore:
    """An empty cache, here and in every child."""
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "default"))
    return DiskStore(tmp_path / "own")


def test_faults_stay_in_the_child(device: CudaDevice, store: DiskStore) -> None:
    with ChildProber({"faulting": PLACE}, device.with_store(store), Policy(), {}, seconds=60) as prober:
        for plan, word in FAULTS.items():
            answer = prober.probe(some_region(), "faulting", plan)
            assert isinstance(answer, Decline), plan
            assert word in answer.reason
            assert works(device)
        assert prober.probe(some_region(), "faulting", "is good") is None
        again = prober.probe(some_region(), "faulting", "traps")
        assert isinstance(again, Decline)
        assert "tried earlier" in again.reason
    assert sum(e.kind == KIND for e in store.entries()) == len(FAULTS) + 1


def test_a_kernel_that_does_not_end_is_given_up(device: CudaDevice, store: DiskStore) -> None:
    with ChildProber({"faulting": PLACE}, device.with_store(store), Policy(), {}, seconds=4) as prober:
        answer = prober.probe(some_region(), "faulting", "never ends")
        assert isinstance(answer, Decline)
        assert "did not answer within 4 s" in answer.reason
    assert works(device)


def test_real_plans_pass(device: CudaDevice, store: DiskStore) -> None:
    """Also with every tensor aligned no better than a region promises."""
    region = convolution(finish=lambda g, y: g.relu(bias(g, y)))
    with device:
        candidates = CudnnEngine().candidates(region, device, Policy())
    assert not isinstance(candidates, Decline), candidates
    with ChildProber(MANIFEST, device.with_store(store), Policy(), {}) as prober:
        for one in candidates[:4]:
            assert prober.probe(region, "cudnn", one.name) is None, one.name


def saved(folder: Path) -> Path:
    g = gd.GraphBuilder("sample")
    x = g.input("x", (33, 40), gd.float32)
    y = g.tanh(g.softmax(x, axis=1), name="suspicious")
    graph = g.build({"y": g.matmul(y, g.constant(np.ones((40, 24), np.float32), name="w"))})
    graph.save(str(folder / "sample.json"))
    return folder / "sample.json"


def test_a_replay_runs_every_plan(tmp_path: Path, store: DiskStore) -> None:
    lines: list[str] = []
    outcome = replay(saved(tmp_path), target="cuda", tell=lines.append)
    print(*lines, sep="\n")
    assert outcome.is_healthy, outcome.reason
    assert len(lines) > 2


def test_a_replay_names_the_plan_that_faults_on_data(
    tmp_path: Path, device: CudaDevice, store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the zeros of its trial at compile time it ran."""
    monkeypatch.setitem(MANIFEST, "nvrtc", PLACE_OF_NVRTC)
    lines: list[str] = []
    outcome = replay(saved(tmp_path), target="cuda", tell=lines.append)
    print(*lines, sep="\n")
    assert outcome.culprit is not None
    assert "tanh" in outcome.culprit.pattern
    assert outcome.culprit.engine == "nvrtc"
    assert outcome.culprit.region
    assert "ILLEGAL_ADDRESS" in outcome.reason
    assert works(device)
