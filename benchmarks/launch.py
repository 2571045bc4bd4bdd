"""Host cost of bound, plain and jitted calls of graphs with 1 to 600 kernels, beside PyTorch's replay of as many.

The device is idle before each timing, and nothing waits for it within.  The same call is made again and again, in
blocks that the contenders take in turns; what it takes where another one's call came before each, so that the processor
and the driver find nothing of it in their caches, stands in the settings as `alternating_us`.  The floor is the
driver's own graph launch of our captured graph.  Run from the repository's root: `python -m benchmarks.launch`.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import graphdnn as gd
from benchmarks.comparison import arguments, attempt, empty_output, largest_error, random_tensor, run_suite
from benchmarks.results import Row
from benchmarks.timing import Captured, Run, captured, host_clock, in_blocks, interleaved, medians, wake_processor

COUNTS = (1, 10, 60, 100, 600)
SHAPE = (64, 96)
SAMPLES = 300
WARM_UP = 20
LEGACY_STREAM = 1


def chain(count: int) -> gd.Graph:
    """`count` kernels that cannot be one: softmax along the columns and the rows in turns."""
    g = gd.GraphBuilder(f"chain{count}")
    return g.build({"y": softmaxes(g, g.input("x", SHAPE, gd.float32), count)})


def softmaxes(g: gd.GraphBuilder, x: gd.Value, count: int) -> gd.Value:
    for turn in range(count):
        x = g.softmax(x, axis=turn % 2)
    return x


def torch_chain(x: torch.Tensor, count: int) -> torch.Tensor:
    """The same in PyTorch, one kernel each."""
    for turn in range(count):
        x = torch.softmax(x, turn % 2)
    return x


def row_names() -> list[str]:
    return [f"{kind} {count}" for kind in ("bind", "call", "jit") for count in COUNTS]


class Measured:
    """Times of all ways to launch one number of kernels, taken in turns, once."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self._found: dict[int, dict[str, Any]] = {}

    def of(self, count: int) -> dict[str, Any]:
        if count not in self._found:
            self._found[count] = self._measure(count)
        return self._found[count]

    def _measure(self, count: int) -> dict[str, Any]:
        graph = chain(count)
        exe = gd.compile(graph, target="cuda")
        x = random_tensor(SHAPE, torch.float32, False, seed=1)
        output = empty_output(graph)
        bound = exe.bind({"x": x}, {"y": output})
        bound()
        inputs = {"x": x}
        plain = torch.from_dlpack(exe(inputs)["y"]).clone()
        jitted = gd.jit(lambda g, x: {"y": softmaxes(g, x, count)}, target="cuda")
        through = torch.from_dlpack(jitted(inputs)["y"]).clone()
        failures: dict[str, str] = {}

        def peer() -> torch.Tensor:
            return torch_chain(x, count)

        replay = captured(peer)
        replay()
        torch.cuda.synchronize()
        check_kernels(count, exe.report.kernel_count, bound.kernels)
        launched = bound.graph
        runs: dict[str, Run] = {
            "bind": bound,
            "call": lambda: exe(inputs),
            "jit": lambda: jitted(inputs),
            "torch_graph_replay": replay.graph.replay,
            "driver": lambda: launched.launch(LEGACY_STREAM),
        }
        expected = torch_chain(x.double(), count)
        wake_processor()
        return {
            "times": medians(in_blocks(runs, host_clock, self.samples, WARM_UP)),
            "alternating": medians(interleaved(runs, host_clock, self.samples, WARM_UP)),
            "errors": {
                "bind": largest_error(output, expected),
                "call": largest_error(plain, expected),
                "jit": largest_error(through, expected),
            },
            "peer_error": largest_error(replayed(replay), expected),
            "estimated_us": exe.report.estimated_us,
            "kernels": bound.kernels,
            "failures": failures,
            "peer_nodes": attempt(failures, "counting the peer's nodes", lambda: captured_nodes(peer)),
        }


def captured_nodes(issue: Run) -> int:
    """Nodes of the CUDA graph that PyTorch captures from `issue`."""
    from cuda.bindings import driver

    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.inference_mode(), torch.cuda.graph(graph):
        kept = issue()
    nodes = driver.cuGraphGetNodes(driver.CUgraph(graph.raw_cuda_graph()), 0)
    del kept
    return int(nodes[2])


def replayed(graph: Captured) -> torch.Tensor:
    assert isinstance(graph.results, torch.Tensor)
    return graph.results


def check_kernels(wanted: int, *counts: int) -> None:
    """Raises RuntimeError where a graph has another number of kernels than its row says."""
    if any(count != wanted for count in counts):
        raise RuntimeError(f"a chain of {wanted} kernels was reported and captured as {counts}")


def measure(name: str, measured: Measured) -> Row:
    kind, count = name.split()
    found = measured.of(int(count))
    times, alternating = found["times"], found["alternating"]
    return Row(
        name=name,
        ours_us=times[kind],
        peers={"torch_graph_replay": times["torch_graph_replay"]},
        floor_us=times["driver"],
        error=found["errors"][kind],
        peer_error=found["peer_error"],
        samples=measured.samples,
        estimated_us=found["estimated_us"],
        settings={
            "kernels": found["kernels"],
            "peer_nodes": found["peer_nodes"],
            "failures": found["failures"],
            "clock": "host; estimated_us is device time",
            "alternating_us": {
                "ours": alternating[kind],
                "torch_graph_replay": alternating["torch_graph_replay"],
                "driver": alternating["driver"],
            },
        },
    )


def main(given: list[str] | None = None) -> int:
    options = arguments("launch", __doc__.splitlines()[0], SAMPLES).parse_args(given)
    measured = Measured(options.samples)
    return run_suite("launch", options, row_names(), lambda name: measure(name, measured))


if __name__ == "__main__":
    sys.exit(main())
