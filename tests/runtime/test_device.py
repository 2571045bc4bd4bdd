"""Devices as far as they can be tested where there is none: the processor, and what is missing by name."""

import threading
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphdnn.engines.contract import MEMORY_ALIGNMENT
from graphdnn.errors import ExecutionError, MomentaryError, OutOfMemoryError, SetupError
from graphdnn.ir.types import TensorType, uint8
from graphdnn.runtime import driver as drivers
from graphdnn.runtime.buffers import Memory, host_view
from graphdnn.runtime.cache import DiskStore, NullStore
from graphdnn.runtime.device import CudaDevice, HostDevice, _Shared, device_for
from graphdnn.runtime.driver import check, device_present


def test_the_processor_is_a_device() -> None:
    device = HostDevice()
    assert (device.target.kind, device.target.present, str(device)) == ("cpu", True, "cpu")
    for nbytes in (1, 7, 255, 257, 100_000):
        memory = device.allocate(nbytes)
        assert memory.handle % MEMORY_ALIGNMENT == 0
        view = host_view(memory.handle, TensorType((nbytes,), uint8), memory)
        device.fill(memory.handle, 0xFF, nbytes, device.stream)
        assert (view == 0xFF).all()
    device.synchronize()
    with pytest.raises(ExecutionError, match="cannot be captured"):
        device.capture(lambda stream: None)


def test_memory_is_held_until_it_is_closed_or_dropped() -> None:
    class Owner:
        """What holds memory."""

    def gone(use: object) -> list[str]:
        seen: list[str] = []
        owner = Owner()
        weakref.finalize(owner, seen.append, "freed")
        memory = Memory(256, 10, owner)
        del owner
        assert not seen
        use(memory)  # type: ignore[operator]
        del memory
        return seen

    assert gone(lambda memory: (memory.close(), memory.close())) == ["freed"]
    assert gone(lambda memory: None) == ["freed"]


def test_host_views_run_backwards_too() -> None:
    held = np.arange(35, dtype=np.uint8).reshape(5, 7)
    turned = held[::-1, 1::2]
    view = host_view(turned.ctypes.data, TensorType(turned.shape, uint8, turned.strides), held)
    np.testing.assert_array_equal(view, turned)


class Status(int):
    name = "CUDA_ERROR_SOMETHING"


def test_a_driver_that_was_used_before_a_fork_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent's use need not have been ours: PyTorch's leaves the driver in the same state."""
    from cuda.bindings import driver as bindings

    said = r"CUDA_ERROR_SOMETHING, as it does in a process that was forked after CUDA had been used; .*'spawn'"
    with pytest.raises(ExecutionError, match=rf"CUDA was asked to count devices and answered {said}"):
        check("count devices", (Status(3),))
    monkeypatch.setattr(drivers, "libcuda", object)
    monkeypatch.setattr(bindings, "cuInit", lambda flags: (Status(3),))
    drivers.driver.cache_clear()
    with pytest.raises(SetupError, match=rf"the CUDA driver answered {said}"):
        CudaDevice.current()


@pytest.mark.parametrize(("status", "note"), [(2, False), (901, True), (1, False)])
def test_a_failed_driver_call_says_what_was_asked(status: int, note: bool) -> None:
    assert check("count devices", (Status(0), 3)) == 3
    assert check("free memory", (Status(0),)) is None
    with pytest.raises(ExecutionError, match="CUDA was asked to do it and answered CUDA_ERROR_SOMETHING") as error:
        check("do it", (Status(status), 0))
    assert ("a stream is being captured" in str(error.value)) == note
    assert isinstance(error.value, OutOfMemoryError) == (status == 2)
    assert isinstance(error.value, MomentaryError) == (status in (2, 901))


def test_without_a_driver_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "libcuda", lambda: None)
    drivers.driver.cache_clear()
    assert not device_present()
    with pytest.raises(SetupError, match=r"the CUDA driver \(libcuda\) was not found; install an NVIDIA driver"):
        CudaDevice.current()


@pytest.mark.parametrize(
    ("init", "count", "present"),
    [((0, 1), (0, 1), True), ((100, 0), (0, 0), False), ((34, 0), (0, 0), False), ((0, 0), (0, 0), False),
     ((999, 0), (0, 0), True), ((0, 0), (3, 0), True)],
)  # fmt: skip
def test_a_driver_that_fails_counts_as_present(
    monkeypatch: pytest.MonkeyPatch, init: tuple[int, int], count: tuple[int, int], present: bool
) -> None:
    class Library:
        def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's name
            return init[0]

        def cuDeviceGetCount(self, out: object) -> int:  # noqa: N802
            out._obj.value = init[1]
            return count[0]

    monkeypatch.setattr(drivers, "libcuda", Library)
    assert device_present() == present


def test_device_for_takes_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    assert isinstance(device_for("cpu"), HostDevice)

    class Opened:
        store = "default"

        def check_no_capture(self, doing: str) -> None:
            if self.store == "of a capture":
                raise MomentaryError(doing)

        def with_store(self, store: object) -> object:
            self.store = store
            return self

    monkeypatch.setattr(CudaDevice, "current", staticmethod(lambda ordinal: Opened()))
    assert device_for("cuda").store == "default"
    assert isinstance(device_for("cuda", None, "").store, NullStore)
    found = device_for("cuda", None, str(tmp_path)).store
    assert isinstance(found, DiskStore)
    assert found.directory == tmp_path
    Opened.store = "of a capture"
    with pytest.raises(MomentaryError, match="compiling or loading a graph"):
        device_for("cuda")


def test_memory_in_use_is_no_reason_to_wait() -> None:
    """A caller's graph may keep things alive for the whole life of a process, which allocates meanwhile."""
    asked: list[str] = []
    device = object.__new__(CudaDevice)
    device._shared = _Shared()
    device.driver = SimpleNamespace(cuCtxSynchronize=lambda: (asked.append("waited"), Status(0))[1:])
    device._shared.retentions._until_released[1] = "held"
    device.sweep()
    assert not asked
    freed: list[int] = []
    device._shared.dropped.append((SimpleNamespace(free=freed.append), 4096))  # type: ignore[arg-type]
    device.sweep()
    assert (asked, freed, device._shared.dropped) == (["waited"], [4096], [])


def test_memory_that_a_capture_kept_from_being_freed_is_freed_before_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread reads plans, in captures, while this one needs what was dropped before."""
    device = object.__new__(CudaDevice)
    device.is_alone, device._shared, device._local = True, _Shared(), SimpleNamespace(ready=True)
    device.driver = SimpleNamespace(cuCtxSynchronize=lambda: (Status(0),))
    monkeypatch.setattr(device, "check_no_capture", lambda doing: None)
    room, begun, done = [0], threading.Event(), threading.Event()

    def allocate(nbytes: int) -> SimpleNamespace:
        if room[0] < nbytes:
            done.set()  # the capture is over some time after the lack was met
            raise OutOfMemoryError("there is none")
        return SimpleNamespace(handle=4096)

    def free(address: int) -> None:
        assert done.is_set()
        room[0] = 256

    def read() -> None:
        with device._shared.capturing:
            begun.set()
            done.wait(10)

    resource: Any = SimpleNamespace(allocate=allocate, free=free)
    device._device_memory = resource
    device._shared.dropped.append((resource, 4096))
    thread = threading.Thread(target=read)
    thread.start()
    begun.wait(10)
    assert device.allocate(256).handle == 4096
    thread.join()
    with pytest.raises(OutOfMemoryError):
        device.allocate(257)
