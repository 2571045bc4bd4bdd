"""Which engine and which plan run a region.  The only place where engines are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from graphdnn.answer import Code, Decline
from graphdnn.engines.answers import is_uncached
from graphdnn.engines.attempt import Attempt, Chosen, Refused
from graphdnn.engines.contract import Device, Engine, Policy, Prober, Support
from graphdnn.engines.outcome import Outcome, Outcomes
from graphdnn.engines.plan_table import PlanTable
from graphdnn.engines.race import TRUST
from graphdnn.engines.support_table import SupportTable
from graphdnn.engines.thread_pool import ThreadPool
from graphdnn.engines.trial import Limits, TrialMemory, Tried
from graphdnn.engines.tune import Job, Tuner, floor_us
from graphdnn.ir.region import Region
from graphdnn.target import Target


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


class Selector:
    """Compares engines by what they say of a region (`support`), by timings (`timed`) and by the plans that ran.

    `decided` names plans that are to be taken without choosing (a lock file's, a cached cover's), `prober` tries plans
    that may fault in a child process, `tuner` times plans where the user asked for it.  Plans are built in `threads`
    threads.  `limits` are those of the policy with what the caller adds: disabled plans, memory, scratch.
    """

    def __init__(
        self,
        engines: Sequence[Engine],
        target: Target,
        policy: Policy,
        decided: Decisions = undecided,
        *,
        prober: Prober | None = None,
        threads: int = 1,
        limits: Limits | None = None,
    ) -> None:
        self.engines = engines
        self.target = target
        self.policy = policy
        self.decided = decided
        self.prober = prober
        self.tuner: Tuner | None = None
        self.threads = threads
        given, own = limits or Limits(), Limits.of(policy)
        own = replace(own, memory=given.memory, scratch=given.scratch, disabled=given.disabled)
        self.support = SupportTable(engines, target, policy, own)
        self.timed = Outcomes()
        self._plans = PlanTable()
        self._by_name = {e.name: e for e in engines}

    @property
    def limits(self) -> Limits:
        """What the options allow a plan now; `allow` changes it."""
        return self.support.limits

    def least_scratch(self, engine: str, region: Region) -> int | None:
        """The least bytes of scratch of an engine's plans that only a limit on scratch rules out.

        0 where the engine takes the region as it is, None where other reasons rule all of its plans out.
        """
        answer, limits = self.support.answers(region)[engine], replace(self.limits, workspace=None, scratch=None)
        if isinstance(answer, Support):
            return 0
        offered = self.support.offered(engine, region)
        if answer.code is not Code.OPTION or offered is None:
            return None
        tried = self.tried(engine, region)
        if tried:
            needs = (t.candidate for t in tried if t.verdict == "excluded")
            return min((c.workspace_bytes for c in needs if not limits.bars(c)), default=None)
        return None if limits.excludes(0, offered.deterministic) else offered.workspace_bytes

    def cheapest(self, region: Region) -> float | None:
        """Least estimate among the engines that take the region; None where none does."""
        costs = [self.estimate(e, region) for e, a in self.support.answers(region).items() if isinstance(a, Support)]
        return min(costs, default=None)

    def estimate(self, engine: str, region: Region) -> float:
        """Microseconds that an engine that takes the region is estimated to need.

        Where nobody times plans, the first plan of an engine runs; where its order cannot be trusted, that one's price
        is asked, not the best one's.
        """
        answer = self.support.answers(region)[engine]
        assert isinstance(answer, Support)
        outcome = self.timed.of(region)
        if answer.untimed_us is None or (outcome is not None and engine in outcome.best):
            return answer.estimated_us
        will_be_timed = outcome is None and self.tuner is not None and not self.tuner.budget.is_over()
        return answer.estimated_us if will_be_timed else max(answer.estimated_us, answer.untimed_us)

    def lower_bound_us(self, engine: str, region: Region) -> float:
        """Microseconds that an engine that takes the region needs, for a search that may not miss a better cover.

        The measured time where there is one, the estimate where timing found none, and a lower bound where the region
        was not timed yet: by bytes and operations, and by how far an estimate may be off (TRUST).
        """
        measured = self.timed.measured_us(engine, region)
        if measured is not None:
            return measured
        if self.timed.of(region) is not None:
            return self.estimate(engine, region)
        return max(floor_us(region, self.target, self.policy.precision), self.estimate(engine, region) / TRUST)

    def fastest(self, region: Region) -> str | None:
        """Of the engines that take the region the one with the fastest right plan, the earlier one among equals; None
        where none of them was timed."""
        outcome, answers = self.timed.of(region), self.support.answers(region)
        best = {} if outcome is None else {e: t for e, t in outcome.best.items() if isinstance(answers[e], Support)}
        return min(best, key=lambda e: best[e].measured_us or math.inf, default=None)

    def tried(self, engine_name: str, region: Region) -> tuple[Tried, ...]:
        """The concrete plans of an engine for a region and what became of them; none where none was asked for."""
        found = self._find(engine_name, region)
        if found:
            return found.tried
        outcome = self.timed.of(region)
        return outcome.tried.get(engine_name, ()) if outcome else ()

    def allow(
        self, memory: int | None, scratch: int | None = None, arenas: tuple[tuple[int | None, int], ...] | None = None
    ) -> None:
        """Allows plans no more than `scratch` bytes, since `memory` bytes is all that the arena may take.

        Engines are asked anew, and plans weighed anew.  `arenas` are those that were too large, as Limits has them.
        """
        before = self.limits
        arenas = before.arenas if arenas is None else arenas
        now = self.support.limits = replace(before, memory=memory, scratch=scratch, arenas=arenas)
        if now == before or (scratch is None and before.scratch is None):
            return
        for engine, key in self.support.ask_again():
            found = self._plans.find(engine, key, scratch)
            if isinstance(found, Refused):
                self.support.refuse(key, {engine: found.decline})
        for key, refused in self.timed.allow(now):
            self.support.refuse(key, refused)

    def tune(self, regions: Sequence[Region]) -> None:
        """Times the plans of every engine that takes these regions, each structure once.

        An engine none of whose plans is usable turns its "yes" into a "no".
        """
        assert self.tuner is not None
        fresh = {r.key: r for r in regions if self.timed.of(r) is None}
        for key, region in list(fresh.items()):
            if self.decided(region) is not None:
                self.timed.keep(region, Outcome(note="decided beforehand"))
                del fresh[key]
        jobs = [Job(r, self._takers(r)) for r in fresh.values()]
        for job, outcome in zip(jobs, self.tuner.tune(jobs), strict=True):
            self.timed.keep(job.region, outcome)
            if self.limits.scratch is not None:
                outcome.allow(self.limits)
            self.support.refuse(job.region.key, outcome.refused)

    def add_alternatives(self, device: Device) -> None:
        """Adds what engines propose beside the chosen plans; see PlanTable."""
        self._plans.add_alternatives(self._by_name, device, self.policy)

    @property
    def is_repeatable(self) -> bool:
        """Whether a later compilation would find the same: no plan or engine failed for a transient reason."""
        timed = [t for outcome in self.timed for entries in outcome.tried.values() for t in entries]
        plans = [t for found in self._plans for t in found.tried]
        refused = any(isinstance(a, Decline) and a.code is Code.TRANSIENT for a in self.support.all_answers())
        return not refused and not any(t.is_transient for t in (*timed, *plans))

    @property
    def is_lasting(self) -> bool:
        """Whether answers may be cached: none is transient, and each engine that took a region had a plan for it."""
        failed = any(isinstance(found, Refused) for found in self._plans)
        return not failed and not any(map(is_uncached, self.support.all_answers()))

    def _takers(self, region: Region) -> tuple[tuple[Engine, Support], ...]:
        """Engines that take a region, the cheapest by estimate first."""
        answers = self.support.answers(region)
        found = [(e, a) for e in self.engines if isinstance(a := answers[e.name], Support)]
        return tuple(sorted(found, key=lambda pair: pair[1].estimated_us))

    def plan(self, engine_name: str, region: Region, device: Device) -> Chosen | Refused:
        """The engine's plan for a region; see `plan_all`."""
        return self.plan_all([(engine_name, region)], device)[0]

    def plan_all(self, wanted: Sequence[tuple[str, Region]], device: Device) -> list[Chosen | Refused]:
        """For each engine and region the plan that was decided, or timed as fastest, or the first that builds and runs.

        Equal regions share one.  Plans are built in several threads and run one after the other, in the order given.
        """
        fresh = {(e, r.key): r for e, r in wanted if self._find(e, r) is None}
        done: dict[tuple[str, str], Chosen | Refused] = {}
        attempts = {key: self._attempt(key[0], region, device) for key, region in fresh.items()}
        with closing(ThreadPool(min(self.threads, len(attempts)))) as pool:
            firsts = pool.all([a.advance for a in attempts.values()])
        with TrialMemory(device) as memory:
            for ((engine, key), attempt), first in zip(attempts.items(), firsts, strict=True):
                found = done[engine, key] = attempt.settle(first, memory)
                self._plans.keep(engine, key, self.limits.scratch, found)
                if isinstance(found, Refused):
                    self.support.refuse(key, {engine: found.decline})
        settled = [done.get((e, r.key)) or self._find(e, r) for e, r in wanted]
        return [found for found in settled if found is not None]

    def _find(self, engine: str, region: Region) -> Chosen | Refused | None:
        """What was found of an engine's plans under the present limit on scratch."""
        return self._plans.find(engine, region.key, self.limits.scratch)

    def _attempt(self, engine: str, region: Region, device: Device) -> Attempt:
        """A search for an engine's plan under the present limits."""
        decision = self.decided(region)
        return Attempt(
            self._by_name[engine],
            region,
            device,
            policy=self.support.policy,
            limits=self.limits,
            prober=self.prober,
            decided=decision.plan if decision is not None and decision.engine == engine else None,
            outcome=self.timed.of(region),
        )
