"""Records every plan that the engines offer for some regions on the device here, which tests/recorded replays.

Plans are built ahead, one process a core, and then timed one region after the other; none is dropped early, and no
engine is ruled out by its estimate.  From the repository's root: `python -m tests.gpu.record_candidates --out FILE`.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import graphdnn as gd
from benchmarks.build_ahead import keep_to_one_core
from benchmarks.plan_cases import CASES
from benchmarks.results import chosen_rows, commit_here, rounded, versions_here
from graphdnn.answer import Decline
from graphdnn.engines.budget import Budget
from graphdnn.engines.contract import (
    Bench,
    Device,
    DevicePlan,
    Engine,
    HostPlan,
    Policy,
    Precision,
    Prober,
    Support,
    Timer,
    Timing,
)
from graphdnn.engines.manifest import MANIFEST, engines_for
from graphdnn.engines.outcome import Outcome
from graphdnn.engines.records import TuningRecords, row_of
from graphdnn.engines.trial import Limits, Tried, built
from graphdnn.engines.tune import Job, Tuner, considered
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array
from graphdnn.runtime.cache import DiskStore, NullStore
from graphdnn.runtime.child import NoTorch
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.probe import ChildProber
from graphdnn.runtime.timing import CudaTimer
from graphdnn.serialization.manifest import environment
from graphdnn.target import Target

THREADS = 8
"""Threads that build what is not built ahead, as many as the compiler has."""

SECONDS = 60.0
"""Most seconds that timing one case may take."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A case of benchmarks/plan_cases.py, and what its arithmetic may be."""

    case: str
    precision: Precision = "ieee"

    def __str__(self) -> str:
        return f"{self.case} in {self.precision}"


HALF = (
    "conv 3x3 s1 n32 64->64 56x56 relu",
    "conv 3x3 s2 n32 128->128 56x56 relu",
    "conv 3x3 s1 n32 256->256 14x14 relu",
    "conv 3x3 s1 n1 256->256 14x14 relu",
    "conv 1x1 s1 n32 64->256 56x56 add relu",
    "conv 1x1 s1 n32 256->64 56x56 relu",
    "conv 1x1 s2 n32 256->512 56x56",
    "conv 1x1 s1 n1 256->1024 14x14 add relu",
    "depthwise 7x7 s1 n64 384 14x14",
    "depthwise 3x3 s2 n32 64 112x112 relu",
    "depthwise 5x5 s1 n32 240 28x28 relu",
    "matmul 128x1024x4096 float16 bias gelu",
    "matmul 8192x1024x1024 float16 bias add",
    "matmul 512x384x1152 float16 bias",
    "matmul 64x512x64x512 float16",
    "matmul 4096x4096x4096 bfloat16 add",
    "matmul 1x4096x4096 bfloat16 add",
    "layer norm 8192x1024 float16",
    "rms norm 4096x4096 bfloat16",
    "add layer norm 8192x1024 float16",
    "softmax 8192x1024 float16",
    "attention 4x32/8x1024x1024x128 bfloat16 causal",
    "attention 1x32/8x1x4096x128 bfloat16",
    "add relu 8192x4096",
)

SINGLE = (
    "conv 3x3 s1 n32 256->256 14x14 relu float32",
    "matmul 1024x1024x1024 float32",
    "matmul 512x768x768 float32 bias",
)
"""Recorded twice, so that there are plans which keep float32 and plans which do not."""

TASKS = (*map(Task, HALF), *(Task(case, p) for case in SINGLE for p in ("ieee", "tf32")))


@cache
def regions_of(task: Task, target: Target) -> list[Region]:
    """The regions of the case's cover on such a machine, as estimates choose it; nothing is built."""
    options = gd.CompileOptions(precision=task.precision)
    exe = gd.compile(CASES[task.case](), replace(target, present=False), options)
    return [pick.region for pick in exe.compilation.picks]


class Unhurried:
    """A timer that gives no plan up early, so that all have a whole time."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer

    def bench(self, region: Region, inputs: Sequence[Array]) -> Bench | Decline:
        bench = self._timer.bench(region, inputs)
        return bench if isinstance(bench, Decline) else UnhurriedBench(bench)


class UnhurriedBench:
    """A bench on which nothing is far above the best."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def results(self, plan: DevicePlan | HostPlan) -> Sequence[Array]:
        return self._bench.results(plan)

    def measure(self, plan: DevicePlan | HostPlan, best_us: float) -> Timing:
        return self._bench.measure(plan, math.inf)

    def close(self) -> None:
        self._bench.close()


def recorded(
    task: Task,
    region: Region,
    engines: Sequence[Engine],
    device: Device,
    timer: Timer,
    prober: Prober | None = None,
    threads: int = 1,
) -> Row:
    """What the engines offer for a region, in their order, and what became of each plan.

    Raises RuntimeError where nothing was timed, or not all of it.
    """
    policy = Policy(precision=task.precision)
    limits = Limits.of(policy)
    answers = {e.name: e.supports(region, device.target, policy) for e in engines}
    # At an estimate of nothing no engine is ruled out by it.
    takers = [(e, replace(a, estimated_us=0.0)) for e in engines if isinstance(a := answers[e.name], Support)]
    nothing_known = TuningRecords(NullStore(), device.target, policy, limits)
    budget = Budget(SECONDS)
    tuner = Tuner(device, policy, limits, Unhurried(timer), budget, nothing_known, prober=prober, threads=threads)
    with tuner:
        (outcome,) = tuner.tune([Job(region, tuple(takers))])
    if budget.ending or not any(t.measured_us for tried in outcome.tried.values() for t in tried):
        raise RuntimeError(f"{region.pattern}: {outcome.note or outcome.refused or 'no engine takes it'}")
    return {
        "case": task.case,
        "precision": task.precision,
        "pattern": region.pattern,
        "note": outcome.note,
        "engines": [engine_row(name, answer, outcome) for name, answer in answers.items()],
    }


def engine_row(name: str, answer: Support | Decline, outcome: Outcome) -> Row:
    """One engine's answer; `refusal` also where it said yes and none of its plans is usable."""
    yes = answer if isinstance(answer, Support) else None
    refusal = answer if isinstance(answer, Decline) else outcome.refused.get(name)
    return {
        "engine": name,
        "estimated_us": yes.estimated_us if yes else None,
        "untimed_us": yes.untimed_us if yes else None,
        "refusal": None if refusal is None else str(refusal),
        "plans": [plan_row(t) for t in outcome.tried.get(name, ())],
    }


def plan_row(tried: Tried) -> Row:
    return {**row_of(tried), "is_known": tried.candidate.is_known}


def document_text(document: Mapping[str, Any]) -> str:
    """The document as JSON, a plan a line."""
    head = "".join(f" {json.dumps(k)}: {json.dumps(v)},\n" for k, v in document.items() if k != "regions")
    regions = [opened(region, "engines", map(engine_text, region["engines"])) for region in document["regions"]]
    return f'{{\n{head} "regions": [\n' + ",\n".join(regions) + "\n ]\n}\n"


def engine_text(row: Row) -> str:
    return opened(row, "plans", map(json.dumps, row["plans"]))


def opened(row: Row, last: str, texts: Iterator[str]) -> str:
    """A row on one line, and its `last` entry as lines below."""
    head = json.dumps({k: v for k, v in row.items() if k != last})[:-1]
    return f'{head}, "{last}": [\n' + ",\n".join(texts) + "]}"


def kept(path: Path, about: Row, tasks: Sequence[Task]) -> list[Row]:
    """Regions that an earlier run on the same commit and machine left in the file, without those of these tasks."""
    if not path.exists():
        return []
    old = json.loads(path.read_text())
    if any(old.get(name) != about[name] for name in ("versions", "commit")):
        return []
    return [r for r in old["regions"] if Task(r["case"], r["precision"]) not in tasks]


def record(tasks: Sequence[Task], rows_of: Callable[[Task], list[Row]], path: Path, about: Row) -> int:
    """Records task after task, and writes what there is after each.  The exit code: 1 where one failed."""
    regions, left_out = kept(path, about, tasks), {}
    path.parent.mkdir(parents=True, exist_ok=True)
    for task in tasks:
        started = time.perf_counter()
        try:
            found = rows_of(task)
        except Exception as error:  # the others are worth having
            left_out[str(task)] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
            found = []
        regions += found
        path.write_text(document_text(rounded({**about, "left_out": left_out, "regions": regions})))
        count = sum(len(e["plans"]) for r in found for e in r["engines"])
        print(f"{task}: {count} plans, {time.perf_counter() - started:.1f} s", flush=True)
    return 1 if left_out else 0


def rows_on(device: CudaDevice, probers: Mapping[Precision, Prober], task: Task) -> list[Row]:
    """The rows of a task's regions on a device."""
    engines, prober = engines_for("cuda"), probers[task.precision]
    return [
        recorded(task, region, engines, device, CudaTimer(device), prober, THREADS)
        for region in regions_of(task, device.target)
    ]


def begin(cores: Sequence[int], taken: Any) -> None:
    """A process that builds has a core for itself, and does without torch, which takes seconds to import."""
    sys.meta_path.insert(0, NoTorch)
    keep_to_one_core(cores, taken)


def build(task: Task, folder: str) -> float:
    """Builds the plans of a task that will be timed, into a cache; the seconds that it took."""
    started = time.perf_counter()
    device = CudaDevice.current().with_store(DiskStore(folder))
    policy, limits = Policy(precision=task.precision), Limits()
    with device, ChildProber(MANIFEST, device, policy, environment(device.target)) as prober:
        for region in regions_of(task, device.target):
            for engine in engines_for("cuda"):
                if isinstance(engine.supports(region, device.target, policy), Decline):
                    continue
                found = engine.candidates(region, device, policy)
                if not isinstance(found, Decline):
                    for candidate in found[: considered(found, limits)]:
                        built(engine, candidate, device, limits, prober)
    return time.perf_counter() - started


def build_ahead(tasks: Sequence[Task], folder: str, target: Target) -> float:
    """Builds the plans of all tasks, one process a core; the seconds of one core.  What fails here is built later.

    This process plans the regions meanwhile.
    """
    cores = sorted(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    start = partial(begin, cores, context.Value("i", 0))
    seconds = 0.0
    with ProcessPoolExecutor(min(len(cores), len(tasks)), context, start) as pool:
        waiting = [(task, pool.submit(build, task, folder)) for task in tasks]
        for task in tasks:
            with suppress(gd.GraphDnnError):  # it comes again when the task's turn comes
                regions_of(task, target)
        for task, future in waiting:
            try:
                seconds += future.result()
            except Exception as error:
                print(f"{task} was not built ahead: {type(error).__name__}: {error}", flush=True)
    return seconds


def about_here(device: CudaDevice) -> Row:
    """Versions, device, commit and date of a recording."""
    libraries = {f"target {name}": v for name, v in device.target.versions.items()}
    own = {"graphdnn": gd.__version__, "driver supports CUDA": device.driver_version}
    return {
        "versions": versions_here({**libraries, **own}),
        "device": device.name,
        "commit": commit_here(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("record_candidates", description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=Path, help="the file to write; other cases in it are kept")
    parser.add_argument("--rows", help="comma-separated words; only cases that contain one of them")
    options = parser.parse_args(given)
    names = chosen_rows(options.rows, dict.fromkeys(t.case for t in TASKS))
    tasks = [t for t in TASKS if t.case in names]
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="graphdnn-", ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        device = CudaDevice.current().with_store(DiskStore(folder))
        seconds = build_ahead(tasks, folder, device.target)
        print(f"built ahead in {time.perf_counter() - started:.1f} s, {seconds:.0f} s of one core", flush=True)
        places = environment(device.target)
        probers = {
            p: stack.enter_context(ChildProber(MANIFEST, device, Policy(precision=p), places))
            for p in dict.fromkeys(t.precision for t in tasks)
        }
        status = record(tasks, partial(rows_on, device, probers), options.out, about_here(device))
    print(f"{options.out}: {options.out.stat().st_size} bytes in {time.perf_counter() - started:.1f} s")
    return status


if __name__ == "__main__":
    sys.meta_path.insert(0, NoTorch)
    sys.exit(main())
