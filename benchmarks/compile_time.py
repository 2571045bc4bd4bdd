"""How long compiling ResNet-50 takes: nothing cached, all cached, with timed plans, and loaded from a file.

The context and the libraries' handles are there already; the cold and the timed figure start with an empty cache each
time, and Inductor does too.  Run from the repository's root: `python -m benchmarks.compile_time`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

import graphdnn as gd
from benchmarks.comparison import arguments, attempt, empty_output, largest_error, random_tensor, run_suite
from benchmarks.layers import RESNET50, reference
from benchmarks.results import Row
from benchmarks.torch_peers import DTYPES, inductor

BATCH = 32
TRIES = 3
"""Best of so many, but for what takes long."""

WAYS = {
    "cold": "a heuristic compile with an empty cache",
    "warm": "the same with a full one",
    "autotune": "plans timed, with an empty cache",
    "load": "a saved executable, its file read from memory",
}


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return time.perf_counter() - started, result


def best(work: Callable[[], Any], tries: int = TRIES) -> tuple[float, Any]:
    """The shortest of several tries, and its result."""
    return min((seconds(work) for _ in range(tries)), key=lambda pair: pair[0])


def compiled(graph: gd.Graph, folder: str | None, **options: Any) -> gd.Executable:
    """Compiled with a cache in `folder`, or with an empty one."""
    own = tempfile.mkdtemp(prefix="graphdnn-") if folder is None else folder
    try:
        return gd.compile(graph, "cuda", gd.CompileOptions(cache_dir=own, progress=False, **options))
    finally:
        if folder is None:
            shutil.rmtree(own)


class Measured:
    """Every way once, all on one graph and one input."""

    def __init__(self, skip_inductor: bool) -> None:
        self.case = RESNET50.case(BATCH)
        self.graph = self.case.graph()
        self.x = random_tensor(self.case.shape, DTYPES[self.case.dtype.name], True, 1)
        self.skip_inductor = skip_inductor

    @cache  # noqa: B019 - one object for the whole run
    def expected(self) -> torch.Tensor:
        return reference(self.case, self.x)

    @cache  # noqa: B019
    def peers(self) -> dict[str, float]:
        """Microseconds that Inductor takes to compile the same network, its cache empty."""
        if self.skip_inductor:
            return {}
        module = self.case.twin("cuda", DTYPES[self.case.dtype.name])
        with tempfile.TemporaryDirectory(prefix="inductor-") as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            failures: dict[str, str] = {}
            taken = attempt(failures, "inductor", lambda: seconds(lambda: inductor(module, self.x))[0])
        return {} if taken is None else {"inductor": 1e6 * taken}

    def row(self, name: str) -> Row:
        taken, exe = self.way(name.split()[-1])
        output = empty_output(self.graph)
        exe.bind({"x": self.x}, {"y": output})()
        torch.cuda.synchronize()
        settings = {"what": WAYS[name.split()[-1]], "effects": exe.report.effects}
        error = largest_error(output, self.expected())
        estimated = exe.report.estimated_us
        return Row(name, 1e6 * taken, self.peers(), 0.0, error, None, TRIES, estimated, settings)

    def way(self, way: str) -> tuple[float, gd.Executable]:
        """Seconds and the executable."""
        compiled(self.graph, None)  # context, handles, lazy imports
        if way == "cold":
            return best(partial(compiled, self.graph, None))
        if way == "autotune":
            return best(partial(compiled, self.graph, None, selection="autotune"), tries=1)
        with tempfile.TemporaryDirectory(prefix="graphdnn-") as folder:
            made = compiled(self.graph, folder)
            if way == "warm":
                return best(partial(compiled, self.graph, folder))
            path = Path(folder) / "model.gdn"
            made.save(path)
            path.read_bytes()
            return best(partial(gd.load, path, rebuild=False))


def main(given: list[str] | None = None) -> int:
    options = arguments("compile_time", __doc__.splitlines()[0]).parse_args(given)
    measured = Measured(options.skip_inductor)
    return run_suite("compile_time", options, [f"resnet50 b{BATCH} {way}" for way in WAYS], measured.row)


if __name__ == "__main__":
    sys.exit(main())
