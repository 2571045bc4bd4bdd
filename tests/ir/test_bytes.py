"""Bytes that a region reads: what its nodes need of each input, once."""

from collections.abc import Callable

import pytest

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region

Build = Callable[[gd.GraphBuilder], Value]


def read(build: Build) -> int:
    """Bytes read by all of a graph as one region."""
    g = gd.GraphBuilder()
    graph = g.build({"y": build(g)})
    return Region.of(graph, graph.nodes).read_bytes


def rows(g: gd.GraphBuilder, count: int, table: tuple[int, ...] = (1000, 24)) -> Value:
    return g.gather(g.input("table", table, gd.float16), g.input("indices", (count,), gd.int64), axis=0)


def whole_and_rows(g: gd.GraphBuilder) -> Value:
    table = g.input("table", (1000, 24), gd.float16)
    taken = g.gather(table, g.input("indices", (7,), gd.int32), axis=0)
    return g.add(g.reduce_sum(table, axes=0), taken)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda g: g.relu(g.input("x", (5, 7), gd.float32)), 4 * 35),
        (lambda g: g.mul(x := g.input("x", (5, 7), gd.float16), g.sigmoid(x)), 2 * 35),
        (lambda g: g.relu(g.input("x", (5, 7), gd.float32, strides=(0, 1))), 4 * 7),
        (lambda g: rows(g, 7), 7 * 24 * 2 + 7 * 8),
        (lambda g: rows(g, 3000), 1000 * 24 * 2 + 3000 * 8),
        (whole_and_rows, 1000 * 24 * 2 + 7 * 4),
        (lambda g: g.slice(g.input("x", (65, 33), gd.float16), starts=(3, 0), stops=(8, 33)), 5 * 33 * 2),
        (lambda g: g.slice(g.input("x", (65, 33), gd.float16), (0, 0), (65, 33), (2, 3)), 33 * 11 * 2),
        (lambda g: g.slice(g.input("x", (65, 33), gd.float16, strides=(0, 1)), (0, 0), (65, 33), (2, 1)), 33 * 2),
        (
            lambda g: g.write_slice(
                g.input("x", (65, 33), gd.float16),
                g.input("u", (5, 33), gd.float16),
                g.input("i", (1,), gd.int32),
                axis=0,
            ),
            65 * 33 * 2 + 4,
        ),
        (
            lambda g: g.write_slice(g.input("x", (5, 3), gd.float16), g.input("u", (5, 3), gd.float16), 0, axis=0),
            5 * 3 * 2,
        ),
    ],
)
def test_bytes_read(build: Build, expected: int) -> None:
    assert read(build) == expected


def test_regions_that_share_memory_otherwise_are_other_structures() -> None:
    """One key, one price: what is read depends on whether inputs are parts of one another."""

    def region(start: int, *, apart: bool) -> Region:
        g = gd.GraphBuilder("g")
        table = g.input("t", (64, 24), gd.float32)
        other = g.input("u", (64, 24), gd.float32)
        part = g.slice(other if apart else table, [start], [start + 1], axes=[0])
        graph = g.build({"y": g.add(table, part, name="sum")})
        return Region.of(graph, [graph.node("sum")])

    inside, elsewhere, other = region(8, apart=False), region(8, apart=True), region(16, apart=False)
    assert inside.alignments == elsewhere.alignments == other.alignments
    assert inside.read_bytes < elsewhere.read_bytes
    assert len({inside.key, elsewhere.key, other.key}) == 3
    assert region(8, apart=False).key == inside.key


def test_regions_of_which_other_results_leave_are_other_structures() -> None:
    """A plan of one of them would not write what the other one is asked for."""

    def region(*leaving: str) -> Region:
        g = gd.GraphBuilder("g")
        first = g.relu(g.input("x", (3, 5), gd.float32), name="first")
        made = {"first": first, "second": g.exp(first, name="second")}
        graph = g.build({name: made[name] for name in leaving})
        return Region.of(graph, graph.nodes)

    last, both = region("second"), region("first", "second")
    assert [n.name for n in last.nodes] == [n.name for n in both.nodes]
    assert last.key != both.key
    assert region("second", "first").key == both.key
