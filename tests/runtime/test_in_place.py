"""When a step may write over what it reads, and when it may not."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.region import Region
from graphdnn.passes.layout.assign import assign_layouts
from graphdnn.runtime.schedule import Schedule, Step, schedule

SHAPE = (7, 300)
NBYTES = 7 * 300 * 4


def pointwise(graph: Graph, *groups: tuple[str, ...]) -> Schedule:
    """The groups of nodes as regions, and every other node alone; each offers to write any output over any input that
    lies as it does."""
    grouped = {name for group in groups for name in group}
    rest = [(n.name,) for n in graph.nodes if n.name not in grouped and not n.op.is_renaming]
    steps = []
    for group in (*groups, *rest):
        region = Region.of(graph, [graph.node(name) for name in group])
        pairs = [(i, o) for i, a in enumerate(region.inputs) for o, b in enumerate(region.outputs) if alike(a, b)]
        steps.append(Step(region, None, offered=tuple(pairs)))
    return schedule(graph, steps)


def alike(a: Value, b: Value) -> bool:
    return (a.type.shape, a.type.dtype, a.type.layout) == (b.type.shape, b.type.dtype, b.type.layout)


def start() -> tuple[gd.GraphBuilder, Value]:
    g = gd.GraphBuilder()
    return g, g.input("x", SHAPE, gd.float32)


def total(g: gd.GraphBuilder, y: Value) -> Graph:
    """Ends in a sum, so that no full-size value is an output."""
    return g.build({"y": g.reduce_sum(y, axes=(0, 1))})


def share(placed: Schedule, a: Value, b: Value) -> bool:
    return placed.places[a] == placed.places[b]


def test_a_value_that_dies_is_written_over() -> None:
    g, x = start()
    a = g.relu(x)
    b = g.exp(a)
    placed = pointwise(total(g, b))
    assert share(placed, a, b)


@pytest.mark.parametrize("kind", ["input", "constant", "state"])
def test_what_the_graph_is_given_is_not(kind: str) -> None:
    g, x = start()
    given = {
        "input": lambda: x,
        "constant": lambda: g.constant(np.ones(SHAPE, np.float32)),
        "state": lambda: g.state("s", SHAPE, gd.float32),
    }[kind]()
    a = g.mul(given, given)
    placed = pointwise(total(g, a))
    assert placed.places[given].space == kind
    assert placed.places[a].space == "arena"


def test_a_value_that_is_read_later_is_not() -> None:
    g, x = start()
    a = g.relu(x)
    b = g.exp(a)
    placed = pointwise(total(g, g.mul(b, a)))
    assert not share(placed, a, b)


def test_a_value_whose_view_is_read_later_is_not() -> None:
    g, x = start()
    a = g.relu(x)
    part = g.slice(a, (0, 0), (3, 300))
    b = g.exp(a)
    y = g.add(g.reduce_sum(b, axes=(0, 1)), g.reduce_sum(part, axes=(0, 1)))
    placed = pointwise(g.build({"y": y}))
    assert placed.places[part] == placed.places[a]
    order = [s.region.nodes[0].name for s in placed.steps]
    assert not share(placed, a, b) or order.index("exp") > order.index("reduce_sum_1")


def test_a_step_that_reads_another_view_of_it_too_does_not() -> None:
    """The second half is read at places that the first half's result was already written to."""
    g = gd.GraphBuilder()
    x = g.input("x", (300,), gd.float32)
    a = g.relu(x)
    first, second = (g.slice(a, (start,), (start + 150,)) for start in (0, 150))
    b = g.add(first, second)
    placed = pointwise(g.build({"y": g.reduce_sum(g.exp(b), axes=0)}))
    low, high = placed.places[a].offset, placed.places[a].offset + 300 * 4
    assert not low <= placed.places[b].offset < high


def test_a_step_that_may_write_over_one_of_two_readings_of_it_does_not() -> None:
    """A value and its transpose: what lies as the result may be written over, what is read across it may not."""
    g = gd.GraphBuilder()
    a = g.relu(g.input("x", (17, 17), gd.float32), name="a")
    graph = assign_layouts(total(g, g.add(a, g.transpose(a, (1, 0)), name="b"))).graph
    regions = [Region.of(graph, [n]) for n in graph.nodes if not n.op.is_renaming]
    steps = [Step(r, None, offered=((0, 0),) if r.nodes[0].name == "b" else ()) for r in regions]
    assert not share(schedule(graph, steps), *(graph.node(name).result for name in "ab"))


def test_a_view_that_is_all_of_it_is_written_over() -> None:
    g, x = start()
    a = g.relu(x)
    b = g.exp(g.reshape(a, (300, 7)))
    placed = pointwise(g.build({"y": g.reduce_sum(g.reshape(b, SHAPE), axes=(0, 1))}))
    assert placed.arena_bytes <= 2 * NBYTES + 512


def test_of_two_outputs_one_is_written_over_what_dies() -> None:
    g, x = start()
    a = g.relu(x)
    b, c = g.exp(a), g.tanh(a)
    graph = total(g, g.mul(b, c))
    placed = pointwise(graph, ("exp", "tanh"))
    assert sorted([share(placed, a, b), share(placed, a, c)]) == [False, True]
    assert not share(placed, b, c)


def test_two_outputs_take_the_places_of_two_values_that_die() -> None:
    g, x = start()
    a, b = g.relu(x), g.neg(x)
    c, d = g.add(a, b), g.mul(a, b)
    placed = pointwise(total(g, g.sub(c, d)), ("add", "mul"))
    assert {placed.places[v].offset for v in (c, d)} == {placed.places[v].offset for v in (a, b)}
    assert not share(placed, c, d)


def test_an_output_of_the_graph_is_not_written_over() -> None:
    g, x = start()
    a = g.relu(x)
    b = g.exp(a)
    graph = g.build({"a": a, "y": g.reduce_sum(b, axes=(0, 1))})
    placed = pointwise(graph)
    assert placed.places[a].space == "output"
    assert placed.places[b].space == "arena"


def test_another_type_or_layout_is_not_written_over() -> None:
    g, x = start()
    a = g.relu(x)
    b = g.cast(a, gd.float16)
    graph = total(g, b)
    region = {n.name: Region.of(graph, [n]) for n in graph.nodes}
    claims = ((0, 0),)
    steps = [Step(r, None, offered=claims if name == "cast" else ()) for name, r in region.items()]
    assert not share(schedule(graph, steps), a, b)
