"""cuda.core buffers that outlive their last holder until somebody says that their memory may go.

cuda.core's own resources free a buffer in the order of one stream, or at once.  Neither will do here: memory of ours
may have been used on any stream that a caller named, and freeing at once waits for the device and breaks a capture.
"""

from __future__ import annotations

from typing import Any

from cuda.core import Buffer, MemoryResource


class DeferredResource(MemoryResource):  # type: ignore[misc]
    """Device memory, or with `on_host` page-locked host memory.  `allocate` and `free` ask the driver; what nobody
    holds any more is noted in `dropped` as pairs of this resource and an address."""

    def __init__(self, device: Any, on_host: bool, dropped: list[tuple[DeferredResource, int]]) -> None:
        self._device = device
        self._on_host = on_host
        self._dropped = dropped

    def allocate(self, size: int, *, stream: Any = None) -> Buffer:
        """A buffer of at least one byte, ready for use on any stream.  Raises ExecutionError where there is none."""
        driver = self._device.driver
        nbytes = max(size, 1)
        if self._on_host:
            address = self._device.check(f"lock {size} bytes", driver.cuMemHostAlloc(nbytes, 0))
        else:
            address = self._device.check(f"allocate {size} bytes", driver.cuMemAlloc(nbytes))
        return Buffer.from_handle(int(address), nbytes, mr=self)

    def deallocate(self, ptr: Any, size: int, stream: Any = None) -> None:
        """Called when nobody holds a buffer any more, from any thread and at any time."""
        self._dropped.append((self, int(ptr)))

    def free(self, address: int) -> None:
        """Gives memory back to the driver."""
        driver = self._device.driver
        release = driver.cuMemFreeHost if self._on_host else driver.cuMemFree
        self._device.check("free memory", release(address))

    @property
    def is_device_accessible(self) -> bool:
        return True

    @property
    def is_host_accessible(self) -> bool:
        return self._on_host

    @property
    def device_id(self) -> int:
        """Ordinal of the device; page-locked memory says -1."""
        return -1 if self._on_host else int(self._device.ordinal)
