"""The CUDA driver as it is found here: whether and which, its bindings, its errors in words, streams by handle."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from pathlib import Path
from typing import Any

from graphdnn.errors import CAPTURE_ERRORS, ExecutionError, SetupError, error_of

LEGACY_STREAM = 1
"""The legacy default stream by its explicit handle; 0 would mean another stream where the driver is told so."""

PER_THREAD_STREAM = 2
"""The per-thread default stream: one handle that means another stream in each thread."""

NOT_INITIALIZED = 3
FORKED = (
    "as it does in a process that was forked after CUDA had been used; start a new one ('spawn' or 'forkserver' in "
    "multiprocessing)"
)
"""What the driver answers to whoever has initialised it only before a fork, and what is to be done."""

NO_DEVICE, STUB_LIBRARY, CAPTURE_IMPLICIT = 100, 34, 906
"""Errors of the driver by number, as cuda.h has them."""

STICKY_ERRORS = frozenset({214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719})
"""Errors after which a CUDA context never works again."""


@functools.cache
def libcuda() -> ctypes.CDLL | None:
    """The driver's library, where the loader finds it."""
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


RELEASE = re.compile(r"\d{3,}\.\d+(?:\.\d+)?")
"""How NVIDIA counts driver releases: 580.95.05."""

KERNEL_MODULE = Path("/proc/driver/nvidia/version")
"""Where Linux tells which kernel module runs."""

UNKNOWN_RELEASE = "unknown"


@functools.cache
def driver_release() -> str:
    """The driver's release, such as 580.95.05, which may change while its CUDA version stays; "unknown" where nothing
    tells it."""
    library = libcuda()
    return UNKNOWN_RELEASE if library is None else release_of(file_of(library.cuInit))


def release_of(library: str) -> str:
    """The release of a driver's library by its file's real name, else that of the kernel module, else "unknown".

    The library's comes first: with a compatibility package it is another than the module's, and loads the kernels.
    """
    _, _, name = os.path.realpath(library).rpartition(".so.")
    if RELEASE.fullmatch(name):
        return name
    try:
        told = RELEASE.search(KERNEL_MODULE.read_text().partition("\n")[0])
    except (OSError, UnicodeDecodeError):
        return UNKNOWN_RELEASE
    return told[0] if told else UNKNOWN_RELEASE


class Symbol(ctypes.Structure):
    """What the loader knows of an address: Dl_info of dlfcn.h."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def file_of(function: Any) -> str:
    """The file that a function of a loaded library is from; empty where the loader does not tell."""
    if sys.platform == "win32":
        return ""
    found = Symbol()
    known = ctypes.CDLL(None).dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(found))
    return os.fsdecode(found.file) if known and found.file else ""


def device_present() -> bool:
    """Whether a CUDA driver is here and has a device.  A driver that fails in any other way counts as present, so that
    its error is seen instead of a silent run on the CPU."""
    library = libcuda()
    if library is None:
        return False
    status = library.cuInit(0)
    count = ctypes.c_int(0)
    if status == 0:
        status = library.cuDeviceGetCount(ctypes.byref(count))
    return count.value > 0 if status == 0 else status not in (NO_DEVICE, STUB_LIBRARY)


@functools.cache
def driver() -> Any:
    """The module cuda.bindings.driver, initialised.  Raises SetupError naming the missing package or driver."""
    try:
        from cuda.bindings import driver as bindings
    except ImportError as error:
        raise SetupError(
            f"cuda.bindings could not be imported ({error}); install the package cuda-python>=13,<14"
        ) from None
    if libcuda() is None:
        raise SetupError("the CUDA driver (libcuda) was not found; install an NVIDIA driver of version 580 or newer")
    status = bindings.cuInit(0)[0]
    if int(status) == NOT_INITIALIZED:
        raise SetupError(f"the CUDA driver answered {status.name}, {FORKED}")
    if int(status):
        raise SetupError(f"the CUDA driver found no usable device ({status.name})")
    return bindings


def core() -> Any:
    """The module cuda.core.  Raises SetupError naming the package that brings it."""
    try:
        import cuda.core
    except ImportError as error:
        raise SetupError(f"cuda.core could not be imported ({error}); install the package cuda-core>=0.6,<2") from None
    return cuda.core


def check(what: str, result: tuple[Any, ...]) -> Any:
    """The value of a driver call.  Raises ExecutionError saying what was asked for and what the driver answered;
    OutOfMemoryError where that is a lack of memory, MomentaryError where somebody's capture is in the way."""
    status = result[0]
    if int(status) == 0:
        return result[1] if len(result) > 1 else None
    note = ""
    if int(status) in CAPTURE_ERRORS:
        note = "; a stream is being captured, during which nothing may be compiled, allocated or waited for"
    elif int(status) == NOT_INITIALIZED:
        note = f", {FORKED}"
    raise error_of(int(status))(f"CUDA was asked to {what} and answered {status.name}{note}")


def stream_handle(stream: object | None) -> int:
    """Handle of a caller's stream: None is the legacy default stream, else an int or an object with __cuda_stream__.

    Raises ExecutionError for anything else.
    """
    if stream is None:
        return LEGACY_STREAM
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream or LEGACY_STREAM
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is None:
        raise ExecutionError(
            f"stream is a {type(stream).__name__}; an int, None or an object with __cuda_stream__ is needed"
        )
    return int(protocol()[1]) or LEGACY_STREAM
