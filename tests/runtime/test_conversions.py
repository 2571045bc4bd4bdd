"""Plans for strides that callers bring: few are kept, one is built for all who wait for it, and planning is let go."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from graphdnn.compiler import converter
from graphdnn.engines.choose import Selector
from graphdnn.engines.contract import Policy
from graphdnn.engines.trial import Limits
from graphdnn.errors import CompileError, OutOfMemoryError
from graphdnn.ir.region import Region
from graphdnn.ir.types import TensorType, float32
from graphdnn.runtime.device import HostDevice
from graphdnn.runtime.loaded_graph import CONVERSIONS_KEPT
from graphdnn.runtime.program import Program
from graphdnn.runtime.schedule import Step, schedule
from graphdnn.target import Target
from tests.engines.scripted import Act, Clock, Scripted
from tests.runtime.fake import FakeDevice, FakePlan, Foreign, fake_convert, fake_program, loaded
from tests.runtime.test_program import affine, check

WANTED = TensorType((3, 5), float32)


def strided(step: int) -> TensorType:
    return WANTED.with_strides((1, 3 + step))


def test_plans_for_callers_strides_are_bounded_and_the_least_recently_used_go(rng: np.random.Generator) -> None:
    device = FakeDevice()
    program = fake_program(affine(), device, rng, 1)
    shared = loaded(program)
    first = shared.conversion("input x", strided(0), WANTED)
    plans = [weakref.ref(shared.conversion("input x", strided(n), WANTED)) for n in range(1, CONVERSIONS_KEPT)]
    assert shared.conversion("input x", strided(0), WANTED) is first
    for n in range(CONVERSIONS_KEPT, CONVERSIONS_KEPT + 5):
        shared.conversion("input x", strided(n), WANTED)
    gc.collect()
    assert [n for n, plan in enumerate(plans) if plan() is None] == [0, 1, 2, 3, 4]
    assert shared.conversion("input x", strided(0), WANTED) is first
    turned = Foreign(np.asfortranarray(rng.standard_normal((3, 5), np.float32)), device)
    check(program.run({"x": turned}), turned.array)


def test_contexts_that_want_the_same_plan_build_it_once(rng: np.random.Generator) -> None:
    device, graph = FakeDevice(), affine()
    built, gate = [], threading.Event()

    def convert(source: TensorType, wanted: TensorType) -> Any:
        built.append(source)
        assert gate.wait(10)
        return fake_convert(device)(source, wanted)

    steps = [Step(r, FakePlan(r, device)) for r in (Region.of(graph, [n]) for n in graph.nodes)]
    program = Program(graph, schedule(graph, steps), device, convert)
    x = np.asfortranarray(rng.standard_normal((3, 5), np.float32))
    turned = Foreign(x, device)
    contexts = [program, *(program.context() for _ in range(3))]
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(one.run, {"x": turned}) for one in contexts]
        threading.Timer(0.05, gate.set).start()
        for call in calls:
            check(call.result(20), x)
    assert len(built) == 1


class Copying(Scripted):
    """An engine for a device, whose plans copy."""

    fails: type[Exception] | None = None

    def build(self, candidate: Any, device: Any) -> Any:
        if self.fails is not None:
            raise self.fails("there is no room")
        return type("Plan", (), {"workspace_bytes": self.acts[candidate.name].workspace, "enqueue": lambda *_: None})()


class Capturing(HostDevice):
    """Counts the kernels of a capture as one."""

    def capture(self, issue: Any) -> Any:
        return type("Captured", (), {"kernels": 1})()


def test_what_builds_such_plans_holds_nothing_of_planning() -> None:
    engine = Copying("one", {"a": Act(workspace=8), "b": Act(), "c": Act()}, Clock(), takes=("convert",))
    selector = Selector([engine], Target.cpu(), Policy(), limits=Limits(disabled=("one:b",)))
    convert, planning = converter(selector, Capturing()), weakref.ref(selector)
    selector.allow(100, 0)
    del selector
    gc.collect()
    assert planning() is None
    # Plan a needs scratch memory, which such plans get none of, and b is disabled.
    assert convert(strided(1), WANTED).workspace_bytes == 0
    assert engine.built == []
    engine.fails = OutOfMemoryError
    with pytest.raises(CompileError, match="no engine on cpu copies"):
        convert(strided(2), WANTED)
    engine.fails = None
    assert convert(strided(2), WANTED).workspace_bytes == 0
