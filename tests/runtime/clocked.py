"""A fake device on which runs of plans take time, and plans that take as long as they are told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphdnn.ir.region import Region
from tests.runtime.fake import FakeDevice, FakeEvent, FakePlan

L2 = 1 << 16


@dataclass
class TimedEvent(FakeEvent):
    at: float = math.nan


class ClockedDevice(FakeDevice):
    """Its time is the sum of what the plans that ran on it took; events tell it."""

    def __init__(self) -> None:
        super().__init__()
        self.target = replace(self.target, l2_bytes=L2)
        self.now = 0.0
        self.fills = 0

    def event(self, timing: bool = False) -> TimedEvent:
        return TimedEvent()

    def record(self, event: FakeEvent, stream: int) -> None:
        if isinstance(event, TimedEvent):

            def note() -> None:
                event.at = self.now

            self.enqueue(stream, note)
        super().record(event, stream)

    def elapsed_us(self, start: TimedEvent, end: TimedEvent) -> float:
        return end.at - start.at

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        self.fills += 1
        super().fill(target, byte, nbytes, stream)


class RecordingDevice(ClockedDevice):
    """Keeps the largest sum of what was allocated at one time since `begin`, what was there before not counted."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.most = 0
        self._sizes: dict[int, int] = {}

    def _take(self, nbytes: int) -> int:
        handle = super()._take(nbytes)
        self._sizes[handle] = nbytes
        self.most = max(self.most, sum(self._sizes.values()))
        return handle

    def _free(self, handle: int) -> None:
        super()._free(handle)
        self._sizes.pop(handle, None)


class ClockedPlan(FakePlan):
    """Takes `times` microseconds in turn, the last one again and again, and remembers where it worked."""

    def __init__(self, region: Region, device: ClockedDevice, *times: float, workspace_bytes: int = 0) -> None:
        super().__init__(region, device, workspace_bytes)
        self.times = list(times)
        self.seen: list[tuple[int, ...]] = []
        self.clock = device

    def _run(self, inputs: Sequence[int], outputs: Sequence[int], workspace: int) -> None:
        super()._run(inputs, outputs, workspace)
        self.seen.append((*inputs, *outputs))
        self.clock.now += self.times.pop(0) if len(self.times) > 1 else self.times[0]
