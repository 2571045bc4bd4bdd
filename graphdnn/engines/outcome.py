"""What timing found of the plans of each region, and what of it holds under given limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from graphdnn.answer import Decline
from graphdnn.engines.trial import Built, Limits, Tried, refusal_of
from graphdnn.ir.region import Region


@dataclass
class Outcome:
    """What was found of one region's plans, by engine: all that were tried, and the fastest right one.

    `refused` are engines none of whose plans is usable.  `note` says why the region was not timed, or not to the end.
    """

    tried: dict[str, tuple[Tried, ...]] = field(default_factory=dict)
    best: dict[str, Tried] = field(default_factory=dict)
    plans: dict[str, Built] = field(default_factory=dict)
    refused: dict[str, Decline] = field(default_factory=dict)
    note: str = ""

    def allow(self, limits: Limits) -> None:
        """Weighs the plans by other limits; the fastest of those within them is the best now."""
        for engine, entries in self.tried.items():
            self.tried[engine] = tuple(weighed(t, limits) for t in entries)
        again = judged(self.tried, self.plans, limits)
        self.best, self.plans = again.best, again.plans
        self.refused = {e: d for e, d in self.refused.items() if e not in self.tried or not self.tried[e]}
        self.refused.update(again.refused)


def weighed(tried: Tried, limits: Limits) -> Tried:
    """A plan that was timed, by other limits."""
    if tried.verdict not in ("slower", "excluded") or tried.measured_us is None:
        return tried
    reason = limits.excludes(tried.candidate.workspace_bytes, tried.candidate.deterministic)
    if reason:
        return replace(tried, verdict="excluded", reason=reason)
    return replace(tried, verdict="slower", reason="") if tried.verdict == "excluded" else tried


def judged(tried: dict[str, tuple[Tried, ...]], plans: dict[str, Built], limits: Limits) -> Outcome:
    """The fastest right plan of each engine, and refusals of those that have none."""
    outcome = Outcome(tried)
    for engine, entries in tried.items():
        right = [t for t in entries if t.verdict == "slower"]
        timed = [t for t in right if t.measured_us is not None]
        if timed:
            best = outcome.best[engine] = min(timed, key=lambda t: t.measured_us or math.inf)
            plan = plans.get(engine)
            if plan is not None and plan.candidate.name == best.candidate.name:
                outcome.plans[engine] = plan
        elif entries and not right:
            outcome.refused[engine] = refusal_of(engine, entries, limits)
    return outcome


class Outcomes:
    """The outcomes of the regions that were timed, by their structure (`Region.key`)."""

    def __init__(self) -> None:
        self._by_key: dict[str, Outcome] = {}

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self._by_key.values())

    def keep(self, region: Region, outcome: Outcome) -> None:
        """Adds the outcome of a region that was not timed before."""
        self._by_key[region.key] = outcome

    def of(self, region: Region) -> Outcome | None:
        """What timing found of a region; None where nobody asked for it."""
        return self._by_key.get(region.key)

    def measured_us(self, engine: str, region: Region) -> float | None:
        """What the engine's best right plan took."""
        outcome = self.of(region)
        best = outcome.best.get(engine) if outcome else None
        return best.measured_us if best else None

    def allow(self, limits: Limits) -> list[tuple[str, dict[str, Decline]]]:
        """Weighs every plan by other limits; gives the refusals that this leads to, by structure and engine."""
        for outcome in self:
            outcome.allow(limits)
        return [(key, outcome.refused) for key, outcome in self._by_key.items()]

    def let_go(self) -> None:
        """Drops plans that were built to be timed and not chosen; what was found of them stays."""
        for outcome in self:
            outcome.plans.clear()
