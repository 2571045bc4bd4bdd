"""Failures that say nothing of a plan: they count for one compilation, and nobody remembers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest

import graphdnn as gd
from graphdnn import compiler
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, Device, DevicePlan, HostPlan, Policy
from graphdnn.engines.manifest import MANIFEST
from graphdnn.errors import MomentaryError, OutOfMemoryError
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array
from graphdnn.planning import session
from graphdnn.runtime.cache import DiskStore
from graphdnn.runtime.child import DEPTH_VARIABLE
from graphdnn.runtime.device import HostDevice
from graphdnn.runtime.timing import HostTimer
from tests.engines.compiled import answer, compiled, double, told
from tests.engines.scripted import Act, Clock, Scripted
from tests.engines.test_measure import projections

WORDS = "of the moment and not remembered"


@dataclass
class Hungry(Scripted):
    """An engine whose plan b lacks memory when it is built, run or proposed, or whose library does."""

    lacks: str = ""
    error: type[Exception] = OutOfMemoryError

    def _take(self, when: str) -> None:
        if when and self.lacks == when:
            raise self.error("512 bytes were asked for")

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
        if self.lacks == "propose":
            return Decline(Code.TRANSIENT, "there was no memory to ask the library")
        return super().candidates(region, device, policy)

    def build(self, candidate: Candidate, device: Device) -> DevicePlan | HostPlan | Decline:
        if candidate.name != "b":
            return super().build(candidate, device)
        self._take("build")
        if self.lacks == "load":
            return Decline(Code.TRANSIENT, "there was no memory to load it")
        return HungryPlan(cast(HostPlan, super().build(candidate, device)), self)


@dataclass
class HungryPlan:
    plan: HostPlan
    engine: Hungry
    workspace_bytes: int = 0
    runs: int = field(default=0)

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        self.runs += 1
        self.engine._take("run" if self.runs == 1 else "measure" if self.runs == 2 else "")
        return self.plan.run(inputs)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> DiskStore:
    store = DiskStore(tmp_path)
    monkeypatch.setattr(compiler, "device_for", lambda *_: HostDevice(store))
    return store


ACTS = {"a": Act(30), "b": Act(5), "c": Act(12)}


@pytest.mark.parametrize("error", [OutOfMemoryError, MomentaryError, MemoryError])
@pytest.mark.parametrize("lacks", ["build", "load", "run", "measure"])
def test_a_plan_that_lacked_memory_is_tried_another_time(
    lacks: str, error: type[Exception], store: DiskStore, clock: Clock, with_engines: Any
) -> None:
    with_engines(Hungry("one", ACTS, clock, lacks=lacks, error=error))
    report = compiled(double()).report
    assert told(report, "one") == {"a": "slower", "b": "failed", "c": "chosen"}
    assert answer(report, "one").plans[1].reason.endswith(WORDS)
    assert any("not remembered" in note for note in report.regions[0].notes)
    assert not store.entries()
    with_engines(Hungry("one", ACTS, clock))
    report = compiled(double()).report
    assert told(report, "one") == {"a": "slower", "b": "chosen", "c": "slower"}
    assert report.regions[0].notes == ()
    assert [e.kind for e in store.entries()] == ["tuning"]


def test_an_engine_that_could_not_propose_is_asked_another_time(
    store: DiskStore, clock: Clock, with_engines: Any
) -> None:
    for lacks, chosen in (("propose", "other"), ("", "one")):
        with_engines(Hungry("one", ACTS, clock, lacks=lacks), Scripted("other", {"o": Act(20)}, clock))
        report = compiled(double()).report
        assert report.regions[0].engine == chosen
        assert bool(store.entries()) is not lacks
    with_engines(Hungry("one", ACTS, clock, lacks="propose"))
    with pytest.raises(gd.CompileError, match="no memory to ask the library"):
        compiled(double(), "heuristic")


def test_without_timing_the_next_plan_runs_and_the_report_says_so(clock: Clock, with_engines: Any) -> None:
    with_engines(Hungry("one", {"b": Act(), "c": Act()}, clock, lacks="build"))
    report = compiled(double(), "heuristic").report
    assert told(report, "one") == {"b": "failed", "c": "chosen"}
    assert WORDS in answer(report, "one").plans[0].reason


def test_where_all_of_an_engine_lacks_memory_it_counts_as_failed(clock: Clock, with_engines: Any) -> None:
    hungry = Hungry("one", {"b": Act(), "x": Act(fails="build")}, clock, 1.0, lacks="build")
    with_engines(hungry, Scripted("other", {"o": Act()}, clock))
    entry = answer(compiled(double(), "heuristic").report, "one")
    assert (entry.verdict, entry.code) == ("failed", "transient")
    assert WORDS in entry.reason


def test_an_untimed_plan_that_lacked_memory_is_asked_another_time(
    store: DiskStore, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphdnn.engines.check.AT_ONCE_S", -1.0)
    monkeypatch.setattr("graphdnn.engines.check.PART_S", 0.0)
    for lacks in ("run", ""):
        untimed = Hungry("untimed", {"b": Act(9000)}, clock, estimated_us=9000, lacks=lacks)
        with_engines(Scripted("one", {"a": Act(1)}, clock), untimed)
        report = compiled(double()).report
        assert any("not compared" in note for note in report.regions[0].notes) is bool(lacks)
        assert bool(store.entries()) is not lacks


def test_a_plan_that_no_child_could_try_is_tried_another_time(
    store: DiskStore, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEPTH_VARIABLE, "2")
    monkeypatch.setitem(MANIFEST, "one", "tests.engines.scripted:Scripted")
    with_engines(Scripted("one", {"a": Act(30), "b": Act(5, is_known=False)}, clock))
    report = compiled(double()).report
    assert report.regions[0].plan == "a"
    assert "could not be tried in a child process" in answer(report, "one").plans[1].reason
    assert WORDS in answer(report, "one").plans[1].reason
    assert not store.entries()


class TestWholeGraphs:
    @pytest.mark.parametrize("fails", [False, True])
    def test_a_variant_that_lacked_memory_is_timed_another_time(
        self, fails: bool, store: DiskStore, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Narrow(HostTimer):
            def whole(self, placed: Any) -> float:
                if fails and len(placed.steps) == 4:
                    raise OutOfMemoryError("2 bytes were asked for")
                return super().whole(placed)

        monkeypatch.setattr(session, "timer_for", lambda device, memory: Narrow(clock))
        kept: list[object] = []
        monkeypatch.setattr("graphdnn.engines.records.TuningRecords.keep_whole", lambda *given: kept.append(given))
        with_engines(Scripted("one", {"a": Act(10)}, clock, takes=("matmul", "softmax")))
        compiled(projections(), "measure")
        assert len(kept) == (not fails)

    def test_a_budget_that_ends_within_the_last_variant_leaves_no_times(
        self, store: DiskStore, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Part of that variant's regions were not timed, so that it may take the wrong plans."""

        class Late(Scripted):
            def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
                if region.pattern == "matmul" and region.outputs[0].type.shape[-1] <= 8:
                    clock.now += 100.0
                return super().candidates(region, device, policy)

        kept: list[object] = []
        monkeypatch.setattr("graphdnn.engines.records.TuningRecords.keep_whole", lambda *given: kept.append(given))
        with_engines(Late("one", {"a": Act(10)}, clock, takes=("matmul", "softmax")))
        exe = compiled(projections(), "measure", tuning_budget_s=50.0)
        assert "was spent" in " ".join(exe.report.effects)
        assert not kept
        x = np.ones((3, 16), np.float32)
        assert exe({"x": x}).keys() == {"y0", "y1"}
