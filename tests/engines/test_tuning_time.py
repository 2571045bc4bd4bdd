"""A budget and Ctrl-C hold by the clock on the wall while eight threads build: what nobody began is given up, what was
built in time is timed."""

from __future__ import annotations

import io
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn import compiler
from graphdnn.answer import Code, Decline
from graphdnn.engines.budget import Budget
from graphdnn.engines.choose import Selector
from graphdnn.engines.tune import Progress
from graphdnn.ir.region import Region
from graphdnn.planning import session
from graphdnn.planning.progress import ProgressLine
from graphdnn.report.model import CompileReport
from tests.engines.compiled import compiled
from tests.engines.scripted import Act, Clock, Scripted

PLANS = 10


@dataclass
class Slow(Scripted):
    """Builds take `seconds`; at build number `interrupted` somebody presses Ctrl-C."""

    seconds: float = 0.0
    interrupted: int = 0

    def build(self, candidate: Any, device: Any) -> Any:
        plan = super().build(candidate, device)
        if len(self.built) == self.interrupted:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(self.seconds)
        return plan


@pytest.fixture(autouse=True)
def eight_threads(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plans are timed by a clock that they move, and the budget by the one on the wall."""
    monkeypatch.setattr(compiler, "Selector", lambda *given, **named: Selector(*given, **{**named, "threads": 8}))
    monkeypatch.setattr(session, "Budget", Budget)
    before = set(threading.enumerate())
    yield
    assert not [t for t in threading.enumerate() if t not in before and t.name.startswith("graphdnn-build")]


def engine(clock: Clock, seconds: float, interrupted: int = 0) -> Slow:
    acts = {f"p{number}": Act(30 - number) for number in range(PLANS)}
    return Slow("one", acts, clock, seconds=seconds, interrupted=interrupted)


def many(regions: int) -> gd.Graph:
    g = gd.GraphBuilder("many")
    return g.build({f"y{n}": g.softmax(g.input(f"x{n}", (3, n), gd.float32)) for n in range(2, 2 + regions)})


def times(report: CompileReport) -> list[int]:
    """How many plans of each region were timed, the most first."""
    return sorted((sum(p.measured_us is not None for p in c.plans) for c in report.candidates), reverse=True)


def test_a_budget_ends_builds_and_what_was_built_is_timed(clock: Clock, with_engines: Any) -> None:
    """All 80 builds would take two seconds."""
    slow = engine(clock, 0.2)
    with_engines(slow)
    begun = time.monotonic()
    report = compiled(many(8), tuning_budget_s=0.5).report
    assert time.monotonic() - begun < 0.5 + 2 * 0.2 + 0.8
    timed = [r for r in report.regions if r.measured_us is not None]
    assert 1 <= len(timed) < 8
    assert len(slow.built) < 50
    late = [r for r in report.regions if r.measured_us is None]
    assert all(r.plan == "p0" and "tuning_budget_s=0.5 was spent" in r.notes[0] for r in late)


def test_of_a_region_that_was_begun_one_plan_is_timed(clock: Clock, with_engines: Any) -> None:
    """Eight builds are under way when the budget is spent; two more are not begun, nor is another region."""
    slow = engine(clock, 0.6)
    with_engines(slow)
    report = compiled(many(2), tuning_budget_s=0.4).report
    assert times(report) == [1, 0]
    assert len(slow.built) == 8 + 1  # and the one that heuristics take
    (region,) = [r for r in report.regions if r.measured_us is not None]
    assert (region.plan, region.notes) == ("p0", ("tuning_budget_s=0.4 was spent",))


def test_a_short_budget_gives_the_first_regions_whole_results(clock: Clock, with_engines: Any) -> None:
    slow = engine(clock, 0.04)
    with_engines(slow)
    report = compiled(many(24), tuning_budget_s=0.6).report
    found = times(report)
    assert found[0] == PLANS
    assert found[-1] == 0
    assert sum(0 < n < PLANS for n in found) <= 1
    assert sum(r.plan == "p9" for r in report.regions) == found.count(PLANS)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_drops_builds_that_nobody_began(clock: Clock, with_engines: Any) -> None:
    slow = engine(clock, 0.1, interrupted=12)
    with_engines(slow)
    graph = many(8)
    begun = time.monotonic()
    exe = compiled(graph)
    assert time.monotonic() - begun < 0.2 + 2 * 0.1 + 0.6
    assert len(slow.built) < 50
    assert "interrupted" in " ".join(exe.report.effects)
    inputs = {name: np.ones(v.type.shape, np.float32) for name, v in graph.inputs.items()}
    for name, wanted in gd.evaluate(graph, inputs).items():
        np.testing.assert_array_equal(exe(inputs)[name], wanted)


class Endless:
    """Tries plans in a child that hangs, for as long as anybody waits for it."""

    def __init__(self, press: bool) -> None:
        self.press = press
        self.asked = 0

    def __enter__(self) -> Endless:
        return self

    def __exit__(self, *_: object) -> None: ...

    def probe(
        self, region: Region, engine: str, plan: str, is_over: Callable[[], bool] | None = None
    ) -> Decline | None:
        self.asked += 1
        if is_over is None:  # heuristics, which come to other plans first
            return None
        if self.press:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)
        end = time.monotonic() + 5
        while time.monotonic() < end and not is_over():
            time.sleep(0.02)
        return Decline(Code.TRANSIENT, "it was given up when timing ended")


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("press", [False, True])
@pytest.mark.parametrize("threads", [1, 8])
def test_nobody_waits_for_a_plan_that_hangs_in_a_child(
    threads: int, press: bool, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "Selector", lambda *given, **named: Selector(*given, **{**named, "threads": threads}))
    prober = Endless(press)
    monkeypatch.setattr(compiler, "prober_for", lambda *_: prober)
    acts = {"good": Act(30), "hangs": Act(10, is_known=False), "late": Act(20)}
    with_engines(Scripted("one", acts, clock))
    begun = time.monotonic()
    report = compiled(many(1), tuning_budget_s=None if press else 0.3).report
    assert time.monotonic() - begun < 2
    assert prober.asked == 1
    (region,) = report.regions
    assert region.plan == "good"
    assert any(("interrupted" if press else "tuning_budget_s=0.3 was spent") in note for note in region.notes)
    assert all(p.verdict in ("chosen", "slower") for c in report.candidates for p in c.plans)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_keeps_what_is_known(clock: Clock, with_engines: Any) -> None:
    """It comes while plans of the second eight regions are built."""
    slow = engine(clock, 0.02, interrupted=8 * PLANS + 5)
    with_engines(slow)
    report = compiled(many(16)).report
    assert times(report) == [PLANS] * 8 + [0] * 8
    assert sorted(r.plan for r in report.regions) == ["p0"] * 8 + ["p9"] * 8
    assert len(slow.built) < 8 * PLANS + 60


def test_the_bar_shows_region_candidates_best_and_budget(
    clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Drawn(ProgressLine):
        """Draws whatever it is told, which else happens some times a second."""

        def show(self, progress: Progress) -> None:
            super().show(progress)
            self._bar.refresh()

    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(session, "watcher", lambda wanted: Drawn())
    slow = Scripted("late", {"s0": Act(20), "s1": Act(40)}, clock, estimated_us=20)
    with_engines(engine(clock, 0.0), slow)
    compiled(many(2), tuning_budget_s=100)
    text = out.getvalue()
    for number in range(1, PLANS + 3):
        assert f"candidate {number} of {PLANS + 2}" in text
    (last,) = [line for line in text.replace("\r", "\n").split("\n") if "late s1" in line and "1/2" in line][-1:]
    for words in ("softmax", f"candidate {PLANS + 2} of {PLANS + 2}", "best 20.0 us", "s left", "late s1"):
        assert words in last, last
