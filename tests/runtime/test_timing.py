"""Timing plans on a device that is not there: rotated sets, poisoned outputs, medians, and what is given up early."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.contract import Timing, aligned
from graphdnn.engines.reference import ReferencePlan
from graphdnn.errors import ExecutionError, OutOfMemoryError, TuningMemoryError
from graphdnn.ir.region import ALIGNMENT, Region
from graphdnn.ir.types import channels_last
from graphdnn.passes.layout.assign import assign_layouts
from graphdnn.runtime.device import HostDevice
from graphdnn.runtime.schedule import Step, schedule
from graphdnn.runtime.timing import MOST_SETS, RUNS, CudaTimer, HostTimer, clocked, timer_for
from tests.runtime.clocked import L2, ClockedDevice, ClockedPlan, RecordingDevice
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


def test_what_has_no_room_for_one_set_is_declined_with_the_bytes_it_needs(device: ClockedDevice) -> None:
    one = region(128)
    total = sum(aligned(v.type.span_bytes) for v in (*one.inputs, *one.outputs))
    declined = CudaTimer(device, total - 1).bench(one, arrays(one))  # type: ignore[arg-type]
    assert isinstance(declined, Decline)
    assert declined.reason == f"one set of its tensors takes {total} bytes; tuning_memory is {total - 1}"
    assert device.allocations == 0


@pytest.mark.parametrize("rows", [1, 128, 2048])
@pytest.mark.parametrize("sets", [1, 3, 4, 9, 40, 400])
def test_memory_for_timing_is_bounded(rows: int, sets: int) -> None:
    """Sets of tensors and what empties the cache take half of it where more than one set is there; scratch the rest."""
    device, one = RecordingDevice(), region(rows)
    total = sum(aligned(v.type.span_bytes) for v in (*one.inputs, *one.outputs))
    own = bench(device, one, sets * total)
    held = device.most
    assert held <= max(total, sets * total // 2)
    plan = ClockedPlan(one, device, 5.0, workspace_bytes=sets * total - held)
    own.results(plan)
    own.measure(plan, math.inf)
    own.measure(ClockedPlan(one, device, 5.0, workspace_bytes=(sets * total - held) // 2), math.inf)
    assert len(dict.fromkeys(plan.seen)) <= sets
    assert device.most == sets * total
    needed = sets * total - held + 1
    with pytest.raises(
        TuningMemoryError, match=f"takes {needed} bytes of scratch, and tuning_memory leaves {needed - 1}"
    ):
        own.measure(ClockedPlan(one, device, 5.0, workspace_bytes=needed), math.inf)


def test_the_timer_says_where_the_cache_is_not_emptied(device: ClockedDevice) -> None:
    one = region(1)
    span = sum(aligned(v.type.span_bytes) for v in (*one.inputs, *one.outputs))
    for memory, is_warm in (
        (None, False),
        (2 * (L2 + MOST_SETS * span), False),
        (2 * (L2 + RUNS * span), False),
        (2 * (L2 + RUNS * span) - 2, True),
        (span, True),
    ):
        timer, plan = CudaTimer(device, memory), ClockedPlan(one, device, 1.0)  # type: ignore[arg-type]
        own = timer.bench(one, arrays(one))
        assert not isinstance(own, Decline)
        device.fills = 0
        own.measure(plan, math.inf)
        assert (device.fills == 0) is is_warm
        # Where the cache is emptied, every run of a launch has a set of its own.
        assert is_warm or len(dict.fromkeys(plan.seen)) >= RUNS
        assert len(timer.effects) == is_warm
        for told in timer.effects:
            assert told.startswith(f"tuning_memory={memory} leaves no room to empty a cache of {L2} bytes")
            assert told.endswith("left in it: 1")


def test_scratch_that_the_device_does_not_have_leaves_that_of_others(
    device: ClockedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = region()
    own = bench(device, one)
    own.measure(ClockedPlan(one, device, 5.0, workspace_bytes=700), math.inf)
    with monkeypatch.context() as full:

        def allocate(nbytes: int) -> None:
            raise OutOfMemoryError(f"no {nbytes} bytes")

        full.setattr(device, "allocate", allocate)
        with pytest.raises(OutOfMemoryError):
            own.measure(ClockedPlan(one, device, 5.0, workspace_bytes=9000), math.inf)
    assert own.measure(ClockedPlan(one, device, 5.0, workspace_bytes=600), math.inf).us == 5.0


def test_kernels_are_those_of_one_run(device: ClockedDevice) -> None:
    class Double(ClockedPlan):
        def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
            super().enqueue(addresses, stream, workspace)
            super().enqueue(addresses, stream, workspace)

    one = region()
    own = bench(device, one)
    assert own.measure(Double(one, device, 5.0), math.inf).kernels == 2
    assert own.measure(Double(one, device, 5000.0), 1.0) == Timing(10000.0, is_dropped=True, kernels=2)


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
