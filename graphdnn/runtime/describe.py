"""What the device that is here is to the planner: measured ceilings where we have them, a datasheet's elsewhere."""

from __future__ import annotations

import ctypes
import sysconfig
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.driver import driver_release
from graphdnn.target import Target, described, known_devices

PACKAGES = {"cudnn_frontend": "nvidia-cudnn-frontend", "cublas": "nvidia-cublas", "nvrtc": "nvidia-cuda-nvrtc"}
"""Package that brings each library whose version a Target states, besides cuDNN.  The frontend is one: what it lowers
and proposes depends on it."""

CUDNN_FILES = (
    "nvidia/cudnn/lib/libcudnn.so.*[0-9]",
    "nvidia/cudnn_jit/lib/libcudnn.so.*[0-9]",
    "nvidia/cudnn/bin/cudnn64_9.dll",
)
"""Where wheels of any CUDA put cuDNN.  The frontend takes that, else what the loader finds by one of CUDNN_NAMES."""

CUDNN_NAMES = ("libcudnn.so.9", "libcudnn.so", "cudnn64_9.dll")

MATRIX_RATE = {7: 1024, 8: 2048, 9: 4096, 10: 8192}
"""Half-precision operations per cycle and multiprocessor of the matrix units, by major compute capability."""

CONSUMER_MATRIX_RATE = 1024
"""The same where the minor number is not 0."""

REACH = 0.75
"""Part of a datasheet's peak that large kernels reach."""

FLOAT32_RATE = 256
"""Operations per cycle and multiprocessor outside the matrix units: 128 multiply-adds, each counted as two.  Devices of
compute capability 8.0 and below do half as many."""

FLOAT64_RATE = 4
"""The same in float64 on devices for graphics; those for data centres do many times as many."""

SPECIAL_RATE = 32
"""Special functions per cycle and multiprocessor."""

GAP_US = 2.0
"""Microseconds between two kernels in a captured graph, a guess for devices that were not measured."""

UNKNOWN_BANDWIDTH = 3e11
"""Bytes per second where the driver tells no memory clock."""


def describe(device: CudaDevice) -> Target:
    """The described device of this name with the versions and multiprocessors found here, of which a part of a device
    has fewer, or a description from attributes."""
    words = device.name.lower().replace("-", " ").split()
    name = next((n for n in known_devices() if n in words), None)
    versions = {key: found for key, package in PACKAGES.items() if (found := version(package))}
    if (cudnn := cudnn_version()) is not None:
        versions["cudnn"] = cudnn
    versions["driver"] = device.driver_version
    versions["driver_release"] = driver_release()
    if name is None:
        return from_attributes(device, versions)
    known = described(name)
    return replace(
        known,
        present=True,
        ordinal=device.ordinal,
        sm_count=device.properties().multiprocessor_count,
        versions=versions,
    )


def from_attributes(device: CudaDevice, versions: dict[str, str]) -> Target:
    """A description by the counts of multiprocessors and by the clocks, which the driver gives in kHz."""
    found = device.properties()
    major, minor = found.compute_capability_major, found.compute_capability_minor
    cycles = found.multiprocessor_count * found.clock_rate * 1e3
    half = (CONSUMER_MATRIX_RATE if minor else MATRIX_RATE.get(major, CONSUMER_MATRIX_RATE)) * cycles * REACH
    return Target(
        name=device.name,
        kind="cuda",
        present=True,
        bandwidth=2e3 * found.memory_clock_rate * found.global_memory_bus_width / 8 * REACH or UNKNOWN_BANDWIDTH,
        rates={
            "float16": half,
            "bfloat16": half,
            "tf32": half / 2,
            "int8": 2 * half,
            "float32": FLOAT32_RATE * cycles * REACH,
            "float64": FLOAT64_RATE * cycles,
            "special": SPECIAL_RATE * cycles * REACH,
        },
        launch_us=GAP_US,
        compute_capability=(major, minor),
        sm_count=found.multiprocessor_count,
        l2_bytes=found.l2_cache_size,
        memory_bytes=device.memory_bytes,
        shared_bytes=found.max_shared_memory_per_block_optin,
        versions=versions,
        ordinal=device.ordinal,
    )


def cudnn_version() -> str | None:
    """Version of the cuDNN that the frontend loads, which need not come from a wheel; None where there is none.

    The library itself is asked, in 3 ms; importing the frontend takes seconds.
    """
    folder = Path(sysconfig.get_path("purelib"))
    wheels = [str(path) for pattern in CUDNN_FILES for path in folder.glob(pattern)]
    for name in wheels[:1] or CUDNN_NAMES:
        try:
            ask = ctypes.CDLL(name).cudnnGetVersion
        except (OSError, AttributeError):
            continue
        ask.restype = ctypes.c_size_t
        number = ask()
        return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
    return None


def version(package: str) -> str | None:
    """First three components of an installed package's version."""
    try:
        return ".".join(metadata.version(package).split(".")[:3])
    except metadata.PackageNotFoundError:
        return None
