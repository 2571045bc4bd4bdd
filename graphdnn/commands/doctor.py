"""What this machine has of what the GPU engines need, found without loading anything into this process.

Files are looked for first, and each library is then tried in a child process, since a broken copy can abort it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from graphdnn.runtime.driver import release_of

Status = Literal["ok", "missing", "warning"]
TRY_SECONDS = 60
"""After which a child process that loads a library counts as hanging."""


@dataclass(frozen=True)
class Finding:
    """One thing looked for; `cure` says what to install or change where it is not well."""

    name: str
    status: Status
    detail: str
    cure: str = ""

    def __str__(self) -> str:
        return f"{self.status:8} {self.name}: {self.detail}" + (f"; {self.cure}" if self.cure else "")


@dataclass(frozen=True)
class Library:
    """A shared library: how its files are called, which function tells its version, which package brings it."""

    name: str
    stem: str
    version_call: str
    package: str


DRIVER_VERSION = "cuDriverGetVersion"
LIBRARIES = (
    Library("CUDA driver", "libcuda.so.1", DRIVER_VERSION, ""),
    Library("cuDNN", "libcudnn.so.9", "cudnnGetVersion", "nvidia-cudnn-cu13"),
    Library("NVRTC", "libnvrtc.so.13", "nvrtcVersion", "nvidia-cuda-nvrtc"),
    Library("cuBLASLt", "libcublasLt.so.13", "cublasLtGetVersion", "nvidia-cublas"),
)
"""In the order they are needed: without a driver the others can still compile and validate."""

PACKAGES = (
    ("cuda-python", (13,), (14,), "driver and runtime bindings, NVRTC"),
    ("cuda-core", (0, 6), (2,), "devices and streams"),
    ("nvidia-cudnn-frontend", (1, 22), (1, 24), "lowering to cuDNN"),
    ("nvmath-python", (1, 0), (1, 1), "cuBLASLt"),
)
"""Distributions, the least version that will do and the first that was not tried, as in pyproject.toml, and what they
are for."""

WITHOUT_GPU = (
    'target="cpu" runs every graph, and target=gd.Target.named("h200") plans and explains for a device that is not here'
)
"""What a machine without a device is good for."""

TRIAL = """
import ctypes, json, sys
library = ctypes.CDLL(sys.argv[1])
call, number = getattr(library, sys.argv[2]), ctypes.c_int(0)
if sys.argv[2] == "nvrtcVersion":
    minor = ctypes.c_int(0)
    call(ctypes.byref(number), ctypes.byref(minor))
    print(json.dumps(f"{number.value}.{minor.value}"))
elif sys.argv[2] == "cuDriverGetVersion":
    call(ctypes.byref(number))
    devices, status = ctypes.c_int(0), library.cuInit(0)
    status = status or library.cuDeviceGetCount(ctypes.byref(devices))
    noun = "device" if devices.value == 1 else "devices"
    print(json.dumps(f"CUDA {number.value // 1000}.{number.value % 1000 // 10}, {devices.value} {noun}"
                     + (f", error {status}" if status else "")))
else:
    call.restype = ctypes.c_size_t
    version = call()
    print(json.dumps(f"{version // 10000}.{version % 10000 // 100}.{version % 100}"))
"""


def examine() -> list[Finding]:
    """Every finding, the driver first."""
    folders = list(search_folders())
    found = [check_library(library, copies(library.stem, folders)) for library in LIBRARIES]
    return [*found, check_devices(found[0]), *(check_package(*package) for package in PACKAGES)]


def search_folders() -> Iterable[Path]:
    """Folders where the loader or the wheels keep libraries, each once, in the order they are searched."""
    candidates: list[Path] = []
    for entry in sys.path:
        candidates += sorted(Path(entry or ".").glob("nvidia/*/lib")) + sorted(Path(entry or ".").glob("nvidia/*/bin"))
    candidates += [Path(p) for p in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if p]
    for home in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(home):
            candidates += [Path(os.environ[home]) / "lib64", Path(os.environ[home]) / "lib"]
    candidates += [Path("/usr/local/cuda/lib64"), Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"),
                   Path("/usr/lib64"), Path("/usr/local/nvidia/lib64"), Path("/usr/lib/wsl/lib")]  # fmt: skip
    seen: set[Path] = set()
    for folder in candidates:
        if folder.is_dir() and (real := folder.resolve()) not in seen:
            seen.add(real)
            yield folder


def copies(stem: str, folders: Iterable[Path]) -> list[Path]:
    """Files of one library, each real file once."""
    found: dict[Path, Path] = {}
    for folder in folders:
        path = folder / stem
        if path.exists():
            found.setdefault(path.resolve(), path)
    return list(found.values())


def check_library(library: Library, paths: list[Path]) -> Finding:
    cure = brought(library.package) if library.package else "install the NVIDIA driver"
    if not paths:
        return Finding(library.name, "missing", f"{library.stem} is in no folder that is searched", cure)
    tried = {path: attempt(library, path) for path in paths}
    working = {path: answer for path, answer in tried.items() if not answer.startswith("failed")}
    if not working:
        path, answer = next(iter(tried.items()))
        return Finding(library.name, "missing", f"{path} is there but {answer}", cure)
    path, answer = next(iter(working.items()))
    if len(set(working.values())) > 1:
        listed = ", ".join(f"{a} at {p}" for p, a in working.items())
        return Finding(library.name, "warning", f"copies of different versions: {listed}",
                       "keep one; the first on the loader's path wins and may not be the one you mean")  # fmt: skip
    return Finding(library.name, "ok", f"version {answer} at {path}")


def check_devices(driver: Finding) -> Finding:
    """Whether there is a device, as the driver counted them; without one, what can be done all the same."""
    counted = re.search(r"(\d+) devices?", driver.detail)
    if driver.status != "missing" and counted is not None and int(counted[1]):
        return Finding("GPU", "ok", counted[0])
    why = "the driver sees no device" if driver.status != "missing" else "no device is seen without a driver"
    return Finding("GPU", "missing", f"there is none here: {why}", WITHOUT_GPU)


def attempt(library: Library, path: Path) -> str:
    """The library's version as a child process reads it, or "failed: ..." with the last line it printed."""
    command = [sys.executable, "-c", TRIAL, str(path), library.version_call]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TRY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"failed: loading it took over {TRY_SECONDS} s"
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return f"failed: {last[0]}"
    answer: str = json.loads(done.stdout)
    return f"{answer}, release {release_of(str(path))}" if library.version_call == DRIVER_VERSION else answer


def brought(package: str) -> str:
    """By the extra, not by name: the newest cuDNN is none that was tried here."""
    return f"pip install 'graphdnn[cuda13]' brings {package}"


def check_package(name: str, least: tuple[int, ...], end: tuple[int, ...], purpose: str) -> Finding:
    try:
        found = version(name)
    except PackageNotFoundError:
        return Finding(name, "missing", f"not installed ({purpose})", brought(name))
    if not least <= tuple(int(n) for n in re.findall(r"\d+", found)[:3]) < end:
        low, high = (".".join(map(str, v)) for v in (least, end))
        wanted = f">={low},<{high}"
        return Finding(name, "warning", f"version {found}; {wanted} is needed", f"pip install '{name}{wanted}'")
    return Finding(name, "ok", f"version {found} ({purpose})")


def healthy(findings: Iterable[Finding]) -> bool:
    """Whether nothing is missing."""
    return all(f.status != "missing" for f in findings)
