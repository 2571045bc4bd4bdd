"""`tuning_memory` bounds all that timing takes of a device; what has no room is chosen by heuristics, and says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.compiler import compile_for
from graphdnn.engines import manifest
from graphdnn.engines.contract import aligned
from graphdnn.engines.tune import Tuner
from graphdnn.planning import session
from graphdnn.report.model import CompileReport
from graphdnn.runtime.timing import CudaTimer
from tests.runtime.clocked import L2, RecordingDevice
from tests.test_device_choice import Act, DeviceEngine, graph

ACTS = {"small": Act(9, workspace=100), "greedy": Act(4, workspace=5000), "plain": Act(6)}

ROOM = 4 * (L2 + (1 << 20))
"""More than anything here takes."""


@contextmanager
def watched(device: RecordingDevice) -> Iterator[list[int]]:
    """The most bytes that were held at one time by each piece of timing: regions together, and each whole graph."""
    found: list[int] = []

    def watching(work: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*given: Any) -> Any:
            device.begin()
            try:
                return work(*given)
            finally:
                found.append(device.most)

        return watch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tuner, "tune", watching(Tuner.tune))
        patch.setattr(CudaTimer, "whole", watching(CudaTimer.whole))
        yield found


def compiled(acts: dict[str, Act], **options: Any) -> tuple[gd.Executable, list[int]]:
    device = RecordingDevice()
    with watched(device) as found, pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "load_engine", lambda name: DeviceEngine(name, **acts))
        patch.setitem(manifest.BY_KIND, "cuda", ("clocked",))
        patch.setattr(session, "timer_for", CudaTimer)
        chosen = gd.CompileOptions(progress=False, **options)
        return compile_for(graph(), device.target, device, chosen), found  # type: ignore[arg-type]


def computes(exe: gd.Executable) -> bool:
    x = np.random.default_rng(0).standard_normal((24, 32), np.float32)
    found, wanted = exe({"x": x}), gd.evaluate(graph(), {"x": x})
    return all(np.allclose(found[name], array, rtol=1e-5, atol=1e-6) for name, array in wanted.items())


def chosen(report: CompileReport) -> list[Any]:
    return [r for r in report.regions if r.pattern != "convert"]


@pytest.mark.parametrize("selection", ["autotune", "measure"])
@pytest.mark.parametrize("limit", [0, 1, 3000, 5000, 7000, 12_000, 34_432, 98_817, 200_000, ROOM])
def test_timing_never_holds_more(limit: int, selection: str) -> None:
    exe, found = compiled(ACTS, selection=selection, tuning_memory=limit)
    assert found
    assert max(found) <= limit
    assert computes(exe)
    regions = chosen(exe.report)
    for region in regions:
        assert region.measured_us or "tuning_memory" in " ".join(region.notes)
    if limit < 3000:  # not one tensor of any region
        assert found == [0] * len(found)
        assert {r.plan for r in regions} == {"small"}
        assert all("one set of its tensors takes" in " ".join(r.notes) for r in regions)
    if limit == ROOM:
        assert {r.plan for r in regions} == {"greedy"}
        assert max(found) > L2
        assert "tuning_memory" not in " ".join(exe.report.effects)


def test_it_says_that_the_cache_was_not_emptied() -> None:
    exe, found = compiled(ACTS, selection="autotune", tuning_memory=34_432)
    assert max(found) > 5000
    assert {r.plan for r in chosen(exe.report)} == {"greedy"}
    (told,) = [e for e in exe.report.effects if "tuning_memory" in e]
    assert told.startswith(f"tuning_memory=34432 leaves no room to empty a cache of {L2} bytes between runs")
    assert told in exe.explain()


def test_scratch_without_room_rules_out_no_plan() -> None:
    """Only plans that need none are timed; where every plan needs some, heuristics choose."""
    roomy = max(sum(aligned(v.type.span_bytes) for v in (*r.inputs, *r.outputs)) for r in regions()) + 1000
    exe, found = compiled(ACTS, selection="autotune", tuning_memory=roomy)
    assert {r.plan for r in chosen(exe.report)} <= {"plain", "greedy"}
    plans = [p for c in exe.report.candidates for p in c.plans if p.name == "greedy"]
    short = [p for p in plans if "5000 bytes of scratch, and tuning_memory leaves" in p.reason]
    assert short
    assert {(p.verdict, p.measured_us) for p in short} == {("slower", None)}
    exe, again = compiled({"greedy": Act(4, workspace=90_000)}, selection="autotune", tuning_memory=roomy)
    assert max(*found, *again) <= roomy
    for region in chosen(exe.report):
        assert region.measured_us is None
        assert "not timed: it takes 90000 bytes of scratch" in " ".join(region.notes)
    assert computes(exe)


def regions() -> list[Any]:
    exe, _ = compiled(ACTS, selection="heuristic")
    return [pick.region for pick in exe.compilation.picks]


def test_times_of_another_limit_are_not_remembered(tmp_path: Any) -> None:
    """What was timed with a full cache says nothing of an empty one."""
    from graphdnn.runtime.cache import DiskStore

    device = RecordingDevice()
    device.store = DiskStore(tmp_path)  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "load_engine", lambda name: DeviceEngine(name, **ACTS))
        patch.setitem(manifest.BY_KIND, "cuda", ("clocked",))
        patch.setattr(session, "timer_for", CudaTimer)
        told = []
        for limit in (34_432, 34_432, None):
            options = gd.CompileOptions(progress=False, selection="autotune", tuning_memory=limit)
            report = compile_for(graph(), device.target, device, options).report  # type: ignore[arg-type]
            told.append(next(e for e in report.effects if "remembered" in e))
    assert "timed 0 regions" in told[1]
    assert "timed 0 regions" not in told[0]
    assert told[2] == told[0]
