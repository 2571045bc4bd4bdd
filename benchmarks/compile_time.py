"""How long compiling ResNet-50 takes: nothing cached, all cached, with timed plans, and loaded from a file.

Each figure is that of a process of its own (compile_once.py), whose context and handles are there already, and the
best of three but for what takes long; cold and timed ones start with an empty cache each, and Inductor does too.  Run
from the repository's root: `python -m benchmarks.compile_time`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import graphdnn as gd
from benchmarks.comparison import arguments, attempt, empty_output, largest_error, random_tensor, run_suite
from benchmarks.compile_once import SAVED, WAYS
from benchmarks.layers import RESNET50, reference
from benchmarks.results import Row
from benchmarks.torch_peers import DTYPES, inductor

BATCH = 32
TRIES = {"cold": 3, "warm": 3, "autotune": 1, "load": 3}
"""Best of so many processes."""

EMPTY = ("cold", "autotune")
"""Ways that start with an empty cache each time."""


def in_a_process(way: str, folder: Path) -> dict[str, Any]:
    """What compile_once prints.  Raises RuntimeError with the last of what it said where it fails."""
    command = [sys.executable, "-m", "benchmarks.compile_once", way, str(BATCH), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} ended with status {done.returncode}: {done.stderr[-1000:]}")
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def timed(way: str, filled: Path) -> list[dict[str, Any]]:
    """What each of TRIES processes found, the fastest first."""
    found = []
    for _ in range(TRIES[way]):
        with tempfile.TemporaryDirectory(prefix="graphdnn-") as empty:
            found.append(in_a_process(way, Path(empty) if way in EMPTY else filled))
    return sorted(found, key=lambda one: float(one["seconds"]))


class Measured:
    """Every way, all on one graph and one input."""

    def __init__(self, skip_inductor: bool) -> None:
        self.case = RESNET50.case(BATCH)
        self.skip_inductor = skip_inductor

    @cache  # noqa: B019 - one object for the whole run
    def peers(self) -> dict[str, float]:
        """Microseconds that Inductor takes to compile the same network, its cache empty."""
        if self.skip_inductor:
            return {}
        module = self.case.twin("cuda", DTYPES[self.case.dtype.name])
        x = self.x()
        failures: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="inductor-") as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            taken = attempt(failures, "inductor", partial(seconds_of_inductor, module, x))
        return {} if taken is None else {"inductor": 1e6 * taken}

    def x(self) -> torch.Tensor:
        return random_tensor(self.case.shape, DTYPES[self.case.dtype.name], True, 1)

    @cache  # noqa: B019
    def filled(self) -> Path:
        """A folder that is a full cache and holds a saved executable; it goes with the process."""
        kept = tempfile.TemporaryDirectory(prefix="graphdnn-")
        self._kept = kept
        folder = Path(kept.name)
        exe = gd.compile(self.case.graph(), "cuda", gd.CompileOptions(cache_dir=str(folder), progress=False))
        exe.save(folder / SAVED)
        return folder

    @cache  # noqa: B019
    def error(self) -> float:
        """Of the saved executable."""
        x = self.x()
        exe = gd.load(self.filled() / SAVED, rebuild=False)
        output = empty_output(exe.graph)
        exe.bind({"x": x}, {"y": output})()
        torch.cuda.synchronize()
        return largest_error(output, reference(self.case, x))

    def row(self, name: str) -> Row:
        way = name.split()[-1]
        found = timed(way, self.filled())
        best = found[0]
        settings = {"what": WAYS[way], "effects": best["effects"], "seconds": [one["seconds"] for one in found]}
        if "reading_seconds" in best:
            settings["reading_seconds"] = best["reading_seconds"]
        return Row(
            name=name,
            ours_us=1e6 * best["seconds"],
            peers=self.peers(),
            floor_us=0.0,
            error=self.error(),
            peer_error=None,
            samples=len(found),
            estimated_us=best["estimated_us"],
            settings=settings,
        )


def seconds_of_inductor(module: torch.nn.Module, x: torch.Tensor) -> float:
    started = time.perf_counter()
    inductor(module, x)
    torch.cuda.synchronize()
    return time.perf_counter() - started


def main(given: list[str] | None = None) -> int:
    options = arguments("compile_time", __doc__.splitlines()[0]).parse_args(given)
    measured = Measured(options.skip_inductor)
    return run_suite("compile_time", options, [f"resnet50 b{BATCH} {way}" for way in WAYS], measured.row)


if __name__ == "__main__":
    sys.exit(main())
