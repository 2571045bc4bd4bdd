"""Building while a stream of the caller's is being captured is refused before the driver is asked for anything, which
would end the capture."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphdnn.errors import ExecutionError, MomentaryError
from graphdnn.runtime.device import CudaDevice, _Shared
from graphdnn.runtime.driver import CAPTURE_IMPLICIT, LEGACY_STREAM
from tests.runtime.fake import FakeDevice, Foreign, fake_program, on_device
from tests.runtime.test_device import Status
from tests.runtime.test_program import SIDE, affine, draw

ORDERED, TORCHS, CUPYS = "a stream that is ordered with the default stream", 500, 600
OTHER = 700
"""A stream that is not captured."""


class AskedForMemory(Exception):
    """What a driver that is asked for memory raises."""


def opened(capturing: set[int], is_ordered: bool = False) -> CudaDevice:
    """A device whose driver captures these streams, and with `is_ordered` one that nobody knows."""

    def is_capturing(stream: int) -> tuple[Status, int]:
        if stream == LEGACY_STREAM and is_ordered:
            return Status(CAPTURE_IMPLICIT), 0
        return Status(0), int(stream in capturing)

    def refuse(*_: object) -> None:
        raise AskedForMemory

    device = object.__new__(CudaDevice)
    device.ordinal, device.is_alone = 0, True
    device._shared, device._local = _Shared(), SimpleNamespace(ready=True)  # type: ignore[assignment]
    device._device_memory = device._pinned_memory = SimpleNamespace(allocate=refuse)  # type: ignore[assignment]
    device.driver = SimpleNamespace(cuStreamIsCapturing=is_capturing, cuCtxSynchronize=refuse)
    device._shared.dropped.append((SimpleNamespace(free=refuse), 4096))  # type: ignore[arg-type]
    return device


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """PyTorch and CuPy, each with a current stream; the first may not have begun with CUDA yet."""
    state = SimpleNamespace(is_initialized=True)
    getter = SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: TORCHS + ordinal)
    torch = SimpleNamespace(_C=getter, cuda=SimpleNamespace(is_initialized=lambda: state.is_initialized))
    cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=CUPYS)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    return state


@pytest.mark.parametrize(
    ("capturing", "is_ordered", "said"),
    [(set(), True, ORDERED), ({TORCHS}, False, "PyTorch's current stream"), ({CUPYS}, False, "CuPy's current stream")],
)
@pytest.mark.parametrize("ask", [lambda d: d.allocate(8), lambda d: d.pinned(8)], ids=["allocate", "pinned"])
def test_a_known_capture_is_told_and_left_alone(
    ask: Callable[[CudaDevice], object], capturing: set[int], is_ordered: bool, said: str
) -> None:
    """Dropped memory is waited for and freed before any is allocated, which would end the capture too."""
    with pytest.raises(MomentaryError) as told:
        ask(opened(capturing, is_ordered))
    assert str(told.value) == (
        f"allocating memory is not possible while {said} is being captured, during which nothing may be compiled, "
        "allocated or waited for; do it before the capture begins"
    )


@pytest.mark.parametrize("capturing", [set(), {SIDE}, {0, LEGACY_STREAM + 1}])
def test_captures_that_nobody_can_know_of_are_the_drivers_affair(capturing: set[int]) -> None:
    opened(capturing).check_no_capture("compiling")
    with pytest.raises(AskedForMemory):
        opened(capturing).allocate(8)


def test_libraries_are_asked_once_they_have_begun(libraries: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    libraries.is_initialized = False
    opened({TORCHS}).check_no_capture("compiling")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())  # another thread is importing it
    opened({TORCHS}).check_no_capture("compiling")
    monkeypatch.delitem(sys.modules, "cupy")
    opened({CUPYS}).check_no_capture("compiling")


BUILDING: dict[str, Callable[[Any, Any, Any], object]] = {
    "binding graph affine": lambda program, x, _: program.bind({"x": x}),
    "calling graph affine on the default stream": lambda program, x, _: program.run({"x": x}),
    "allocating memory": lambda program, x, _: program.run({"x": x}, OTHER),
    "building the conversion of input x": lambda program, _, turned: program.run({"x": turned}, OTHER),
}


@pytest.mark.parametrize("doing", BUILDING)
def test_what_is_built_late_is_not_built_during_a_capture(doing: str, rng: np.random.Generator) -> None:
    device = FakeDevice()
    program, x = fake_program(affine(), device, rng, 1), on_device(draw(rng), device)
    turned = Foreign(np.asfortranarray(draw(rng)), device)
    bound = program.bind({"x": x})
    held = program.run({"x": on_device(draw(rng), device, misaligned=1)})  # has memory for an input that is copied
    device.capturing[SIDE], device.current_stream = [], SIDE
    before = device.allocations, device.kernels
    with pytest.raises(ExecutionError, match=f"^{doing} is not possible while"):
        BUILDING[doing](program, x, turned)
    assert (device.allocations, device.kernels) == before
    bound(stream=SIDE)
    assert len(device.capturing.pop(SIDE)) == 4
    BUILDING[doing](program, x, turned)
    del held
