"""Which description a device gets, from its name or from its attributes."""

from pathlib import Path
from types import SimpleNamespace

import pytest

import graphdnn as gd
from graphdnn.engines.cudnn.tables import is_known
from graphdnn.runtime import describe as module
from graphdnn.runtime.describe import describe

PROPERTIES = SimpleNamespace(
    compute_capability_major=9,
    compute_capability_minor=0,
    multiprocessor_count=132,
    clock_rate=1_980_000,
    memory_clock_rate=3_201_000,
    global_memory_bus_width=6144,
    l2_cache_size=62914560,
    max_shared_memory_per_block_optin=232448,
)


def device(name: str, **changes: int) -> SimpleNamespace:
    found = SimpleNamespace(**{**vars(PROPERTIES), **changes})
    return SimpleNamespace(
        name=name, ordinal=3, driver_version="13.0", memory_bytes=150_000_000_000, properties=lambda: found
    )


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "driver_release", lambda: "580.95.05")


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA H200 NVL", "H200-141GB"])
def test_a_known_name_gets_the_measured_ceilings(name: str) -> None:
    target, known = describe(device(name)), gd.Target.named("h200")
    assert (target.name, target.present, target.ordinal) == ("h200", True, 3)
    assert (target.bandwidth, target.rates) == (known.bandwidth, known.rates)
    assert target.versions["driver"] == "13.0"
    assert target.versions["driver_release"] == "580.95.05"
    assert target.versions["cudnn"].count(".") == 2
    assert target.versions["cudnn_frontend"].count(".") == 2


class Loader:
    """Opens a library of one version, or none, and notes what it was asked for."""

    def __init__(self, version: int | None = None) -> None:
        self.version = version
        self.asked: list[str] = []

    def open(self, name: str) -> SimpleNamespace:
        self.asked.append(name)
        if self.version is None:
            raise OSError(f"{name}: cannot open shared object file")
        return SimpleNamespace(cudnnGetVersion=lambda: self.version)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the installed packages, which is empty."""
    monkeypatch.setattr(module, "PACKAGES", {})
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("wheel", ["nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cudnn_jit/lib/libcudnn.so.9", None])
def test_the_version_of_cudnn_is_that_of_the_library_that_is_loaded(
    wheel: str | None, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come from anywhere, and what is remembered and trusted of one version is of that one."""
    loader = Loader(92507)
    monkeypatch.setattr("ctypes.CDLL", loader.open)
    if wheel is not None:
        (site / wheel).parent.mkdir(parents=True)
        (site / wheel).touch()
    target = describe(device("NVIDIA H200"))
    assert target.versions["cudnn"] == "9.25.7"
    assert loader.asked == [str(site / wheel) if wheel else "libcudnn.so.9"]
    assert not is_known(target, "matmul", 0)
    assert is_known(gd.Target.named("h200"), "matmul", 0)


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA Secret"])
def test_no_version_is_stated_of_what_is_not_here(name: str, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", Loader().open)
    assert describe(device(name)).versions == {"driver": "13.0", "driver_release": "580.95.05"}


def test_a_part_of_a_device_has_its_own_multiprocessors() -> None:
    assert describe(device("NVIDIA H200 MIG 1g.18gb", multiprocessor_count=16)).sm_count == 16


def test_an_unknown_one_is_estimated_from_its_attributes() -> None:
    """An H200 under another name comes out within a factor of 1.6 of what was measured."""
    target, known = describe(device("NVIDIA Secret")), gd.Target.named("h200")
    assert (target.name, target.arch, target.sm_count) == ("NVIDIA Secret", "sm_90", 132)
    assert 1 / 1.6 < target.bandwidth / known.bandwidth < 1.6
    for unit in ("float16", "bfloat16", "tf32", "float32", "int8", "special"):
        assert 1 / 1.6 < target.rates[unit] / known.rates[unit] < 1.6, unit


def test_a_driver_that_tells_no_memory_clock() -> None:
    assert describe(device("NVIDIA Secret", memory_clock_rate=0)).bandwidth > 0
    small = describe(device("NVIDIA Secret", compute_capability_major=8, compute_capability_minor=9))
    assert small.rates["float16"] < describe(device("NVIDIA Secret")).rates["float16"] / 3
