"""From source to cubin: NVRTC through cuda.bindings, cached by source, options, compiler version and architecture.

It needs no driver and no device, and no headers: the kernels include none.  Threads that want one cubin at the same
time share one compilation.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from graphdnn.answer import Code, Decline, missing
from graphdnn.engines.contract import Store
from graphdnn.errors import OutOfMemoryError
from graphdnn.once import Once

BINDINGS, LIBRARY = "cuda-python", "nvidia-cuda-nvrtc"
"""Package that brings the bindings, and the one that brings the library."""

KIND = "cubin"
"""Kind of the store's entries."""

STANDARD_OPTIONS = ("--std=c++17", "--device-as-default-execution-space", "--minimal")

COMPILING = Once()
"""Compilations by cubin and store: what is shared must lie in the store of whoever asked."""


@functools.cache
def compiler_version() -> tuple[int, int] | Decline:
    """Version of the NVRTC library that is found here; a Decline that names the package where there is none."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        return missing(BINDINGS, f"generated kernels need cuda-bindings, which cannot be imported ({error})")
    try:
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:  # The loader's own exception type depends on the version of cuda-pathfinder.
        return missing(
            LIBRARY, f"generated kernels need NVRTC (libnvrtc), which cannot be loaded ({first_line(error)})"
        )
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        return missing(LIBRARY, f"generated kernels need NVRTC (libnvrtc), which answers {status.name}")
    return int(major), int(minor)


@functools.cache
def compiler_build() -> str:
    """Full version of the package that brings the compiler, which itself tells two numbers; empty where it is from
    elsewhere."""
    try:
        return metadata.version(LIBRARY)
    except metadata.PackageNotFoundError:
        return ""


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def compile_cubin(source: str, arch: str, options: Sequence[str] = (), store: Store | None = None) -> bytes | Decline:
    """The cubin of `source` for an architecture such as "sm_90"; from `store` where it holds it.

    Declines with `setup` where there is no NVRTC, with `build` and the compiler's first error where it refuses.
    """
    version = compiler_version()
    if isinstance(version, Decline):
        return version
    flags = flags_for(arch, options)
    key = cache_key(source, flags, version, compiler_build())
    return COMPILING((key, store), lambda: stored_cubin(source, flags, key, store))


def forget_cubin(source: str, arch: str, options: Sequence[str], store: Store) -> None:
    """Drops what the store holds as the cubin of `source`."""
    version = compiler_version()
    if not isinstance(version, Decline):
        store.drop(KIND, cache_key(source, flags_for(arch, options), version, compiler_build()))


def flags_for(arch: str, options: Sequence[str]) -> tuple[str, ...]:
    return (f"--gpu-architecture={arch}", *STANDARD_OPTIONS, *options)


def stored_cubin(source: str, flags: Sequence[str], key: str, store: Store | None) -> bytes | Decline:
    """The cubin from the store, else compiled and put there; what the compiler refuses leaves no entry."""
    if store is not None and (kept := store.get(KIND, key)):
        return kept
    cubin = run_compiler(source, flags)
    if store is not None and isinstance(cubin, bytes):
        store.put(KIND, key, cubin)
    return cubin


def cache_key(source: str, flags: Sequence[str], version: tuple[int, int], build: str) -> str:
    """SHA-256 over all that decides the cubin; the architecture is one of the flags."""
    return hashlib.sha256("\0".join((*map(str, version), build, *flags, source)).encode()).hexdigest()


def run_compiler(source: str, flags: Sequence[str]) -> bytes | Decline:
    """One compilation.  The program is destroyed whatever happens."""
    from cuda.bindings import nvrtc

    program = checked(nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [f.encode() for f in flags])
        if status == nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY:
            return Decline(Code.TRANSIENT, f"NVRTC failed with {status.name}")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return Decline(Code.BUILD, f"NVRTC refused a generated kernel: {first_error(nvrtc, program, status.name)}")
        size = checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        cubin = bytearray(size)
        checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def checked(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    """The result of a call.  Raises OutOfMemoryError for a lack of memory, RuntimeError for any other failure that no
    input explains."""
    if answer[0] == nvrtc.nvrtcResult.NVRTC_ERROR_OUT_OF_MEMORY:
        raise OutOfMemoryError(f"NVRTC failed with {answer[0].name}")
    if answer[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC failed with {answer[0].name}; its library and cuda-bindings may not fit each other")
    return answer[1] if len(answer) > 1 else None


def first_error(nvrtc: Any, program: Any, status: str) -> str:
    log = bytearray(checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
    checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
    lines = log.decode(errors="replace").strip("\0 \n").splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else status)
