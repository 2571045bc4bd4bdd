"""A plan that loses the device while plans are timed: those after it fail too, and are not to blame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

import graphdnn as gd
from graphdnn import compiler
from graphdnn.answer import Decline
from graphdnn.engines.contract import Candidate, Device, DevicePlan, HostPlan
from graphdnn.ir.types import Array
from graphdnn.runtime.cache import DiskStore
from graphdnn.runtime.device import HostDevice
from tests.engines.compiled import compiled, double
from tests.engines.scripted import Act, Clock, Scripted


class Losable(HostDevice):
    """A device whose context may be lost, as by a kernel that faults."""

    is_lost = False

    def __enter__(self) -> HostDevice:
        if self.is_lost:
            raise gd.ExecutionError("the context is lost")
        return self


@dataclass
class Faulting(Scripted):
    """An engine whose plan b loses the device, on which no plan runs after that."""

    device: Losable = field(default_factory=Losable)

    def build(self, candidate: Candidate, device: Device) -> DevicePlan | HostPlan | Decline:
        plan, lost = super().build(candidate, device), self.device

        class Plan:
            def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
                lost.is_lost = lost.is_lost or candidate.name == "b"
                with lost:
                    return cast(HostPlan, plan).run(inputs)

        return Plan()


def test_what_failed_behind_a_fault_is_not_remembered(
    clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    store, acts = DiskStore(tmp_path), {"a": Act(30), "b": Act(12), "c": Act(5)}
    device = Losable(store)
    monkeypatch.setattr(compiler, "device_for", lambda *_: device)
    with_engines(Faulting("one", acts, clock, device=device))
    with pytest.raises(gd.ExecutionError, match="context is lost"):
        compiled(double())
    monkeypatch.setattr(compiler, "device_for", lambda *_: HostDevice(store))
    with_engines(Scripted("one", acts, clock))
    assert compiled(double()).report.regions[0].plan == "c"
