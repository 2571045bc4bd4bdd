"""The plans of one region against each other: each is run and timed on one bench, then all results are compared."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace

from graphdnn.answer import Code, Decline
from graphdnn.engines.budget import Budget
from graphdnn.engines.check import Checker, Finding
from graphdnn.engines.contract import Bench, Candidate, Device, Support, Timing
from graphdnn.engines.thread_pool import is_done
from graphdnn.engines.trial import RUN_ERRORS, Built, Tried, announce, failed, failure
from graphdnn.errors import TuningMemoryError

TRUST = 8.0
"""How far below its estimate a plan may come: what would not win even so is not timed.  Estimates of classes of kernels
that were measured are within a factor of two."""


@dataclass
class BuildQueue:
    """One engine's plans that are being built, those that are too far down, or its refusal."""

    builds: list[tuple[Candidate, Future[Built | Tried]]] = field(default_factory=list)
    rest: tuple[Candidate, ...] = ()
    refusal: Decline | None = None

    @property
    def is_begun(self) -> bool:
        """Whether a plan was built already."""
        return any(is_done(future) for _, future in self.builds)

    def cancel(self) -> None:
        for _, future in self.builds:
            future.cancel()


class Race:
    """The plans of one region on one bench.

    An engine whose estimate is far above the best measured time is not timed, but the results of its first plan may
    serve to check those of the others.  When the budget is spent, one plan that is built already is still timed where
    none was; after a Ctrl-C none is.

    `lacking` names the memory for want of which a plan was not timed.  `is_complete` is False where the budget kept a
    plan from being timed, `is_compared` where no independent result was there to check against, `is_repeatable` where a
    failure was of the moment, so that the outcome may not be remembered.  Methods raise ContextLostError where a plan
    lost the device's context.
    """

    def __init__(self, bench: Bench, checker: Checker, budget: Budget, device: Device, floor_us: float) -> None:
        self._bench = bench
        self._checker = checker
        self._budget = budget
        self._device = device
        self._floor_us = floor_us
        self._seen = 0
        self._best_us = math.inf
        self._tried: dict[str, list[Tried]] = {}
        self._right: list[tuple[Built, Tried, Finding]] = []
        self._untimed: list[tuple[Candidate, Future[Built | Tried]]] = []
        self._refused: dict[str, Decline] = {}
        self.lacking = ""
        self.is_complete = True
        self.is_compared = True
        self.is_repeatable = True

    @property
    def is_timed(self) -> bool:
        """Whether any plan was."""
        return bool(self._right)

    def run(self, queue: BuildQueue, engine: str, support: Support, show: Callable[[str, int, float], None]) -> None:
        """Times one engine's plans, in its order; `show` is told each, its number and the best time so far."""
        tried = self._tried.setdefault(engine, [])
        if queue.refusal is not None:
            self._refused[engine] = queue.refusal
            self.is_repeatable &= queue.refusal.code is not Code.TRANSIENT
            return
        if support.estimated_us > TRUST * self._best_us:
            reason = f"not timed: estimated {support.estimated_us:.1f} us against {self._best_us:.1f}"
            tried += [Tried(c, "slower", reason) for c, _ in queue.builds]
            self._seen += len(queue.builds)
            self._untimed += queue.builds[:1]
            for _, future in queue.builds[1:]:
                future.cancel()
        else:
            for candidate, future in queue.builds:
                self._seen += 1
                if not self._may_time(future):
                    future.cancel()
                    self.is_complete = False
                    tried.append(Tried(candidate, "slower", f"not timed: {self._budget.ending}"))
                    continue
                show(f"{engine} {candidate.name}", self._seen, self._best_us)
                self._one(self._finished(candidate, future), tried)
        tried += [Tried(c, "slower", "its engine ranks it lower; not timed") for c in queue.rest]

    def _may_time(self, future: Future[Built | Tried]) -> bool:
        if not self._budget.is_over():
            return True
        return not self._budget.interrupted and not self.is_timed and is_done(future)

    def _one(self, one: Built | Tried, tried: list[Tried]) -> None:
        """Runs a built plan, keeps what it computed, and times it."""
        found = self._timed(one) if isinstance(one, Built) else one
        if isinstance(found, Tried):
            self.is_repeatable &= not found.is_transient
            tried.append(found)
            return
        one, finding, timing = found
        reason = f"dropped after its first runs, the best taking {self._best_us:.1f} us" if timing.is_dropped else ""
        entry = Tried(one.candidate, "slower", reason, timing.us)
        tried.append(entry)
        self._right.append((one, entry, finding))
        # A wrong plan must not make right ones look hopeless: one that is too fast to be true counts as the floor.
        if self._checker.compares_plans or not self._checker.judge([finding])[0]:
            self._best_us = min(self._best_us, max(timing.us, self._floor_us))

    def _timed(self, one: Built) -> tuple[Built, Finding, Timing] | Tried:
        finding = self._computed(one)
        if isinstance(finding, Tried):
            return finding
        try:
            timing = self._bench.measure(one.plan, self._best_us)
        except RUN_ERRORS as error:
            return self._failed(one.candidate, error, "failed when timed")
        return replace(one, kernels=timing.kernels), finding, timing

    def _failed(self, candidate: Candidate, error: Exception, what: str) -> Tried:
        if isinstance(error, TuningMemoryError):
            self.lacking = str(error)
            return Tried(candidate, "slower", f"not timed: {error}")
        return failed(candidate, failure(error, what, candidate, self._device))

    def _computed(self, one: Built) -> Finding | Tried:
        """What its first run computes on the bench's inputs, whose indices stay in range."""
        candidate = one.candidate
        implementation = f"{candidate.engine} {candidate.name.split('_')[0]}"
        announce(candidate)
        try:
            return self._checker.finding(implementation, candidate.precision, self._bench.results(one.plan))
        except RUN_ERRORS as error:
            return self._failed(candidate, error, "failed on its first run")

    def finish(self) -> tuple[dict[str, tuple[Tried, ...]], dict[str, Built], dict[str, Decline]]:
        """What became of every plan, the fastest right one of each engine, and the engines that refused."""
        wrong = self._verdicts([f for _, _, f in self._right])
        fastest: dict[str, tuple[float, Built]] = {}
        verdicts: dict[int, Tried] = {}
        for (one, entry, _), reason in zip(self._right, wrong, strict=False):
            if reason:
                verdicts[id(entry)] = replace(entry, verdict="wrong", reason=reason)
                continue
            us, engine = entry.measured_us or math.inf, one.candidate.engine
            if us < fastest.get(engine, (math.inf, one))[0]:
                fastest[engine] = (us, one)
        tried = {e: tuple(verdicts.get(id(t), t) for t in plans) for e, plans in self._tried.items()}
        return tried, {e: one for e, (_, one) in fastest.items()}, self._refused

    def _verdicts(self, findings: list[Finding]) -> list[str]:
        """What is wrong with each finding.

        Findings of one implementation alone are compared with the definition, and where that takes too long with the
        results of plans that were not timed.
        """
        checker = self._checker
        is_alone = checker.compares_plans and len({f.implementation for f in findings}) == 1
        if is_alone and not checker.can_afford_definition:
            others = self._untimed_findings()
            self.is_compared = len({f.implementation for f in (*findings, *others)}) > 1
            return checker.judge([*findings, *others])
        for _, future in self._untimed:
            future.cancel()
        return checker.by_definition(findings) if is_alone else checker.judge(findings)

    def _untimed_findings(self) -> list[Finding]:
        """Results of plans that were not timed."""
        findings: list[Finding] = []
        for candidate, future in self._untimed:
            one = self._finished(candidate, future)
            found = self._computed(one) if isinstance(one, Built) else one
            if isinstance(found, Finding):
                findings.append(found)
            else:  # no plan that could be chosen, so its failure is not reported
                self.is_repeatable &= not found.is_transient
        return findings

    def _finished(self, candidate: Candidate, future: Future[Built | Tried]) -> Built | Tried:
        """A plan once it is built."""
        try:
            return future.result()
        except CancelledError:
            self.is_complete = False
            return Tried(candidate, "slower", f"not built: {self._budget.ending}")
