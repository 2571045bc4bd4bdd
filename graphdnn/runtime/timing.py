"""How long a plan takes on the device: the median of event-timed launches of a captured graph."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from graphdnn.engines.contract import DevicePlan
from graphdnn.runtime.device import CudaDevice

REPEATS = 8
"""Runs of the plan in one captured graph, so that the gap between launches does not count."""

SAMPLES = 9
WARM_UP = 2


class Timer:
    """Times plans on one device, on a stream of ours."""

    def __init__(self, device: CudaDevice, repeats: int = REPEATS, samples: int = SAMPLES) -> None:
        self._device = device
        self._repeats = repeats
        self._samples = samples

    def measure(self, plan: DevicePlan, addresses: Sequence[int], *rotated: Sequence[int], workspace: int = 0) -> float:
        """Median microseconds of one run.  Further sets of addresses are used in turn with the first, so that inputs
        which together exceed the cache are read from memory.  Raises ExecutionError when the plan fails.
        """
        sets = (addresses, *rotated)
        device = self._device

        def issue(stream: int) -> None:
            for turn in range(self._repeats):
                plan.enqueue(sets[turn % len(sets)], stream, workspace)

        with device:
            issue(device.stream)
            device.synchronize()
            graph = device.capture(issue)
            for _ in range(WARM_UP):
                graph.launch(device.stream)
            start, end = device.event(timing=True), device.event(timing=True)
            times = []
            for _ in range(self._samples):
                device.record(start, device.stream)
                graph.launch(device.stream)
                device.record(end, device.stream)
                device.wait_on_host(end)
                times.append(device.elapsed_us(start, end) / self._repeats)
            return median(times)
