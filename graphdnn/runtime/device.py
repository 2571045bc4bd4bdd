"""The devices that are here: contexts, streams, memory, copies and events.

cuda.core finds the device and makes its context, its streams and the buffers that memory is held by (resource.py says
when they are freed).  Events, copies and captures are the driver's own calls.
"""

from __future__ import annotations

import copy
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from graphdnn.engines.contract import MEMORY_ALIGNMENT, Store, aligned
from graphdnn.errors import ContextLostError, ExecutionError, MomentaryError, OutOfMemoryError, SetupError
from graphdnn.lazy import cached_property
from graphdnn.runtime.buffers import Memory, Pinned
from graphdnn.runtime.driver import CAPTURE_IMPLICIT, STICKY_ERRORS, check, core, driver
from graphdnn.runtime.foreign_capture import foreign_capture
from graphdnn.runtime.retain import Retentions
from graphdnn.target import Target

if TYPE_CHECKING:
    from graphdnn.runtime.capture import CapturedGraph
    from graphdnn.runtime.resource import DeferredResource

EVENT_DISABLE_TIMING = 2
"""CU_EVENT_DISABLE_TIMING: an event that only orders costs less."""

UNCAPTURED = "work on the CPU is done when a call returns, so it cannot be captured"
"""Why a host has no captures."""


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
        self.capturing = threading.Lock()
        self.dropped: list[tuple[DeferredResource, int]] = []
        self.capture_stream: Any = None
        self.retentions = Retentions()


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
        self.driver = driver()
        self._core = core()
        from graphdnn.runtime.resource import DeferredResource

        device = self._core.Device(ordinal)
        self.is_alone = check("count devices", self.driver.cuDeviceGetCount()) == 1
        self._context = check("open a device", self.driver.cuDevicePrimaryCtxRetain(ordinal))
        self._local = threading.local()
        self._shared = _Shared()
        self._device_memory = DeferredResource(self, False, self._shared.dropped)
        self._pinned_memory = DeferredResource(self, True, self._shared.dropped)
        self.name = str(device.name)
        self.check_no_capture("opening a device")
        self._stream = self.new_stream()
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
        if self.is_alone and getattr(self._local, "ready", False):
            return self
        self._enter_first()
        return self

    def _enter_first(self) -> None:
        """Makes the context current where it is not, remembering what to restore on machines with several devices."""
        current = int(check("read the current context", self.driver.cuCtxGetCurrent()))
        pushed = current not in (0, int(self._context))
        if pushed:
            check("enter the device", self.driver.cuCtxPushCurrent(self._context))
        elif current == 0:
            check("enter the device", self.driver.cuCtxSetCurrent(self._context))
        if self.is_alone:
            self._local.ready = True
            return
        stack = self._local.__dict__.setdefault("stack", [])
        stack.append(pushed)

    def __exit__(self, *_: object) -> None:
        if not self.is_alone and self._local.stack.pop():
            self.driver.cuCtxPopCurrent()

    @cached_property
    def target(self) -> Target:
        """What this device is: a described one where its name is known, else a description from its attributes."""
        from graphdnn.runtime.describe import describe

        return describe(self)

    @property
    def driver_version(self) -> str:
        """CUDA version of the driver, such as 13.0."""
        number = int(check("read the driver's version", self.driver.cuDriverGetVersion()))
        return f"{number // 1000}.{number % 1000 // 10}"

    @property
    def memory_bytes(self) -> int:
        return int(check("read the memory's size", self.driver.cuDeviceTotalMem(self.ordinal)))

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
        """Device memory aligned to MEMORY_ALIGNMENT.  Raises ExecutionError when there is not enough."""
        with self:
            buffer = self._buffer(self._device_memory, nbytes)
            return Memory(int(buffer.handle), nbytes, buffer)

    def pinned(self, nbytes: int) -> Pinned:
        """Page-locked host memory."""
        with self:
            buffer = self._buffer(self._pinned_memory, nbytes)
            return Pinned(int(buffer.handle), nbytes, buffer)

    def _buffer(self, resource: DeferredResource, nbytes: int) -> Any:
        self.check_no_capture("allocating memory")
        self.sweep()
        try:
            return resource.allocate(nbytes)
        except OutOfMemoryError:
            if not self._shared.dropped:
                raise
        self.sweep(patient=True)
        return resource.allocate(nbytes)

    def sweep(self, patient: bool = False) -> None:
        """Frees memory that nobody refers to any more; waits for the work that may still use it.

        While another thread captures or frees, nothing is done, unless `patient`, which waits for that too.
        """
        shared = self._shared
        if not shared.dropped and not shared.retentions:
            return
        if not shared.capturing.acquire(blocking=patient):  # waiting for the device would break that capture
            return
        try:
            shared.retentions.sweep()
            batch = shared.dropped[:]
            if not batch:
                return
            self.check("finish all work", self.driver.cuCtxSynchronize())
            del shared.dropped[: len(batch)]
            for resource, address in batch:
                resource.free(address)
        finally:
            shared.capturing.release()

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Device to device, in stream order."""
        self.check("copy on the device", self.driver.cuMemcpyDtoDAsync(target, source, nbytes, stream))

    def upload(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Pinned host memory to the device, in stream order."""
        self.check("copy to the device", self.driver.cuMemcpyHtoDAsync(target, source, nbytes, stream))

    def download(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Device to host memory, in stream order."""
        self.check("copy from the device", self.driver.cuMemcpyDtoHAsync(target, source, nbytes, stream))

    def write(self, target: int, source: int, nbytes: int) -> None:
        """Any host memory to the device; done when this returns."""
        with self:
            self.check("copy to the device", self.driver.cuMemcpyHtoDAsync(target, source, nbytes, self.stream))
            self.synchronize()

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        """Sets every byte, in stream order."""
        self.check("fill memory", self.driver.cuMemsetD8Async(target, byte, nbytes, stream))

    def synchronize(self, stream: int | None = None) -> None:
        """Waits for a stream, our own by default.  Raises ExecutionError for an error of the device."""
        with self:
            self.check(
                "finish the work on a stream",
                self.driver.cuStreamSynchronize(self.stream if stream is None else stream),
            )

    def event(self, timing: bool = False) -> Event:
        with self:
            flags = 0 if timing else EVENT_DISABLE_TIMING
            return Event(self.check("make an event", self.driver.cuEventCreate(flags)), self.driver.cuEventDestroy)

    def record(self, event: Event, stream: int) -> None:
        """The event stands for all work put on the stream so far."""
        self.check("record an event", self.driver.cuEventRecord(event.handle, stream))

    def wait(self, stream: int, event: Event) -> None:
        """Later work of the stream starts after the event."""
        self.check("wait for an event", self.driver.cuStreamWaitEvent(stream, event.handle, 0))

    def wait_on_host(self, event: Event) -> None:
        self.check("finish the work before an event", self.driver.cuEventSynchronize(event.handle))

    def elapsed_us(self, start: Event, end: Event) -> float:
        """Microseconds of device time between two finished events made with timing."""
        return 1e3 * float(self.check("read a time", self.driver.cuEventElapsedTime(start.handle, end.handle)))

    def check_alive(self, stream: int) -> None:
        """Raises ContextLostError where the context is lost, once the work on a stream is done; nothing that is being
        captured is waited for."""
        if not self.is_capturing(stream):
            self.synchronize(stream)

    def is_capturing(self, stream: int) -> bool:
        """Whether work put on the stream now would be captured into a graph, or would break a capture."""
        result = self.driver.cuStreamIsCapturing(stream)
        return int(result[0]) == CAPTURE_IMPLICIT or int(self.check("say whether a stream is captured", result)) != 0

    def check_no_capture(self, doing: str) -> None:
        """Raises MomentaryError where a stream of the caller's is known to be captured.  The driver would refuse too,
        and end the capture."""
        with self:
            found = foreign_capture(self)
        if found:
            raise MomentaryError(
                f"{doing} is not possible while {found} is being captured, during which nothing may be compiled, "
                "allocated or waited for; do it before the capture begins"
            )

    def ordinal_of(self, address: int) -> int:
        """On which device an address lies."""
        attribute = self.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return int(self.check("find an address", self.driver.cuPointerGetAttribute(attribute, address)))

    def capture(self, issue: Callable[[int], None]) -> CapturedGraph:
        """What `issue(stream)` puts on a stream, as one graph ready to launch."""
        from graphdnn.runtime.capture import capture

        return capture(self, issue)

    @contextmanager
    def capturing(self) -> Iterator[int]:
        """A stream for a capture of ours, which no other one may meet, nor a wait for the whole device."""
        with self._shared.capturing:
            if self._shared.capture_stream is None:
                self._shared.capture_stream = self.new_stream()
            yield int(self._shared.capture_stream.handle)

    def new_stream(self) -> Any:
        """A stream, as cuda.core's object, that lives as long as that."""
        with self:
            device = self._core.Device(self.ordinal)
            device.set_current()  # cuda.core makes streams only for a device that it was told is current in this thread
            return device.create_stream()

    def retain(self, stream: int, thing: object) -> bool:
        """Keeps something alive for as long as the graph that a caller captures on `stream` may replay its addresses.
        False where the driver cannot tell how long that is: it is kept until `release` then."""
        return self._shared.retentions.add(self.driver, stream, thing)

    def release(self, thing: object) -> None:
        """Lets go of something that was retained and that no graph holds."""
        self._shared.retentions.release(thing)

    def __str__(self) -> str:
        return f"cuda:{self.ordinal} ({self.name})"


class HostDevice:
    """The processor as a device: its memory is host memory, and work on it is done when a call returns."""

    stream = 0

    def __init__(self, store: Store | None = None) -> None:
        from graphdnn.runtime.cache import NullStore

        self.store: Store = NullStore() if store is None else store
        self.target = Target.cpu()

    def __enter__(self) -> HostDevice:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was made current."""

    def allocate(self, nbytes: int) -> Memory:
        """Host memory aligned to MEMORY_ALIGNMENT."""
        raw = np.zeros(nbytes + MEMORY_ALIGNMENT, np.uint8)
        return Memory(aligned(raw.ctypes.data), nbytes, raw)

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        """Sets every byte."""
        ctypes.memset(target, byte, nbytes)

    def capture(self, issue: Callable[[int], None]) -> CapturedGraph:
        """Raises ExecutionError: work here is done when a call returns."""
        raise ExecutionError(UNCAPTURED)

    def capturing(self) -> AbstractContextManager[int]:
        """Raises ExecutionError, as `capture` does."""
        raise ExecutionError(UNCAPTURED)

    def synchronize(self) -> None:
        """Nothing is ever pending here."""

    def __str__(self) -> str:
        return "cpu"


def device_for(kind: str, ordinal: int | None = None, cache_dir: str | None = None) -> CudaDevice | HostDevice:
    """The device of a kind of target, to build on, caching in `cache_dir`, in the default directory (None) or not at
    all ("").  Raises MomentaryError where a stream of the caller's is known to be captured."""
    from graphdnn.runtime.cache import DiskStore, NullStore

    if kind == "cpu":
        return HostDevice()
    device = CudaDevice.current(ordinal)
    device.check_no_capture("compiling or loading a graph")
    if cache_dir is None:
        return device
    return device.with_store(DiskStore(cache_dir) if cache_dir else NullStore())


def _after_fork() -> None:
    """CUDA does not survive a fork: every device that was opened before is lost in the child, which waits for no thread
    of its parent that was about to open one."""
    CudaDevice._lock = threading.Lock()
    for device in CudaDevice._opened.values():
        device._shared.lost = "this process was forked after CUDA had been used"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
