"""How often plans run while a graph is compiled by heuristics: once each, on scratch data, and nothing is timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

import graphdnn as gd
from graphdnn import compiler
from graphdnn.answer import Decline
from graphdnn.engines import manifest
from graphdnn.engines.contract import Candidate, Device, DevicePlan, HostPlan
from graphdnn.errors import ExecutionError
from graphdnn.ir.region import Region
from graphdnn.planning import session
from graphdnn.runtime.buffers import host_view
from graphdnn.runtime.timing import CudaTimer
from tests.engines.scripted import Act, Clock, Scripted
from tests.recorded.replay import Probes
from tests.runtime.clocked import ClockedDevice
from tests.runtime.fake import FakePlan


class WatchedPlan(FakePlan):
    """Counts its runs, and those that did not read zeros."""

    def __init__(self, region: Region, device: ClockedDevice, act: Act) -> None:
        super().__init__(region, device, act.workspace)
        self.act = act
        self.clock = device
        self.runs = 0
        self.on_data = 0

    def _run(self, inputs: Sequence[int], outputs: Sequence[int], workspace: int) -> None:
        self.runs += 1
        arrays = (host_view(a, v.type, None) for a, v in zip(inputs, self.region.inputs, strict=True))
        self.on_data += any(a.any() for a in arrays)
        if self.act.fails == "run":
            raise ExecutionError("the device reports a misaligned address")
        self.clock.now += self.act.us
        super()._run(inputs, outputs, workspace)


@dataclass
class Watched(Scripted):
    """A scripted engine of a device; `made` are the plans that it built, by name."""

    made: list[tuple[str, WatchedPlan]] = field(default_factory=list)

    def build(self, candidate: Candidate, device: Device) -> DevicePlan | HostPlan | Decline:
        found = super().build(candidate, device)
        if isinstance(found, Decline):
            return found
        assert isinstance(device, ClockedDevice)
        self.made.append((candidate.name, WatchedPlan(candidate.region, device, self.acts[candidate.name])))
        return self.made[-1][1]

    @property
    def runs(self) -> list[tuple[str, int]]:
        """Name and number of runs of each plan that was built, in order."""
        return [(name, plan.runs) for name, plan in self.made]


Here = Callable[..., tuple[ClockedDevice, Probes]]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    """A device with these engines, whose child process notes what it tries."""

    def put(*engines: Watched) -> tuple[ClockedDevice, Probes]:
        device, child = ClockedDevice(), Probes()
        by_name = {e.name: e for e in engines}
        monkeypatch.setattr(manifest, "load_engine", by_name.__getitem__)
        monkeypatch.setitem(manifest.BY_KIND, "cuda", tuple(by_name))
        monkeypatch.setattr(compiler, "device_for", lambda *_: device)
        monkeypatch.setattr(compiler, "ChildProber", child)
        monkeypatch.setattr(session, "timer_for", lambda device, memory: CudaTimer(device))
        return device, child

    return put


def rows(*ops: str) -> gd.Graph:
    g = gd.GraphBuilder("rows")
    y = g.input("x", (6, 16), gd.float32)
    for number, op in enumerate(ops):
        y = getattr(g, op)(y, name=f"{op}{number}")
    return g.build({"y": y})


def compiled(graph: gd.Graph, **options: object) -> gd.Executable:
    return gd.compile(graph, "cuda", gd.CompileOptions(progress=False, **options))  # type: ignore[arg-type]


def test_each_plan_runs_once_on_zeros_until_one_is_found(here: Here) -> None:
    acts = {"unbuilt": Act(fails="build"), "faulty": Act(fails="run"), "good": Act(), "better": Act(1)}
    engine = Watched("one", acts, Clock())
    here(engine)
    exe = compiled(rows("softmax"))
    assert exe.report.regions[0].plan == "good"
    assert engine.runs == [("faulty", 1), ("good", 1)]
    assert [plan.on_data for _, plan in engine.made] == [0, 0]
    assert all(p.measured_us is None for c in exe.report.candidates for p in c.plans)


def test_regions_of_one_structure_share_a_plan_and_its_run(here: Here) -> None:
    engine = Watched("one", {"only": Act()}, Clock())
    here(engine)
    exe = compiled(rows("softmax", "softmax", "rms_norm", "softmax"), disabled_passes=("fuse",))
    assert len(exe.report.regions) > len(engine.runs)
    assert engine.runs == [("only", 1)] * len({plan.region.key for _, plan in engine.made})


def test_an_engine_that_was_not_chosen_runs_nothing(here: Here) -> None:
    cheap, dear = (Watched(name, {"only": Act()}, Clock(), us) for name, us in (("cheap", 3.0), ("dear", 9.0)))
    here(cheap, dear)
    assert {r.engine for r in compiled(rows("softmax", "rms_norm")).report.regions} == {"cheap"}
    assert not dear.made


@pytest.mark.parametrize(("limit", "plan"), [(None, "wide"), (1 << 12, "narrow"), (1 << 10, "none")])
def test_limits_make_no_plan_run_again(limit: int | None, plan: str, here: Here) -> None:
    engine = Watched("one", {"wide": Act(workspace=1 << 14), "narrow": Act(workspace=256), "none": Act()}, Clock())
    here(engine)
    exe = compiled(rows("softmax", "rms_norm", "softmax"), memory_limit=limit, disabled_passes=("fuse",))
    assert {r.plan for r in exe.report.regions} == {plan}
    assert max(runs for _, runs in engine.runs) == 1
    assert sum(made.on_data for _, made in engine.made) == 0


def test_a_plan_that_a_child_tried_runs_here_once_more(here: Here) -> None:
    """What a first run loads is loaded into its own process, and the child's kernels cannot be captured here."""
    engine = Watched("one", {"unknown": Act(is_known=False), "known": Act()}, Clock())
    _, child = here(engine)
    compiled(rows("softmax", "softmax"), disabled_passes=("fuse",))
    assert Counter(child.asked) == {"one unknown": 1}
    assert engine.runs == [("unknown", 1)]


def test_timing_runs_them_more_often(here: Here) -> None:
    """That runs are counted at all."""
    engine = Watched("one", {"a": Act(), "b": Act()}, Clock())
    here(engine)
    compiled(rows("softmax"), selection="autotune")
    assert min(runs for _, runs in engine.runs) > 1


def test_a_call_runs_what_was_chosen_on_the_callers_numbers(here: Here) -> None:
    engine = Watched("one", {"only": Act()}, Clock())
    here(engine)
    exe = compiled(rows("softmax"))
    x = np.random.default_rng(0).standard_normal((6, 16), np.float32)
    np.testing.assert_array_equal(exe({"x": x})["y"], gd.evaluate(rows("softmax"), {"x": x})["y"])
    ((_, plan),) = engine.made
    assert plan.on_data == plan.runs - 1 > 0
