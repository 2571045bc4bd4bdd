"""Built plans: cubins loaded into the device and launched with arguments packed in place.

Small kernels are launched programmatically: while the one before them on the stream still runs, so that its end and
their start overlap.  They wait for it themselves before they read or write anything (`emit.opening`).
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from math import prod
from typing import Any

from graphdnn.answer import Code, Decline
from graphdnn.engines.nvrtc.recipe import Buffer, Kernel, Recipe
from graphdnn.engines.serialization import Identity
from graphdnn.errors import MomentaryError, error_of
from graphdnn.relaxed import relaxed
from graphdnn.target import Target

SHARED_BY_DEFAULT = 48 * 1024
"""Dynamic shared memory that a kernel may use without asking the driver for more."""


OVERLAPPING = (9, 0)
"""Least compute capability with programmatic launches."""


def overlapped_blocks(target: Target) -> int:
    """Most blocks of a kernel that is launched programmatically: so few that all run at the same time.

    On an H200 chains of small norms took 8 % less that way, a BERT-large layer of 128 tokens 3 %.  Kernels of several
    waves lose, since blocks that wait take the places of those that were to run: norms of 4096 rows took 12 % more.
    """
    return 2 * target.sm_count if target.compute_capability >= OVERLAPPING else 0


class LaunchArguments(threading.local):
    """Argument values of one kernel and the array of pointers to them that the driver reads; one a thread.

    `config` says of a programmatic launch what the arguments of a plain one do.
    """

    def __init__(self, count: int, shape: Sequence[int], is_programmatic: bool) -> None:
        self.config = programmatic(shape) if is_programmatic else None
        self.values = (ctypes.c_uint64 * max(count, 1))()
        start, step = ctypes.addressof(self.values), ctypes.sizeof(ctypes.c_uint64)
        self.pointers = (ctypes.c_void_p * max(count, 1))(*(start + i * step for i in range(count)))
        self.address = ctypes.addressof(self.pointers)


def programmatic(shape: Sequence[int]) -> Any:
    """The configuration of a programmatic launch: grid, block, bytes of dynamic shared memory."""
    from cuda.bindings import driver

    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = shape[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ, config.sharedMemBytes = shape[3:]
    config.attrs, config.numAttrs = [attribute], 1
    return config


class Launch:
    """One loaded kernel with its launch shape and where its arguments come from."""

    def __init__(self, kernel: Kernel, function: Any, is_programmatic: bool) -> None:
        self.entry = kernel.entry
        self.function = function
        self.shape = (*kernel.grid, *kernel.block, kernel.shared_bytes)
        self.arguments = LaunchArguments(len(kernel.arguments), self.shape, is_programmatic)
        self.from_buffers = tuple((i, a.index) for i, a in enumerate(kernel.arguments) if isinstance(a, Buffer))
        self.from_scratch = tuple((i, a.offset) for i, a in enumerate(kernel.arguments) if not isinstance(a, Buffer))


class NvrtcPlan:
    """A recipe ready to run: each call fills in addresses and launches; nothing is allocated, copied or awaited.

    `identity` is what the plan is of, as saving it says.
    """

    def __init__(
        self,
        recipe: Recipe,
        cubins: Sequence[bytes],
        identity: Identity,
        launches: Sequence[Launch],
        libraries: Sequence[Any],
    ) -> None:
        from cuda.bindings import driver

        self.name = recipe.name
        self.workspace_bytes = recipe.workspace_bytes
        self.in_place = recipe.in_place
        self.identity = identity
        self.cubins = tuple(cubins)
        self._launches = tuple(launches)
        self._launch_kernel = driver.cuLaunchKernel
        self._launch_programmatically = driver.cuLaunchKernelEx
        # Not at exit: the driver may be gone by then, and the process takes its memory along anyway.
        weakref.finalize(self, unload, tuple(libraries)).atexit = False

    def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
        """Puts the kernels on a stream.  Raises ExecutionError when the driver refuses one."""
        for launch in self._launches:
            arguments = launch.arguments
            values = arguments.values
            for slot, index in launch.from_buffers:
                values[slot] = addresses[index]
            for slot, offset in launch.from_scratch:
                values[slot] = workspace + offset
            config = arguments.config
            if config is None:
                (status,) = self._launch_kernel(launch.function, *launch.shape, stream, arguments.address, 0)
            else:
                config.hStream = stream
                (status,) = self._launch_programmatically(config, launch.function, arguments.address, 0)
            if status:
                raise error_of(int(status))(
                    f"generated kernel {launch.entry} of {self.name}: the driver refused the launch with {status.name}"
                )


def load_plan(recipe: Recipe, cubins: Sequence[bytes], identity: Identity, target: Target) -> NvrtcPlan | Decline:
    """Loads the cubins (one a kernel) into the current context, which is one of `target`.

    Declines with the driver's word where it fails.
    """
    launches: list[Launch] = []
    libraries: list[Any] = []
    for kernel, cubin in zip(recipe.kernels, cubins, strict=True):
        is_programmatic = prod(kernel.grid) <= overlapped_blocks(target)
        loaded = load_kernel(kernel, cubin, libraries, is_programmatic)
        if isinstance(loaded, Decline):
            unload(libraries)
            return loaded
        launches.append(loaded)
    return NvrtcPlan(recipe, cubins, identity, launches, libraries)


def load_kernel(kernel: Kernel, cubin: bytes, libraries: list[Any], is_programmatic: bool) -> Launch | Decline:
    """One kernel, loaded now rather than at its first launch, which may stand inside a stream capture."""
    from cuda.bindings import driver

    def answer(call: tuple[Any, ...], what: str) -> Any:
        if call[0]:
            code = Code.TRANSIENT if issubclass(error_of(int(call[0])), MomentaryError) else Code.BUILD
            return Decline(code, f"generated kernel {kernel.entry}: the driver failed to {what} it: {call[0].name}")
        return call[1] if len(call) > 1 else None

    library = answer(driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0), "load")
    if isinstance(library, Decline):
        return library
    libraries.append(library)
    found = answer(driver.cuLibraryGetKernel(library, kernel.entry.encode()), "find")
    function = found if isinstance(found, Decline) else answer(driver.cuKernelGetFunction(found), "prepare")
    if isinstance(function, Decline):
        return function
    if kernel.shared_bytes > SHARED_BY_DEFAULT:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        refused = answer(
            driver.cuFuncSetAttribute(function, attribute, kernel.shared_bytes),
            f"give {kernel.shared_bytes} bytes of shared memory to",
        )
        if isinstance(refused, Decline):
            return refused
    return Launch(kernel, function, is_programmatic)


def unload(libraries: Sequence[Any]) -> None:
    from cuda.bindings import driver

    with relaxed():
        for library in libraries:
            driver.cuLibraryUnload(library)
