"""Which engine and which plan run a region.  The only place where engines are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from graphdnn.answer import Code, Decline
from graphdnn.engines.answers import is_uncached
from graphdnn.engines.contract import Candidate, Device, Engine, Plan, Policy, Prober, Support
from graphdnn.engines.race import TRUST
from graphdnn.engines.thread_pool import ThreadPool
from graphdnn.engines.trial import Built, Limits, TrialMemory, Tried, built, ran, refusal_of, within_limits
from graphdnn.engines.tune import Job, Outcome, Tuner, floor_us
from graphdnn.errors import ExecutionError
from graphdnn.ir.region import Region
from graphdnn.target import Target


@dataclass(frozen=True)
class Chosen:
    """The plan that will run a region, the kernels that one run of it launches, and what was tried on the way to it."""

    engine: str
    candidate: Candidate
    plan: Plan
    kernels: int
    tried: tuple[Tried, ...]
    measured_us: float | None = None

    @property
    def name(self) -> str:
        """Engine and plan as `disabled_plans` takes them."""
        return f"{self.engine}:{self.candidate.name}"


@dataclass(frozen=True)
class Refused:
    """No plan of an engine worked, and why."""

    decline: Decline
    tried: tuple[Tried, ...] = ()


@dataclass(frozen=True)
class Decision:
    """An engine and the name of its plan, decided elsewhere."""

    engine: str
    plan: str


def undecided(region: Region) -> Decision | None:
    """No plan is decided for any region."""
    return None


Decisions = Callable[[Region], Decision | None]
"""The plan that was decided for a region before any choosing; None where none was."""


@dataclass
class Selector:
    """Asks every engine once about every region, and caches answers, timings and plans by `Region.key`.

    `decided` names plans that are to be taken without choosing (a lock file's, a cached cover's), `prober` tries plans
    that may fault in a child process, `tuner` times plans where the user asked for it.  Plans are built in `threads`
    threads.  `limits` are those of the policy with what the caller adds: disabled plans, memory, scratch.
    """

    engines: Sequence[Engine]
    target: Target
    policy: Policy
    decided: Decisions = undecided
    prober: Prober | None = None
    tuner: Tuner | None = None
    threads: int = 1
    limits: Limits = field(default_factory=Limits)
    _answers: dict[str, dict[str, Support | Decline]] = field(default_factory=dict)
    _asked: dict[str, Region] = field(default_factory=dict)
    _offered: dict[tuple[str, str], Support] = field(default_factory=dict)
    _freely: dict[tuple[str, str], Support | None] = field(default_factory=dict)
    _plans: dict[tuple[str, str], dict[int | None, Chosen | Refused]] = field(default_factory=dict)
    _outcomes: dict[str, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = self.limits
        self.limits = replace(
            Limits.of(self.policy), memory=given.memory, scratch=given.scratch, disabled=given.disabled
        )

    def answers(self, region: Region) -> dict[str, Support | Decline]:
        """Each engine's answer, in the engines' order."""
        key = region.key
        if key not in self._answers:
            self._answers[key] = {e.name: self._ask(e, region) for e in self.engines}
            self._asked[key] = region
        return self._answers[key]

    def named_in_answers(self, region: Region) -> tuple[str, ...]:
        """`Region.names` of the region that was asked about, whose answers this one shares."""
        return self._asked.get(region.key, region).names

    @property
    def allowed(self) -> Policy:
        """The policy with no more scratch than is left: engines that can do with less are to say what that costs."""
        most = self.limits.most_scratch
        return self.policy if most == self.policy.workspace_limit else replace(self.policy, workspace_limit=most)

    def _ask(self, engine: Engine, region: Region) -> Support | Decline:
        answer = engine.supports(region, self.target, self.allowed)
        if isinstance(answer, Decline):
            return answer
        self._offered[engine.name, region.key] = answer
        return within_limits(answer, engine.name, self.limits)

    def offered(self, engine: str, region: Region) -> Support | None:
        """An engine's "yes" to a region, whatever became of it: an option may have ruled it out, its plans failed."""
        return self._offered.get((engine, region.key))

    def freely(self, engine: str, region: Region) -> Support | None:
        """An engine's "yes" to a region under no limit on scratch memory; None where it says no even then."""
        place = engine, region.key
        if place not in self._freely:
            by_name = {e.name: e for e in self.engines}
            answer = by_name[engine].supports(region, self.target, replace(self.policy, workspace_limit=None))
            self._freely[place] = answer if isinstance(answer, Support) else None
        return self._freely[place]

    def least_scratch(self, engine: str, region: Region) -> int | None:
        """The least bytes of scratch of an engine's plans that only a limit on scratch rules out.

        0 where the engine takes the region as it is, None where other reasons rule all of its plans out.
        """
        answer, limits = self.answers(region)[engine], replace(self.limits, workspace=None, scratch=None)
        if isinstance(answer, Support):
            return 0
        offered = self.offered(engine, region)
        if answer.code is not Code.OPTION or offered is None:
            return None
        tried = [t.candidate for t in self.tried(engine, region)]
        if tried:
            return min((c.workspace_bytes for c in tried if not limits.bars(c)), default=None)
        return None if limits.excludes(0, offered.deterministic) else offered.workspace_bytes

    def cheapest(self, region: Region) -> float | None:
        """Least estimate among the engines that take the region; None where none does."""
        costs = [self.estimate(e, region) for e, a in self.answers(region).items() if isinstance(a, Support)]
        return min(costs, default=None)

    def estimate(self, engine: str, region: Region) -> float:
        """Microseconds that an engine that takes the region is estimated to need.

        Where nobody times plans, the first plan of an engine runs; where its order cannot be trusted, that one's price
        is asked, not the best one's.
        """
        answer = self._answers[region.key][engine]
        assert isinstance(answer, Support)
        outcome = self._outcomes.get(region.key)
        if answer.untimed_us is None or (outcome is not None and engine in outcome.best):
            return answer.estimated_us
        will_be_timed = outcome is None and self.tuner is not None and not self.tuner.budget.is_over()
        return answer.estimated_us if will_be_timed else max(answer.estimated_us, answer.untimed_us)

    def promise(self, engine: str, region: Region) -> float:
        """Microseconds that an engine that takes the region needs, for a search that may not miss a better cover.

        The measured time where there is one, the estimate where timing found none, and a lower bound where the region
        was not timed yet: by bytes and operations, and by how far an estimate may be off (TRUST).
        """
        measured = self.measured(engine, region)
        if measured is not None:
            return measured
        if region.key in self._outcomes:
            return self.estimate(engine, region)
        return max(floor_us(region, self.target, self.policy.precision), self.estimate(engine, region) / TRUST)

    def measured(self, engine: str, region: Region) -> float | None:
        """What the engine's best right plan took."""
        outcome = self._outcomes.get(region.key)
        best = outcome.best.get(engine) if outcome else None
        return best.measured_us if best else None

    def outcome(self, region: Region) -> Outcome | None:
        """What timing found of a region; None where nobody asked for it."""
        return self._outcomes.get(region.key)

    def fastest(self, region: Region) -> str | None:
        """The engine with the fastest right plan; None where nothing was timed."""
        outcome = self._outcomes.get(region.key)
        return outcome.fastest() if outcome else None

    def tried(self, engine_name: str, region: Region) -> tuple[Tried, ...]:
        """The concrete plans of an engine for a region and what became of them; none where none was asked for."""
        found = self._settled(engine_name, region.key)
        if found:
            return found.tried
        outcome = self._outcomes.get(region.key)
        return outcome.tried.get(engine_name, ()) if outcome else ()

    def overrule(self, region: Region, answers: dict[str, Support | Decline]) -> None:
        """What the engines' plans turned out to be, in place of what the engines said of this region."""
        self._answers[region.key] = dict(answers)

    def allow(
        self, memory: int | None, scratch: int | None = None, arenas: tuple[tuple[int | None, int], ...] | None = None
    ) -> None:
        """Allows plans no more than `scratch` bytes, since `memory` bytes is all that the arena may take.

        Engines are asked anew, and plans weighed anew.  `arenas` are those that were too large, as Limits has them.
        """
        before = self.limits
        arenas = before.arenas if arenas is None else arenas
        self.limits = replace(before, memory=memory, scratch=scratch, arenas=arenas)
        if self.limits == before or (scratch is None and before.scratch is None):
            return
        by_name = {e.name: e for e in self.engines}
        for engine, key in list(self._offered):
            now = self._answers[key].get(engine)
            if isinstance(now, Support) or (now is not None and now.code is Code.OPTION):
                found = self._settled(engine, key)
                asked = self._ask(by_name[engine], self._asked[key])
                self._answers[key][engine] = found.decline if isinstance(found, Refused) else asked
        for key, outcome in self._outcomes.items():
            outcome.allow(self.limits)
            self._answers[key].update(outcome.refused)

    def _settled(self, engine: str, key: str) -> Chosen | Refused | None:
        """What was found of an engine's plans under the present limit on scratch.

        A plan that was chosen under a looser limit, and keeps to the present one, counts as found under this one too.
        """
        found, scratch = self._plans.get((engine, key), {}), self.limits.scratch
        if scratch is None or scratch in found:
            return found.get(scratch)
        more = (f for n, f in found.items() if (n is None or n > scratch) and isinstance(f, Chosen))
        return next((f for f in more if f.candidate.workspace_bytes <= scratch), None)

    def tune(self, regions: Sequence[Region]) -> None:
        """Times the plans of every engine that takes these regions, each structure once.

        An engine none of whose plans is usable turns its "yes" into a "no".
        """
        assert self.tuner is not None
        fresh = {r.key: r for r in regions if r.key not in self._outcomes}
        for key in [k for k, r in fresh.items() if self.decided(r) is not None]:
            self._outcomes[key] = Outcome(note="decided beforehand")
            del fresh[key]
        jobs = [Job(r, self._takers(r)) for r in fresh.values()]
        for job, outcome in zip(jobs, self.tuner.tune(jobs), strict=True):
            self._outcomes[job.region.key] = outcome
            if self.limits.scratch is not None:
                outcome.allow(self.limits)
            self._answers[job.region.key].update(outcome.refused)

    def look_beside(self, device: Device) -> None:
        """Adds the plans that engines propose beside each chosen one, which they were not asked for where that one was
        decided beforehand.  Adds none any more once the device does not work."""
        by_name = {e.name: e for e in self.engines}
        chosen = [
            (engine, by_scratch, scratch, found)
            for (engine, _), by_scratch in self._plans.items()
            for scratch, found in by_scratch.items()
            if isinstance(found, Chosen)
        ]
        for engine, by_scratch, scratch, found in chosen:
            try:
                with device:
                    proposed = by_name[engine].candidates(found.candidate.region, device, self.policy)
            except ExecutionError:
                return
            known = {t.candidate.name for t in found.tried}
            rest = () if isinstance(proposed, Decline) else (c for c in proposed if c.name not in known)
            by_scratch[scratch] = replace(found, tried=(*found.tried, *map(ranked_lower, rest)))

    def let_go(self) -> None:
        """Drops plans that were built to be timed and not chosen; what was found of them stays."""
        for outcome in self._outcomes.values():
            outcome.plans.clear()

    @property
    def is_repeatable(self) -> bool:
        """Whether a later compilation would find the same: no plan or engine failed for a transient reason."""
        outcomes = [t for o in self._outcomes.values() for entries in o.tried.values() for t in entries]
        plans = [t for by_scratch in self._plans.values() for found in by_scratch.values() for t in found.tried]
        answers = [a for row in self._answers.values() for a in row.values()]
        refused = any(isinstance(a, Decline) and a.code is Code.TRANSIENT for a in answers)
        return not refused and not any(t.is_transient for t in (*outcomes, *plans))

    @property
    def is_lasting(self) -> bool:
        """Whether answers may be cached: none is transient, and each engine that took a region had a plan for it."""
        failed = any(isinstance(f, Refused) for by_scratch in self._plans.values() for f in by_scratch.values())
        return not failed and not any(is_uncached(a) for row in self._answers.values() for a in row.values())

    def _takers(self, region: Region) -> tuple[tuple[Engine, Support], ...]:
        """Engines that take a region, the cheapest by estimate first."""
        answers = self.answers(region)
        found = [(e, a) for e in self.engines if isinstance(a := answers[e.name], Support)]
        return tuple(sorted(found, key=lambda pair: pair[1].estimated_us))

    def plan(self, engine_name: str, region: Region, device: Device) -> Chosen | Refused:
        """The engine's plan for a region; see `plan_all`."""
        return self.plan_all([(engine_name, region)], device)[0]

    def plan_all(self, wanted: Sequence[tuple[str, Region]], device: Device) -> list[Chosen | Refused]:
        """For each engine and region the plan that was decided, or timed as fastest, or the first that builds and runs.

        Equal regions share one.  Plans are built in several threads and run one after the other, in the order given.
        """
        fresh = {(e, r.key): r for e, r in wanted if self._settled(e, r.key) is None}
        done: dict[tuple[str, str], Chosen | Refused] = {}
        by_name = {e.name: e for e in self.engines}
        attempts = {place: Attempt(by_name[place[0]], region, device, self) for place, region in fresh.items()}
        with closing(ThreadPool(min(self.threads, len(attempts)))) as pool:
            firsts = pool.all([a.advance for a in attempts.values()])
        with TrialMemory(device) as memory:
            for (place, attempt), first in zip(attempts.items(), firsts, strict=True):
                found = done[place] = attempt.settle(first, memory)
                self._plans.setdefault(place, {})[self.limits.scratch] = found
                if isinstance(found, Refused):
                    self._answers[place[1]][place[0]] = found.decline
        settled = [done.get((e, r.key)) or self._settled(e, r.key) for e, r in wanted]
        return [found for found in settled if found is not None]


class Attempt:
    """Finds an engine's plan for one region: the one that was decided or timed as fastest, else the engine's candidates
    in order until one builds and runs.

    `advance` builds, in any thread; `settle` runs what was built, one attempt after the other.
    """

    def __init__(self, engine: Engine, region: Region, device: Device, selector: Selector) -> None:
        self._engine = engine
        self._region = region
        self._device = device
        self._selector = selector
        self._tried: list[Tried] = []
        self._rest: list[Candidate] | None = None
        self._refusal: Decline | None = None
        outcome = selector.outcome(region)
        self._timed = outcome.best.get(engine.name) if outcome else None
        self._ready = outcome.plans.get(engine.name) if outcome else None
        self._name = self._timed.candidate.name if self._timed else self._decided()
        if outcome is not None:  # what was found to fail or to be wrong is not tried again
            self._tried = [t for t in outcome.tried.get(engine.name, ()) if t.verdict in ("failed", "wrong")]

    def _decided(self) -> str | None:
        decision = self._selector.decided(self._region)
        return decision.plan if decision is not None and decision.engine == self._engine.name else None

    def advance(self) -> Built | None:
        """The next plan that no option rules out and that builds; None where there is none.  May run in any thread."""
        if self._ready is not None:
            return self._ready
        while (candidate := self._next()) is not None:
            one = built(self._engine, candidate, self._device, self._selector.limits, self._selector.prober)
            if isinstance(one, Built):
                return one
            self._tried.append(one)
        return None

    def _next(self) -> Candidate | None:
        """The next candidate: first the named one, which needs no heuristics (up to half a second), then theirs."""
        with self._device:
            if self._name is not None:
                name, self._name = self._name, None
                found = self._engine.named(self._region, name, self._device, self._selector.allowed)
                if isinstance(found, Candidate):
                    return found
            if self._rest is None:
                proposed = self._engine.candidates(self._region, self._device, self._selector.allowed)
                self._refusal = proposed if isinstance(proposed, Decline) else None
                names = {t.candidate.name for t in self._tried}
                self._rest = [] if isinstance(proposed, Decline) else [c for c in proposed if c.name not in names]
        return self._rest.pop(0) if self._rest else None

    def settle(self, first: Built | None, memory: TrialMemory) -> Chosen | Refused:
        """The first plan that also runs, or why there is none."""
        one = first
        while one is not None:
            done = one if one is self._ready else ran(one, memory)
            if isinstance(done, Built):
                return self._chosen(done)
            self._tried.append(done)
            one = self.advance()
        if self._refusal is not None and not self._tried:
            return Refused(self._refusal)
        tried = tuple(self._tried)
        return Refused(refusal_of(self._engine.name, tried, self._selector.limits), tried)

    def _chosen(self, one: Built) -> Chosen:
        engine, outcome = self._engine.name, self._selector.outcome(self._region)
        if outcome is not None and self._timed is not None and self._timed.candidate.name == one.candidate.name:
            tried = tuple(beside(t, self._timed, one) for t in outcome.tried[engine])
            return Chosen(engine, one.candidate, one.plan, one.kernels, tried, self._timed.measured_us)
        tried = (*self._tried, Tried(one.candidate, "chosen"), *map(ranked_lower, self._rest or ()))
        return Chosen(engine, one.candidate, one.plan, one.kernels, tried)


def ranked_lower(candidate: Candidate) -> Tried:
    """A plan that nobody built, since one before it ran."""
    return Tried(candidate, "slower", "its engine ranks it lower; not timed")


def beside(entry: Tried, best: Tried, chosen: Built) -> Tried:
    """A timed plan beside the fastest one, as the report says it."""
    if entry is best:
        return replace(entry, candidate=chosen.candidate, verdict="chosen", reason="")
    if entry.verdict == "slower" and entry.measured_us is not None and not entry.reason:
        return replace(entry, reason=f"took {entry.measured_us:.1f} us against {best.measured_us or 0.0:.1f}")
    return entry
