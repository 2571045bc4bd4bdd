"""Builds the plans of many regions at once, one process on each core, into one cache.

Compiling is nearly all that choosing by measurement takes, and needs no device for itself; timings do, so those of the
crowd are forgotten again.  PyTorch is not imported.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import graphdnn as gd
from benchmarks.plan_cases import CASES
from graphdnn.engines.records import KIND
from graphdnn.runtime.cache import DiskStore

BUDGET_S = 60.0
"""Most seconds that one region's tuning may take."""


def tuning_options(cache: str) -> gd.CompileOptions:
    return gd.CompileOptions(cache_dir=cache, progress=False, selection="measure", tuning_budget_s=BUDGET_S)


def tuning_seconds(name: str, device: str, cache: str) -> float:
    """Seconds that choosing one region's plans by measurement takes."""
    graph = CASES[name]()
    started = time.perf_counter()
    gd.compile(graph, device, tuning_options(cache))
    return time.perf_counter() - started


def keep_to_one_core(cores: Sequence[int], taken: Any) -> None:
    """A process that begins takes the next core for itself alone, so that it starts no children for its plans."""
    with taken.get_lock():
        os.sched_setaffinity(0, {cores[taken.value % len(cores)]})
        taken.value += 1


def build_ahead(names: Sequence[str], device: str, cache: str) -> dict[str, float]:
    """Fills `cache` with the regions' plans; the seconds that each took, the others running beside it.

    Regions that failed are missing; whoever needs their plans builds them.
    """
    cores = sorted(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    count = min(len(cores), len(names))
    start = partial(keep_to_one_core, cores, context.Value("i", 0))
    seconds: dict[str, float] = {}
    with ProcessPoolExecutor(count, context, start) as pool:
        waiting = {name: pool.submit(tuning_seconds, name, device, cache) for name in names}
        for name, future in waiting.items():
            try:
                seconds[name] = future.result()
            except Exception as error:  # one region that fails, or kills its process, is no reason to measure none
                print(f"  {name} was not built ahead: {error}", flush=True)
    DiskStore(cache).clear(KIND)
    return seconds
