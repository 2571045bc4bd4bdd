"""One compilation's timing: timer, budget, memory and progress put together."""

from __future__ import annotations

from typing import Self

from graphdnn.engines.budget import Budget
from graphdnn.engines.contract import Device
from graphdnn.engines.manifest import MANIFEST
from graphdnn.engines.records import TuningRecords
from graphdnn.engines.tune import Tuner
from graphdnn.planning.planner import Planned, Problem
from graphdnn.planning.progress import watcher
from graphdnn.planning.variants import fastest
from graphdnn.runtime.process_pool import ProcessPool
from graphdnn.runtime.schedule import Schedule
from graphdnn.runtime.timing import timer_for

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
        self._problem.selector.allow(self._problem.options.memory_limit, found.made.scratch, found.made.arenas)
        return found.made, found.placed

    @property
    def effects(self) -> tuple[str, ...]:
        """What timing came to, a sentence each."""
        return (*self._timer.effects, *self._of_whole_graphs)
