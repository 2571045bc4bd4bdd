"""One compilation's timing: timer, budget, memory and progress put together, and what the options came to, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from graphdnn.engines.budget import Budget
from graphdnn.engines.choose import Selector
from graphdnn.engines.contract import Device
from graphdnn.engines.manifest import MANIFEST
from graphdnn.engines.records import TuningRecords
from graphdnn.engines.tune import Tuner
from graphdnn.ir.region import Region
from graphdnn.planning.decisions import engine_of, name_of
from graphdnn.planning.planner import Planned, Problem
from graphdnn.planning.progress import watcher
from graphdnn.planning.variants import fastest
from graphdnn.runtime.process_pool import ProcessPool
from graphdnn.runtime.schedule import Schedule
from graphdnn.runtime.timing import timer_for
from graphdnn.spelling import counted

HOLD_THE_LOCK = ("cudnn",)
"""Engines whose libraries compile one plan at a time in one process, since their bindings keep Python's lock."""


class Session:
    """Gives a selector its tuner for as long as the context lasts, and compares whole graphs at the end."""

    def __init__(self, problem: Problem, device: Device) -> None:
        selector, options = problem.selector, problem.options
        self._problem = problem
        self._of_whole_graphs: tuple[str, ...] = ()
        self._timer = timer_for(device, options.tuning_memory)
        self._records = TuningRecords(
            device.store, selector.target, selector.policy, selector.limits, options.tuning_memory
        )
        self._watcher = watcher(options.progress)
        self.tuner = Tuner(
            device,
            selector.policy,
            selector.limits,
            self._timer,
            Budget(options.tuning_budget_s),
            self._records,
            prober=selector.prober,
            processes=ProcessPool({name: MANIFEST[name] for name in HOLD_THE_LOCK}, device, selector.policy),
            watcher=self._watcher,
            threads=selector.threads,
        )

    def __enter__(self) -> Self:
        self._problem.selector.tuner = self.tuner
        self.tuner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.tuner.__exit__(*error)
        finally:
            self._problem.selector.tuner = None
            self._problem.selector.timed.let_go()
            if self._watcher is not None:
                self._watcher.close()

    def finish(self, made: Planned, placed: Schedule) -> tuple[Planned, Schedule]:
        """The fastest whole graph, where whole graphs are compared; else the one given."""
        if self._problem.options.selection != "measure" or self._problem.fixed is not None:
            return made, placed
        found = fastest(self._problem, made, placed, self._timer, self._records)
        self._of_whole_graphs = found.effects
        self._problem.selector.allow(self._problem.options.memory_limit, found.made.scratch)
        return found.made, found.placed

    @property
    def effects(self) -> tuple[str, ...]:
        """What timing came to, a sentence each."""
        return (*self._timer.effects, *self._of_whole_graphs)


def effects_of(problem: Problem, session: Session | None, made: Planned) -> tuple[str, ...]:
    """What the options for choosing did, a sentence each."""
    selector, options = problem.selector, problem.options
    effects: list[str] = []
    chosen_by = f'selection="{options.selection}"'
    if options.selection != "heuristic" and options.deterministic:
        by = "heuristics" if problem.fixed is None else "the lock file, and by heuristics where that decides nothing"
        effects.append(f"deterministic=True fixes the choice by {by}: {chosen_by} timed nothing")
    elif options.selection != "heuristic" and problem.device is None:
        effects.append(f"{selector.target} is not here, so {chosen_by} timed nothing")
    if session is not None:
        tuner = session.tuner
        effects.append(
            f"{chosen_by} timed {counted(tuner.timed, 'region')} and remembered {tuner.recalled} from earlier"
        )
        if tuner.budget.ending:
            effects.append(f"{tuner.budget.ending}: what was timed until then was used")
        effects += session.effects
    if selector.limits.scratch is not None:
        effects.append(
            f"memory_limit={options.memory_limit} allowed a plan "
            f"{counted(selector.limits.left or 0, 'byte')} of scratch"
        )
    effects += costs_of_limits(selector, made)
    timing = "speed" if problem.fixed is None else "speed or memory when the lock file was made"
    for purpose, names in (
        (timing, [n for n in made.left_out if n not in made.spared]),
        (f"memory_limit={options.memory_limit}", made.spared),
    ):
        if names:
            effects.append(f"left out for {purpose}: {', '.join(names)}")
    return tuple(effects)


@dataclass(frozen=True)
class Loss:
    """What a limit on scratch costs a region: the bytes of a better plan, whose it is, and both times."""

    region: Region
    engine: str
    nbytes: int
    us: float
    instead_us: float
    is_measured: bool


def costs_of_limits(selector: Selector, made: Planned) -> list[str]:
    """The region that loses most by limits on scratch, in a sentence, and how many others lose something."""
    if selector.limits.most_scratch is None:
        return []
    found = [loss for offer in made.cover.picks if (loss := lost(selector, offer.region, engine_of(offer))) is not None]
    if not found:
        return []
    worst = max(found, key=lambda one: one.instead_us - one.us)
    fix = selector.limits.loosened(worst.nbytes, deterministic=True)
    verb = "took" if worst.is_measured else "is estimated at"
    times = f"{verb} {worst.us:.1f} us instead of {worst.instead_us:.1f}"
    more = f"; it costs {counted(len(found) - 1, 'other region')} too" if found[1:] else ""
    return [
        f"{fix.attribute}={fix.before} rules out {counted(worst.nbytes, 'byte')} of scratch for "
        f"{name_of(worst.region)}, with which {worst.engine} {times}; to have it: {fix}{more}"
    ]


def lost(selector: Selector, region: Region, chosen: str) -> Loss | None:
    """The best plan of a region that limits on scratch rule out; None where a better one is allowed."""
    took, estimate = selector.timed.measured_us(chosen, region), selector.estimate(chosen, region)
    losses = []
    for engine in (e.name for e in selector.engines):
        free = selector.support.without_scratch_limit(engine, region)
        if free is None:
            continue
        if took is None and selector.limits.forbids(free.workspace_bytes) and free.estimated_us < estimate:
            losses.append(Loss(region, engine, free.workspace_bytes, free.estimated_us, estimate, is_measured=False))
        for tried in selector.tried(engine, region):
            if tried.verdict == "chosen" and engine == chosen and took is None:
                break  # the engine ranks what follows lower
            nbytes = tried.candidate.workspace_bytes
            if tried.verdict != "excluded" or not selector.limits.forbids(nbytes):
                continue
            if tried.measured_us is not None and took is not None and tried.measured_us < took:
                losses.append(Loss(region, engine, nbytes, tried.measured_us, took, is_measured=True))
            elif tried.measured_us is None and free.estimated_us <= (took or estimate):
                losses.append(Loss(region, engine, nbytes, free.estimated_us, took or estimate, is_measured=False))
    return min(losses, key=lambda one: one.us, default=None)
