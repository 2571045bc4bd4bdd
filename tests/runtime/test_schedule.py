"""Order, places and arena of random graphs; states and outputs written in place or copied."""

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines.contract import MEMORY_ALIGNMENT
from graphdnn.errors import CompileError
from graphdnn.ir.evaluate import run
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region
from graphdnn.ir.views import is_free
from graphdnn.runtime.program import Program
from graphdnn.runtime.schedule import Step, schedule
from tests.clock import least_seconds
from tests.passes.random_graphs import random_arrays, random_graph
from tests.runtime.fake import FakeDevice, FakePlan, fake_program, fake_steps, host_program, laid_out, on_device


def alone(graph: Graph, device: FakeDevice | None = None, in_place: bool = True) -> list[Step]:
    """Every node as a region of its own."""
    regions = [Region.of(graph, [n]) for n in graph.nodes]
    return [Step(r, FakePlan(r, device or FakeDevice(), in_place=in_place)) for r in regions]


@pytest.mark.parametrize("number", range(25))
def test_random_graphs_run_right_in_one_arena(number: int, seed: int) -> None:
    """The whole device runtime on adversarial streams: plain calls and bound ones, numpy and device arrays."""
    rng = np.random.default_rng([seed, number])
    user = random_graph(rng, steps=int(rng.integers(4, 20)))
    graph = laid_out(user, rng)
    device = FakeDevice(number)
    program, host = fake_program(graph, device, rng, longest=4), host_program(user, rng)
    states = {name: np.zeros(v.type.shape) for name, v in graph.states.items()}
    held = []
    for call in range(4):
        inputs, _ = random_arrays(user, rng)
        expected, next_states = run(user, inputs, states=states)
        given = {n: on_device(a, device) for n, a in inputs.items()} if call % 2 else inputs
        found = program.run(given)
        held.append((given, found, expected))
        assert host.run(inputs).keys() == expected.keys()
        states.update(next_states)
        for name, state in states.items():
            np.testing.assert_allclose(program.state[name].numpy(), state, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(host.state[name], state, rtol=1e-9, atol=1e-12)
    device.drain()
    for _, found, expected in held:
        for name, array in expected.items():
            got = found[name] if isinstance(found[name], np.ndarray) else found[name].numpy()
            np.testing.assert_allclose(got, array, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("number", range(25))
def test_no_two_live_buffers_share_memory(number: int, seed: int) -> None:
    rng = np.random.default_rng([seed, 100 + number])
    graph = laid_out(random_graph(rng, steps=20), rng)
    placed = schedule(graph, fake_steps(graph, FakeDevice(), rng))
    assert placed.bound_bytes <= placed.arena_bytes
    # Written at one step, read at later ones: nobody else may write there in between.
    arena = np.full(placed.arena_bytes, -1, np.int64)
    marks: dict[object, int] = {}

    def cells(value: gd.Value) -> slice:
        place = placed.places[value]
        return slice(place.offset, place.offset + value.type.span_bytes)

    made = {v for s in placed.steps for v in s.region.outputs}
    for number, (step, offset) in enumerate(zip(placed.steps, placed.workspaces, strict=True)):
        for value in step.region.inputs:
            if placed.places[value].space == "arena" and value in made:
                assert (arena[cells(value)] == marks[value]).all(), f"{value} was overwritten"
        arena[offset : offset + step.workspace_bytes] = -2
        for index, value in enumerate(step.region.outputs):
            if placed.places[value].space == "arena":
                marks[value] = 10 * number + index
                arena[cells(value)] = marks[value]
                assert placed.places[value].offset % MEMORY_ALIGNMENT == 0
    for copy in placed.copies:
        assert copy.source.space != "arena" or copy.source.offset + copy.type.span_bytes <= placed.arena_bytes


def test_any_name_is_a_values_own(rng: np.random.Generator) -> None:
    """Names are the user's; none is that of a step's workspace, or of a next state that waits for its place."""
    g = gd.GraphBuilder()
    x = g.input("x", (300,), gd.float32)
    a, b, _ = (g.state(n, (size,), gd.float32) for n, size in (("a", 300), ("b", 300), ("c", 299)))
    first = g.relu(x, name="workspace of step 0")
    second = g.tanh(first, name="next a")
    graph = g.build({"y": g.add(first, second)}, {"a": b, "b": a, "c": g.slice(second, (1,), (300,))})
    device = FakeDevice()
    regions = [Region.of(graph, [n]) for n in graph.nodes if not is_free(n)]
    steps = [Step(r, FakePlan(r, device, workspace_bytes=512), 512) for r in regions]
    program = Program(graph, schedule(graph, steps), device)
    states = {name: rng.standard_normal(v.type.shape, np.float32) for name, v in graph.states.items()}
    for name, state in states.items():
        program.state[name] = state
    inputs = {"x": rng.standard_normal(300, np.float32)}
    expected, following = run(graph, inputs, states=states)
    for name, found in program.run(inputs).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-6)
    for name, state in following.items():
        np.testing.assert_array_equal(program.state[name].numpy(), state)


def test_the_order_keeps_memory_low() -> None:
    """Branches of a tree are finished one by one, not level by level."""
    g = gd.GraphBuilder()
    x = g.input("x", (1000,), gd.float32)
    wide = [g.mul(x, float(i)) for i in range(8)]
    narrow = [g.reduce_sum(v, axes=0, keepdims=True) for v in wide]
    total = narrow[0]
    for value in narrow[1:]:
        total = g.add(total, value)
    placed = schedule(
        g.build({"y": total}), alone(g.build({"y": total}), in_place=False)[:0] or alone(g.build({"y": total}))
    )
    assert placed.arena_bytes < 3 * 4096 + 16 * MEMORY_ALIGNMENT


def test_the_time_grows_with_the_steps_that_could_run_next() -> None:
    """All branches are ready at first; looking at each of them for every step would take 16 times as long for 4 times
    as many."""

    def scheduled(branches: int) -> Callable[[], None]:
        g = gd.GraphBuilder()
        x = g.input("x", (4, 8), gd.float32)
        graph = g.build({f"y{i}": g.relu(g.neg(g.add(x, float(i)))) for i in range(branches)})
        steps = alone(graph)

        def run() -> None:
            assert schedule(graph, steps).arena_bytes <= 2 * MEMORY_ALIGNMENT

        return run

    small, large = (least_seconds(lambda n=n: scheduled(n)) for n in (250, 1000))
    assert large < 12 * small


def test_a_chain_of_pointwise_steps_works_in_place() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (7, 300), gd.float32)
    y = x
    for _ in range(6):
        y = g.relu(g.add(y, 1.0))
    graph = g.build({"y": g.reduce_sum(y, axes=1)})
    one = 7 * 300 * 4
    assert schedule(graph, alone(graph)).arena_bytes < one + 2 * MEMORY_ALIGNMENT
    assert schedule(graph, alone(graph, in_place=False)).arena_bytes >= 2 * one
    described = [Step(s.region, None, offered=s.in_place) for s in alone(graph)]
    assert schedule(graph, described).arena_bytes == schedule(graph, alone(graph)).arena_bytes


def test_nothing_is_written_over_a_value_that_is_read_later() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (300,), gd.float32)
    a = g.relu(x)
    b = g.add(a, 1.0)
    graph = g.build({"y": g.reduce_sum(g.mul(a, b), axes=0)})
    placed = schedule(graph, alone(graph))
    assert placed.places[a].offset != placed.places[b].offset


def test_an_output_is_written_where_the_caller_gets_it() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3, 5), gd.float32)
    a = g.relu(x)
    flat = g.reshape(a, (15,))
    graph = g.build({"flat": flat, "again": a, "x": x, "scaled": g.mul(a, 2.0)})
    regions = [Region.of(graph, [n]) for n in graph.nodes if n.op.label != "reshape"]
    placed = schedule(graph, [Step(r, FakePlan(r, FakeDevice())) for r in regions])
    assert placed.arena_bytes == 0
    assert (placed.places[a].space, placed.places[a].name) == ("output", "flat")
    assert [(c.source.space, c.source.name, c.target.name) for c in placed.copies] == [
        ("output", "flat", "again"),
        ("input", "x", "x"),
    ]


def stateful(read_later: bool, return_old: bool) -> Graph:
    g = gd.GraphBuilder()
    x, s = g.input("x", (3, 5), gd.float32), g.state("s", (3, 5), gd.float32)
    new = g.add(s, x)
    outputs = {"y": g.mul(new, 2.0)}
    if read_later:
        outputs["z"] = g.mul(new, s)
    if return_old:
        outputs["old"] = s
    return g.build(outputs, {"s": new})


@pytest.mark.parametrize(
    ("read_later", "return_old", "in_place", "expected"),
    [
        (False, False, True, "state"),
        (False, False, False, "arena"),
        (True, False, True, "arena"),
        (False, True, True, "arena"),
    ],
)
def test_a_state_is_updated_in_place_where_nobody_reads_the_old_value_later(
    read_later: bool, return_old: bool, in_place: bool, expected: str
) -> None:
    graph = stateful(read_later, return_old)
    placed = schedule(graph, alone(graph, in_place=in_place))
    assert placed.places[graph.updates["s"]].space == expected
    assert any(c.target.space == "state" for c in placed.copies) == (expected == "arena")


def test_what_is_copied_at_the_end_stays_until_then(rng: np.random.Generator) -> None:
    """The state's next value and half of an output are made early; much memory is used again before they are copied."""
    g = gd.GraphBuilder()
    x, s = g.input("x", (6, 50), gd.float32), g.state("s", (6, 50), gd.float32)
    new = g.add(s, x)
    half = g.slice(g.neg(x), (2, 0), (5, 50))
    y = new
    for _ in range(6):
        y = g.add(g.tanh(y), s)
    graph = g.build({"half": half, "y": g.mul(y, 2.0)}, {"s": new})
    device = FakeDevice()
    program = fake_program(graph, device, rng, 1)
    assert {c.source.space for c in program.schedule.copies} == {"arena"}
    state = np.zeros((6, 50), np.float32)
    for _ in range(3):
        value = rng.standard_normal((6, 50), np.float32)
        expected, following = run(graph, {"x": value}, states={"s": state})
        found = program.run({"x": value})
        state = following["s"]
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
        np.testing.assert_array_equal(program.state["s"].numpy(), state)


def test_readers_of_the_old_state_run_before_it_is_overwritten() -> None:
    g = gd.GraphBuilder()
    x, s = g.input("x", (3, 5), gd.float32), g.state("s", (3, 5), gd.float32)
    new = g.add(s, x)
    graph = g.build({"old": g.mul(s, 3.0)}, {"s": new})
    placed = schedule(graph, alone(graph))
    assert placed.places[new].space == "state"
    assert [s.region.pattern for s in placed.steps] == ["mul", "add"]


def test_states_that_swap_and_states_that_stay(rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3,), gd.float32)
    a, b, _ = (g.state(n, (3,), gd.float32) for n in "abc")
    graph = g.build({"y": g.add(a, x), "a_old": a}, {"a": b, "b": a, "c": x})
    device = FakeDevice()
    program = fake_program(graph, device, rng)
    first, second, third = np.float32([1, 2, 3]), np.float32([4, 5, 6]), np.float32([7, 8, 9])
    program.state["a"], program.state["b"] = first, on_device(second, device)
    out = program.run({"x": third})
    np.testing.assert_array_equal(out["y"], first + third)
    np.testing.assert_array_equal(out["a_old"], first)
    for name, value in {"a": second, "b": first, "c": third}.items():
        np.testing.assert_array_equal(program.state[name].numpy(), value)
    other = program.context()
    np.testing.assert_array_equal(other.state["a"].numpy(), np.zeros(3))
    assert list(program.state) == ["a", "b", "c"]
    with pytest.raises(KeyError, match=r"d is not a state of graph graph; its states are a, b, c"):
        program.state["d"]


def test_a_value_that_no_region_computes_is_an_error() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3,), gd.float32)
    graph = g.build({"y": g.relu(g.add(x, 1.0))})
    with pytest.raises(CompileError, match=r"graph graph: %add is needed, but no region computes it"):
        schedule(graph, alone(graph)[1:])
    with pytest.raises(CompileError, match="computed by two regions"):
        schedule(graph, [*alone(graph), *alone(graph)])


def test_peak_counts_everything() -> None:
    g = gd.GraphBuilder()
    x, s = g.input("x", (3, 5), gd.float32), g.state("s", (2,), gd.float32)
    w = g.constant(np.ones((5,), np.float32))
    graph = g.build({"y": g.mul(x, w)}, {"s": g.neg(s)})
    placed = schedule(graph, alone(graph))
    assert placed.peak_bytes == placed.arena_bytes + 60 + 60 + 20 + 8
