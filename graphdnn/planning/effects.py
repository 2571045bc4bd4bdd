"""What the options for choosing came to, a sentence each: what was timed, what limits cost, what ran less exactly."""

from __future__ import annotations

from dataclasses import dataclass

from graphdnn.config import CompileOptions
from graphdnn.engines.arithmetic import is_exact
from graphdnn.engines.choose import Selector
from graphdnn.engines.contract import Support
from graphdnn.ir.region import Region
from graphdnn.planning.decisions import engine_of, name_of
from graphdnn.planning.planner import Planned, Problem
from graphdnn.planning.session import Session
from graphdnn.spelling import counted, first_of

SHOWN = 3
"""Names that a sentence lists."""


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
    effects += [
        *costs_of_limits(selector, made),
        *costs_of_determinism(selector, made),
        *losses_of_digits(options, made, selector),
    ]
    effects += unused_limits(options)
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


def unused_limits(options: CompileOptions) -> list[str]:
    """Limits on timing where the selection times nothing."""
    given = []
    if options.tuning_budget_s is not None:
        given.append(f"tuning_budget_s={options.tuning_budget_s:g}")
    if options.tuning_memory is not None:
        given.append(f"tuning_memory={options.tuning_memory}")
    if not given or options.selection != "heuristic":
        return []
    verb = "bound" if given[1:] else "bounds"
    return [f'{" and ".join(given)} {verb} nothing: selection="heuristic" times nothing']


def costs_of_determinism(selector: Selector, made: Planned) -> list[str]:
    """How many plans of the cover's regions determinism rules out, and one of them."""
    if not selector.policy.deterministic:
        return []
    found = {
        f"{engine.name}:{tried.candidate.name} for {name_of(offer.region)}": None
        for offer in made.cover.picks
        for engine in selector.engines
        for tried in selector.tried(engine.name, offer.region)
        if tried.verdict == "excluded" and not tried.candidate.deterministic
    }
    if not found:
        return []
    vary = "plan that gives" if len(found) == 1 else "plans that give"
    return [f"deterministic=True rules out {len(found)} {vary} other bits from run to run: {first_of(found, SHOWN)}"]


def losses_of_digits(options: CompileOptions, made: Planned, selector: Selector) -> list[str]:
    """Which regions compute in less than their types say, where the user allows that."""
    if options.precision == "ieee":
        return []
    loose: dict[str, list[str]] = {}
    for offer in made.cover.picks:
        words = precision_of(made, selector, offer.region, engine_of(offer))
        if not is_exact(words):
            loose.setdefault(words, []).append(name_of(offer.region))
    allowed = f'precision="{options.precision}"'
    if not loose:
        return [f"{allowed} changed nothing: every region computes in its own types"]
    some = f"{sum(map(len, loose.values()))} of {counted(len(made.cover.picks), 'region')}"
    told = "; ".join(f"{first_of(names, SHOWN)} ({words})" for words, names in loose.items())
    return [f"{allowed} lets {some} compute in less than their types say: {told}"]


def precision_of(made: Planned, selector: Selector, region: Region, engine: str) -> str:
    """What a region of the cover computes in."""
    chosen = made.plans.get(region)
    if chosen is not None:
        return chosen.candidate.precision
    answer = selector.support.answers(region)[engine]
    assert isinstance(answer, Support)
    return answer.precision
