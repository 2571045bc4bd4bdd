"""Analyses that are kept for the region that is being asked about, and for no other."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

import graphdnn as gd
from graphdnn.engines.nvrtc.analysis import cached_for_last
from graphdnn.ir.region import Region


def region(rows: int = 4) -> Region:
    g = gd.GraphBuilder("g")
    graph = g.build({"y": g.relu(g.input("x", (rows, 8), gd.float32))})
    return Region.of(graph, graph.nodes)


def test_a_region_is_looked_at_once_until_another_one_comes() -> None:
    seen: list[Region] = []

    @cached_for_last
    def analysis(region: Region) -> tuple[int, ...]:
        seen.append(region)
        return region.inputs[0].type.shape

    first, second = region(4), region(5)
    assert [analysis(r) for r in (first, first, second, second, first)] == [(4, 8), (4, 8), (5, 8), (5, 8), (4, 8)]
    assert seen == [first, second, first]


def test_what_else_was_asked_counts() -> None:
    asked: list[int] = []

    @cached_for_last
    def analysis(region: Region, number: int) -> int:
        asked.append(number)
        return number

    one = region()
    assert [analysis(one, n) for n in (1, 1, 2, 2, 1)] == [1, 1, 2, 2, 1]
    assert asked == [1, 2, 1]


def test_no_graph_is_kept_alive() -> None:
    analysis = cached_for_last(lambda region: len(region.nodes))
    gone = region()
    graph = weakref.ref(gone.graph)
    assert analysis(gone) == 1
    del gone
    gc.collect()
    assert graph() is None


def test_a_failure_is_no_answer() -> None:
    @cached_for_last
    def analysis(region: Region) -> int:
        calls.append(region)
        if len(calls) == 1:
            raise ValueError("not yet")
        return 7

    calls: list[Region] = []
    one = region()
    with pytest.raises(ValueError, match="not yet"):
        analysis(one)
    assert analysis(one) == 7


def test_threads_get_their_own_regions_answer() -> None:
    @cached_for_last
    def analysis(region: Region) -> int:
        return region.inputs[0].type.shape[0]

    wrong: list[int] = []

    def ask(rows: int) -> None:
        mine = region(rows)
        wrong.extend(rows for _ in range(2000) if analysis(mine) != rows)

    threads = [threading.Thread(target=ask, args=(rows,)) for rows in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
