"""Timing the plans of regions: build them at once, run, check and time them one by one, and remember what was found.

Every region is timed once, however often it occurs.  Here nothing is chosen: choose.py compares what was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Protocol

import numpy as np

from graphdnn.answer import Code, Decline
from graphdnn.engines.budget import Budget
from graphdnn.engines.check import Checker, inputs_for
from graphdnn.engines.contract import Candidate, Device, Engine, Policy, Prober, Support, Timer
from graphdnn.engines.cost import Efficiency, roofline_us
from graphdnn.engines.outcome import Outcome, judged
from graphdnn.engines.race import TRUST, BuildQueue, Race
from graphdnn.engines.records import TuningRecord, TuningRecords
from graphdnn.engines.thread_pool import LOOK_S, LazyFuture, ThreadPool, is_done
from graphdnn.engines.trial import Built, Limits, Tried, built, failed
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array
from graphdnn.target import Target

PLANS = 10
"""Plans of one engine that are timed, in its own order; the best is rarely farther down."""

HOPELESS = 2 * TRUST
"""Multiple of the least estimate above which an engine's plans are not built before the others were timed: the best of
those would have to take more than twice its estimate for these to be timed at all."""

PROBING = 2
"""Threads of a pool of their own for plans that are tried in a child process first, so that no other plan waits."""

WORTH = 24
"""Least number of plans to build for which starting child processes pays."""

BATCH = 8
"""Regions whose plans are built together, before any of them is timed; at most so many are proposed together."""

FLOOR = Efficiency(bandwidth=1.25, matrix=1.25, plain=1.25)
"""Faster than the ceilings that large kernels reach: nothing is ruled out that comes near them."""

FLOOR_GAPS = 0.5
"""Launch gaps that any kernel takes."""

UNCOMPARED = "numbers were not compared: too large for the definition, and one engine alone takes it"
"""What is said of a region whose plans nothing was held against."""

PASSING = "a failure of the moment kept a plan out, so that the times are not remembered"
"""What is said of a region whose plans may do better another time."""

Proposed = Sequence[Candidate] | Decline
"""What an engine proposes for a region."""


@dataclass(frozen=True)
class Progress:
    """How far timing has come: the region's pattern, its number of `total`, the plan, its number of the region's
    `candidates`, and the best microseconds."""

    pattern: str
    number: int
    total: int
    plan: str
    candidate: int
    candidates: int
    best_us: float | None
    left_s: float | None


class ProcessPool(Protocol):
    """Builds plans elsewhere, for engines that take turns in this process."""

    def takes(self, engine: str) -> bool:
        """Whether plans of this engine may be ordered."""

    def order(self, region: Region, engine: str, plan: str) -> Future[Decline | None]:
        """Has a plan built, unless that is cancelled before somebody begins; gives why it is not to be built here."""

    def close(self) -> None:
        """Ends what is being built, and every order with it."""


class Watcher(Protocol):
    """Whoever shows how far timing has come."""

    def show(self, progress: Progress) -> None: ...


@dataclass(frozen=True)
class Job:
    """A region, and the engines that take it with their answers, the cheapest by estimate first."""

    region: Region
    engines: tuple[tuple[Engine, Support], ...]


def floor_us(region: Region, target: Target, precision: str) -> float:
    """Microseconds below which no plan of the region comes: bytes over bandwidth, operations over rate."""
    if target.kind == "cpu":
        return 0.0  # its description is a guess
    return roofline_us(region, target, precision, FLOOR, kernels=0) + FLOOR_GAPS * target.launch_us


class Tuner:
    """Times plans on one device within a budget.  Use it as a context: threads and Ctrl-C are set up there, and what is
    built for it, here and in other processes, ends there.

    When the budget is spent, threads end the builds that they are at, and one plan of a region that was begun is timed.
    """

    def __init__(
        self,
        device: Device,
        policy: Policy,
        limits: Limits,
        timer: Timer,
        budget: Budget,
        records: TuningRecords,
        *,
        prober: Prober | None = None,
        processes: ProcessPool | None = None,
        watcher: Watcher | None = None,
        threads: int = 1,
        seed: int = 0,
    ) -> None:
        self.budget = budget
        self.timed = self.recalled = 0
        self._device = device
        self._policy = policy
        self._limits = limits
        self._timer = timer
        self._records = records
        self._prober = prober
        self._processes = processes
        self._is_closed = False
        self._orders: dict[tuple[str, str, str], Future[Decline | None]] = {}
        self._doubtful = ThreadPool(min(threads, PROBING), budget.is_over)
        self._watcher = watcher
        self._pool = ThreadPool(threads, budget.is_over)
        self._seed = seed

    def __enter__(self) -> Tuner:
        self.budget.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.budget.__exit__(*error)
        self._is_closed = True
        with ExitStack() as closing:  # the last one first, and all of them whatever one raises
            closing.callback(self._doubtful.close)
            closing.callback(self._pool.close)
            if self._processes is not None:  # before the threads that wait for it
                closing.callback(self._processes.close)

    def tune(self, jobs: Sequence[Job]) -> list[Outcome]:
        """What was found of each job's region, in their order; those that the budget did not reach are noted so.

        Under a budget each region is timed before the next one is built, and few are proposed before the first times.
        """
        outcomes = [self._recalled(job) for job in jobs]
        fresh = [index for index, known in enumerate(outcomes) if known is None]
        is_short = self.budget.seconds is not None
        batches = batched(fresh, 1 if is_short else BATCH)
        proposed: list[list[dict[str, Proposed]]] = []
        numbers = count(1)
        for turn, batch in enumerate(batches):
            for later in batches[len(proposed) : turn + 2]:  # the next one is built elsewhere while this one is timed
                proposed.append(self._proposed([jobs[index] for index in later]))
                self._order([jobs[index] for index in later], proposed[-1])
            rows = dict(zip(batch, proposed[turn], strict=True))
            for together in [[index] for index in batch] if is_short else [batch]:
                queues = self._built([jobs[index] for index in together], [rows[index] for index in together])
                for index, queue in zip(together, queues, strict=True):
                    show = self._shower(jobs[index].region.pattern, next(numbers), len(fresh), queue)
                    outcomes[index] = self._timed(jobs[index], queue, show)
        return [o for o in outcomes if o is not None]

    def _recalled(self, job: Job) -> Outcome | None:
        found = self._records.recall(job.region, [e.name for e, _ in job.engines])
        if found is None:
            return None
        self.recalled += 1
        outcome = judged(dict(found.tried), {}, self._limits)
        outcome.refused.update(found.refused)
        outcome.note = found.note
        return outcome

    def _proposed(self, jobs: Sequence[Job]) -> list[dict[str, Proposed]]:
        """What the engines propose for each job."""

        def ask(engine: Engine, region: Region) -> Proposed:
            with self._device:
                return engine.candidates(region, self._device, self._policy)

        pairs = [(engine, job.region) for job in jobs for engine, _ in job.engines]
        asked = [self._pool.start(partial(ask, *pair)) for pair in pairs]
        self._pool.settle(asked)
        waiting = iter(asked)
        found: list[dict[str, Proposed]] = [{} for _ in jobs]
        for row, job in zip(found, jobs, strict=True):
            for (engine, _), future in zip(job.engines, waiting, strict=False):
                if not self.budget.is_over() or is_done(future):
                    row[engine.name] = future.result()
        return found

    def _order(self, jobs: Sequence[Job], proposed: Sequence[Mapping[str, Proposed]]) -> None:
        """Has plans built elsewhere, in the order in which they will be needed; not where they are so few that to begin
        with it takes longer."""
        if self._processes is None:
            return
        wanted: list[Candidate] = []
        for job, row in zip(jobs, proposed, strict=True):
            for engine in (e.name for e, _ in job.engines if e.name not in hopeless(job)):
                plans = row.get(engine, ())
                if self._processes.takes(engine) and not isinstance(plans, Decline):
                    wanted += [
                        c for c in plans[: considered(plans, self._limits)] if c.is_known and not self._limits.bars(c)
                    ]
        if self._orders or len(wanted) >= WORTH:
            for c in wanted:
                self._orders[c.engine, c.region.key, c.name] = self._processes.order(c.region, c.engine, c.name)

    def _built(self, jobs: Sequence[Job], proposed: Sequence[Mapping[str, Proposed]]) -> list[dict[str, BuildQueue]]:
        """The engines' plans for each job, built.

        Nothing is built beside plans that are timed: a library that waits for the device would end a capture.  Plans of
        engines without hope by estimate are built when they are asked for, which they hardly ever are.
        """
        queues: list[dict[str, BuildQueue]] = [{} for _ in jobs]
        for queue, job, row in zip(queues, jobs, proposed, strict=True):
            for engine, _ in job.engines:
                if engine.name in row and not self.budget.is_over():
                    queue[engine.name] = self._queue(engine, row[engine.name], engine.name in hopeless(job))
        started = [
            f for row in queues for queue in row.values() for _, f in queue.builds if not isinstance(f, LazyFuture)
        ]
        self._pool.settle(started)
        return queues

    def _queue(self, engine: Engine, proposed: Proposed, is_hopeless: bool) -> BuildQueue:
        if isinstance(proposed, Decline):
            return BuildQueue(refusal=proposed)
        builds: list[tuple[Candidate, Future[Built | Tried]]] = []
        for candidate in proposed[: considered(proposed, self._limits)]:
            pool = self._pool if candidate.is_known or self._prober is None else self._doubtful
            order = self._orders.get((candidate.engine, candidate.region.key, candidate.name))
            work = partial(self._made, engine, candidate, order)
            builds.append((candidate, LazyFuture(work) if is_hopeless else pool.start(work)))
        return BuildQueue(builds, tuple(proposed[len(builds) :]))

    def _made(self, engine: Engine, candidate: Candidate, order: Future[Decline | None] | None) -> Built | Tried:
        """A plan built here, after whoever began to build it elsewhere is done."""
        if order is not None and not order.cancel():
            while not wait([order], LOOK_S).done:
                if self.budget.is_over():
                    raise CancelledError
            fault = order.result()
            if self._is_closed:
                raise CancelledError
            if fault is not None:
                return failed(candidate, fault)
        made = built(engine, candidate, self._device, self._limits, self._prober, self.budget.is_over)
        if isinstance(made, Tried) and made.is_transient and self.budget.is_over():
            raise CancelledError  # a trial that was given up says nothing of the plan, which heuristics may still take
        return made

    def _shower(
        self, pattern: str, number: int, total: int, queues: Mapping[str, BuildQueue]
    ) -> Callable[[str, int, float], None]:
        candidates = sum(len(queue.builds) for queue in queues.values())

        def show(plan: str, candidate: int, best_us: float) -> None:
            if self._watcher is not None:
                best, left = None if math.isinf(best_us) else best_us, self.budget.left_s
                self._watcher.show(Progress(pattern, number, total, plan, candidate, candidates, best, left))

        return show

    def _timed(self, job: Job, queues: dict[str, BuildQueue], show: Callable[[str, int, float], None]) -> Outcome:
        """Runs, checks and times a job's plans.  Raises ContextLostError where one of them lost the device."""
        region = job.region
        if self.budget.is_over() and (self.budget.interrupted or not any(q.is_begun for q in queues.values())):
            for queue in queues.values():
                queue.cancel()
            return Outcome(note=f"not timed: {self.budget.ending}")
        rng = np.random.default_rng(self._seed)
        inputs = random_inputs(region, rng)
        bench = inputs if isinstance(inputs, Decline) else self._timer.bench(region, inputs)
        if isinstance(inputs, Decline) or isinstance(bench, Decline):
            for queue in queues.values():
                queue.cancel()
            return Outcome(note=f"not timed: {bench}")
        self.timed += 1
        try:
            floor = floor_us(region, self._device.target, self._policy.precision)
            checker = Checker(region, inputs, self._policy, rng)
            race = Race(bench, checker, self.budget, self._device, floor)
            for engine, support in job.engines:
                if engine.name in queues:
                    race.run(queues[engine.name], engine.name, support, show)
            race.is_complete &= len(queues) == len(job.engines)
            tried, plans, refused = race.finish()
        finally:
            bench.close()
        outcome = judged(tried, plans, self._limits)
        outcome.refused.update(refused)
        said: list[str] = []
        if race.lacking and not race.is_timed:
            said.append(f"not timed: {race.lacking}")
        elif not race.is_compared:
            said.append(UNCOMPARED)
        if not race.is_complete:
            said.append(self.budget.ending)
        elif not race.is_repeatable:
            said.append(PASSING)
        outcome.note = "; ".join(said)
        if race.is_complete and race.is_repeatable:
            by_engine = {e.name: tried.get(e.name, ()) for e, _ in job.engines}
            self._records.keep(region, TuningRecord(by_engine, refused, outcome.note))
        return outcome


def batched(indices: list[int], first: int) -> list[list[int]]:
    """The same numbers in batches, of which each has as many as all before it together, but no more than BATCH."""
    found: list[list[int]] = []
    start, size = 0, first
    while start < len(indices):
        found.append(indices[start : start + size])
        start += size
        size = min(BATCH, start)
    return found


def hopeless(job: Job) -> set[str]:
    """Engines of a job that another one beats by so much, by estimate, that only a surprise would have them timed."""
    least = min((support.estimated_us for _, support in job.engines), default=math.inf)
    return {engine.name for engine, support in job.engines if support.estimated_us > HOPELESS * least}


def considered(proposed: Sequence[Candidate], limits: Limits) -> int:
    """How many of an engine's plans are considered, so that PLANS of them are such as no option rules out."""
    allowed = [index for index, candidate in enumerate(proposed) if not limits.bars(candidate)]
    return allowed[PLANS] if len(allowed) > PLANS else len(proposed)


def random_inputs(region: Region, rng: np.random.Generator) -> list[Array] | Decline:
    """Random inputs for a region.  Declines where host memory cannot hold them."""
    try:
        return inputs_for(region, rng)
    except MemoryError as error:
        return Decline(Code.TRANSIENT, f"its tensors do not fit in host memory: {error}")
