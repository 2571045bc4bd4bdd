"""The devices that are here: contexts, streams, memory, copies and events.

cuda.core finds the device and makes its context and streams.  Memory and events come from the driver directly: a buffer
of ours must outlive every stream that a caller may have used it on, and must be freed at a moment of our choosing.
"""

from __future__ import annotations

import copy
import ctypes
import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from graphdnn.engines.contract import Store
from graphdnn.errors import ExecutionError, SetupError
from graphdnn.ir.types import Array, TensorType
from graphdnn.runtime.memory import ALIGNMENT, aligned
from graphdnn.target import Target

if TYPE_CHECKING:
    from graphdnn.runtime.capture import CapturedGraph

LEGACY_STREAM = 1
"""The legacy default stream by its explicit handle; 0 would mean another stream where the driver is told so."""

PER_THREAD_STREAM = 2
"""The per-thread default stream: one handle that means another stream in each thread."""

NO_DEVICE = 100
STUB_LIBRARY = 34
EVENT_DISABLE_TIMING = 2
CAPTURE_IMPLICIT = 906
CAPTURE_ERRORS = range(900, 909)
STICKY_ERRORS = frozenset({214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719})
"""Errors after which a CUDA context never works again."""


class ContextLostError(ExecutionError):
    """The CUDA context of this process faulted and will not work again."""


@functools.cache
def _libcuda() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


def device_present() -> bool:
    """Whether a CUDA driver is here and has a device.  A driver that fails in any other way counts as present, so that
    its error is seen instead of a silent run on the CPU."""
    library = _libcuda()
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
    if _libcuda() is None:
        raise SetupError("the CUDA driver (libcuda) was not found; install an NVIDIA driver of version 580 or newer")
    status = bindings.cuInit(0)[0]
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


class Memory:
    """Device memory aligned to 256 bytes.  It is given back when nobody refers to it, or by `close`."""

    def __init__(self, handle: int, nbytes: int, release: Callable[[int], None]) -> None:
        self.handle = handle
        self.nbytes = nbytes
        self._finalizer = weakref.finalize(self, release, handle)
        self._finalizer.atexit = False

    def close(self) -> None:
        self._finalizer()


class Pinned(Memory):
    """Page-locked host memory, from and to which copies run beside other work."""

    def array(self, type: TensorType, offset: int = 0) -> Array:
        """The memory from `offset` bytes on as an array with the type's strides."""
        return host_view(self.handle + offset, type, self)


def host_view(address: int, type: TensorType, owner: object) -> Array:
    """Host memory whose first element is at `address` as an array of this type; `owner` lives as long as the array."""
    dtype = type.dtype.numpy
    reach = [(n - 1) * s for n, s in zip(type.shape, type.layout, strict=True)]
    low, high = sum(r for r in reach if r < 0), sum(r for r in reach if r > 0)
    raw: Any = (ctypes.c_byte * ((high - low + 1) * dtype.itemsize)).from_address(address + low * dtype.itemsize)
    raw.owner = owner
    flat: Array = np.frombuffer(raw, dtype=np.uint8).view(dtype)
    return np.lib.stride_tricks.as_strided(flat[-low:], type.shape, [s * dtype.itemsize for s in type.layout])


class Event:
    """A point in a stream that other streams and the host can wait for."""

    def __init__(self, handle: Any, destroy: Callable[[Any], object]) -> None:
        self.handle = handle
        self._finalizer = weakref.finalize(self, destroy, handle)
        self._finalizer.atexit = False


class _Shared:
    """What all views of one device in this process share."""

    def __init__(self) -> None:
        self.lost: str | None = None
        self.lock = threading.Lock()
        self.graveyard: list[tuple[bool, int]] = []
        self.capture_streams: list[Any] = []
        self.kept: dict[int, object] = {}


class CudaDevice:
    """A CUDA device in its primary context.  `with device:` makes the context current in this thread for a while.

    Memory that nobody refers to any more is freed at the next `allocate`, never in between: freeing waits for the
    device and would break a capture that the caller has running.
    """

    _opened: dict[int, CudaDevice] = {}  # noqa: RUF012 - one device object per ordinal and process is what is meant
    _lock = threading.Lock()

    def __init__(self, ordinal: int, store: Store) -> None:
        self.ordinal = ordinal
        self.store = store
        self._driver = driver()
        self._core = core()
        device = self._core.Device(ordinal)
        self._alone = check("count devices", self._driver.cuDeviceGetCount()) == 1
        self._context = check("open a device", self._driver.cuDevicePrimaryCtxRetain(ordinal))
        self._local = threading.local()
        self._shared = _Shared()
        self.name = str(device.name)
        self._stream = self._new_stream()
        self.stream = int(self._stream.handle)

    @staticmethod
    def current(ordinal: int | None = None) -> CudaDevice:
        """The device of this ordinal, or the one that is current in this thread, or device 0.

        Raises SetupError when the driver, a package or the device is missing.
        """
        bindings = driver()
        if ordinal is None:
            status, found = bindings.cuCtxGetDevice()
            ordinal = int(found) if int(status) == 0 else 0
        count = check("count devices", bindings.cuDeviceGetCount())
        if not 0 <= ordinal < count:
            raise SetupError(f"CUDA device {ordinal} was asked for, but this machine has {count}")
        with CudaDevice._lock:
            device = CudaDevice._opened.get(ordinal)
            if device is None:
                from graphdnn.runtime.cache import default_store

                device = CudaDevice._opened[ordinal] = CudaDevice(ordinal, default_store())
            return device

    def with_store(self, store: Store) -> CudaDevice:
        """The same device with another place to cache."""
        other = copy.copy(self)
        other.store = store
        return other

    def __enter__(self) -> CudaDevice:
        if self._shared.lost is not None:
            raise ContextLostError(
                f"the CUDA context of {self.name} does not work any more since {self._shared.lost}; "
                "start a new process ('spawn' or 'forkserver' in multiprocessing)"
            )
        if self._alone and getattr(self._local, "ready", False):
            return self
        self._enter_first()
        return self

    def _enter_first(self) -> None:
        """Makes the context current where it is not, remembering what to restore on machines with several devices."""
        current = int(check("read the current context", self._driver.cuCtxGetCurrent()))
        pushed = current not in (0, int(self._context))
        if pushed:
            check("enter the device", self._driver.cuCtxPushCurrent(self._context))
        elif current == 0:
            check("enter the device", self._driver.cuCtxSetCurrent(self._context))
        if self._alone:
            self._local.ready = True
            return
        stack = self._local.__dict__.setdefault("stack", [])
        stack.append(pushed)

    def __exit__(self, *_: object) -> None:
        if not self._alone and self._local.stack.pop():
            self._driver.cuCtxPopCurrent()

    @functools.cached_property
    def target(self) -> Target:
        """What this device is: a described one where its name is known, else a description from its attributes."""
        from graphdnn.runtime.describe import describe

        return describe(self)

    @property
    def driver_version(self) -> str:
        """CUDA version of the driver, such as 13.0."""
        number = int(check("read the driver's version", self._driver.cuDriverGetVersion()))
        return f"{number // 1000}.{number % 1000 // 10}"

    @property
    def memory_bytes(self) -> int:
        return int(check("read the memory's size", self._driver.cuDeviceTotalMem(self.ordinal)))

    def properties(self) -> Any:
        """cuda.core's properties of the device."""
        return self._core.Device(self.ordinal).properties

    def check(self, what: str, result: tuple[Any, ...]) -> Any:
        """The value of a driver call.  Raises ExecutionError, remembering an error that ends the context."""
        status = int(result[0])
        if status == 0:
            return result[1] if len(result) > 1 else None
        if status in STICKY_ERRORS:
            self._shared.lost = f"{result[0].name} was reported when asked to {what}"
            raise ContextLostError(f"the CUDA context of {self.name} is lost: {self._shared.lost}")
        return check(what, result)

    def allocate(self, nbytes: int) -> Memory:
        """Device memory aligned to 256 bytes.  Raises ExecutionError when there is not enough."""
        with self:
            self.sweep()
            handle = int(self.check(f"allocate {nbytes} bytes", self._driver.cuMemAlloc(max(nbytes, 1))))
            return Memory(handle, nbytes, functools.partial(_bury, self._shared, False))

    def pinned(self, nbytes: int) -> Pinned:
        """Page-locked host memory."""
        with self:
            self.sweep()
            handle = int(self.check(f"lock {nbytes} bytes", self._driver.cuMemHostAlloc(max(nbytes, 1), 0)))
            return Pinned(handle, nbytes, functools.partial(_bury, self._shared, True))

    def sweep(self) -> None:
        """Frees memory that nobody refers to any more; waits for the work that may still use it."""
        graves = self._shared.graveyard
        if not graves:
            return
        with self._shared.lock:
            batch = graves[:]
            del graves[: len(batch)]
        self.check("finish all work", self._driver.cuCtxSynchronize())
        for is_host, handle in batch:
            free = self._driver.cuMemFreeHost if is_host else self._driver.cuMemFree
            self.check("free memory", free(handle))

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Device to device, in stream order."""
        self.check("copy on the device", self._driver.cuMemcpyDtoDAsync(target, source, nbytes, stream))

    def upload(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Pinned host memory to the device, in stream order."""
        self.check("copy to the device", self._driver.cuMemcpyHtoDAsync(target, source, nbytes, stream))

    def download(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Device to host memory, in stream order."""
        self.check("copy from the device", self._driver.cuMemcpyDtoHAsync(target, source, nbytes, stream))

    def write(self, target: int, source: int, nbytes: int) -> None:
        """Any host memory to the device; done when this returns."""
        with self:
            self.check("copy to the device", self._driver.cuMemcpyHtoDAsync(target, source, nbytes, self.stream))
            self.synchronize()

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        """Sets every byte, in stream order."""
        self.check("fill memory", self._driver.cuMemsetD8Async(target, byte, nbytes, stream))

    def synchronize(self, stream: int | None = None) -> None:
        """Waits for a stream, our own by default.  Raises ExecutionError for an error of the device."""
        with self:
            self.check(
                "finish the work on a stream",
                self._driver.cuStreamSynchronize(self.stream if stream is None else stream),
            )

    def event(self, timing: bool = False) -> Event:
        with self:
            flags = 0 if timing else EVENT_DISABLE_TIMING
            return Event(self.check("make an event", self._driver.cuEventCreate(flags)), self._driver.cuEventDestroy)

    def record(self, event: Event, stream: int) -> None:
        """The event stands for all work put on the stream so far."""
        self.check("record an event", self._driver.cuEventRecord(event.handle, stream))

    def wait(self, stream: int, event: Event) -> None:
        """Later work of the stream starts after the event."""
        self.check("wait for an event", self._driver.cuStreamWaitEvent(stream, event.handle, 0))

    def wait_on_host(self, event: Event) -> None:
        self.check("finish the work before an event", self._driver.cuEventSynchronize(event.handle))

    def elapsed_us(self, start: Event, end: Event) -> float:
        """Microseconds of device time between two finished events made with timing."""
        return 1e3 * float(self.check("read a time", self._driver.cuEventElapsedTime(start.handle, end.handle)))

    def is_capturing(self, stream: int) -> bool:
        """Whether work put on the stream now would be captured into a graph, or would break a capture."""
        result = self._driver.cuStreamIsCapturing(stream)
        return int(result[0]) == CAPTURE_IMPLICIT or int(self.check("ask for a capture", result)) != 0

    def ordinal_of(self, address: int) -> int:
        """On which device an address lies."""
        attribute = self._driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self.check("find an address", self._driver.cuPointerGetAttribute(attribute, address)))

    def capture(self, issue: Callable[[int], None]) -> CapturedGraph:
        """What `issue(stream)` puts on a stream, as one graph ready to launch."""
        from graphdnn.runtime.capture import capture

        return capture(self, issue)

    def take_stream(self) -> Any:
        """A stream that nobody else uses until it is handed back; captures in two threads must not meet."""
        try:
            return self._shared.capture_streams.pop()
        except IndexError:
            return self._new_stream()

    def _new_stream(self) -> Any:
        with self:
            device = self._core.Device(self.ordinal)
            device.set_current()  # cuda.core makes streams only for a device that it was told is current in this thread
            return device.create_stream()

    def hand_back(self, stream: Any) -> None:
        self._shared.capture_streams.append(stream)

    def keep(self, thing: object) -> None:
        """Keeps something alive until `release`: a caller's own graph may replay its addresses at any time."""
        self._shared.kept[id(thing)] = thing

    def release(self, thing: object) -> None:
        self._shared.kept.pop(id(thing), None)

    def __str__(self) -> str:
        return f"cuda:{self.ordinal} ({self.name})"


class HostDevice:
    """The processor as a device: its memory is host memory, and work on it is done when a call returns."""

    stream = 0

    def __init__(self, store: Store | None = None) -> None:
        from graphdnn.runtime.cache import NullStore

        self.store: Store = NullStore() if store is None else store
        self.target = Target.cpu()

    def allocate(self, nbytes: int) -> Memory:
        """Host memory aligned to 256 bytes."""
        raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
        kept = [raw]
        return Memory(aligned(raw.ctypes.data), nbytes, lambda _: kept.clear())

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        """Sets every byte."""
        ctypes.memset(target, byte, nbytes)

    def capture(self, issue: Callable[[int], None]) -> CapturedGraph:
        """Raises ExecutionError: work here is done when a call returns."""
        raise ExecutionError("work on the CPU is done when a call returns, so it cannot be captured")

    def synchronize(self) -> None:
        """Nothing is ever pending here."""

    def __str__(self) -> str:
        return "cpu"


def device_for(kind: str, ordinal: int | None = None, cache_dir: str | None = None) -> CudaDevice | HostDevice:
    """The device of a kind of target, caching in `cache_dir`, in the default directory (None) or not at all ("")."""
    from graphdnn.runtime.cache import DiskStore, NullStore

    if kind == "cpu":
        return HostDevice()
    device = CudaDevice.current(ordinal)
    if cache_dir is None:
        return device
    return device.with_store(DiskStore(cache_dir) if cache_dir else NullStore())


def _after_fork() -> None:
    """CUDA does not survive a fork: every device that was opened before is lost in the child."""
    for device in CudaDevice._opened.values():
        device._shared.lost = "this process was forked after CUDA had been used"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def check(what: str, result: tuple[Any, ...]) -> Any:
    """The value of a driver call.  Raises ExecutionError saying what was asked for and what the driver answered."""
    status = result[0]
    if int(status) == 0:
        return result[1] if len(result) > 1 else None
    note = ""
    if int(status) in CAPTURE_ERRORS:
        note = "; a stream is being captured, during which nothing may be compiled, allocated or waited for"
    raise ExecutionError(f"CUDA was asked to {what} and answered {status.name}{note}")


def _bury(shared: _Shared, is_host: bool, handle: int) -> None:
    shared.graveyard.append((is_host, handle))
