"""Which release of the driver is here: by its library's file, else by the kernel module, else unknown."""

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest

from graphdnn.engines.environment import environment
from graphdnn.runtime import driver
from graphdnn.runtime.driver import driver_release, file_of, release_of
from graphdnn.target import Target

OPEN_MODULE = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder@U22)  Tue Sep 23\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
)
CLOSED_MODULE = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104  Sat Aug 19 01:15:15 UTC 2023\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the kernel module tells its release; nothing is there yet."""
    path = tmp_path / "version"
    monkeypatch.setattr(driver, "KERNEL_MODULE", path)
    return path


def library(folder: Path, name: str) -> str:
    """A link to a library's file of this name, as the loader's cache has it."""
    (folder / name).touch()
    link = folder / "libcuda.so.1"
    if name != link.name:
        link.symlink_to(name)
    return str(link)


def test_the_librarys_file_tells_it(tmp_path: Path, module: Path) -> None:
    module.write_text(CLOSED_MODULE)
    assert release_of(library(tmp_path, "libcuda.so.580.95.05")) == "580.95.05"


@pytest.mark.parametrize(("text", "release"), [(OPEN_MODULE, "580.95.05"), (CLOSED_MODULE, "535.104")])
def test_else_the_kernel_module_does(tmp_path: Path, module: Path, text: str, release: str) -> None:
    module.write_text(text)
    assert release_of(library(tmp_path, "libcuda.so.1")) == release
    assert release_of("") == release


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"NVRM version: none\nGCC version: 580.95.05\n"])
def test_else_nothing(tmp_path: Path, module: Path, content: bytes | None) -> None:
    if content is not None:
        module.write_bytes(content)
    assert release_of(library(tmp_path, "libcuda.so.1.1")) == "unknown"


def test_the_loader_tells_a_functions_file() -> None:
    try:
        loaded = ctypes.CDLL("libm.so.6")
    except OSError:
        pytest.fail("the C library's mathematics is on every Linux machine")
    assert Path(file_of(loaded.cos)).name == "libm.so.6"
    assert file_of(ctypes.c_void_p(1)) == ""


def test_it_is_read_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(driver, "libcuda", lambda: asked.append(1))
    driver_release.cache_clear()
    try:
        assert [driver_release() for _ in range(3)] == ["unknown"] * 3
        assert asked == [1]
    finally:
        driver_release.cache_clear()


def test_another_release_of_the_same_cuda_version_is_another_environment() -> None:
    old, new = (
        replace(Target.named("h200"), versions={"driver": "13.0", "driver_release": r})
        for r in ("580.65.06", "580.95.05")
    )
    for engine in ("cudnn", "cublaslt", "nvrtc"):
        assert environment(old, engine) != environment(new, engine)
