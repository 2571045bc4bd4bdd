"""After the device's context is lost, whatever a caller does with a graph says which graph it was."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn import forking
from graphdnn.errors import ContextLostError
from graphdnn.runtime.program import Program
from tests.runtime.fake import FakeDevice, fake_program, on_device


class Losable(FakeDevice):
    """A device whose context may be lost."""

    is_lost = False

    def __enter__(self) -> FakeDevice:
        if self.is_lost:
            raise ContextLostError("the CUDA context of fake does not work any more")
        return self


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
