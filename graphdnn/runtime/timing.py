"""What plans and whole schedules take on a device: medians of event-timed launches of captured graphs, caches cold.

Inputs and outputs come in several sets that are used in turn, so that what a run reads is not in the cache, and what is
left there of small sets is written over before each launch.  All memory for that is counted: where a limit leaves no
room, there are fewer sets and nothing is written over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import median
from typing import Any

import numpy as np

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Bench, Device, DevicePlan, HostPlan, Plan, Timing, aligned
from graphdnn.errors import ContextLostError, ExecutionError, TuningMemoryError
from graphdnn.ir.region import ALIGNMENT, Region
from graphdnn.ir.types import Array, TensorType
from graphdnn.runtime.arrays import empty, in_memory_order
from graphdnn.runtime.buffers import Memory
from graphdnn.runtime.device import CudaDevice, HostDevice
from graphdnn.runtime.program import Program
from graphdnn.runtime.schedule import MemoryPlace, Schedule

RUNS = 8
"""Runs in one captured graph at least, so that the gap between launches does not count."""

MOST_SETS = 64
GRAPH_US = 5000.0
"""What one launch of the captured graph may take; of slower plans it holds fewer runs."""

WARM_UP = 2
LEAST_SAMPLES, MOST_SAMPLES = 5, 15
ENOUGH_US = 3000.0
"""Samples are taken until they last so long together."""

HOPELESS = 3.0
"""A plan whose very first run takes this multiple of the best time so far is dropped."""

BEATEN = 1.3
"""A plan of which two samples take this multiple of the best time so far is dropped: they differ by less."""

UNCAPTURED_US = 150.0
"""What host work may add to the time of a plan that is launched by itself."""

DRAWN = 1_000_003
"""Random numbers drawn for one tensor of a whole schedule; a larger one repeats them.  A prime, so that no two rows are
equal."""

POISON = 0xFF
"""Every float of such bytes is NaN."""


class CudaTimer:
    """Times plans on a stream of ours, with at most `memory` bytes of the device in all; None is no limit."""

    def __init__(self, device: CudaDevice, memory: int | None = None) -> None:
        self._device = device
        self._memory = memory
        self._warm = 0

    @property
    def effects(self) -> tuple[str, ...]:
        """What the limit did to the times, a sentence each."""
        if not self._warm:
            return ()
        return (
            f"tuning_memory={self._memory} leaves no room to empty a cache of {self._device.target.l2_bytes} bytes "
            f"between runs; regions timed with what earlier runs had left in it: {self._warm}",
        )

    def bench(self, region: Region, inputs: Sequence[Array]) -> Bench | Decline:
        """Sets of the region's tensors, the inputs filled with these arrays.  Declines where one set does not fit.
        Raises ContextLostError."""
        starts, span = packed(region)
        if self._memory is not None and span > self._memory:
            return Decline(Code.OPTION, f"one set of its tensors takes {span} bytes; tuning_memory is {self._memory}")
        count, is_written_over, is_warm = room_for(span, self._device.target.l2_bytes, self._memory)
        try:
            bench = CudaBench(self._device, region, inputs, starts, span, count, is_written_over, self._memory)
        except ContextLostError:
            raise
        except ExecutionError as error:
            return Decline(Code.TRANSIENT, f"its tensors do not fit on the device: {error}")
        self._warm += is_warm
        return bench

    def whole(self, placed: Schedule) -> float:
        """Microseconds of one run of a whole schedule, captured as one graph.  Raises ExecutionError, below it
        TuningMemoryError."""
        needed = run_bytes(placed)
        if self._memory is not None and needed > self._memory:
            raise TuningMemoryError(f"a whole run takes {needed} bytes; tuning_memory is {self._memory}")
        return ScheduleRun(self._device, placed).measure()


def packed(region: Region) -> tuple[list[int], int]:
    """Where each tensor of the region starts within one piece of memory, inputs first, and the bytes of all."""
    # Views may start anywhere, and a plan may run another kernel then.
    shifts = [a if a < ALIGNMENT else 0 for a in region.alignments]
    shifts += [0] * len(region.outputs)
    types = [v.type for v in (*region.inputs, *region.outputs)]
    sizes = [t.span_bytes + s for t, s in zip(types, shifts, strict=True)]
    *starts, span = accumulate(map(aligned, sizes), initial=0)
    return [a + b for a, b in zip(starts, shifts, strict=True)], max(1, span)


def room_for(span: int, cache: int, memory: int | None) -> tuple[int, bool, bool]:
    """How many sets of `span` bytes there are, whether the cache is written over by a buffer of its size beside them,
    and whether runs find in it what earlier ones left.

    Of a limited memory one set takes what it needs; more sets, and the buffer, share half of it: the rest is left for
    the scratch of plans, which nobody knows yet.
    """
    count = min(MOST_SETS, max(1, math.ceil(2 * cache / span)))
    is_small = count * span < 2 * cache
    room = math.inf if memory is None else memory // 2
    few = min(RUNS, count)  # of so many each is used once in a launch
    if count * span + is_small * cache <= room:
        return count, is_small, False
    if few * span + cache <= room:
        return min(count, int(room - cache) // span), True, False
    return max(1, min(count, int(room) // span)), False, cache > 0


class CudaBench:
    """One region's tensors on the device, in `count` sets of `span` bytes, and what writes over the cache."""

    def __init__(
        self,
        device: CudaDevice,
        region: Region,
        inputs: Sequence[Array],
        starts: Sequence[int],
        span: int,
        count: int,
        is_written_over: bool,
        memory: int | None,
    ) -> None:
        self._device = device
        self._outputs = region.outputs
        # One piece of memory: to ask for each tensor's, and to give it back, takes longer than to time a plan.
        self._memory = device.allocate(count * span)
        first = self._memory.handle
        self._sets = [[first + turn * span + start for start in starts] for turn in range(count)]
        self._flush = device.allocate(device.target.l2_bytes) if is_written_over else None
        self._workspace: Memory | None = None
        held = self._memory.nbytes + (self._flush.nbytes if self._flush is not None else 0)
        self._left = None if memory is None else memory - held
        self._arrays = [empty(v.type) for v in region.outputs]
        with device:
            self._fill(inputs, [v.type for v in region.inputs])

    def _fill(self, inputs: Sequence[Array], types: Sequence[TensorType]) -> None:
        """Puts the inputs into the first set, and copies of them into the others."""
        device, (first, *others) = self._device, self._sets
        for number, (address, array, type) in enumerate(zip(first, inputs, types, strict=False)):
            ordered = in_memory_order(array, type)
            device.write(address, ordered.ctypes.data, type.span_bytes)
            for row in others:
                device.copy(row[number], address, type.span_bytes, device.stream)
        device.synchronize()

    def results(self, plan: Plan) -> Sequence[Array]:
        """The outputs of one run on the first set, in memory that the next call writes over."""
        device, addresses = self._device, self._sets[0]
        ends = addresses[len(addresses) - len(self._outputs) :]
        with device:
            workspace = self._scratch(plan)
            for address, value in zip(ends, self._outputs, strict=True):
                device.fill(address, POISON, value.type.span_bytes, device.stream)
            device_plan(plan).enqueue(addresses, device.stream, workspace)
            arrays = self._arrays
            for array, address, value in zip(arrays, ends, self._outputs, strict=True):
                device.download(array.ctypes.data, address, value.type.span_bytes, device.stream)
            device.synchronize()
        return arrays

    def measure(self, plan: Plan, best_us: float) -> Timing:
        """Median of event-timed launches of a graph that runs the plan on every set in turn."""
        device, sets = self._device, self._sets
        with device:
            workspace = self._scratch(plan)
            run = device_plan(plan).enqueue
            run(sets[0], device.stream, workspace)
            first = self._timed(lambda: run(sets[0], device.stream, workspace))
            if first > HOPELESS * best_us + UNCAPTURED_US:
                once = device.capture(lambda stream: run(sets[0], stream, workspace))
                return Timing(first, is_dropped=True, kernels=once.kernels)
            runs = max(1, min(max(RUNS, len(sets)), int(GRAPH_US / max(first, 1.0))))

            def issue(stream: int) -> None:
                for turn in range(runs):
                    run(sets[turn % len(sets)], stream, workspace)

            graph = device.capture(issue)
            timing = sampled(device, graph.launch, runs, best_us, self._clear)
            return replace(timing, kernels=graph.kernels // runs)

    def _timed(self, work: Callable[[], None]) -> float:
        device = self._device
        start, end = device.event(timing=True), device.event(timing=True)
        device.record(start, device.stream)
        work()
        device.record(end, device.stream)
        device.wait_on_host(end)
        return device.elapsed_us(start, end)

    def _clear(self) -> None:
        """Writes over what the cache holds, where all sets together do not."""
        if self._flush is not None:
            self._device.fill(self._flush.handle, 0, self._flush.nbytes, self._device.stream)

    def _scratch(self, plan: Plan) -> int:
        """Address of the plan's scratch memory.  Raises TuningMemoryError where the limit leaves less, and
        OutOfMemoryError where the device has less."""
        needed = device_plan(plan).workspace_bytes
        if self._left is not None and needed > self._left:
            raise TuningMemoryError(f"it takes {needed} bytes of scratch, and tuning_memory leaves {self._left}")
        if not needed:
            return self._memory.handle
        if self._workspace is None or needed > self._workspace.nbytes:
            if self._workspace is not None:  # before there is another
                self._workspace.close()
                self._workspace = None
            self._workspace = self._device.allocate(needed)
        return self._workspace.handle

    def close(self) -> None:
        for buffer in (self._memory, self._workspace, self._flush):
            if buffer is not None:
                buffer.close()


def run_bytes(placed: Schedule) -> int:
    """Bytes that ScheduleRun asks for: its tensors lie in memory as their strides have it."""
    graph = placed.graph
    types = [v.type for v in (*graph.inputs.values(), *graph.constants.values(), *graph.states.values())]
    types += [graph.output_type(name) for name in graph.outputs]
    return placed.arena_bytes + sum(t.span_bytes for t in types)


class ScheduleRun:
    """A whole schedule on memory of its own: floats random, everything else zero, so that no index leads outside."""

    def __init__(self, device: CudaDevice, placed: Schedule) -> None:
        self._device = device
        self._placed = placed
        graph = placed.graph
        types = {name: graph.output_type(name) for name in graph.outputs}
        self._spaces: dict[str, dict[str, Any]] = {
            "input": {n: self._memory(v.type) for n, v in graph.inputs.items()},
            "constant": {n: self._memory(v.type) for n, v in graph.constants.items()},
            "state": {n: self._memory(v.type) for n, v in graph.states.items()},
            "output": {n: device.allocate(t.span_bytes) for n, t in types.items()},
            "arena": {"": device.allocate(placed.arena_bytes)},
        }
        with device:
            device.fill(self._spaces["arena"][""].handle, 0, max(placed.arena_bytes, 1), device.stream)

    def _memory(self, type: TensorType) -> Any:
        memory = self._device.allocate(type.span_bytes)
        with self._device as device:
            device.fill(memory.handle, 0, max(type.span_bytes, 1), device.stream)
        if type.dtype.is_float:
            drawn = np.random.default_rng(0).standard_normal(min(type.extent, DRAWN), np.float32)
            array = np.resize(drawn.astype(type.dtype.numpy), type.extent)
            self._device.write(memory.handle, array.ctypes.data, array.nbytes)
        return memory

    def _address(self, place: MemoryPlace) -> int:
        return int(self._spaces[place.space][place.name].handle) + place.offset

    def measure(self) -> float:
        placed, device = self._placed, self._device
        arena = self._spaces["arena"][""].handle
        work = []
        for step, offset in zip(placed.steps, placed.workspaces, strict=True):
            assert step.plan is not None
            region = step.region
            addresses = [self._address(placed.places[v]) for v in (*region.inputs, *region.outputs)]
            work.append((device_plan(step.plan), addresses, arena + offset))
        copies = [(self._address(c.target), self._address(c.source), c.type.span_bytes) for c in placed.copies]

        def issue(stream: int) -> None:
            for plan, addresses, workspace in work:
                plan.enqueue(addresses, stream, workspace)
            for target, source, nbytes in copies:
                device.copy(target, source, nbytes, stream)

        with device:
            issue(device.stream)
            device.synchronize()
            return sampled(device, device.capture(issue).launch, 1, math.inf, lambda: None).us


def sampled(
    device: CudaDevice, launch: Callable[[int], None], runs: int, best_us: float, clear: Callable[[], None]
) -> Timing:
    """Median microseconds of one of the `runs` of a launch; `clear` is called before each, outside the time."""
    for _ in range(WARM_UP):
        launch(device.stream)
    start, end = device.event(timing=True), device.event(timing=True)

    def sample() -> float:
        clear()
        device.record(start, device.stream)
        launch(device.stream)
        device.record(end, device.stream)
        device.wait_on_host(end)
        return device.elapsed_us(start, end) / runs

    return median_of(sample, runs, BEATEN * best_us)


def median_of(sample: Callable[[], float], runs: int, hopeless_us: float) -> Timing:
    """Median of LEAST_SAMPLES to MOST_SAMPLES samples, fewer than the most where they last ENOUGH_US together.

    A sample takes `runs` runs and gives the microseconds of one.  Where the first two are above `hopeless_us` no more
    are taken.
    """
    times: list[float] = []
    while len(times) < LEAST_SAMPLES or (len(times) < MOST_SAMPLES and sum(times) * runs < ENOUGH_US):
        times.append(sample())
        if len(times) == 2 and min(times) > hopeless_us:
            return Timing(min(times), is_dropped=True)
    return Timing(median(times))


class HostTimer:
    """Times plans in host memory by the clock; no limit on a device's memory has an effect on that."""

    effects: tuple[str, ...] = ()

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock

    def bench(self, region: Region, inputs: Sequence[Array]) -> Bench | Decline:
        return HostBench(inputs, self._clock)

    def whole(self, placed: Schedule) -> float:
        """Microseconds of one run of a whole schedule."""
        graph = placed.graph
        program = Program(graph, placed, HostDevice())
        inputs = {name: np.zeros(v.type.shape, v.type.dtype.numpy) for name, v in graph.inputs.items()}
        return clocked(self._clock, lambda: program.run(inputs), math.inf).us


class HostBench:
    """One region's inputs in host memory."""

    def __init__(self, inputs: Sequence[Array], clock: Callable[[], float]) -> None:
        self._inputs = inputs
        self._clock = clock

    def results(self, plan: Plan) -> Sequence[Array]:
        return host_plan(plan).run(self._inputs)

    def measure(self, plan: Plan, best_us: float) -> Timing:
        run = host_plan(plan).run
        return clocked(self._clock, lambda: run(self._inputs), best_us)

    def close(self) -> None:
        """Nothing is held."""


def clocked(clock: Callable[[], float], run: Callable[[], object], best_us: float) -> Timing:
    """Median microseconds of a call."""

    def sample() -> float:
        start = clock()
        run()
        return 1e6 * (clock() - start)

    run()
    return median_of(sample, 1, HOPELESS * best_us)


def timer_for(device: Device, memory: int | None = None) -> CudaTimer | HostTimer:
    """What times plans on a device, with at most `memory` bytes for their data."""
    return CudaTimer(device, memory) if isinstance(device, CudaDevice) else HostTimer()


def device_plan(plan: Plan) -> DevicePlan:
    if isinstance(plan, HostPlan):
        raise ExecutionError("a plan in host memory does not run on a device")
    return plan


def host_plan(plan: Plan) -> HostPlan:
    if not isinstance(plan, HostPlan):
        raise ExecutionError("a plan for a device does not run in host memory")
    return plan
