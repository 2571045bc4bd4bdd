"""How things are timed: several contenders in turn in one process, by an injected clock, and the machine's ceilings.

Device time is read from events around one captured launch. Before each sample a buffer larger than the cache is read,
so that every contender finds it cold, and the launch itself is queued while that read still runs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns

import torch

Run = Callable[[], object]
Clock = Callable[[Run], float]
"""Runs something once and gives microseconds."""

SAMPLES = 40
WARM_UP = 5
FLUSH_BYTES = 256 << 20
"""Read before each sample: several times the level-2 cache of any device that is described here."""

COPY_BYTES = 1 << 30
EXTENT = {torch.float16: 8192, torch.bfloat16: 8192, torch.float32: 4096}
"""Extent of the square products by which matmul rates are measured."""


def interleaved(
    contenders: Mapping[str, Run], clock: Clock, samples: int = SAMPLES, warm_up: int = WARM_UP
) -> dict[str, list[float]]:
    """`samples` times of each contender, in turns that each begin with another one; warm-up turns are dropped."""
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    with collector_paused():
        for turn in range(warm_up + samples):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                taken = clock(contenders[name])
                if turn >= warm_up:
                    times[name].append(taken)
    return times


def in_blocks(
    contenders: Mapping[str, Run], clock: Clock, samples: int = SAMPLES, warm_up: int = WARM_UP, blocks: int = 10
) -> dict[str, list[float]]:
    """`samples` times of each contender, in blocks of runs one after the other, as a loop of calls is; the blocks are
    taken in turns that each begin with another one, and the first `warm_up` runs of each block are dropped."""
    names = list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    with collector_paused():
        for turn in range(blocks):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                found = [clock(contenders[name]) for _ in range(warm_up + max(1, samples // blocks))]
                times[name] += found[warm_up:]
    return times


def medians(times: Mapping[str, Sequence[float]], runs: int = 1) -> dict[str, float]:
    """Median of each contender's times, where one sample is `runs` runs."""
    return {name: median(found) / runs for name, found in times.items()}


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside, which would land in one contender's time."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class DeviceClock:
    """Device time of one run between two events on the current stream, with a cold cache."""

    def __init__(self, flush_bytes: int = FLUSH_BYTES) -> None:
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._read = torch.zeros(flush_bytes // 4, dtype=torch.float32, device="cuda")
        self._sum = torch.zeros((), dtype=torch.float32, device="cuda")

    def __call__(self, run: Run) -> float:
        # Reading leaves lines in the cache that can be dropped; written ones would have to be stored during the run.
        torch.sum(self._read, dim=0, out=self._sum)
        return self._between(run)

    def _between(self, run: Run) -> float:
        self._start.record()
        run()
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) * 1e3


class WarmClock(DeviceClock):
    """Device time of one run among `runs` back to back, with whatever the run before left in the cache."""

    def __init__(self, runs: int = 10) -> None:
        super().__init__(flush_bytes=4)
        self._runs = runs

    def __call__(self, run: Run) -> float:
        def all_runs() -> None:
            for _ in range(self._runs):
                run()

        return self._between(all_runs) / self._runs


def wake_processor(seconds: float = 0.3) -> None:
    """Keeps the processor busy, whose clock falls while it waits for a compiler or a device and takes its time to rise:
    launches were measured at 3.2 us right after a pause and at 2.1 us later."""
    end = perf_counter_ns() + round(seconds * 1e9)
    while perf_counter_ns() < end:
        pass


def host_clock(run: Run) -> float:
    """Host time of one run that finds the device idle and does not wait for it."""
    torch.cuda.synchronize()
    start = perf_counter_ns()
    run()
    return (perf_counter_ns() - start) / 1e3


@dataclass(frozen=True)
class Ceilings:
    """What this machine reaches in this run: bytes/s of a copy (read plus written), operations/s of matrix products."""

    bandwidth: float
    rates: Mapping[str, float]

    def floor_us(self, nbytes: int, operations: Mapping[str, float]) -> float:
        """Least microseconds for moving `nbytes` and for `operations` of matrix products, by type."""
        arithmetic = sum(count / self.rates[name] for name, count in operations.items())
        return 1e6 * max(nbytes / self.bandwidth, arithmetic)

    def __str__(self) -> str:
        rates = ", ".join(f"{name} {rate / 1e12:.0f} TFLOP/s" for name, rate in self.rates.items())
        return f"copy {self.bandwidth / 1e12:.2f} TB/s, {rates}"


def measured_ceilings(samples: int = 15) -> Ceilings:
    """Copies 1 GiB, and multiplies large random matrices in each type (float32 without TF32)."""
    clock = DeviceClock()
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    copy = torch.empty_like(source)
    runs: dict[str, Run] = {"copy": lambda: copy.copy_(source)}
    work: dict[str, float] = {}
    for dtype, extent in EXTENT.items():
        a, b = (torch.randn(extent, extent, device="cuda", dtype=dtype) for _ in range(2))
        name = str(dtype).removeprefix("torch.")
        runs[name] = lambda a=a, b=b: torch.mm(a, b)
        work[name] = 2.0 * extent**3
    with torch.inference_mode():
        found = medians(interleaved(runs, clock, samples))
    rates = {name: count / found[name] * 1e6 for name, count in work.items()}
    return Ceilings(2 * COPY_BYTES / found["copy"] * 1e6, rates)


@dataclass(frozen=True)
class Captured:
    """A captured CUDA graph, and what it writes (kept, so that its memory is not used again)."""

    graph: torch.cuda.CUDAGraph
    results: object

    def __call__(self) -> None:
        self.graph.replay()


def captured(issue: Callable[[], object], warm_up: int = 3) -> Captured:
    """What `issue` puts on the current stream as one CUDA graph, in inference mode, after running it a few times."""
    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warm_up):
                issue()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            results = issue()
    torch.cuda.synchronize()
    return Captured(graph, results)


class Machine:
    """The device that a suite runs on, as far as measuring needs it; tests put one without a device in its place."""

    device = "cuda"

    def capture(self, issue: Callable[[], object]) -> Captured:
        return captured(issue)

    def cold_clock(self) -> Clock:
        return DeviceClock()

    def warm_clock(self) -> Clock:
        return WarmClock()

    def stream(self) -> int | None:
        """PyTorch's current stream as a number."""
        return torch.cuda.current_stream().cuda_stream

    def synchronize(self) -> None:
        torch.cuda.synchronize()
