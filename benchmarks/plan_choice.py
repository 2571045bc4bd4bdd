"""Choosing plans by estimate beside choosing by measurement: what each costs, and how far the estimates are off.

All plans are built ahead, one process a core (build_ahead.py).  Then each region is compiled with an empty cache, again
with the full one, and with `selection="measure"`; the two results are timed in turns, each as one CUDA graph.  Run from
the repository's root: `python -m benchmarks.plan_choice`.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import log2
from statistics import median
from typing import Any

import torch

import graphdnn as gd
from benchmarks.build_ahead import build_ahead, tuning_options
from benchmarks.comparison import arguments, graph_floor_us, largest_error, plans, run_suite
from benchmarks.plan_cases import CASES
from benchmarks.results import Row, chosen_rows
from benchmarks.timing import Ceilings, Machine, interleaved, measured_ceilings, medians
from benchmarks.torch_peers import DTYPES


def tensors(graph: gd.Graph, device: str) -> dict[str, torch.Tensor]:
    """Normal numbers for every input, with its strides."""
    made = {}
    for seed, (name, value) in enumerate(graph.inputs.items()):
        type = value.type
        generator = torch.Generator(device=device).manual_seed(seed)
        tensor = torch.empty_strided(type.shape, type.layout, dtype=DTYPES[type.dtype.name], device=device)
        made[name] = tensor.copy_(torch.randn(type.shape, generator=generator, device=device))
    return made


def timed(graph: gd.Graph, device: str, options: gd.CompileOptions) -> tuple[gd.Executable, float]:
    """The compiled graph, and the seconds that compiling took."""
    started = time.perf_counter()
    exe = gd.compile(graph, target=device, options=options)
    return exe, time.perf_counter() - started


def measure(machine: Machine, name: str, ceilings: Ceilings, samples: int, cache: str) -> Row:
    """One row: `ours_us` is the cover that estimates choose, the peer `best` the one that measurements choose.

    `cache` is a folder with the plans, as far as they are built ahead.
    """
    graph = CASES[name]()
    with tempfile.TemporaryDirectory(prefix="graphdnn-") as empty:
        _, cold_s = timed(graph, machine.device, gd.CompileOptions(cache_dir=empty, progress=False))
    best, timing_s = timed(graph, machine.device, tuning_options(cache))
    heuristic, warm_s = timed(graph, machine.device, gd.CompileOptions(cache_dir=cache, progress=False))
    inputs = tensors(graph, machine.device)
    runs = {"heuristic": heuristic.bind(inputs), "best": best.bind(inputs)}
    found = {n: torch.from_dlpack(run()["y"]) for n, run in runs.items()}
    machine.synchronize()
    times = medians(interleaved(runs, machine.cold_clock(), samples))
    settings = {
        "cold_s": cold_s,
        "warm_s": warm_s,
        "timing_s": timing_s,
        "regions": plans(heuristic.report),
        "best_regions": plans(best.report),
        "effects": best.report.effects,
        "candidates": estimates(best.report),
    }
    error = largest_error(found["heuristic"], found["best"])
    return Row(
        name=name,
        ours_us=times["heuristic"],
        peers={"best": times["best"]},
        floor_us=graph_floor_us(graph, ceilings),
        error=error,
        peer_error=None,
        samples=samples,
        estimated_us=heuristic.report.estimated_us,
        settings=settings,
    )


def estimates(report: gd.CompileReport) -> list[dict[str, Any]]:
    """Every candidate that was timed: what was estimated, what its engine's first plan took, and what its best."""
    found = []
    for candidate in report.candidates:
        timed = [(p.name, p.measured_us) for p in candidate.plans if p.measured_us is not None]
        if candidate.estimated_us is None or candidate.measured_us is None or not timed:
            continue
        (first, first_us), (best, best_us) = timed[0], min(timed, key=lambda pair: pair[1])
        found.append(
            {
                "engine": candidate.engine, "pattern": candidate.pattern, "estimated_us": candidate.estimated_us,
                "measured_us": best_us, "plan": best, "first_plan": first, "first_us": first_us, "plans": len(timed),
            }
        )  # fmt: skip
    return found


def sentence(row: Row) -> str:
    """A row as one line of text: what choosing by estimate costs, and what choosing by measurement takes."""
    best, spent = row.peers["best"], row.settings
    ratio = row.ours_us / best
    return (
        f"{row.name}: heuristic {row.ours_us:.1f} us, best {best:.1f} us, heuristic over best {ratio:.3f}; "
        f"tuning {spent['tuning_s']:.1f} s, compiling {spent['cold_s']:.2f} s cold and {spent['warm_s']:.3f} s warm; "
        f"estimated {row.estimated_us:.1f} us, error {row.error:.1e}"
    )


def summary(rows: Iterable[Any]) -> str:
    """How well estimates fit, and what choosing by them costs, over the rows of a result file."""
    rows = list(rows)
    off = [abs(log2(c["estimated_us"] / c["measured_us"])) for row in rows for c in row["settings"]["candidates"]]
    ratios = [row["ours_us"] / row["peers"]["best"] for row in rows]
    return (
        f"{len(rows)} regions, {len(off)} candidates timed: median |log2(estimated / measured)| {median(off):.2f}; "
        f"by estimate over by measurement {median(ratios):.3f} in the median, {max(ratios):.2f} at most"
    )


@contextmanager
def one_core() -> Iterator[None]:
    """This thread keeps to one core, so that tuning starts no children for the few plans that are left to build: their
    contexts on the device would disturb what is timed."""
    every = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(every)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


def main(given: list[str] | None = None) -> int:
    parser = arguments("plan_choice", __doc__.splitlines()[0], samples=15)
    parser.add_argument("--cache", help="folder for built plans, kept for a later run; a temporary one by default")
    options = parser.parse_args(given)
    machine = Machine()
    names = chosen_rows(options.rows, CASES)
    cache = options.cache or tempfile.mkdtemp(prefix="graphdnn-")
    done: list[dict[str, Any]] = []
    try:
        tuning = build_ahead(names, machine.device, cache)
        print(f"built the plans of {len(tuning)} regions, {sum(tuning.values()):.0f} s of one core", flush=True)
        with one_core():
            ceilings = measured_ceilings()
            print(ceilings)

            def row(name: str) -> Row:
                found = measure(machine, name, ceilings, options.samples, cache)
                tuning_s = tuning.get(name, found.settings["timing_s"])  # what was not built ahead is built there
                found = replace(found, settings={**found.settings, "tuning_s": tuning_s})
                done.append(found.as_json())
                gc.collect()
                return found

            status = run_suite("plan_choice", options, CASES, row, sentence)
    finally:
        if not options.cache:
            shutil.rmtree(cache, ignore_errors=True)
    if done:
        print(summary(done))
    return status


if __name__ == "__main__":
    sys.exit(main())
