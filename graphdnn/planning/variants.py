"""Whole graphs against each other: with and without the passes whose gain is an estimate, by the time they take."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

from graphdnn.engines.records import TuningRecords
from graphdnn.errors import CompileError, ContextLostError, ExecutionError, MomentaryError
from graphdnn.planning.fitting import COMPETING, fitted
from graphdnn.planning.planner import Planned, Problem
from graphdnn.runtime.schedule import Schedule

MARGIN = 0.99
"""A variant must be faster than this part of the whole graph's time, else chance decides."""

AS_IS = "with every pass"


class WholeTimer(Protocol):
    """Times whole schedules."""

    def whole(self, placed: Schedule) -> float:
        """Microseconds of one run.  Raises ExecutionError."""


@dataclass(frozen=True)
class Fastest:
    """The variant that took least time, and what was timed, in words."""

    made: Planned
    placed: Schedule
    effects: tuple[str, ...] = ()


def fastest(problem: Problem, made: Planned, placed: Schedule, timer: WholeTimer, records: TuningRecords) -> Fastest:
    """The graph as it was planned, or without one of the passes that changed it, whichever takes least time.

    Times of earlier processes are taken where all of them are known.
    """
    names = [r.name for r in made.records if r.name in COMPETING and r.changes]
    if not names:
        return Fastest(made, placed)
    tuner = problem.selector.tuner
    assert tuner is not None
    engines = [e.name for e in problem.selector.engines]
    options = problem.options
    what = f"{problem.graph}\n{options.disabled_passes}\n{options.memory_limit}"
    identity = hashlib.sha256(what.encode()).hexdigest()
    plans = {AS_IS: (made, placed)}
    times = records.recall_whole(identity, engines)
    if times is None or not times.keys() <= {AS_IS, *names} or AS_IS not in times:
        if tuner.budget.is_over():
            return Fastest(made, placed)
        try:
            times = {AS_IS: timer.whole(placed)}
        except ContextLostError:
            raise
        except ExecutionError as error:
            return Fastest(made, placed, (f"whole graphs were not timed: {error}",))
        fits = True
        for name in names:
            if tuner.budget.is_over():
                break
            try:
                plans[name] = fitted(problem, (name,))
                times[name] = timer.whole(plans[name][1])
            except MomentaryError:
                fits = False  # today
            except ContextLostError:
                raise
            except (CompileError, ExecutionError):
                continue  # that variant cannot be had
        if fits and problem.selector.is_repeatable and not tuner.budget.is_over():
            records.keep_whole(identity, engines, times)
    best = min(times, key=lambda n: times[n])
    if times[best] >= MARGIN * times[AS_IS]:
        best = AS_IS
    if best not in plans:
        plans[best] = fitted(problem, (best,))
    effects = [
        f"the whole graph without the pass {n} takes {us:.1f} us, with it {times[AS_IS]:.1f}"
        + ("; left out" if n == best else "")
        for n, us in times.items()
        if n != AS_IS
    ]
    return Fastest(*plans[best], tuple(effects))
