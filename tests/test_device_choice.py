"""Compiling with timing for a device that is not there: threads, first runs, captures, scratch and whole graphs."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.compiler import compile_for
from graphdnn.engines import manifest
from graphdnn.engines.contract import Candidate, Device, Policy, Support
from graphdnn.engines.trial import TrialMemory, trial
from graphdnn.errors import ExecutionError
from graphdnn.ir.ops.movement import Convert
from graphdnn.ir.region import Region
from graphdnn.planning import session
from graphdnn.runtime.buffers import host_view
from graphdnn.runtime.timing import CudaTimer
from graphdnn.target import Target
from tests.runtime.clocked import ClockedDevice, ClockedPlan


@dataclass(frozen=True)
class Act:
    """Microseconds of a run, bytes of scratch, and what goes wrong."""

    us: float
    workspace: int = 0
    fault: str = ""


class Torn(ClockedPlan):
    """Writes half of its results."""

    def _run(self, inputs: Sequence[int], outputs: Sequence[int], workspace: int) -> None:
        self.clock.now += self.times[0]


class Dying(ClockedPlan):
    def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
        raise ExecutionError("CUDA was asked to finish and answered CUDA_ERROR_LAUNCH_FAILED")


KINDS: Mapping[str, type[ClockedPlan]] = {"": ClockedPlan, "torn": Torn, "dies": Dying}


class DeviceEngine:
    """Takes everything with the plans it was given."""

    def __init__(self, name: str, **acts: Act) -> None:
        self.name = name
        self.acts = acts

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        return Support(10.0 * len(region.nodes), "float32", workspace_bytes=0)

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate]:
        if isinstance(region.nodes[0].op, Convert):
            return [Candidate(self.name, region, "copy", 0, "float32")]
        return [Candidate(self.name, region, n, a.workspace, "float32") for n, a in self.acts.items()]

    def build(self, candidate: Candidate, device: Device) -> ClockedPlan:
        assert isinstance(device, ClockedDevice)
        act = self.acts.get(candidate.name, Act(1.0))
        return KINDS[act.fault](candidate.region, device, act.us, workspace_bytes=act.workspace)

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        return next(c for c in self.candidates(region, device, policy) if c.name == name)


ACTS = {
    "dying": Act(1, fault="dies"),
    "torn": Act(2, fault="torn"),
    "slow": Act(900),
    "greedy": Act(4, workspace=5000),
    "good": Act(6),
}


def graph() -> gd.Graph:
    g = gd.GraphBuilder("rows")
    x, w = g.input("x", (24, 32), gd.float32), g.constant(np.ones((32, 16), np.float32) / 32)
    y = g.softmax(g.relu(g.matmul(x, w, name="product"), name="relu"), name="soft")
    return g.build({"y": g.layer_norm(y, name="norm"), "z": g.softmax(g.transpose(y, (1, 0)), name="turned")})


def compiled(
    monkeypatch: pytest.MonkeyPatch, engines: tuple[str, ...] = ("clocked",), **options: Any
) -> tuple[gd.Executable, ClockedDevice]:
    device = ClockedDevice()
    monkeypatch.setattr(manifest, "load_engine", lambda name: DeviceEngine(name, **ACTS))
    monkeypatch.setitem(manifest.BY_KIND, "cuda", engines)
    monkeypatch.setattr(session, "timer_for", CudaTimer)
    exe = compile_for(graph(), device.target, device, gd.CompileOptions(**options))  # type: ignore[arg-type]
    return exe, device


@pytest.mark.parametrize("selection", ["heuristic", "autotune", "measure"])
def test_the_numbers_are_right_and_failures_are_told(selection: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exe, _ = compiled(monkeypatch, selection=selection)
    plans = {r.plan for r in exe.report.regions if r.pattern != "convert"}
    # A plan that writes nothing is found only by comparing numbers, which heuristics do not.
    assert plans == ({"torn"} if selection == "heuristic" else {"greedy"})
    if selection == "heuristic":
        return
    assert all(r.measured_us == pytest.approx(4) for r in exe.report.regions if r.pattern != "convert")
    assert {r.kernels for r in exe.report.regions} == {1}
    told = {p.name: (p.verdict, p.reason) for c in exe.report.candidates for p in c.plans if c.pattern == "softmax"}
    assert told["dying"][0] == "failed"
    assert "LAUNCH_FAILED" in told["dying"][1]
    assert told["torn"][0] == "wrong"
    assert "not a number" in told["torn"][1]
    assert told["slow"][0] == "slower"
    x = np.random.default_rng(0).standard_normal((24, 32), np.float32)
    found, wanted = exe({"x": x}), gd.evaluate(graph(), {"x": x})
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_scratch_memory_and_time_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    exe, device = compiled(monkeypatch, selection="autotune", workspace_limit=4096)
    assert {r.plan for r in exe.report.regions if r.pattern != "convert"} == {"good"}
    spent = device.now
    slow, _ = compiled(monkeypatch, selection="autotune", tuning_memory=1)
    assert all("tuning_memory is 1" in " ".join(r.notes) for r in slow.report.regions)
    assert spent > 0


def test_nothing_that_timing_used_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, device = compiled(monkeypatch, selection="heuristic", workspace_limit=0)
    expected = len(device.live)
    timed, device = compiled(monkeypatch, selection="measure", workspace_limit=0)
    assert len(device.live) == expected
    del plain, timed


def test_plans_that_were_not_chosen_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before = plans_alive()
    exe, _ = compiled(monkeypatch, ("clocked", "other"), selection="autotune")
    gc.collect()
    chosen = {id(step.plan) for step in exe._present().schedule.steps}
    assert {id(p) for p in plans_alive() if p not in before} == chosen


def plans_alive() -> list[ClockedPlan]:
    """By type: isinstance would ask every object of the process for its class, which some answer with a warning."""
    return [o for o in gc.get_objects() if type(o) in KINDS.values()]


def test_first_runs_take_place_on_one_piece_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each plan finds zeros and room enough, after a larger one and after a smaller one; nothing is left behind."""
    device = ClockedDevice()
    seen: list[tuple[int, ...]] = []

    class Watching(ClockedPlan):
        def _run(self, inputs: Sequence[int], outputs: Sequence[int], workspace: int) -> None:
            region = self.region
            for address, value in zip((*inputs, *outputs), (*region.inputs, *region.outputs), strict=True):
                assert not host_view(address, value.type, None).any()
                assert address % 256 == 0
            seen.append((*inputs, *outputs, workspace))
            super()._run(inputs, outputs, workspace)

    def tried(rows: int, workspace: int, memory: TrialMemory) -> int | Decline:
        g = gd.GraphBuilder("rows")
        graph = g.build({"y": g.exp(g.input("x", (rows, 33), gd.float32))})
        region = Region.of(graph, graph.nodes)
        candidate = Candidate("watching", region, "plan", workspace, "float32")
        return trial(Watching(region, device, 1.0, workspace_bytes=workspace), candidate, memory)

    before, lived = device.allocations, len(device.live)
    with TrialMemory(device) as memory:  # type: ignore[arg-type]
        for rows, workspace in ((8, 0), (64, 1000), (8, 5), (64, 1000), (9, 0)):
            assert tried(rows, workspace, memory) == 1
    assert device.allocations - before == 2
    assert len(device.live) == lived
    for addresses in seen:
        x, y, workspace = addresses
        assert x < y < workspace
