"""A plan that loses the device: everything ends with it, since those after it would fail too and are not to blame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

import graphdnn as gd
from graphdnn import compiler
from graphdnn.answer import Decline
from graphdnn.engines.contract import Candidate, Device, DevicePlan, HostPlan
from graphdnn.errors import ContextLostError
from graphdnn.ir.types import Array
from graphdnn.planning import session
from graphdnn.runtime.cache import DiskStore
from graphdnn.runtime.device import HostDevice
from graphdnn.runtime.timing import HostTimer
from tests.engines.compiled import compiled, double
from tests.engines.scripted import Act, Clock, Scripted
from tests.engines.test_measure import projections


class Losable(HostDevice):
    """A device whose context may be lost, as by a kernel that faults."""

    is_lost = False

    def __enter__(self) -> HostDevice:
        self.synchronize()
        return self

    def synchronize(self) -> None:
        if self.is_lost:
            raise ContextLostError("the context is lost")


@dataclass
class Faulting(Scripted):
    """An engine whose plan b loses the device when it is built or run, on which no plan is built or runs after that.

    `error` is what says so: the device's own error, or another one of a library that cannot know.
    """

    device: Losable = field(default_factory=Losable)
    error: type[Exception] = ContextLostError
    when: str = "run"
    begun: list[str] = field(default_factory=list)

    def _begin(self, what: str, name: str) -> None:
        self.begun.append(f"{what} {name}")
        self.device.is_lost |= (what, name) == (self.when, "b")
        if self.device.is_lost:
            raise self.error("something went wrong")

    def build(self, candidate: Candidate, device: Device) -> DevicePlan | HostPlan | Decline:
        begin = self._begin
        begin("build", candidate.name)
        plan = super().build(candidate, device)

        class Plan:
            def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
                begin("run", candidate.name)
                return cast(HostPlan, plan).run(inputs)

        return Plan()


@pytest.mark.parametrize("selection", ["autotune", "measure"])
@pytest.mark.parametrize(
    ("when", "error"), [("run", ContextLostError), ("run", RuntimeError), ("build", gd.ExecutionError)]
)
def test_a_lost_device_ends_the_contest_and_nothing_is_remembered(
    when: str, error: type[Exception], selection: str, clock: Clock, with_engines: Any, monkeypatch: Any, tmp_path: Any
) -> None:
    store, acts = DiskStore(tmp_path), {"a": Act(30), "b": Act(12), "c": Act(5)}
    device = Losable(store)
    monkeypatch.setattr(compiler, "device_for", lambda *_: device)
    engine = Faulting("one", acts, clock, device=device, error=error, when=when)
    with_engines(engine)
    with pytest.raises(ContextLostError, match=r"^plan b of one for mul .*"):
        compiled(double(), selection)
    assert engine.begun[-1] == f"{when} b"
    assert not store.entries()
    monkeypatch.setattr(compiler, "device_for", lambda *_: HostDevice(store))
    with_engines(Scripted("one", acts, clock))
    assert compiled(double()).report.regions[0].plan == "c"


def test_a_device_lost_while_whole_graphs_are_timed_ends_it_too(
    clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for steps in (3, 4):

        class Faulted(HostTimer):
            def whole(self, placed: Any, steps: int = steps) -> float:
                if len(placed.steps) == steps:
                    raise ContextLostError("the context is lost")
                return super().whole(placed)

        monkeypatch.setattr(session, "timer_for", lambda device, memory, kind=Faulted: kind(clock))
        with_engines(Scripted("one", {"a": Act(10)}, clock, takes=("matmul", "softmax")))
        with pytest.raises(ContextLostError):
            compiled(projections(), "measure")
