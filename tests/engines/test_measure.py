"""Competing covers and whole graphs by what they were measured to take, and engines that only timing may trust."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.planning import session
from graphdnn.runtime.cache import DiskStore
from graphdnn.runtime.device import HostDevice
from graphdnn.runtime.timing import HostTimer
from tests.engines.compiled import answer, chain, compiled, double
from tests.engines.scripted import Act, Clock, Scripted

X = np.arange(15, dtype=np.float32).reshape(3, 5) - 7


class TestMeasure:
    def test_a_fused_plan_that_measures_slow_loses_against_its_parts(self, clock: Clock, with_engines: Any) -> None:
        acts = {"a": Act(times=lambda region: 100 if "+" in region.pattern else 10)}
        engine = Scripted("one", acts, clock, takes=("relu", "softmax", "relu+softmax"))
        with_engines(engine)
        assert [r.pattern for r in compiled(chain()).report.regions] == ["relu+softmax"]
        report = compiled(chain(), "measure").report
        assert [r.pattern for r in report.regions] == ["relu", "softmax"]
        fused = answer(report, "one", "relu+softmax")
        assert (fused.verdict, fused.measured_us) == ("slower", pytest.approx(100))
        assert [r.measured_us for r in report.regions] == pytest.approx([10, 10])

    def test_a_fused_plan_that_measures_fast_wins_although_it_was_estimated_slow(
        self, clock: Clock, with_engines: Any
    ) -> None:
        fused = Scripted("fused", {"f": Act(10)}, clock, estimated_us=100, takes=("relu+softmax",))
        with_engines(fused, Scripted("parts", {"p": Act(10)}, clock, takes=("relu", "softmax")))
        assert len(compiled(chain(), "heuristic").report.regions) == 2
        report = compiled(chain(), "measure").report
        assert [(r.engine, r.pattern) for r in report.regions] == [("fused", "relu+softmax")]

    def test_parts_that_fail_when_timed_give_way(self, clock: Clock, with_engines: Any) -> None:
        fused = Scripted("fused", {"f": Act(1, factor=3)}, clock, estimated_us=1, takes=("relu+softmax",))
        with_engines(fused, Scripted("parts", {"p": Act(10)}, clock, takes=("relu", "softmax")))
        exe = compiled(chain(), "measure")
        assert [r.pattern for r in exe.report.regions] == ["relu", "softmax"]
        assert answer(exe.report, "fused", "relu+softmax").verdict == "wrong"

    @pytest.mark.parametrize(("relu_us", "is_timed"), [(9.0, False), (3.0, True)])
    def test_pointwise_parts_are_timed_first_and_may_rule_out_the_rest(
        self, relu_us: float, is_timed: bool, clock: Clock, with_engines: Any
    ) -> None:
        """The softmax is bounded by an eighth of its estimate, 1.25 us, and the fused plan takes 10."""
        times = {"relu": relu_us, "softmax": 20.0, "relu+softmax": 10.0}
        with_engines(Scripted("one", {"a": Act(times=lambda r: times[r.pattern])}, clock, takes=tuple(times)))
        report = compiled(chain(), "measure").report
        assert [r.pattern for r in report.regions] == ["relu+softmax"]
        assert answer(report, "one", "relu").measured_us == pytest.approx(relu_us)
        assert (answer(report, "one", "softmax").measured_us is not None) is is_timed


class TestUntimed:
    """An engine whose first plan may be very slow, though its best one is fast."""

    def engines(self, clock: Clock) -> tuple[Scripted, Scripted]:
        risky = Scripted("risky", {"first": Act(900), "best": Act(5)}, clock, 5.0, ("relu+softmax",), untimed_us=900.0)
        return risky, Scripted("parts", {"p": Act(10)}, clock, 10.0, takes=("relu", "softmax"))

    def engine_names(self, selection: str, **options: Any) -> set[str]:
        return {r.engine for r in compiled(chain(), selection, **options).report.regions}

    def test_heuristics_leave_it_alone_and_timing_takes_its_best(self, clock: Clock, with_engines: Any) -> None:
        with_engines(*self.engines(clock))
        assert self.engine_names("heuristic") == {"parts"}
        for selection in ("autotune", "measure"):
            report = compiled(chain(), selection).report
            assert [(r.engine, r.plan) for r in report.regions] == [("risky", "best")]

    @pytest.mark.parametrize("selection", ["autotune", "measure"])
    def test_so_does_timing_that_did_not_come_to_it(self, selection: str, clock: Clock, with_engines: Any) -> None:
        with_engines(*self.engines(clock))
        assert self.engine_names(selection, tuning_budget_s=0) == {"parts"}

    def test_what_has_no_room_to_be_timed_is_not_trusted_either(
        self, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Narrow(HostTimer):
            def bench(self, region: Any, inputs: Any) -> Any:
                if region.pattern == "relu+softmax":
                    return Decline(Code.OPTION, "one set of its tensors takes 120 bytes; tuning_memory is 60")
                return super().bench(region, inputs)

        monkeypatch.setattr(session, "timer_for", lambda device, memory: Narrow(clock))
        with_engines(*self.engines(clock))
        for selection in ("autotune", "measure"):
            report = compiled(chain(), selection).report
            assert {r.engine for r in report.regions} == {"parts"}
            assert all(r.measured_us for r in report.regions)


def convolutions() -> gd.Graph:
    """Three convolutions that the layout pass makes channels-last, with a conversion at either end."""
    g = gd.GraphBuilder("convolutions")
    return g.build({"y": convolved(g, g.input("x", (2, 6, 9, 7), gd.float32))})


def residual() -> gd.Graph:
    """The same and what they begin with, which lives until the end where it is converted."""
    g = gd.GraphBuilder("residual")
    x = g.input("x", (2, 6, 9, 7), gd.float32)
    return g.build({"y": g.add(convolved(g, x), x, name="sum")})


def convolved(g: gd.GraphBuilder, x: gd.Value) -> gd.Value:
    rng = np.random.default_rng(0)
    for i in range(3):
        w = g.constant(rng.standard_normal((6, 6, 3, 3), np.float32) / 7)
        x = g.conv(x, w, padding=1, name=f"conv{i}")
    return x


def projections() -> gd.Graph:
    """Two products of one operand with constant weights, which are merged by estimate."""
    g = gd.GraphBuilder("projections")
    x = g.input("x", (3, 16), gd.float32)
    rng = np.random.default_rng(0)
    weights = [g.constant(rng.standard_normal((16, 8), np.float32)) for _ in range(2)]
    return g.build({f"y{i}": g.softmax(g.matmul(x, w, name=f"product{i}")) for i, w in enumerate(weights)})


class TestWholeGraphs:
    @pytest.fixture
    def store(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> DiskStore:
        from graphdnn import compiler

        store = DiskStore(tmp_path)
        monkeypatch.setattr(compiler, "device_for", lambda *_: HostDevice(store))
        return store

    @pytest.mark.parametrize(("merged_us", "is_merged"), [(15, True), (100, False)])
    def test_a_pass_is_left_out_where_the_whole_graph_is_faster_without_it(
        self, merged_us: float, is_merged: bool, store: DiskStore, clock: Clock, with_engines: Any
    ) -> None:
        acts = {"a": Act(times=lambda r: merged_us if r.outputs[0].type.shape[-1] > 8 else 10)}
        graph = projections()
        with_engines(Scripted("one", acts, clock, takes=("matmul", "softmax")))
        merged = [len(r.nodes) for r in compiled(graph).report.regions if r.pattern == "matmul"]
        assert merged == [2]
        exe = compiled(graph, "measure")
        products = [r.nodes for r in exe.report.regions if r.pattern == "matmul"]
        assert len(products) == (1 if is_merged else 2)
        said = " ".join(exe.report.effects)
        assert "the whole graph without the pass merge takes 40.0 us" in said
        assert ("left out for speed: merge" in said) is not is_merged
        assert exe.compilation.left_out == (() if is_merged else ("merge",))
        x = np.random.default_rng(1).standard_normal((3, 16), np.float32)
        for name, y in gd.evaluate(graph, {"x": x}).items():
            np.testing.assert_allclose(exe({"x": x})[name], y, rtol=1e-6)
        spent = clock.now
        again = compiled(graph, "measure")
        assert again.report.regions == exe.report.regions
        assert clock.now == spent

    @pytest.mark.parametrize(("last_us", "rows_us", "is_kept"), [(10, 100, True), (100, 20, False)])
    def test_layouts_are_held_against_each_other(
        self, last_us: float, rows_us: float, is_kept: bool, clock: Clock, with_engines: Any
    ) -> None:
        """Two conversions of 15 us pay where convolutions gain more by them."""

        def us(region: Any) -> float:
            if region.pattern == "convert":
                return 15
            return last_us if region.inputs[0].type.layout[1] == 1 else rows_us

        graph = convolutions()
        with_engines(Scripted("one", {"a": Act(times=us)}, clock, takes=("conv", "convert")))
        assert [r.pattern for r in compiled(graph, "autotune").report.regions].count("convert") == 2
        exe = compiled(graph, "measure")
        patterns = [r.pattern for r in exe.report.regions]
        assert patterns == (["convert", "conv", "conv", "conv", "convert"] if is_kept else ["conv"] * 3)
        said = " ".join(exe.report.effects)
        words = f"without the pass layout takes {3 * rows_us:.1f} us, with it {30 + 3 * last_us:.1f}"
        assert words in said
        assert ("left out for speed: layout" in said) is not is_kept
        x = np.random.default_rng(1).standard_normal((2, 6, 9, 7), np.float32)
        np.testing.assert_allclose(exe({"x": x})["y"], gd.evaluate(graph, {"x": x})["y"], rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("limit", [9216, 9500])
    def test_changes_that_are_named_are_those_of_the_graph_that_was_kept(
        self, limit: int, store: DiskStore, clock: Clock, with_engines: Any
    ) -> None:
        """Variants of the graph have arenas of their own, and are searched later; with known times they are not."""

        def us(region: Any) -> float:
            return 50 if region.inputs[0].type.layout[1] == 1 else 500  # so that the layout pass stays

        graph, reports = residual(), []
        for _ in range(2):
            greedy = Scripted("greedy", {"fast": Act(1, workspace=4000)}, clock, 1.0, ("conv", "add", "conv+add"))
            with_engines(greedy, Scripted("modest", {"plain": Act(times=us)}, clock, 50.0, ("conv", "convert", "add")))
            reports.append(compiled(graph, "measure", memory_limit=limit).report)
        assert "timed 0 regions" in reports[1].effects[0]
        assert "left out for speed" not in " ".join(reports[0].effects)
        assert any(c.fix for c in reports[0].candidates)
        assert reports[0].candidates == reports[1].candidates
        assert reports[0].effects[1:] == reports[1].effects[1:]

    def test_where_a_whole_graph_cannot_be_timed_it_stays_as_planned(
        self, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Small(HostTimer):
            def whole(self, placed: Any) -> float:
                raise gd.ExecutionError("a whole run takes 900 bytes; tuning_memory is 100")

        monkeypatch.setattr(session, "timer_for", lambda device, memory: Small(clock))
        with_engines(Scripted("one", {"a": Act(10)}, clock, takes=("matmul", "softmax")))
        report = compiled(projections(), "measure", tuning_memory=100).report
        assert "whole graphs were not timed: a whole run takes 900 bytes; tuning_memory is 100" in report.effects

    def test_a_variant_that_cannot_be_had_is_passed_over(self, clock: Clock, with_engines: Any) -> None:
        class Wide(Scripted):
            def candidates(self, region: Any, device: Any, policy: Any) -> Any:
                narrow = region.pattern == "matmul" and region.outputs[0].type.shape[-1] <= 8
                return [] if narrow else super().candidates(region, device, policy)

        with_engines(Wide("one", {"a": Act(50)}, clock, takes=("matmul", "softmax")))
        report = compiled(projections(), "measure").report
        assert [r.nodes for r in report.regions if r.pattern == "matmul"] == [("product0", "product1")]


@pytest.mark.parametrize("selection", ["autotune", "measure"])
def test_what_host_memory_cannot_hold_is_not_timed(
    selection: str, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError("Unable to allocate 4.00 TiB")

    with_engines(Scripted("one", {"a": Act(30)}, clock))
    monkeypatch.setattr("graphdnn.engines.tune.inputs_for", refuse)
    exe = compiled(double(), selection)
    assert exe.report.regions[0].notes == (
        "not timed: its tensors do not fit in host memory: Unable to allocate 4.00 TiB",
    )
    np.testing.assert_array_equal(exe({"x": X})["y"], 2 * X)
