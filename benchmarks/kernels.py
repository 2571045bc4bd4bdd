"""Single kernels beside the floor and PyTorch (eager and compiled): what the generated ones reach, and our estimates.

Each contender is a CUDA graph of several runs on rotated inputs and outputs, which together are larger than the cache,
so that neither a launch nor a warm cache counts.  Run from the repository's root: `python -m benchmarks.kernels`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import ceil
from typing import Any

import torch

import graphdnn as gd
from benchmarks.comparison import (
    arguments,
    captured_peers,
    empty_output,
    graph_floor_us,
    largest_error,
    plans,
    random_tensor,
    run_suite,
)
from benchmarks.kernel_cases import CASES, Case
from benchmarks.results import Row
from benchmarks.timing import Captured, Ceilings, Machine, Run, interleaved, measured_ceilings, medians
from benchmarks.torch_peers import DTYPES, inductor, tensor

ROTATED_BYTES = 192 << 20
"""What the rotated inputs and outputs come to together: several times the cache."""

FEWEST, MOST = 4, 32
"""Runs in one CUDA graph."""


def rotations(nbytes: int) -> int:
    """How many sets of inputs and outputs of `nbytes` together are rotated."""
    return min(max(ceil(ROTATED_BYTES / nbytes), FEWEST), MOST)


def input_sets(case: Case, count: int, device: str) -> list[list[torch.Tensor]]:
    """`count` sets of random inputs."""
    dtype = DTYPES[case.dtype.name]
    return [
        [
            random_tensor(shape, dtype, case.channels_in, turn * len(case.shapes) + i, device)
            for i, shape in enumerate(case.shapes)
        ]
        for turn in range(count)
    ]


def torch_function(case: Case, dtype: torch.dtype, device: str) -> Callable[..., torch.Tensor]:
    """The case in PyTorch with its parameters in some type."""
    parameters = {n: tensor(a, device, dtype) for n, a in case.parameters.items()}
    if case.channels_in:
        parameters = {
            n: p.contiguous(memory_format=torch.channels_last) if p.dim() == 4 else p for n, p in parameters.items()
        }
    return lambda *inputs: case.theirs(*inputs, **parameters)


def captured_ours(
    machine: Machine, case: Case, graph: gd.Graph, sets: list[list[torch.Tensor]]
) -> tuple[Captured, gd.Executable]:
    """Our calls on every set in one CUDA graph; its results are the outputs."""
    options = gd.CompileOptions(disabled_engines=case.disabled)
    exe = gd.compile(graph, target=machine.device, options=options)
    outputs = [empty_output(graph, machine.device) for _ in sets]
    calls = [
        exe.bind({f"x{i}": x for i, x in enumerate(inputs)}, {"y": output})
        for inputs, output in zip(sets, outputs, strict=True)
    ]

    def issue() -> list[torch.Tensor]:
        for call in calls:
            call(stream=machine.stream())
        return outputs

    return machine.capture(issue), exe


def measure(machine: Machine, case: Case, name: str, ceilings: Ceilings, samples: int, skip_inductor: bool) -> Row:
    """One row: both sides captured on the same rotated inputs, checked against float64, timed in turns."""
    dtype = DTYPES[case.dtype.name]
    graph = case.graph()
    nbytes = sum(v.type.nbytes for v in [*graph.inputs.values(), *graph.outputs.values()])
    sets = input_sets(case, rotations(nbytes), machine.device)
    ours, exe = captured_ours(machine, case, graph, sets)
    eager = torch_function(case, dtype, machine.device)
    ways: dict[str, Callable[[], Callable[..., Any]]] = {"eager": lambda: eager}
    if not skip_inductor:
        ways["inductor"] = lambda: inductor(eager, *sets[0])
    failures: dict[str, str] = {}
    peers = captured_peers(machine, ways, lambda run: [run(*inputs) for inputs in sets], failures)
    with torch.inference_mode():
        expected = torch_function(case, torch.float64, machine.device)(*(x.double() for x in sets[0]))
    contenders: dict[str, Run] = {"ours": ours, **peers}
    for run in contenders.values():
        run()
    errors = {way: largest_error(run.results[0], expected) for way, run in {"ours": ours, **peers}.items()}
    times = medians(interleaved(contenders, machine.cold_clock(), samples), runs=len(sets))
    ours_us = times.pop("ours")
    best = min(times, key=lambda n: times[n], default=None)
    settings = {
        "dtype": case.dtype.name,
        "rotated sets": len(sets),
        "engines not asked": case.disabled,
        "kernels": exe.report.kernel_count,
        "peer_errors": {n: e for n, e in errors.items() if n != "ours"},
        "failures": failures,
        "regions": plans(exe.report),
    }
    return Row(
        name=name,
        ours_us=ours_us,
        peers=times,
        floor_us=graph_floor_us(graph, ceilings),
        error=errors["ours"],
        peer_error=errors[best] if best else None,
        samples=samples,
        estimated_us=exe.report.estimated_us,
        settings=settings,
    )


def main(given: list[str] | None = None) -> int:
    options = arguments("kernels", __doc__.splitlines()[0]).parse_args(given)
    torch.backends.cudnn.benchmark = True
    machine, ceilings = Machine(), measured_ceilings()
    print(ceilings)
    return run_suite(
        "kernels",
        options,
        CASES,
        lambda name: measure(machine, CASES[name](), name, ceilings, options.samples, options.skip_inductor),
    )


if __name__ == "__main__":
    sys.exit(main())
