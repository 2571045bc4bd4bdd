"""Closed contexts: what they refuse, what they give back, and what stays good."""

import gc
import os
import threading
from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.errors import ExecutionError
from graphdnn.runtime.program import Program
from tests.runtime.fake import FakeDevice, fake_program, host_program, on_device
from tests.runtime.test_lost import counter
from tests.runtime.test_program import SIDE

SAID = (
    r"^graph counter was used in a context that was closed; another context, or the graph compiled or loaded anew, "
    "is needed$"
)


@pytest.fixture(params=["host", "device"])
def program(request: pytest.FixtureRequest, rng: np.random.Generator) -> Program:
    return host_program(counter(), rng) if request.param == "host" else fake_program(counter(), FakeDevice(), rng, 1)


CALLS: dict[str, Callable[[Program, np.ndarray], object]] = {
    "a plain call": lambda program, x: program.run({"x": x}),
    "bind": lambda program, x: program.bind({"x": x}),
    "reading a state": lambda program, x: program.state["total"],
    "assigning a state": lambda program, x: program.state.update(total=x),
    "another context": lambda program, x: program.context(),
}


@pytest.mark.parametrize("call", CALLS)
def test_whatever_is_asked_of_it_says_that_it_is_closed(call: str, program: Program) -> None:
    x = np.ones(3, np.float32)
    CALLS[call](program, x)
    bound = program.bind({"x": x})
    bound()
    for _ in range(2):
        program.close()
        with pytest.raises(ExecutionError, match=SAID):
            CALLS[call](program, x)
        with pytest.raises(ExecutionError, match=SAID):
            bound()


def test_others_go_on_and_so_do_outputs(program: Program) -> None:
    x, other = np.ones(3, np.float32), program.context()
    found = program.run({"x": x})["y"]
    other.run({"x": x})
    program.close()
    np.testing.assert_array_equal(found, x)
    np.testing.assert_array_equal(other.run({"x": x})["y"], 2 * x)


def test_an_executable_and_its_contexts_are_context_managers() -> None:
    x = np.ones(3, np.float32)
    with gd.compile(counter(), target="cpu") as exe:
        with exe.context() as own:
            own({"x": x})
        with pytest.raises(ExecutionError, match=SAID):
            own({"x": x})
        exe({"x": x})
        exe.close()
    with pytest.raises(ExecutionError, match=SAID):
        exe({"x": x})
    assert "counter" in exe.explain()
    gd.compile(counter(), target=gd.Target.named("h200")).close()


def test_a_forked_child_finds_it_closed(program: Program) -> None:
    program.close()
    child = os.fork()
    if not child:
        try:
            program.run({"x": np.ones(3, np.float32)})
        except ExecutionError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_it_is_closed_once_the_running_call_has_been_made(program: Program) -> None:
    x = np.ones(3, np.float32)
    with program._context.lock:
        thread = threading.Thread(target=program.close)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
    thread.join(10)
    with pytest.raises(ExecutionError, match=SAID):
        program.run({"x": x})


@pytest.mark.parametrize("call", ["a plain call", "reading a state", "assigning a state"])
def test_calls_that_waited_for_close_say_so_too(call: str, program: Program) -> None:
    lock = program._context.lock

    class Late:
        """Gets the lock after the context was closed."""

        def __enter__(self) -> None:
            program._context.lock = lock
            program.close()

        def __exit__(self, *_: object) -> None: ...

    program._context.lock = Late()
    with pytest.raises(ExecutionError, match=SAID):
        CALLS[call](program, np.ones(3, np.float32))


# From here on only on the device.


def test_its_memory_is_given_back(rng: np.random.Generator) -> None:
    device = FakeDevice()
    x = on_device(np.ones(3, np.float32), device)
    own = fake_program(counter(), device, rng, 1)
    before = len(device.live)
    other = own.context()
    for inputs in ({"x": x}, {"x": x.array}):
        for _ in range(3):
            other.run(inputs)
        other.bind(inputs)()
    assert len(device.live) > before
    other.close()
    gc.collect()
    assert len(device.live) == before


class Holding(FakeDevice):
    """A device whose driver tells how long a caller's graph lives."""

    def retain(self, stream: int, thing: object) -> bool:
        super().retain(stream, thing)
        return True


def running_total() -> gd.Graph:
    """With a state, and an intermediate that fits nowhere but in scratch memory."""
    g = gd.GraphBuilder("counter")
    x = g.input("x", (3,), gd.float32)
    doubled = g.reduce_sum(g.concat([x, x], axis=0), axes=0, keepdims=True)
    total = g.add(g.state("total", (3,), gd.float32), g.add(x, doubled))
    return g.build({"y": total}, updates={"total": total})


@pytest.mark.parametrize("kind", [FakeDevice, Holding])
def test_what_a_callers_graph_replays_stays(kind: type[FakeDevice], rng: np.random.Generator) -> None:
    """Where nobody tells how long the graph lives, until the context is closed."""
    device = kind()
    x = on_device(np.ones(3, np.float32), device)
    cuda = fake_program(running_total(), device, rng, 1)
    bound = cuda.bind({"x": x})
    found = bound()["y"]
    device.capturing[SIDE] = []
    bound(stream=SIDE)
    work, arena = device.capturing.pop(SIDE), cuda._context._arena.handle
    del bound
    if kind is Holding:
        cuda.close()
        cuda.close()
    gc.collect()
    assert len(device.kept) == 1
    assert arena in device.live
    for run in work:
        run()
    np.testing.assert_array_equal(found.numpy(), np.full(3, 2 * 7))
    cuda.close()
    assert len(device.kept) == (kind is Holding)
