"""Devices as far as they can be tested where there is none: the processor, and what is missing by name."""

import numpy as np
import pytest

from graphdnn.errors import ExecutionError, SetupError
from graphdnn.ir.types import TensorType, uint8
from graphdnn.runtime import device as devices
from graphdnn.runtime.cache import DiskStore, NullStore
from graphdnn.runtime.device import CudaDevice, HostDevice, check, device_for, device_present, host_view


def test_the_processor_is_a_device() -> None:
    device = HostDevice()
    assert (device.target.kind, device.target.present, str(device)) == ("cpu", True, "cpu")
    for nbytes in (1, 7, 255, 257, 100_000):
        memory = device.allocate(nbytes)
        assert memory.handle % devices.ALIGNMENT == 0
        view = host_view(memory.handle, TensorType((nbytes,), uint8), memory)
        device.fill(memory.handle, 0xFF, nbytes, device.stream)
        assert (view == 0xFF).all()
    device.synchronize()
    with pytest.raises(ExecutionError, match="cannot be captured"):
        device.capture(lambda stream: None)


def test_memory_given_back_twice_is_given_back_once() -> None:
    freed: list[int] = []
    memory = devices.Memory(256, 10, freed.append)
    memory.close()
    memory.close()
    del memory
    assert freed == [256]


def test_host_views_run_backwards_too() -> None:
    held = np.arange(35, dtype=np.uint8).reshape(5, 7)
    turned = held[::-1, 1::2]
    view = host_view(turned.ctypes.data, TensorType(turned.shape, uint8, turned.strides), held)
    np.testing.assert_array_equal(view, turned)


class Status(int):
    name = "CUDA_ERROR_SOMETHING"


@pytest.mark.parametrize(("status", "note"), [(2, False), (901, True)])
def test_a_failed_driver_call_says_what_was_asked(status: int, note: bool) -> None:
    assert check("count devices", (Status(0), 3)) == 3
    assert check("free memory", (Status(0),)) is None
    with pytest.raises(ExecutionError, match="CUDA was asked to do it and answered CUDA_ERROR_SOMETHING") as error:
        check("do it", (Status(status), 0))
    assert ("a stream is being captured" in str(error.value)) == note


def test_without_a_driver_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_libcuda", lambda: None)
    devices.driver.cache_clear()
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

    monkeypatch.setattr(devices, "_libcuda", Library)
    assert device_present() == present


def test_device_for_takes_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    assert isinstance(device_for("cpu"), HostDevice)

    class Opened:
        store = "default"

        def with_store(self, store: object) -> object:
            self.store = store
            return self

    monkeypatch.setattr(CudaDevice, "current", staticmethod(lambda ordinal: Opened()))
    assert device_for("cuda").store == "default"
    assert isinstance(device_for("cuda", None, "").store, NullStore)
    found = device_for("cuda", None, str(tmp_path)).store
    assert isinstance(found, DiskStore)
    assert found.directory == tmp_path
