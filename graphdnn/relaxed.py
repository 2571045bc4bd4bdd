"""Calls that end a capture, of this thread or another, unless the thread that makes them is in relaxed mode.

Measured on the H200: a kernel's library, an executable graph or a plan of cuDNN that goes, and a handle that is made,
end a capture in global mode wherever it runs, and none in relaxed mode.  Objects go when nobody refers to them, at any
time and in any thread, so that nobody can wait for the capture's end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def relaxed() -> Iterator[None]:
    """Within, what this thread allocates or lets go of ends no capture; nothing of it may be put on a stream."""
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
