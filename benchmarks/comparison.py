"""What every GPU benchmark does alike: command line, versions, tensors as our arrays, errors, the floor of a graph."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

import graphdnn as gd
from benchmarks.results import ROOT, Row, chosen_rows, device_folder, measured, save, sentence, versions_here
from benchmarks.timing import SAMPLES, Captured, Ceilings, Machine
from benchmarks.torch_peers import DTYPES
from examples.models import convolutional
from graphdnn.engines.cost import MATRIX_OPS


def arguments(suite: str, description: str, samples: int = SAMPLES) -> argparse.ArgumentParser:
    """The options that all suites have."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{suite}", description=description)
    parser.add_argument("--rows", help="comma-separated names or parts of names; all rows by default")
    parser.add_argument("--out", type=Path, help="result file; benchmarks/results/<gpu>/<suite>.json by default")
    parser.add_argument("--samples", type=int, default=samples, help=f"timed runs of each contender ({samples})")
    parser.add_argument("--skip-inductor", action="store_true", help="compare with PyTorch eager only")
    return parser


def run_suite(
    suite: str,
    options: argparse.Namespace,
    names: Iterable[str],
    measure: Callable[[str], Row],
    say: Callable[[Row], str] = sentence,
) -> int:
    """Measures the chosen rows, writes the result file after each of them and prints it as `say` puts it.  The
    process's exit code."""
    every = list(names)
    path = options.out or ROOT / "results" / device_folder(torch.cuda.get_device_name()) / f"{suite}.json"
    versions = versions_here(device_versions())

    def timed(name: str) -> Row:
        started = time.perf_counter()
        row = measure(name)
        print(f"  {name} took {time.perf_counter() - started:.0f} s in all", flush=True)
        torch.cuda.empty_cache()
        return row

    status = measured(chosen_rows(options.rows, every), timed, lambda rows: save(path, rows, versions, every), say)
    print(f"results: {path}")
    return status


def device_versions() -> dict[str, str]:
    """The device and the libraries that PyTorch and the driver bring."""
    from cuda.bindings import driver

    _, number = driver.cuDriverGetVersion()
    return {
        "device": torch.cuda.get_device_name(),
        "driver supports CUDA": f"{number // 1000}.{number % 1000 // 10}",
        "torch CUDA": str(torch.version.cuda),
        "torch cuDNN": str(torch.backends.cudnn.version()),
        "graphdnn": gd.__version__,
    }


def graph_floor_us(graph: gd.Graph, ceilings: Ceilings) -> float:
    """Inputs, constants and outputs over copy bandwidth, or matrix products over their rates."""
    values = [*graph.inputs.values(), *graph.constants.values(), *graph.outputs.values()]
    nbytes = sum(v.type.nbytes for v in values)
    operations: dict[str, float] = {}
    for node in graph.nodes:
        if isinstance(node.op, MATRIX_OPS) and not is_vector_product(node):
            name = node.operands[0].type.dtype.name
            operations[name] = operations.get(name, 0.0) + node.flops
    return ceilings.floor_us(nbytes, operations)


def is_vector_product(node: gd.Node) -> bool:
    """Whether a convolution has one channel a group, which matrix units cannot help with."""
    return getattr(node.op, "groups", 1) > 1 and node.operands[1].type.shape[1] == 1


def largest_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the expected values' peak; infinite where a number is missing."""
    difference = (found.double() - expected.double()).abs().max()
    error = float(difference / expected.double().abs().max())
    return error if error == error else float("inf")


def plans(report: gd.CompileReport) -> list[dict[str, Any]]:
    """Which engine and plan runs each region, and what was expected of it."""
    return [
        {"pattern": r.pattern, "engine": r.engine, "plan": r.plan, "kernels": r.kernels, "estimated_us": r.estimated_us}
        for r in report.regions
    ]


def strides_of(shape: tuple[int, ...], channels_last: bool) -> tuple[int, ...] | None:
    """Strides in elements of an image batch (N, C, H, W) with its channels last; None is row-major."""
    return convolutional.channels_last(shape) if channels_last else None


def random_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, channels_last: bool, seed: int, device: str = "cuda"
) -> torch.Tensor:
    """Normal numbers, the same for a seed."""
    generator = torch.Generator(device=device).manual_seed(seed)
    drawn = torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)
    return drawn.contiguous(memory_format=torch.channels_last) if channels_last else drawn


def empty_output(graph: gd.Graph, device: str = "cuda") -> torch.Tensor:
    """A tensor for the output "y" as it is declared, filled with NaN so that what is not written is seen."""
    type = graph.output_type("y")
    made = torch.empty_strided(type.shape, type.layout, dtype=DTYPES[type.dtype.name], device=device)
    return made.fill_(float("nan"))


def captured_peers(
    machine: Machine,
    ways: Mapping[str, Callable[[], Callable[..., Any]]],
    issue: Callable[[Callable[..., Any]], object],
    failures: dict[str, str],
) -> dict[str, Captured]:
    """What `issue` does with each way to run a peer, as one CUDA graph; ways that fail are noted and left out."""
    peers = {}
    for name, make in ways.items():

        def capture(make: Callable[[], Callable[..., Any]] = make) -> Captured:
            run = make()
            return machine.capture(lambda: issue(run))

        peer = attempt(failures, name, capture)
        if peer is not None:
            peers[name] = peer
    return peers


def attempt(failures: dict[str, str], name: str, make: Callable[[], Any]) -> Any:
    """What `make` gives, or None and the failure's first line, for a peer that cannot be had."""
    try:
        return make()
    except Exception as error:
        failures[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        print(f"  {name} cannot be had: {failures[name]}", flush=True)
        return None
