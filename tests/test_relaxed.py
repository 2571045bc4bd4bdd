"""Objects that go at any moment: what the driver is asked for then ends no capture."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from graphdnn.engines.cudnn.lower import Lowering
from graphdnn.engines.cudnn.plans import CudnnPlan
from graphdnn.engines.nvrtc import launch
from graphdnn.relaxed import let_go, relaxed
from graphdnn.runtime.capture import destroy


@pytest.fixture
def mode(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The thread's mode, "global" before it is changed."""
    from cuda.bindings import driver

    now: list[Any] = ["global"]

    def exchange(new: object) -> tuple[int, object]:
        now.append(new)
        return 0, now.pop(0)

    monkeypatch.setattr(driver, "cuThreadExchangeStreamCaptureMode", exchange)
    return now


def is_relaxed(mode: list[Any]) -> bool:
    from cuda.bindings import driver

    return mode == [driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED]


@pytest.mark.parametrize("fails", [False, True])
def test_the_threads_own_mode_is_put_back(fails: bool, mode: list[Any]) -> None:
    with pytest.raises(ValueError, match="no memory") if fails else nullcontext(), relaxed():
        assert is_relaxed(mode)
        if fails:
            raise ValueError("no memory")
    assert mode == ["global"]


def test_without_a_driver_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver

    def exchange(new: object) -> object:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    monkeypatch.setattr(driver, "cuThreadExchangeStreamCaptureMode", exchange)
    held: list[object] = [7]
    let_go(held)
    assert not held
    with pytest.raises(RuntimeError, match="its own"), relaxed():
        raise RuntimeError("its own")


def test_a_plan_of_cudnn_goes_in_relaxed_mode(mode: list[Any]) -> None:
    seen: list[bool] = []

    class Graph:
        def _execute(self, *given: object) -> None: ...

        def __del__(self) -> None:
            seen.append(is_relaxed(mode))

    plan = CudnnPlan(Lowering(Graph(), ()), 0, 0, {})
    assert not seen
    del plan
    gc.collect()
    assert seen == [True]
    assert mode == ["global"]


def test_libraries_and_executable_graphs_go_in_relaxed_mode(mode: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import driver

    seen: list[tuple[object, bool]] = []
    monkeypatch.setattr(driver, "cuLibraryUnload", lambda library: seen.append((library, is_relaxed(mode))))
    launch.unload(["one", "two"])
    destroy(lambda graph: seen.append((graph, is_relaxed(mode))), "three")
    assert seen == [("one", True), ("two", True), ("three", True)]
    assert mode == ["global"]


def test_kernels_go_with_their_plan(mode: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    unloaded: list[object] = []
    monkeypatch.setattr(launch, "unload", unloaded.extend)
    recipe: Any = SimpleNamespace(name="rows", workspace_bytes=0, in_place=())
    plan = launch.NvrtcPlan(recipe, [], {}, [], ["one"])
    assert not unloaded
    del plan
    gc.collect()
    assert unloaded == ["one"]
