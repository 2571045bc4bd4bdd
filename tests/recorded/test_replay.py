"""Choosing among the plans that a real H200 offered, and among lists with all that can happen, at recorded times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.cudnn.anatomy import Anatomy
from graphdnn.engines.cudnn.engine import trusted
from graphdnn.engines.cudnn.plans import PlanName, Proposal
from graphdnn.engines.manifest import load_engine
from graphdnn.engines.tune import PLANS
from graphdnn.ir.region import Region
from graphdnn.report.model import CompileReport
from tests.gpu.record_candidates import Task, regions_of
from tests.recorded.lists import FILE, Offer, Plan, Recording, read
from tests.recorded.made import made
from tests.recorded.replay import Machine, X, chosen, reported

H200 = gd.Target.named("h200")
REAL = read(FILE)
ALL = [*REAL, *made()]

every = pytest.mark.parametrize("recording", ALL, ids=str)


def seen(recording: Recording, limit: int) -> Iterator[Plan]:
    """Those that timing looks at within a limit: of each engine as many as PLANS that fit, and what stands before."""
    for offer in recording.offers:
        fitting = 0
        for plan in offer.plans:
            fitting += plan.workspace <= limit
            if fitting > PLANS:
                break
            yield plan


def heuristic(recording: Recording, limit: float = math.inf, steady: bool = False) -> Plan | None:
    """What heuristics take: of the engine that is cheapest by estimate the first plan that builds and runs."""
    offers = [o for o in recording.offers if o.estimated_us is not None]
    for offer in sorted(offers, key=lambda o: max(o.estimated_us or 0.0, o.untimed_us or 0.0)):
        for plan in offer.plans:
            fits = plan.workspace <= limit and (plan.deterministic or not steady)
            if fits and plan.us is not None and plan.verdict != "failed":
                return plan
    return None


@cache
def autotuned(recording: Recording) -> tuple[Machine, gd.Executable]:
    """The machine after it compiled once, and what it compiled."""
    machine = Machine(recording)
    return machine, machine.compiled()


def place(plan: Plan) -> tuple[str, str]:
    return plan.engine, plan.name


@every
def test_heuristics_take_the_first_plan_and_time_nothing(recording: Recording) -> None:
    machine = Machine(recording)
    report = machine.compiled("heuristic").report
    wanted = heuristic(recording)
    assert wanted is not None
    assert chosen(report) == place(wanted)
    assert report.regions[0].measured_us is None
    assert (report.effects, report.regions[0].precision) == ((), wanted.precision)
    before = [p for o in recording.offers if o.engine == wanted.engine for p in o.plans]
    said = {p.name: (p.verdict, p.reason) for c in report.candidates if c.verdict == "chosen" for p in c.plans}
    for plan in before[: before.index(wanted)]:
        assert said[plan.name][0] == "failed"
    for plan in before[before.index(wanted) + 1 :]:
        assert said[plan.name] == ("slower", "its engine ranks it lower; not timed")


@pytest.mark.parametrize("selection", ["autotune", "measure"])
@every
def test_timing_takes_the_fastest_right_plan_and_tells_the_times_of_all(recording: Recording, selection: str) -> None:
    exe = autotuned(recording)[1] if selection == "autotune" else Machine(recording).compiled(selection)
    (region,) = exe.report.regions
    assert region.measured_us == pytest.approx(recording.fastest.us)
    said = reported(exe.report)
    assert said[chosen(exe.report)].verdict == "chosen"
    assert list(said) == [place(p) for p in recording.plans]
    timed = set(map(place, recording.candidates))
    for plan in recording.plans:
        told = said[place(plan)]
        if place(plan) not in timed or "not timed: estimated" in told.reason:
            assert (told.verdict, told.measured_us) == ("slower", None)
        elif plan.verdict in ("wrong", "failed"):
            assert told.verdict == plan.verdict
            assert told.reason
        elif plan.us is not None:
            assert told.measured_us == pytest.approx(plan.us)
            assert told.verdict in ("slower", "chosen")
    if said[chosen(exe.report)].deterministic:
        np.testing.assert_array_equal(exe({"x": X})["y"], 2 * X)


def limits_of(recording: Recording) -> list[int]:
    """No scratch, and up to two limits between one plan's need and the next one's."""
    needs = sorted({p.workspace for p in recording.plans if p.workspace is not None})
    return list(dict.fromkeys((0, *(n - 1 for n in needs[1:][:: max(1, len(needs) // 2)]))))


@every
def test_a_limit_excludes_what_the_list_says_and_the_report_names_bytes_and_times(recording: Recording) -> None:
    for limit in limits_of(recording):
        looked_at = list(seen(recording, limit))
        right = [p for p in looked_at if p.is_right and (p.workspace) <= limit]
        if not right:
            refused(recording, limit)
            continue
        machine = Machine(recording)
        report = machine.compiled(workspace_limit=limit).report
        said = reported(report)
        taken = said[chosen(report)]
        assert taken.measured_us == pytest.approx(min(p.us for p in right if p.us is not None))
        assert taken.workspace_bytes <= limit
        asked = {e.engine for e in report.candidates if e.verdict != "excluded" or e.plans}
        for plan in (p for p in looked_at if p.engine in asked):
            told, is_over = said[place(plan)], plan.workspace > limit
            if "not timed: estimated" in told.reason:
                continue
            assert (told.verdict == "excluded") is is_over
            if is_over:
                assert f"needs {plan.workspace} bytes of scratch; workspace_limit is {limit}" in told.reason
                assert told.estimated_us is not None
                assert f"{plan.engine} {plan.name}" not in machine.built
        for entry in (e for e in report.candidates if e.verdict == "excluded"):
            needs = [p.workspace for p in recording.plans if p.engine == entry.engine]
            if entry.plans:  # each was ruled out, or is of no use
                assert {p.verdict for p in entry.plans} <= {"excluded", "failed", "wrong"}
                needs = [p.workspace_bytes for p in entry.plans if p.verdict == "excluded"]
            assert min(needs) > limit
            assert f"needs {min(needs)} bytes of scratch" in entry.reason
            assert entry.fix is not None
            assert (entry.fix.attribute, entry.fix.after) == ("workspace_limit", str(min(needs)))
            assert entry.estimated_us is not None
        told_of_losses([p for p in looked_at if p.engine in asked], recording, limit, report)


def told_of_losses(looked_at: list[Plan], recording: Recording, limit: int, report: CompileReport) -> None:
    """Where an engine is estimated to do better with more scratch, an effect says with how much, and both times."""
    took = report.regions[0].measured_us or 0.0
    estimates = {o.engine: o.estimated_us or 0.0 for o in recording.offers}
    better = [p for p in looked_at if (p.workspace) > limit and estimates[p.engine] <= took]
    lines = [e for e in report.effects if e.startswith("workspace_limit=")]
    assert bool(lines) is bool(better)
    if lines:
        assert any(
            f"rules out {p.workspace} byte" in lines[0] and f"{p.engine} is estimated at" in lines[0] for p in better
        )
        assert f"instead of {took:.1f}" in lines[0]


def refused(recording: Recording, limit: int) -> None:
    """Where nothing fits, the error says the smallest need of each engine that would run."""
    with pytest.raises(gd.CompileError) as caught:
        Machine(recording).compiled(workspace_limit=limit)
    needs = [p.workspace for p in recording.plans if p.workspace is not None]
    assert f"workspace_limit is {limit}" in str(caught.value)
    assert min(needs) <= limit or f"{min(needs)} bytes" in str(caught.value)


@every
def test_deterministic_leaves_only_plans_whose_bits_repeat(recording: Recording) -> None:
    wanted = heuristic(recording, steady=True)
    if wanted is None:
        with pytest.raises(gd.CompileError, match="gives other bits from run to run; deterministic=True is asked for"):
            Machine(recording).compiled("heuristic", deterministic=True)
        return
    for selection in ("heuristic", "autotune"):
        machine = Machine(recording)
        exe = machine.compiled(selection, deterministic=True)
        assert chosen(exe.report) == place(wanted)
        varying = {f"{p.engine} {p.name}" for p in recording.plans if not p.deterministic}
        assert not varying & set(machine.built)
        runs = {exe({"x": X})["y"].tobytes() for _ in range(3)}
        assert len(runs) == 1
        fixed = [e for e in exe.report.effects if "deterministic=True fixes the choice by heuristics" in e]
        assert bool(fixed) is (selection == "autotune")


@every
def test_bits_that_vary_are_told(recording: Recording) -> None:
    exe = autotuned(recording)[1]
    (region,) = exe.report.regions
    runs = {exe({"x": X})["y"].tobytes() for _ in range(3)}
    assert (len(runs) == 1) is region.deterministic


@every
def test_unknown_plans_are_tried_elsewhere_before_they_are_built(recording: Recording) -> None:
    machine, _ = autotuned(recording)
    unknown = {f"{p.engine} {p.name}" for p in recording.plans if not p.is_known}
    tried = set(machine.probes.asked)
    assert tried <= unknown
    assert unknown & set(machine.built) <= tried


BOTH = [[r for r in ALL if r.case == c] for c in dict.fromkeys(r.case for r in ALL if r.precision == "tf32")]


@pytest.mark.parametrize("recordings", BOTH, ids=lambda rs: rs[0].case)
def test_ieee_never_takes_a_plan_that_rounds_to_tf32(recordings: list[Recording]) -> None:
    for selection in ("heuristic", "autotune"):
        exact = Machine(*recordings).compiled(selection).report
        assert all("tf32" not in p.precision for p in reported(exact).values())
        assert "tf32" not in exact.regions[0].precision
    loose = Machine(*recordings).compiled(precision="tf32").report
    assert loose.regions[0].measured_us == pytest.approx(
        next(r.fastest.us for r in recordings if r.precision == "tf32")
    )


def rotated(recording: Recording, by: int) -> Recording:
    """The same plans, each engine's in another order."""

    def turned(plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
        looked_at = plans[:PLANS]
        start = by % max(1, len(looked_at))
        return (*looked_at[start:], *looked_at[:start], *plans[PLANS:])

    return replace(recording, offers=tuple(replace(o, plans=turned(o.plans)) for o in recording.offers))


NOISE = (0.96, 1.06)
"""What one run takes of its recorded time, at least and at most."""


@every
def test_noise_and_order_never_drop_the_winner(recording: Recording, rng: np.random.Generator) -> None:
    machine = Machine(rotated(recording, int(rng.integers(PLANS))), factor=lambda: float(rng.uniform(*NOISE)))
    report = machine.compiled().report
    said, winner = reported(report), recording.fastest
    near = [p for p in recording.candidates if p.is_right and (p.us or 0.0) * NOISE[0] <= (winner.us or 0.0) * NOISE[1]]
    assert chosen(report) in set(map(place, near))
    assert said[place(winner)].verdict in ("chosen", "slower")
    assert " ".join(place(winner)) not in machine.dropped
    assert "not timed" not in said[place(winner)].reason


@every
def test_a_lock_file_gives_the_same_plan_again(recording: Recording, tmp_path: Path) -> None:
    path = tmp_path / "stand_in.lock.json"
    _, first = autotuned(recording)
    first.save_lock(path)
    for selection in ("heuristic", "autotune"):
        machine = Machine(recording)
        again = machine.compiled(selection, lock=path)
        assert chosen(again.report) == chosen(first.report)
        assert machine.built == [" ".join(chosen(first.report))]


def region_of(recording: Recording) -> Region | None:
    """The region of a real case as the compiler plans it today; None where it is another one now."""
    found = regions_of(Task(recording.case, recording.precision), H200)  # type: ignore[arg-type]
    return next((r for r in found if r.pattern == recording.pattern), None)


def estimates(recording: Recording) -> dict[str, float]:
    """What the engines that were recorded estimate today for a region."""
    region, found = region_of(recording), {}
    for name in (o.engine for o in recording.offers if region is not None and o.fastest is not None):
        answer = load_engine(name).supports(region, H200, Policy())
        if isinstance(answer, Support):
            found[name] = answer.estimated_us
    return found


@pytest.fixture(scope="module")
def estimated() -> list[tuple[Recording, dict[str, float]]]:
    """The real recordings in IEEE arithmetic, with today's estimates of engines that were timed."""
    found = [(r, estimates(r)) for r in REAL if r.precision == "ieee"]
    known = [pair for pair in found if pair[1]]
    assert len(known) > len(found) / 2, "too few regions are planned as they were recorded; record anew"
    return known


def test_estimates_are_near_what_was_measured(estimated: list[tuple[Recording, dict[str, float]]]) -> None:
    off = []
    for recording, found in estimated:
        times = {o.engine: o.fastest.us for o in recording.offers if o.fastest is not None}
        off += [abs(math.log2(estimate / (times[engine] or 0.0))) for engine, estimate in found.items()]
    assert median(off) < 0.5


def test_what_estimates_choose_costs_little(estimated: list[tuple[Recording, dict[str, float]]]) -> None:
    """The first plan of the engine that is cheapest by today's estimate, against the best of all."""
    ratios = []
    for recording, found in estimated:
        taken = min((o for o in recording.offers if o.engine in found), key=lambda o: found[o.engine])
        us = next(p.us for p in taken.plans if p.is_right)
        ratios.append((us or 0.0) / (recording.fastest.us or 1.0))
    assert median(ratios) <= 1.15


def kept_in_ieee(recording: Recording) -> dict[str, str]:
    """The precision of each of cuDNN's recorded plans that its tables let into IEEE arithmetic."""
    region = region_of(recording)
    plans = [p for o in recording.offers if o.engine == "cudnn" for p in o.plans]
    if region is None or not plans:
        return {}
    if isinstance(load_engine("cudnn").supports(region, H200, Policy(precision="ieee")), Decline):
        return {}
    proposals = [Proposal(PlanName.parse(p.name), p.workspace, p.notes, p.deterministic) for p in plans]
    found = trusted(Anatomy(region), proposals, H200, Policy(precision="ieee"))
    return {} if isinstance(found, Decline) else {c.name: c.precision for c in found}


def loose_convolution() -> Recording:
    """What docs/decisions/4-determinism-and-precision.md says of one float32 convolution: engine 51 rounds to TF32."""
    exact, cut = (
        Plan("cudnn", name, 0, words, True, (), "slower", "", 1.0, True)
        for name, words in (("eng11", "float32"), ("eng51_k24=1", "tf32"))
    )
    case, pattern = "conv 3x3 s1 n32 256->256 14x14 relu float32", "conv+bias+relu"
    return Recording(case, "tf32", pattern, (Offer("cudnn", 1.0, None, None, (cut, exact)),))


def test_cudnns_tables_let_no_plan_into_ieee_that_was_recorded_as_tf32() -> None:
    assert kept_in_ieee(loose_convolution()) == {"eng11": "float32"}
    for recording in (r for r in REAL if r.precision == "tf32"):
        cut = {p.name for p in recording.plans if p.engine == "cudnn" and "tf32" in p.precision}
        kept = kept_in_ieee(recording)
        assert not cut & set(kept)
        assert all("tf32" not in words for words in kept.values())
