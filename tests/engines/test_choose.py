"""Limits that hold, plans built in threads, decisions made elsewhere, on engines that do what the test says."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.compiler import compile_for
from graphdnn.engines.attempt import Chosen, Refused
from graphdnn.engines.choose import Decision, Selector
from graphdnn.engines.contract import Candidate, Device, Policy
from graphdnn.ir.region import Region
from graphdnn.passes.select import Offer
from graphdnn.report.model import CompileReport
from graphdnn.runtime.device import HostDevice
from graphdnn.target import Target
from tests.engines.scripted import Act, Clock, Scripted


def chain(*ops: str, rows: int = 64) -> gd.Graph:
    """Row-wise ops one after the other, none of which is pointwise."""
    g = gd.GraphBuilder("chain")
    y = g.input("x", (rows, 16), gd.float32)
    for number, op in enumerate(ops):
        y = getattr(g, op)(y, name=f"{op}{number}")
    return g.build({"y": y})


def verdicts(report: CompileReport, engine: str, pattern: str) -> dict[str, tuple[str, int, float | None]]:
    (entry,) = [c for c in report.candidates if c.engine == engine and c.pattern == pattern]
    return {p.name: (p.verdict, p.workspace_bytes, p.estimated_us) for p in entry.plans}


PLANS = {"fast": Act(1, workspace=1 << 21), "middle": Act(5, workspace=600), "plain": Act(9)}


class TestWorkspaceLimit:
    @pytest.mark.parametrize(
        ("limit", "chosen"), [(0, "plain"), (512, "plain"), (600, "middle"), (1 << 20, "middle"), (None, "fast")]
    )
    def test_a6_the_report_lists_what_the_limit_excluded_with_bytes_and_time(
        self, limit: int | None, chosen: str, with_engines: Any
    ) -> None:
        with_engines(Scripted("one", PLANS, Clock(), estimated_us=7.0))
        exe = gd.compile(chain("softmax"), "cpu", gd.CompileOptions(workspace_limit=limit))
        (region,) = exe.report.regions
        assert region.plan == chosen
        found = verdicts(exe.report, "one", "softmax")
        names = list(PLANS)
        for name, act in PLANS.items():
            expected = (
                "chosen" if name == chosen else "excluded" if names.index(name) < names.index(chosen) else "slower"
            )
            assert found[name] == (expected, act.workspace, 7.0)
        x = np.random.default_rng(0).standard_normal((64, 16), np.float32)
        np.testing.assert_array_equal(exe({"x": x})["y"], gd.evaluate(chain("softmax"), {"x": x})["y"])

    def test_an_engine_that_is_ruled_out_whole_has_bytes_time_and_a_fix(self, with_engines: Any) -> None:
        greedy = Scripted("greedy", {"huge": Act(1, workspace=1 << 40)}, Clock(), estimated_us=3.0)
        with_engines(greedy, Scripted("one", {"plain": Act()}, Clock()))
        report = gd.compile(chain("softmax"), "cpu", gd.CompileOptions(workspace_limit=100)).report
        (entry,) = [c for c in report.candidates if c.engine == "greedy"]
        assert (entry.verdict, entry.estimated_us) == ("excluded", 3.0)
        assert str(1 << 40) in entry.reason
        assert entry.fix is not None
        assert (entry.fix.attribute, entry.fix.after) == ("workspace_limit", str(1 << 40))

    def test_where_nothing_fits_the_error_gives_the_smallest_need(self, with_engines: Any) -> None:
        acts = {"a": Act(workspace=5000), "b": Act(workspace=700), "c": Act(workspace=900)}
        with_engines(Scripted("one", acts, Clock()))
        with pytest.raises(gd.CompileError, match=r"softmax0.*700 bytes.*workspace_limit.*from 0 to 700"):
            gd.compile(chain("softmax"), "cpu", gd.CompileOptions(workspace_limit=0))


class TestMemoryLimit:
    """A chain of three ops has two intermediates of 4096 bytes, which live at the same time."""

    GRAPH = chain("softmax", "layer_norm", "softmax")

    def compiled(self, limit: int | None, **options: Any) -> gd.Executable:
        return gd.compile(self.GRAPH, "cpu", gd.CompileOptions(memory_limit=limit, **options))

    def test_plans_with_less_scratch_are_chosen_where_the_arena_would_be_too_large(self, with_engines: Any) -> None:
        with_engines(Scripted("one", PLANS, Clock(), takes=("softmax", "layer_norm")))
        free = self.compiled(None)
        assert {r.plan for r in free.report.regions} == {"fast"}
        exe = self.compiled(10_000)
        assert {r.plan for r in exe.report.regions} == {"middle"}
        assert exe.report.arena_bytes <= 10_000
        assert any("memory_limit=10000" in e for e in exe.report.effects)
        entry = next(c for c in exe.report.candidates if c.pattern == "softmax")
        assert entry.plans[0].verdict == "excluded"
        assert "memory_limit=10000 leaves" in entry.plans[0].reason
        exact = self.compiled(8192)
        assert {r.plan for r in exact.report.regions} == {"plain"}
        x = np.random.default_rng(0).standard_normal((64, 16), np.float32)
        np.testing.assert_array_equal(exact({"x": x})["y"], free({"x": x})["y"])

    def test_a_cover_with_fewer_intermediates_is_chosen_where_scratch_does_not_help(self, with_engines: Any) -> None:
        fused = Scripted("fused", {"f": Act()}, Clock(), 100.0, takes=("softmax+relu",))
        with_engines(Scripted("one", PLANS, Clock(), takes=("softmax", "relu")), fused)
        graph = chain("softmax", "relu", "softmax")
        assert len(gd.compile(graph, "cpu", gd.CompileOptions(memory_limit=8192)).report.regions) == 3
        tight = gd.compile(graph, "cpu", gd.CompileOptions(memory_limit=4096)).report
        assert [r.pattern for r in tight.regions] == ["softmax+relu", "softmax"]
        assert tight.arena_bytes == 4096

    def test_where_nothing_fits_the_error_gives_the_smallest_need(self, with_engines: Any) -> None:
        with_engines(Scripted("one", PLANS, Clock(), takes=("softmax", "layer_norm")))
        with pytest.raises(gd.CompileError, match=r"graph chain needs an arena of 8192 bytes .*; memory_limit is 5000"):
            self.compiled(5000)

    def test_timed_plans_are_weighed_anew(self, with_engines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        from graphdnn.planning import session
        from graphdnn.runtime.timing import HostTimer

        clock = Clock()
        monkeypatch.setattr(session, "timer_for", lambda device, memory: HostTimer(clock))
        with_engines(Scripted("one", PLANS, clock, takes=("softmax", "layer_norm")))
        exe = self.compiled(10_000, selection="autotune")
        assert {r.plan for r in exe.report.regions} == {"middle"}
        assert [r.measured_us for r in exe.report.regions] == pytest.approx([5, 5, 5])
        entry = next(c for c in exe.report.candidates if c.pattern == "softmax")
        fast = entry.plans[0]
        assert (fast.verdict, fast.workspace_bytes, fast.measured_us) == ("excluded", 1 << 21, pytest.approx(1))

    @pytest.mark.parametrize("selection", ["heuristic", "autotune", "measure"])
    def test_an_engine_that_does_with_less_is_asked_what_that_costs(
        self, selection: str, clock: Clock, with_engines: Any
    ) -> None:
        class Flexible(Scripted):
            """Splits its work where there is scratch, and is slower without."""

            def supports(self, region: Region, target: Target, policy: Policy) -> Any:
                answer = super().supports(region, target, policy)
                splits = policy.workspace_limit is None or policy.workspace_limit >= 4096
                return answer and replace(answer, estimated_us=5.0 if splits else 9.0, workspace_bytes=4096 * splits)

        acts = {"split": Act(5, workspace=4096), "plain": Act(9)}
        flexible = Flexible("flexible", acts, clock, takes=("softmax", "layer_norm"))
        with_engines(flexible, Scripted("last resort", {"slow": Act(90)}, clock, 90.0, ("softmax", "layer_norm")))
        assert {r.plan for r in self.compiled(None, selection=selection).report.regions} == {"split"}
        report = self.compiled(8192, selection=selection).report
        assert {(r.engine, r.plan) for r in report.regions} == {("flexible", "plain")}
        assert {r.estimated_us for r in report.regions} == {9.0}

    def test_a_described_device_is_planned_within_it_too(self) -> None:
        g = gd.GraphBuilder("conv")
        x = g.input("x", (8, 64, 28, 28), gd.float16)
        w = g.input("w", (64, 64, 3, 3), gd.float16)
        graph = g.build({"y": g.relu(g.conv(g.conv(x, w, padding=1), w, padding=1))})
        h200 = gd.Target.named("h200")
        arena = gd.compile(graph, h200).report.arena_bytes
        assert arena
        assert gd.compile(graph, h200, gd.CompileOptions(memory_limit=arena)).report.arena_bytes <= arena
        with pytest.raises(gd.CompileError, match=r"graph conv needs an arena of \d+ bytes .*; memory_limit is 1"):
            gd.compile(graph, h200, gd.CompileOptions(memory_limit=1))


class Slow(Scripted):
    """Builds for a while, and remembers how many builds there were at once."""

    busy = most = 0
    lock = threading.Lock()

    def build(self, candidate: Candidate, device: Device) -> Any:
        with self.lock:
            Slow.busy += 1
            Slow.most = max(Slow.most, Slow.busy)
        time.sleep(0.05 if candidate.region.pattern == "softmax" else 0.02)
        with self.lock:
            Slow.busy -= 1
        return super().build(candidate, device)


def regions_of(graph: gd.Graph) -> list[Region]:
    return [Region.of(graph, [n]) for n in graph.nodes]


class TestThreads:
    GRAPH = chain("softmax", "layer_norm", "rms_norm", "softmax", "relu", "silu")

    def selector(self, engine: Scripted, threads: int = 8) -> Selector:
        selector = Selector([engine], Target.cpu(), Policy(), threads=threads)
        for region in regions_of(self.GRAPH):
            selector.support.answers(region)
        return selector

    def test_plans_of_several_regions_are_built_at_once_and_equal_ones_once(self) -> None:
        Slow.most = 0
        engine = Slow("one", {"bad": Act(fails="build"), "good": Act()}, Clock())
        wanted = [("one", r) for r in regions_of(self.GRAPH)]
        found = self.selector(engine).plan_all(wanted, HostDevice())
        assert all(isinstance(f, Chosen) and f.candidate.name == "good" for f in found)
        assert [f.candidate.region.pattern for f in found if isinstance(f, Chosen)] == [
            "softmax", "layer_norm", "rms_norm", "softmax", "relu", "silu"
        ]  # fmt: skip
        assert found[0] is found[3]
        assert len(engine.built) == 2 * 5
        assert Slow.most > 1

    def test_the_choice_is_that_of_one_thread(self) -> None:
        acts = {"a": Act(fails="build"), "b": Act(fails="later", workspace=8), "c": Act()}
        wanted = [("one", r) for r in regions_of(self.GRAPH)]
        said = []
        for threads in (1, 8):
            found = self.selector(Slow("one", acts, Clock()), threads).plan_all(wanted, HostDevice())
            said.append([[(t.candidate.name, t.verdict, t.reason) for t in f.tried] for f in found])
        assert said[0] == said[1]

    def test_refusals_and_errors_keep_their_region(self) -> None:
        class Partial(Slow):
            def build(self, candidate: Candidate, device: Device) -> Any:
                if candidate.region.pattern == "rms_norm":
                    raise RuntimeError("a bug")
                return super().build(candidate, device)

        with pytest.raises(RuntimeError, match="a bug") as caught:
            self.selector(Partial("one", {"a": Act()}, Clock())).plan_all(
                [("one", r) for r in regions_of(self.GRAPH)], HostDevice()
            )
        assert caught.value.__notes__ == ["while one built a for rms_norm"]

    def test_a_refusal_turns_the_answer_of_that_region_alone(self) -> None:
        class Choosy(Slow):
            def candidates(self, region: Region, device: Device, policy: Policy) -> Any:
                return [] if region.pattern == "silu" else super().candidates(region, device, policy)

        selector = self.selector(Choosy("one", {"a": Act()}, Clock()))
        *good, bad = selector.plan_all([("one", r) for r in regions_of(self.GRAPH)], HostDevice())
        assert isinstance(bad, Refused)
        assert all(isinstance(f, Chosen) for f in good)
        declined = [
            r.pattern for r in regions_of(self.GRAPH) if isinstance(selector.support.answers(r)["one"], Decline)
        ]
        assert declined == ["silu"]


class FromFile:
    """Decisions for regions by pattern."""

    left_out: tuple[str, ...] = ()

    def __init__(self, **by_pattern: Decision) -> None:
        self.by_pattern = by_pattern

    def decided(self, region: Region) -> Decision | None:
        return self.by_pattern.get(region.pattern)

    def narrowed(self, offers: Any) -> list[Offer]:
        return [o for o in offers if (d := self.decided(o.region)) is None or d.engine == o.payload]


class TestDecided:
    def compiled(self, fixed: FromFile, *engines: Scripted, **options: Any) -> gd.Executable:
        device = HostDevice()
        return compile_for(chain("softmax", "layer_norm"), device.target, device, gd.CompileOptions(**options), fixed)

    @pytest.mark.parametrize("selection", ["heuristic", "autotune", "measure"])
    def test_decisions_come_before_any_choosing(self, selection: str, with_engines: Any) -> None:
        first = Scripted("first", {"a": Act(), "b": Act()}, Clock(), 1.0, takes=("softmax", "layer_norm"))
        other = Scripted("other", {"c": Act(50), "d": Act(60)}, Clock(), 90.0, takes=("softmax",))
        with_engines(first, other)
        report = self.compiled(FromFile(softmax=Decision("other", "d")), selection=selection).report
        by_pattern = {r.pattern: (r.engine, r.plan) for r in report.regions}
        assert by_pattern["softmax"] == ("other", "d")
        assert by_pattern["layer_norm"][0] == "first"
        assert (other.built, other.asked) == (["d"], [])

    def test_a_plan_that_is_gone_gives_way_to_the_engines_own_first(self, with_engines: Any) -> None:
        with_engines(Scripted("first", {"a": Act(), "b": Act(fails="build")}, Clock(), takes=("softmax", "layer_norm")))
        fixed = FromFile(softmax=Decision("first", "gone"), layer_norm=Decision("first", "b"))
        report = self.compiled(fixed).report
        assert [r.plan for r in report.regions] == ["a", "a"]
