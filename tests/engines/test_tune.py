"""Choosing by measurement, on engines that do what the test says and a clock that only they move."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines import check, tune
from graphdnn.engines.trial import Tried, built
from graphdnn.planning import session
from graphdnn.runtime.device import HostDevice
from tests.engines.compiled import answer, compiled, double, told
from tests.engines.scripted import Act, Clock, Scripted

X = np.arange(15, dtype=np.float32).reshape(3, 5) - 7


def test_the_fastest_plan_wins_and_the_others_have_their_times(clock: Clock, with_engines: Any) -> None:
    with_engines(Scripted("one", {"a": Act(30), "b": Act(12), "c": Act(20)}, clock))
    exe = compiled(double())
    (region,) = exe.report.regions
    assert (region.plan, region.measured_us) == ("b", pytest.approx(12))
    assert told(exe.report, "one") == {"a": "slower", "b": "chosen", "c": "slower"}
    times = {p.name: p.measured_us for p in answer(exe.report, "one").plans}
    assert times == pytest.approx({"a": 30, "b": 12, "c": 20})
    assert "took 30.0 us against 12.0" in answer(exe.report, "one").plans[0].reason
    np.testing.assert_array_equal(exe({"x": X})["y"], 2 * X)


def test_heuristics_take_the_first_plan_and_time_nothing(clock: Clock, with_engines: Any) -> None:
    engine = Scripted("one", {"a": Act(30), "b": Act(12)}, clock)
    with_engines(engine)
    report = compiled(double(), "heuristic").report
    assert (report.regions[0].plan, report.regions[0].measured_us) == ("a", None)
    assert (engine.built, clock.now, report.effects) == (["a"], 0.0, ())


def test_another_engine_wins_where_it_is_faster_although_it_was_estimated_slower(
    clock: Clock, with_engines: Any
) -> None:
    with_engines(
        Scripted("proud", {"a": Act(30)}, clock, estimated_us=5), Scripted("humble", {"b": Act(9)}, clock, 20.0)
    )
    report = compiled(double()).report
    assert [(r.engine, r.plan) for r in report.regions] == [("humble", "b")]
    assert (answer(report, "proud").verdict, answer(report, "proud").measured_us) == ("slower", pytest.approx(30))
    assert compiled(double(), "heuristic").report.regions[0].engine == "proud"


def test_a4_whole(clock: Clock, with_engines: Any) -> None:
    """The first plan fails to build, the second to run, the third gives numbers off by a factor and is fastest."""
    acts = {
        "p0": Act(fails="build"),
        "p1": Act(fails="run"),
        "p2": Act(1, factor=1.5),
        "p3": Act(40),
        "p4": Act(10),
        "p5": Act(11, fails="later"),
        "p6": Act(2, fails="library"),
    }
    with_engines(Scripted("one", acts, clock))
    exe = compiled(double())
    assert exe.report.regions[0].plan == "p4"
    assert told(exe.report, "one") == {
        "p0": "failed",
        "p1": "failed",
        "p2": "wrong",
        "p3": "slower",
        "p4": "chosen",
        "p5": "failed",
        "p6": "failed",
    }
    reasons = {p.name: p.reason for p in answer(exe.report, "one").plans}
    assert "300 registers" in reasons["p0"]
    assert "illegal memory access" in reasons["p1"]
    assert "CUDNN_STATUS_EXECUTION_FAILED" in reasons["p6"]
    assert "15 of 15 elements are off, by up to 0.5 of the peak" in reasons["p2"]
    explained = exe.explain()
    assert "1 plan gave wrong numbers and 4 failed; none was chosen" in explained
    assert "  wrong: one p2: 15 of 15 elements are off, by up to 0.5 of the peak" in explained
    assert "  failed: one p0 and 3 more: p0 needs 300 registers" in explained
    np.testing.assert_array_equal(exe({"x": X})["y"], 2 * X)


def test_plans_of_equal_regions_are_counted_once(clock: Clock, with_engines: Any) -> None:
    with_engines(Scripted("one", {"a": Act(1, factor=2), "b": Act(fails="run"), "c": Act()}, clock, takes=("mul",)))
    g = gd.GraphBuilder("twins")
    inputs = {name: g.input(name, (3, 5), gd.float32) for name in ("u", "v")}
    exe = compiled(g.build({f"{name}2": g.mul(x, 2.0) for name, x in inputs.items()}))
    assert [(r.pattern, r.plan) for r in exe.report.regions] == [("mul", "c")] * 2
    assert "1 plan gave wrong numbers and 1 failed; none was chosen" in exe.explain()


def test_an_engine_with_wrong_numbers_only_gives_way(clock: Clock, with_engines: Any) -> None:
    with_engines(Scripted("liar", {"a": Act(1, factor=-1)}, clock, 1.0), Scripted("honest", {"b": Act(50)}, clock))
    exe = compiled(double())
    assert exe.report.regions[0].engine == "honest"
    entry = answer(exe.report, "liar")
    assert (entry.verdict, entry.code, entry.plans[0].verdict) == ("wrong", "numbers", "wrong")
    assert "wrong: liar" in exe.explain()


def test_plans_that_failed_beside_one_that_runs_are_explained_without_timing(clock: Clock, with_engines: Any) -> None:
    with_engines(Scripted("one", {"a": Act(fails="build"), "b": Act(fails="run"), "c": Act()}, clock))
    explained = compiled(double(), "heuristic").explain()
    assert "2 plans failed; none was chosen" in explained
    assert "  failed: one a and 1 more: a needs 300 registers" in explained


def test_where_every_plan_is_wrong_the_error_says_so(clock: Clock, with_engines: Any) -> None:
    with_engines(Scripted("liar", {"a": Act(1, factor=2)}, clock))
    with pytest.raises(gd.CompileError, match=r"double.*liar.*a: .*of the peak"):
        compiled(double())


def test_a_plan_that_is_not_the_same_twice_is_wrong_only_beyond_the_tolerance(clock: Clock, with_engines: Any) -> None:
    with_engines(Scripted("one", {"a": Act(5, noise=1e-7), "b": Act(4, noise=0.1)}, clock))
    assert told(compiled(double()).report, "one") == {"a": "chosen", "b": "wrong"}


def test_hopeless_plans_are_dropped_early(clock: Clock, with_engines: Any) -> None:
    with_engines(Scripted("one", {"a": Act(10), "b": Act(40_000)}, clock))
    report = compiled(double()).report
    slow = answer(report, "one").plans[1]
    assert (slow.verdict, slow.measured_us) == ("slower", pytest.approx(40_000))
    assert "dropped after its first runs" in slow.reason
    # One run for its numbers, one to warm up, two that were timed.
    assert clock.now < 1e-6 * (5 * 40_000 + 10_000)


def test_an_engine_whose_estimate_is_hopeless_is_not_timed(clock: Clock, with_engines: Any) -> None:
    slow = Scripted("slow", {"s": Act(9000)}, clock, estimated_us=9000)
    with_engines(Scripted("one", {"a": Act(10)}, clock), slow)
    report = compiled(double()).report
    assert "estimated 9000.0 us against 10.0" in answer(report, "slow").plans[0].reason
    assert clock.now < 9e-3


def test_many_threads_and_many_regions_give_the_choice_of_one(
    clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphdnn import compiler
    from graphdnn.engines.choose import Selector

    g = gd.GraphBuilder("many")
    outputs = {f"y{n}": g.softmax(g.input(f"x{n}", (3, n), gd.float32)) for n in range(2, 23)}
    acts = {"a": Act(30), "b": Act(12), "c": Act(fails="build"), "d": Act(1, factor=2)}
    reports = []
    for threads in (1, 8):
        monkeypatch.setattr(compiler, "Selector", lambda *args, threads=threads, **_: Selector(*args, threads=threads))
        with_engines(Scripted("one", acts, clock))
        clock.now = 0.0
        reports.append(compiled(g.build(outputs)).report)
    assert reports[0].candidates == reports[1].candidates
    assert {r.plan for r in reports[1].regions} == {"b"}


def test_equal_regions_are_timed_once(clock: Clock, with_engines: Any) -> None:
    engine = Scripted("one", {"a": Act(10), "b": Act(5)}, clock)
    with_engines(engine)
    g = gd.GraphBuilder("twice")
    outputs = {n: g.relu(g.input(f"{n}_in", (3, 5), gd.float32), name=n) for n in ("first", "second")}
    report = compiled(g.build(outputs)).report
    assert [r.plan for r in report.regions] == ["b", "b"]
    assert engine.built == ["a", "b"]
    assert 'selection="autotune" timed 1 region' in report.effects[0]


def test_only_so_many_plans_are_timed(clock: Clock, with_engines: Any) -> None:
    with_engines(Scripted("one", {f"p{i}": Act(100 - i) for i in range(14)}, clock))
    report = compiled(double()).report
    assert report.regions[0].plan == "p9"
    assert [p.reason for p in answer(report, "one").plans[10:]] == ["its engine ranks it lower; not timed"] * 4


class TestLarge:
    """Every region counts as too large for its definition."""

    @pytest.fixture(autouse=True)
    def everything_is_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(check, "AT_ONCE_S", -1.0)
        monkeypatch.setattr(check, "PART_S", 0.0)

    def test_a_plan_that_disagrees_with_other_engines_is_wrong(self, clock: Clock, with_engines: Any) -> None:
        engines = [Scripted(f"right{i}", {"a": Act(10 + i)}, clock) for i in range(2)]
        with_engines(Scripted("liar", {"eng1_k2=1": Act(1, factor=2), "eng1_k2=2": Act(1, factor=2)}, clock), *engines)
        report = compiled(double()).report
        assert report.regions[0].engine == "right0"
        assert set(told(report, "liar").values()) == {"wrong"}
        assert not report.regions[0].notes

    def test_what_was_not_timed_for_being_slow_still_serves_to_check_others(
        self, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = Scripted("plain", {"p": Act(9000)}, clock, estimated_us=9000)
        with_engines(Scripted("liar", {"a": Act(1, factor=2)}, clock), plain)
        report = compiled(double()).report
        assert report.regions[0].engine == "plain"
        assert told(report, "liar") == {"a": "wrong"}

    def test_a_plan_too_fast_to_be_true_makes_no_other_hopeless(
        self, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It counts as the floor by bytes and operations, of which the other's estimate is six times."""
        monkeypatch.setattr(tune, "floor_us", lambda *_: 5.0)
        liar = Scripted("liar", {"a": Act(0.01, factor=2)}, clock, estimated_us=1)
        with_engines(liar, *(Scripted(n, {"p": Act(20)}, clock, estimated_us=30) for n in ("plain", "other")))
        report = compiled(double()).report
        assert told(report, "liar") == {"a": "wrong"}
        assert report.regions[0].measured_us == pytest.approx(20)

    def test_an_implementation_that_is_alone_is_held_against_a_part_of_the_definition(
        self, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(check, "PART_S", 1.0)
        plain = Scripted("plain", {"p": Act(9000)}, clock, estimated_us=9000)
        acts = {"eng1_k2=1": Act(1, factor=2), "eng1_k2=2": Act(3)}
        with_engines(Scripted("one", acts, clock), plain)
        report = compiled(double()).report
        assert told(report, "one") == {"eng1_k2=1": "wrong", "eng1_k2=2": "chosen"}
        assert (plain.built, report.regions[0].notes) == ([], ())

    def test_an_implementation_that_is_alone_is_noted(self, clock: Clock, with_engines: Any) -> None:
        with_engines(Scripted("one", {"a": Act(1)}, clock))
        (note,) = compiled(double()).report.regions[0].notes
        assert "numbers were not compared" in note

    def test_so_it_is_where_the_budget_was_spent_too(self, clock: Clock, with_engines: Any) -> None:
        with_engines(Scripted("one", {"a": Act(50_000), "b": Act(20_000), "c": Act(10_000)}, clock))
        (note,) = compiled(double(), tuning_budget_s=0.3).report.regions[0].notes
        assert note.startswith("numbers were not compared")
        assert note.endswith("; tuning_budget_s=0.3 was spent")


def test_where_all_that_were_timed_are_wrong_the_next_one_runs(clock: Clock, with_engines: Any) -> None:
    acts = {**{f"bad{i}": Act(factor=2) for i in range(10)}, "good": Act(50)}
    engine = Scripted("one", acts, clock)
    with_engines(engine)
    exe = compiled(double())
    assert exe.report.regions[0].plan == "good"
    assert told(exe.report, "one") == {**{f"bad{i}": "wrong" for i in range(10)}, "good": "chosen"}
    assert len(engine.built) == 11
    np.testing.assert_array_equal(exe({"x": X})["y"], 2 * X)


def test_an_engine_that_proposes_nothing_after_all(clock: Clock, with_engines: Any) -> None:
    shy = Scripted("shy", {}, clock, 1.0, refuses=Decline(Code.PRECISION, "nothing keeps float32", None))
    with_engines(shy, Scripted("one", {"a": Act(10)}, clock))
    report = compiled(double()).report
    assert report.regions[0].engine == "one"
    assert (answer(report, "shy").verdict, answer(report, "shy").reason) == ("declined", "nothing keeps float32")


class TestBudget:
    def test_what_is_known_when_it_is_spent_is_used(self, clock: Clock, with_engines: Any) -> None:
        acts = {"a": Act(50_000), "b": Act(20_000), "c": Act(10_000), "d": Act(5)}
        with_engines(Scripted("one", acts, clock))
        report = compiled(double(), tuning_budget_s=0.45).report
        assert report.regions[0].plan == "b"
        assert "tuning_budget_s=0.45 was spent" in " ".join(report.effects)
        assert "tuning_budget_s=0.45 was spent" in answer(report, "one").plans[3].reason
        assert report.regions[0].notes == ("tuning_budget_s=0.45 was spent",)

    @pytest.mark.parametrize("selection", ["autotune", "measure"])
    def test_none_at_all_leaves_the_choice_to_heuristics(self, selection: str, clock: Clock, with_engines: Any) -> None:
        with_engines(Scripted("one", {"a": Act(50), "b": Act(20)}, clock))
        report = compiled(double(), selection, tuning_budget_s=0).report
        assert (report.regions[0].plan, report.regions[0].measured_us) == ("a", None)
        assert any("not timed" in note for note in report.regions[0].notes)

    @pytest.mark.usefixtures("ctrl_c")
    @pytest.mark.parametrize("selection", ["autotune", "measure"])
    def test_ctrl_c_keeps_what_is_known_and_finishes(self, selection: str, clock: Clock, with_engines: Any) -> None:
        class Interrupting(Scripted):
            def build(self, candidate: Any, device: Any) -> Any:
                if candidate.name == "b" and not self.built.count("b"):
                    signal.raise_signal(signal.SIGINT)
                return super().build(candidate, device)

        before = signal.getsignal(signal.SIGINT)
        with_engines(Interrupting("one", {"a": Act(50), "b": Act(20), "c": Act(5)}, clock))
        exe = compiled(double(), selection)
        assert exe.report.regions[0].plan in ("a", "b")
        assert "interrupted" in " ".join(exe.report.effects)
        assert "interrupted" in exe.explain()
        assert signal.getsignal(signal.SIGINT) is before
        np.testing.assert_array_equal(exe({"x": X})["y"], 2 * X)

    @pytest.mark.usefixtures("ctrl_c")
    def test_a_second_ctrl_c_ends_the_compilation(self, clock: Clock, with_engines: Any) -> None:
        class Impatient(Scripted):
            def build(self, candidate: Any, device: Any) -> Any:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
                return super().build(candidate, device)

        with_engines(Impatient("one", {"a": Act(50)}, clock))
        with pytest.raises(KeyboardInterrupt):
            compiled(double())


def test_deterministic_mode_fixes_the_choice_by_heuristics(clock: Clock, with_engines: Any) -> None:
    acts = {"a": Act(5, deterministic=False), "b": Act(30), "c": Act(10)}
    with_engines(Scripted("one", acts, clock))
    report = compiled(double(), deterministic=True).report
    assert report.regions[0].plan == "b"
    assert told(report, "one") == {"a": "excluded", "b": "chosen", "c": "slower"}
    assert "deterministic=True fixes the choice by heuristics" in report.effects[0]
    assert clock.now == 0


def test_deterministic_mode_refuses_by_name_what_has_no_such_plan(clock: Clock, with_engines: Any) -> None:
    with_engines(Scripted("one", {"a": Act(5, deterministic=False)}, clock))
    with pytest.raises(gd.CompileError, match=r"double.*one.*a: gives other bits from run to run"):
        compiled(double(), deterministic=True)


@pytest.mark.parametrize("selection", ["heuristic", "autotune", "measure"])
def test_deterministic_mode_takes_no_plan_from_a_lock_file_that_varies(
    selection: str, clock: Clock, with_engines: Any, tmp_path: Any
) -> None:
    with_engines(Scripted("one", {"a": Act(5, deterministic=False), "b": Act(30), "c": Act(10)}, clock))
    compiled(double()).save_lock(tmp_path / "fast.lock.json")
    options = gd.CompileOptions(selection=selection, deterministic=True)  # type: ignore[arg-type]
    with pytest.warns(RuntimeWarning, match="fast.lock.json"):
        report = gd.compile(double(), "cpu", options, lock=tmp_path / "fast.lock.json").report
    assert (report.regions[0].plan, report.regions[0].deterministic) == ("b", True)
    assert any("runs on b; a is not usable here: gives other bits from run to run" in e for e in report.effects)


def test_a_described_device_times_nothing_and_says_so() -> None:
    report = gd.compile(double(), gd.Target.named("h200"), gd.CompileOptions(selection="measure")).report
    assert report.effects == ('h200 (described) is not here, so selection="measure" timed nothing',)


def test_unknown_plans_are_probed_before_they_are_built(
    clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from graphdnn.engines.attempt import Chosen
    from graphdnn.engines.choose import Selector
    from graphdnn.engines.contract import Policy
    from graphdnn.ir.region import Region
    from graphdnn.target import Target

    class Prober:
        asked: Sequence[tuple[str, str]] = ()

        def probe(
            self, region: Region, engine: str, plan: str, is_over: Callable[[], bool] | None = None
        ) -> Decline | None:
            self.asked = (*self.asked, (engine, plan))
            return Decline(Code.RUN, "the child died of signal 11") if plan == "b" else None

    acts = {"b": Act(is_known=False), "c": Act(is_known=False), "a": Act()}
    engine, prober, graph = Scripted("one", acts, clock), Prober(), double()
    selector = Selector([engine], Target.cpu(), Policy(), prober=prober)
    region = Region.of(graph, graph.nodes)
    selector.support.answers(region)
    found = selector.plan("one", region, HostDevice())
    assert isinstance(found, Chosen)
    assert (found.candidate.name, prober.asked) == ("c", (("one", "b"), ("one", "c")))
    assert [(t.candidate.name, t.verdict) for t in found.tried] == [("b", "failed"), ("c", "chosen"), ("a", "slower")]
    assert "signal 11" in found.tried[0].reason
    assert engine.built == ["c"]


class TestElsewhere:
    """Plans that somebody else builds meanwhile."""

    class Processes:
        """Has begun nothing, built all, or found that plan b does harm."""

        def __init__(self, has_begun: bool) -> None:
            self.has_begun = has_begun
            self.orders: dict[str, Future[Decline | None]] = {}

        def takes(self, engine: str) -> bool:
            return engine == "one"

        def order(self, region: Any, engine: str, plan: str) -> Future[Decline | None]:
            found: Future[Decline | None] = Future()
            if self.has_begun:
                found.set_result(Decline(Code.BUILD, "the child died of signal 6") if plan == "b" else None)
            self.orders[plan] = found
            return found

        def close(self) -> None:
            """Nothing is held."""

    @pytest.mark.parametrize("has_begun", [False, True])
    def test_what_does_harm_there_is_not_built_here(
        self, has_begun: bool, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        processes = self.Processes(has_begun)
        monkeypatch.setattr(session, "ProcessPool", lambda *_: processes)
        monkeypatch.setattr(tune, "WORTH", 3)
        acts = {"a": Act(30), "b": Act(5), "c": Act(12), "d": Act(1, workspace=900), "e": Act(1, is_known=False)}
        engine = Scripted("one", acts, clock)
        with_engines(engine, Scripted("other", {"o": Act(50)}, clock))
        monkeypatch.setattr(tune, "built", unprobed)
        report = compiled(double(), workspace_limit=100, disabled_plans=()).report
        assert list(processes.orders) == ["a", "b", "c"]
        assert told(report, "one")["b"] == ("failed" if has_begun else "chosen")
        assert ("b" in engine.built) is not has_begun
        assert all(order.cancelled() is not has_begun for order in processes.orders.values())

    def test_the_next_regions_are_built_while_others_are_timed(
        self, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ordered: list[tuple[str, float]] = []

        class Noting(self.Processes):  # type: ignore[misc, name-defined]
            def order(self, region: Any, engine: str, plan: str) -> Future[Decline | None]:
                ordered.append((region.pattern, clock.now))
                return super().order(region, engine, plan)

        monkeypatch.setattr(session, "ProcessPool", lambda *_: Noting(True))
        monkeypatch.setattr(tune, "WORTH", 1)
        monkeypatch.setattr(tune, "BATCH", 1)
        with_engines(Scripted("one", {"a": Act(30)}, clock, takes=("relu", "softmax", "tanh")))
        g = gd.GraphBuilder("three")
        graph = g.build({"y": g.tanh(g.softmax(g.relu(g.input("x", (3, 5), gd.float32))))})
        compiled(graph)
        patterns, times = zip(*ordered, strict=True)
        assert patterns == ("relu", "softmax", "tanh")
        assert times[0] == times[1] == 0 < times[2] < clock.now

    def test_a_few_plans_are_not_worth_it(self, clock: Clock, with_engines: Any, monkeypatch: Any) -> None:
        processes = self.Processes(True)
        monkeypatch.setattr(session, "ProcessPool", lambda *_: processes)
        with_engines(Scripted("one", {"a": Act(30), "b": Act(5)}, clock))
        assert compiled(double()).report.regions[0].plan == "b"
        assert not processes.orders


def unprobed(engine: Any, candidate: Any, device: Any, limits: Any, prober: Any, is_over: Any) -> Any:
    """Builds what is known; the rest would be tried in a child."""
    if not candidate.is_known:
        return Tried(candidate, "failed", "not tried")
    return built(engine, candidate, device, limits)


def test_engines_without_hope_by_estimate_are_not_even_built(clock: Clock, with_engines: Any) -> None:
    slow = Scripted("slow", {"s": Act(500)}, clock, estimated_us=500)
    with_engines(slow, Scripted("fast", {"f": Act(10)}, clock, estimated_us=10))
    report = compiled(double()).report
    assert (report.regions[0].engine, slow.built) == ("fast", [])
    assert "not timed: estimated 500.0 us against 10.0" in answer(report, "slow").plans[0].reason


def test_they_are_where_the_others_disappoint(clock: Clock, with_engines: Any) -> None:
    slow = Scripted("slow", {"s": Act(300)}, clock, estimated_us=500)
    with_engines(slow, Scripted("fast", {"f": Act(400)}, clock, estimated_us=10))
    report = compiled(double()).report
    assert (report.regions[0].engine, slow.built[0]) == ("slow", "s")
