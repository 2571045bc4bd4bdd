"""After the device's context is lost, whatever a caller does with a graph says which graph it was."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

import graphdnn as gd
from graphdnn import forking
from graphdnn.errors import ContextLostError, ExecutionError
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.program import Program
from tests.runtime.fake import FakeDevice, FakePlan, Foreign, fake_program, on_device
from tests.runtime.test_program import SIDE


class Losable(FakeDevice):
    """A device whose context may be lost."""

    is_lost = False

    def __enter__(self) -> FakeDevice:
        if self.is_lost:
            raise ContextLostError("the CUDA context of fake does not work any more")
        return self

    def check_alive(self, stream: int) -> None:
        self.__enter__()


def counter() -> gd.Graph:
    g = gd.GraphBuilder("counter")
    total = g.add(g.state("total", (3,), gd.float32), g.input("x", (3,), gd.float32))
    return g.build({"y": total}, updates={"total": total})


def chain(length: int) -> gd.Graph:
    g = gd.GraphBuilder("chain")
    y = g.input("x", (3,), gd.float32)
    for _ in range(length):
        y = g.neg(y)
    return g.build({"y": y})


CALLS: dict[str, Callable[[Program, object], object]] = {
    "a plain call": lambda program, x: program.run({"x": x}),
    "bind": lambda program, x: program.bind({"x": x}),
    "reading a state": lambda program, x: program.state["total"],
    "assigning a state": lambda program, x: program.state.update(total=np.ones(3, np.float32)),
    "another context": lambda program, x: program.context(),
}


@pytest.mark.parametrize("call", CALLS)
def test_whatever_meets_the_device_names_the_graph(call: str, rng: np.random.Generator) -> None:
    device = Losable()
    program, x = fake_program(counter(), device, rng), on_device(np.ones(3, np.float32), device)
    bound = program.bind({"x": x})
    CALLS[call](program, x)
    bound()
    device.is_lost = True
    with pytest.raises(ContextLostError, match=r"graph counter could not run: .*does not work any more.*doctor"):
        CALLS[call](program, x)
    with pytest.raises(ContextLostError, match="graph counter could not run"):
        bound(stream=7)


def test_a_bound_call_launches_nothing_in_a_forked_child(rng: np.random.Generator) -> None:
    """The shortest way to a launch asks nobody whether the device is lost."""
    device = Losable()
    program, x = fake_program(counter(), device, rng), on_device(np.ones(3, np.float32), device)
    bound = program.bind({"x": x})
    for _ in range(3):
        bound()
    assert device.launches == 2
    device.is_lost = True
    for owner in list(forking.LIVING):
        owner.renew()
    with pytest.raises(ContextLostError, match="graph counter could not run"):
        bound()
    assert device.launches == 2


@pytest.mark.parametrize(("length", "more"), [(1, ""), (5, ""), (7, " and 2 more")])
def test_plans_are_named_as_they_are_disabled(length: int, more: str, rng: np.random.Generator) -> None:
    """The first few of many."""
    device = Losable()
    program, x = fake_program(chain(length), device, rng, longest=1), on_device(np.ones(3, np.float32), device)
    device.is_lost = True
    plans = ", ".join(f"fake:plan{n} for neg" for n in range(min(length, 5)))
    with pytest.raises(ContextLostError, match=f"; its plans are {plans}{more}; to find"):
        program.run({"x": x})


STRIDED = np.ones(6, np.float32)[::2]
REFUSED: dict[str, Callable[[Program, Foreign, Foreign], object]] = {
    "a plain call": lambda program, x, strided: program.run({"x": x}),
    "a bound call": lambda program, x, strided: program.bind({"x": x})(),
    "a bound call in a capture of the caller's": lambda program, x, strided: program.bind({"x": x})(stream=SIDE),
    "copying an input": lambda program, x, strided: program.run({"x": strided}),
    "copying a state": lambda program, x, strided: program.state.update(total=strided),
}


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("call", REFUSED)
def test_a_plan_that_is_refused_since_the_context_is_lost_is_not_told(
    call: str, is_lost: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel's fault is often met first by the next plan, whose library has words of its own for it, or none."""
    device = Losable()
    program, x = fake_program(counter(), device, rng), on_device(np.ones(3, np.float32), device)

    def refuse(*_: object) -> None:
        device.is_lost = is_lost
        raise ExecutionError("the library answered that it failed")

    monkeypatch.setattr(FakePlan, "enqueue", refuse)
    if "capture" in call:
        device.capturing[SIDE] = []
    kind, said = ContextLostError, "graph counter could not run: .*does not work any more.*doctor"
    if not is_lost:
        kind, said = ExecutionError, "^the library answered that it failed$"
    with pytest.raises(kind, match=said):
        REFUSED[call](program, x, Foreign(STRIDED, device))


@pytest.mark.parametrize("capturing", [True, False])
def test_what_is_captured_is_not_waited_for(capturing: bool) -> None:
    """Waiting would end the capture; asking whether there is one tells of a lost context too."""
    asked: list[str] = []
    device = SimpleNamespace(
        is_capturing=lambda stream: asked.append(f"whether {stream} is captured") or capturing,
        synchronize=lambda stream: asked.append(f"to wait for {stream}"),
    )
    CudaDevice.check_alive(device, SIDE)  # type: ignore[arg-type]
    assert asked == ["whether 12345 is captured", "to wait for 12345"][: 1 if capturing else 2]
