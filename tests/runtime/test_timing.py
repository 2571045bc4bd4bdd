"""Timing plans on a device that is not there: rotated sets, poisoned outputs, medians, and what is given up early."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import MEMORY_ALIGNMENT, Timing
from graphdnn.engines.reference import ReferencePlan
from graphdnn.errors import ExecutionError
from graphdnn.ir.region import ALIGNMENT, Region
from graphdnn.ir.types import channels_last
from graphdnn.passes.layout import assign_layouts
from graphdnn.runtime.device import HostDevice
from graphdnn.runtime.schedule import Step, schedule
from graphdnn.runtime.timing import MOST_SETS, CudaTimer, HostTimer, clocked, timer_for
from tests.runtime.clocked import L2, ClockedDevice, ClockedPlan
from tests.runtime.fake import fake_steps, laid_out


def region(rows: int = 8) -> Region:
    g = gd.GraphBuilder()
    x, y = g.input("x", (rows, 16), gd.float32), g.input("y", (16,), gd.float32)
    graph = g.build({"z": g.add(x, y)})
    return Region.of(graph, graph.nodes)


def arrays(region: Region) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy) for v in region.inputs]


def bench(device: ClockedDevice, region: Region, memory: int | None = None):
    found = CudaTimer(device, memory).bench(region, arrays(region))  # type: ignore[arg-type]
    assert not isinstance(found, Decline), found
    return found


@pytest.fixture
def device() -> ClockedDevice:
    return ClockedDevice()


def test_results_are_those_of_the_arrays_given(device: ClockedDevice) -> None:
    one = region()
    plan = ClockedPlan(one, device, 5.0, workspace_bytes=700)
    (found,) = bench(device, one).results(plan)
    np.testing.assert_array_equal(found, ReferencePlan(one).run(arrays(one))[0])


def test_what_a_plan_leaves_out_is_not_a_number(device: ClockedDevice) -> None:
    class Idle(ClockedPlan):
        def _run(self, inputs: Sequence[int], outputs: Sequence[int], workspace: int) -> None:
            pass

    one = region()
    own = bench(device, one)
    own.results(ClockedPlan(one, device, 5.0))
    (found,) = own.results(Idle(one, device, 5.0))
    assert np.isnan(found).all()


def test_layouts_are_kept() -> None:
    device = ClockedDevice()
    g = gd.GraphBuilder()
    x = g.input("x", (2, 5, 3, 4), gd.float16, strides=channels_last((2, 5, 3, 4)))
    graph = g.build({"y": g.neg(x)})
    one = Region.of(graph, graph.nodes)
    (found,) = bench(device, one).results(ClockedPlan(one, device, 1.0))
    np.testing.assert_array_equal(found, -arrays(one)[0])


def test_sets_together_exceed_the_cache_and_are_used_in_turn(device: ClockedDevice) -> None:
    one = region(128)
    plan = ClockedPlan(one, device, 5.0)
    assert bench(device, one).measure(plan, math.inf) == Timing(5.0)
    sets = dict.fromkeys(plan.seen)
    nbytes = 4 * (2 * 128 * 16 + 16)
    assert len(sets) * nbytes > 2 * L2 - nbytes
    assert len({address for row in sets for address in row}) == 3 * len(sets)
    captured = plan.seen[2 : 2 + len(sets)]
    assert captured == list(sets)


def test_small_sets_have_the_cache_written_over_before_each_launch(device: ClockedDevice) -> None:
    one = region(1)
    plan = ClockedPlan(one, device, 1.0)
    own = bench(device, one)
    device.fills = 0
    own.measure(plan, math.inf)
    assert len(dict.fromkeys(plan.seen)) == MOST_SETS
    assert device.fills >= 5
    large = region(2048)
    own = bench(device, large)
    device.fills = 0
    own.measure(ClockedPlan(large, device, 1.0), math.inf)
    assert device.fills == 0


def test_the_median_counts_and_warming_up_does_not(device: ClockedDevice) -> None:
    one = region(2048)
    plan = ClockedPlan(one, device, *[100.0] * 2, *[900.0] * 16, *[10.0] * 16, *[900.0] * 8, 10.0)
    assert bench(device, one).measure(plan, math.inf).us == 10.0


def test_a_slow_plan_is_dropped_after_one_run(device: ClockedDevice) -> None:
    one = region()
    plan = ClockedPlan(one, device, 17440.0)
    assert bench(device, one).measure(plan, 1500.0) == Timing(17440.0, is_dropped=True)
    assert len(plan.seen) == 2
    assert bench(device, one).measure(ClockedPlan(one, device, 40.0), 10.0) == Timing(40.0, is_dropped=True)


def test_of_a_slow_plan_a_graph_holds_few_runs(device: ClockedDevice) -> None:
    one = region()
    plan = ClockedPlan(one, device, 4000.0)
    assert bench(device, one).measure(plan, math.inf) == Timing(4000.0)
    assert len(plan.seen) < 12


def test_memory_for_timing_is_bounded(device: ClockedDevice) -> None:
    one = region(128)
    total = sum(v.type.span_bytes + MEMORY_ALIGNMENT for v in (*one.inputs, *one.outputs))
    declined = CudaTimer(device, total - 1).bench(one, arrays(one))  # type: ignore[arg-type]
    assert isinstance(declined, Decline)
    assert "tuning_memory" in declined.reason
    tight = bench(device, one, 2 * total)
    plan = ClockedPlan(one, device, 5.0)
    tight.measure(plan, math.inf)
    assert len(dict.fromkeys(plan.seen)) == 2
    with pytest.raises(ExecutionError, match="tuning_memory leaves"):
        tight.measure(ClockedPlan(one, device, 5.0, workspace_bytes=4000), math.inf)


def test_closing_gives_the_memory_back(device: ClockedDevice) -> None:
    one = region(64)
    own = bench(device, one)
    own.measure(ClockedPlan(one, device, 5.0, workspace_bytes=512), math.inf)
    assert device.live
    own.close()
    del own
    assert not device.live


def test_views_start_where_their_alignment_allows(device: ClockedDevice) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3, 7), gd.float32)
    y = g.relu(g.slice(x, starts=(0, 1), stops=(3, 6)), name="y")
    graph = assign_layouts(g.build({"y": y})).graph
    one = Region.of(graph, [graph.node("y")])
    (alignment,) = one.alignments
    assert alignment == 4
    plan = ClockedPlan(one, device, 5.0)
    bench(device, one).measure(plan, math.inf)
    assert {row[0] % ALIGNMENT for row in plan.seen} == {4}


def test_a_whole_schedule_is_timed_as_one_graph(device: ClockedDevice, rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (4, 8), gd.float32)
    state = g.state("sum", (4, 8), gd.float32)
    total = g.add(state, x)
    graph = laid_out(g.build({"y": g.softmax(g.relu(total)), "x2": g.neg(x)}, {"sum": total}), rng)
    steps = [replace(s, plan=ClockedPlan(s.region, device, 7.0)) for s in fake_steps(graph, device, rng)]
    placed = schedule(graph, steps)
    assert CudaTimer(device).whole(placed) == pytest.approx(7.0 * len(steps))  # type: ignore[arg-type]
    with pytest.raises(ExecutionError, match=f"takes {placed.peak_bytes} bytes; tuning_memory is 64"):
        CudaTimer(device, 64).whole(placed)  # type: ignore[arg-type]


class TestHost:
    def test_the_clock_is_read_around_each_run(self) -> None:
        now = iter(np.cumsum([0, 30e-6, 0, 30e-6, 0, 1, 0, 30e-6, 0, 30e-6] + [0, 30e-6] * 20))
        assert clocked(lambda: float(next(now)), lambda: None, math.inf).us == pytest.approx(30)

    def test_a_whole_schedule(self) -> None:
        one = region()
        assert 0 < HostTimer().whole(schedule(one.graph, [Step(one, ReferencePlan(one))])) < 1e5

    def test_plans_of_the_other_kind_are_refused(self, device: ClockedDevice) -> None:
        one = region()
        own = HostTimer().bench(one, arrays(one))
        assert not isinstance(own, Decline)
        with pytest.raises(ExecutionError, match="does not run in host memory"):
            own.measure(ClockedPlan(one, device, 1.0), math.inf)
        with pytest.raises(ExecutionError, match="does not run on a device"):
            bench(device, one).results(ReferencePlan(one))

    def test_it_is_what_times_plans_on_the_host(self) -> None:
        assert isinstance(timer_for(HostDevice(), None), HostTimer)
