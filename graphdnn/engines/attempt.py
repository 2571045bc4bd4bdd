"""The search for one engine's plan of one region: candidates in order, until one builds and runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphdnn.answer import Decline
from graphdnn.engines.contract import Candidate, Device, Engine, Plan, Policy, Prober
from graphdnn.engines.outcome import Outcome
from graphdnn.engines.trial import Built, Limits, TrialMemory, Tried, built, ran, refusal_of
from graphdnn.ir.region import Region


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


class Attempt:
    """Finds an engine's plan for one region: the one that was decided or timed as fastest, else the engine's candidates
    in order until one builds and runs.

    `advance` builds, in any thread; `settle` runs what was built, one attempt after the other.  `policy` and `limits`
    say what plans may take, `prober` tries those that may fault, `decided` names the plan that was decided beforehand,
    and `outcome` is what timing found.
    """

    def __init__(
        self,
        engine: Engine,
        region: Region,
        device: Device,
        *,
        policy: Policy,
        limits: Limits,
        prober: Prober | None,
        decided: str | None,
        outcome: Outcome | None,
    ) -> None:
        self._engine = engine
        self._region = region
        self._device = device
        self._policy = policy
        self._limits = limits
        self._prober = prober
        self._outcome = outcome
        self._tried: list[Tried] = []
        self._rest: list[Candidate] | None = None
        self._refusal: Decline | None = None
        self._timed = outcome.best.get(engine.name) if outcome else None
        self._ready = outcome.plans.get(engine.name) if outcome else None
        self._name = self._timed.candidate.name if self._timed else decided
        if outcome is not None:  # what was found to fail or to be wrong is not tried again
            self._tried = [t for t in outcome.tried.get(engine.name, ()) if t.verdict in ("failed", "wrong")]

    def advance(self) -> Built | None:
        """The next plan that no option rules out and that builds; None where there is none.  May run in any thread."""
        if self._ready is not None:
            return self._ready
        while (candidate := self._next()) is not None:
            one = built(self._engine, candidate, self._device, self._limits, self._prober)
            if isinstance(one, Built):
                return one
            self._tried.append(one)
        return None

    def _next(self) -> Candidate | None:
        """The next candidate: first the named one, which needs no heuristics (up to half a second), then theirs."""
        with self._device:
            if self._name is not None:
                name, self._name = self._name, None
                found = self._engine.named(self._region, name, self._device, self._policy)
                if isinstance(found, Candidate):
                    return found
            if self._rest is None:
                proposed = self._engine.candidates(self._region, self._device, self._policy)
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
        return Refused(refusal_of(self._engine.name, tried, self._limits), tried)

    def _chosen(self, one: Built) -> Chosen:
        engine, outcome = self._engine.name, self._outcome
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
