"""CUDA calls that would invalidate a stream capture in progress, made in a mode in which they do not.

Measured on the H200: unloading a kernel's library, destroying an executable graph or a cuDNN plan, and creating a
handle invalidate a capture in global mode, whichever thread makes them, unless that thread's capture mode is relaxed.
Python destroys objects at any time and in any thread, so that nobody could wait for the end of the capture.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def relaxed() -> Iterator[None]:
    """A while in which this thread's capture mode is relaxed.  Nothing may be put on a stream meanwhile."""
    from cuda.bindings import driver

    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    try:
        _, before = driver.cuThreadExchangeStreamCaptureMode(mode)
    except RuntimeError:  # without a driver, for which plans can be built too, nothing is captured
        yield
        return
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


def let_go(held: list[object]) -> None:
    """Drops what a list holds, ending no capture."""
    with relaxed():
        held.clear()
