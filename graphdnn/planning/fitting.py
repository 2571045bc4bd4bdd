"""Within `memory_limit`: plans with less scratch, else a cover that writes less, else a graph without some passes.

What is tried, and in which order, does not depend on the limit: the first that fits is taken.  So the least arena of
all is the least limit that is met, and the error names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from graphdnn.errors import CompileError
from graphdnn.ir.region import Region
from graphdnn.planning.decisions import engine_of
from graphdnn.planning.planner import Planned, Price, Problem, planned, steps_of
from graphdnn.runtime.schedule import Schedule, schedule

COMPETING = ("sink", "merge", "pad", "layout")
"""Passes that may be left out for speed or memory; the others always save work, or are needed."""

RUNGS = 24
"""Most plans that are tried along one strategy, each with less scratch memory than the one before."""

EXACT = 6
"""How often the bound on scratch is lowered to just below what the largest plan takes; after that it is 0 at once."""

REFINED = 6
"""Most steps of the bisection between a bound on scratch that fits and one that does not."""


@dataclass(frozen=True)
class Strategy:
    """One way to look for a plan that fits.

    `spared` are passes that do not run.  `is_frugal` asks for the cover that writes fewest bytes, not the fastest.
    `exact` is how often the bound on scratch is lowered by the least that changes a plan (see EXACT).
    """

    spared: tuple[str, ...] = ()
    is_frugal: bool = False
    exact: int = 0


@dataclass(frozen=True)
class FittedPlan:
    """A plan, its schedule, its microseconds (measured or estimated), and the most scratch that a step of it takes."""

    strategy: Strategy
    made: Planned
    placed: Schedule
    us: float
    most: int


def fitted(problem: Problem, left_out: tuple[str, ...] = ()) -> tuple[Planned, Schedule]:
    """The plan and its schedule within `memory_limit`.

    Raises CompileError naming the least limit that is met, where that is more.
    """
    limit = problem.options.memory_limit
    if problem.selector.limits.memory is not None:
        problem.selector.allow(None)
    if limit is None:
        made = planned(problem, left_out)
        return made, schedule(made.prepared, steps_of(made, problem.selector))
    search = Search(problem, left_out, limit)
    found = search.best()
    return found.made, found.placed


class Search:
    """The plans that were tried for one graph and limit."""

    def __init__(self, problem: Problem, left_out: tuple[str, ...], limit: int) -> None:
        self.problem = problem
        self.left_out = left_out
        self.limit = limit
        self.least: int | None = None
        self._last: FittedPlan | None = None
        self._excess: tuple[tuple[int | None, int], ...] = ()

    def best(self) -> FittedPlan:
        """The first plan that fits, with as much scratch as there is room for."""
        first = self.tried(Strategy(exact=EXACT), None)
        if self.fits(first):
            return first
        changed = tuple(r.name for r in first.made.records if r.name in COMPETING and r.changes)
        layout = tuple(n for n in changed if n == "layout")
        spared = [s for s in dict.fromkeys((layout, changed)) if s]
        groups = (
            [first.strategy],
            [Strategy(is_frugal=True), *(Strategy(s) for s in spared[:1])],
            [*(Strategy(s) for s in spared[1:]), *(Strategy(s, is_frugal=True) for s in spared)],
        )
        for strategies in groups:
            fitting = [found for strategy in strategies if (found := self.along(strategy)) is not None]
            if fitting:
                return self.settled(min(fitting, key=lambda f: f.us))
        raise CompileError(
            f"graph {self.problem.graph.name} needs an arena of {self.least} bytes for intermediates and scratch, the "
            f"smallest that was found; memory_limit is {self.limit}"
        )

    def fits(self, found: FittedPlan) -> bool:
        return found.placed.arena_bytes <= self.limit

    def along(self, strategy: Strategy) -> FittedPlan | None:
        """The first plan of a strategy that fits, or one with more scratch that also does."""
        before: FittedPlan | None = None
        for found in self.rungs(strategy):
            if self.fits(found):
                return found if before is None else self.refined(found, min(before.most - 1, self.limit))
            if not strategy.spared and not strategy.is_frugal:
                self._excess = (*self._excess, (found.made.scratch, found.placed.arena_bytes))
            before = found
        return None

    def rungs(self, strategy: Strategy) -> Iterator[FittedPlan]:
        """Plans with ever less scratch, down to none or to the least that engines can do with."""
        scratch: int | None = None
        most, exact = 0, strategy.exact
        for number in range(RUNGS):
            try:
                found = self.tried(strategy, scratch)
            except CompileError:
                if scratch is None or scratch >= most - 1:
                    return
                scratch, exact = most - 1, RUNGS
                continue
            yield found
            most = found.most
            if not most:
                return
            scratch = most - 1 if number < exact else 0

    def refined(self, found: FittedPlan, high: int) -> FittedPlan:
        """A faster plan of the same strategy with more scratch, up to `high` bytes, where one fits too."""
        low = found.made.scratch or 0
        for _ in range(REFINED):
            if low >= high:
                break
            middle = (low + high + 1) // 2
            try:
                other = self.tried(found.strategy, middle)
            except CompileError:
                break
            if self.fits(other):
                low = middle
                found = other if other.us < found.us else found
            else:
                high = min(middle, other.most) - 1
        return found

    def tried(self, strategy: Strategy, scratch: int | None) -> FittedPlan:
        """The plan of a strategy with so much scratch.  Raises CompileError where there is none."""
        problem, selector = self.problem, self.problem.selector
        selector.allow(self.limit, scratch, self._excess)

        def frugal(engine: str, region: Region) -> float:
            """Thousandths of written bytes; a microsecond counts as a byte, for covers that write as much."""
            return 1e-3 * region.written_bytes + 1e-3 * selector.estimate(engine, region)

        price: Price | None = frugal if strategy.is_frugal else None
        made = planned(problem, tuple(dict.fromkeys((*self.left_out, *strategy.spared))), price)
        made = replace(made, spared=strategy.spared, scratch=scratch, arenas=self._excess)
        steps = steps_of(made, selector)
        placed = schedule(made.prepared, steps)
        self.least = placed.arena_bytes if self.least is None else min(self.least, placed.arena_bytes)
        us = 0.0
        for offer in made.cover.picks:
            engine = engine_of(offer)
            measured = selector.timed.measured_us(engine, offer.region)
            us += selector.estimate(engine, offer.region) if measured is None else measured
        self._last = FittedPlan(strategy, made, placed, us, max((s.workspace_bytes for s in steps), default=0))
        return self._last

    def settled(self, found: FittedPlan) -> FittedPlan:
        """The same plan, with the selector and all else that follows decisions left as they were when it was made."""
        return found if found is self._last else self.tried(found.strategy, found.made.scratch)
