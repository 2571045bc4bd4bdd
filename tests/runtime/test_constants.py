"""Constants are written to the device once, when a graph is loaded: no call, context or binding writes them again."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines.contract import MEMORY_ALIGNMENT, aligned
from graphdnn.ir.graph import Graph
from graphdnn.runtime.program import Program
from tests.runtime.fake import FakeDevice, fake_program, loaded, on_device
from tests.runtime.written import Written, watch_writes

SHAPE = (3, 5)
SHARED = np.arange(5, dtype=np.float32)
TABLE = np.arange(15, dtype=np.float16).reshape(SHAPE)


def graph_of_three_regions() -> Graph:
    """`shared` is read by three kernels, `table` goes out as it is; nobody needs `idle`."""
    g = gd.GraphBuilder("shared")
    x = g.input("x", SHAPE, gd.float32)
    shared, table = g.constant(SHARED, name="shared"), g.constant(TABLE, name="table")
    g.constant(np.ones(4096, np.float32), name="idle")
    h = g.mul(x, shared)
    return g.build({"y": g.sub(g.add(h, shared), g.relu(shared)), "h": h, "table": table})


def check(found: dict, x: np.ndarray) -> None:
    host = {n: a if isinstance(a, np.ndarray) else a.numpy() for n, a in found.items()}
    np.testing.assert_array_equal(host["y"], (x * SHARED + SHARED) - np.maximum(SHARED, 0))
    np.testing.assert_array_equal(host["h"], x * SHARED)
    np.testing.assert_array_equal(host["table"], TABLE)


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    return watch_writes(FakeDevice, monkeypatch)


@pytest.fixture
def program(written: Written, device: FakeDevice, rng: np.random.Generator) -> Program:
    made = fake_program(graph_of_three_regions(), device, rng, 1)
    assert len(made.schedule.steps) == 4
    return made


def test_each_constant_that_is_needed_is_written_once(program: Program, written: Written) -> None:
    """One write each, the larger one first; the memory holds the two, each aligned, and not the third."""
    memory = loaded(program).constants
    assert memory.nbytes == aligned(SHARED.nbytes) + aligned(TABLE.nbytes)
    spans = written.into(memory)
    assert sorted(n for _, _, n in spans) == [SHARED.nbytes, TABLE.nbytes]
    assert {how for how, _, _ in spans} == {"write"}
    assert all(at % MEMORY_ALIGNMENT == 0 for _, at, _ in spans)
    assert len({at for _, at, _ in spans}) == 2


def test_no_call_writes_them_again(
    program: Program, written: Written, device: FakeDevice, rng: np.random.Generator
) -> None:
    memory = loaded(program).constants
    before, contexts = written.into(memory), [program, program.context(), program.context()]
    arrays = [rng.standard_normal(SHAPE, np.float32) for _ in range(3)]
    for own in contexts:
        for x in arrays:
            check(own.run({"x": x}), x)
        on_it = on_device(arrays[0], device)
        for _ in range(3):
            check(own.run({"x": on_it}), arrays[0])
        bound = own.bind({"x": on_it})
        for _ in range(2):
            check(bound(), arrays[0])
    assert len(written.spans) > len(before), "the inputs that came from the host were written"
    assert written.into(memory) == before
    assert written.loads() == len(before)


def test_contexts_share_one_copy(program: Program, device: FakeDevice, rng: np.random.Generator) -> None:
    x = rng.standard_normal(SHAPE, np.float32)
    check(program.run({"x": x}), x)
    memory = loaded(program).constants
    for _ in range(5):
        other = program.context()
        assert loaded(other).constants is memory
        check(other.run({"x": x}), x)
    program.close()
    check(other.run({"x": x}), x)
