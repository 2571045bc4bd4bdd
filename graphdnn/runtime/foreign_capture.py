"""Whether a stream of the caller's is being captured, as far as that can be known without ending the capture.

The driver lists no captures, and a call that it refuses during one ends it.  What it tells harmlessly is whether a
given stream is being captured: asked are the legacy default stream, which answers for every stream that is ordered with
it, and those on which PyTorch and CuPy put their work in this thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from graphdnn.runtime.driver import LEGACY_STREAM

if TYPE_CHECKING:
    from graphdnn.runtime.device import CudaDevice


def torch_stream(torch: Any, ordinal: int) -> int:
    return int(torch._C._cuda_getCurrentRawStream(ordinal)) if torch.cuda.is_initialized() else 0


def cupy_stream(cupy: Any, ordinal: int) -> int:
    return int(cupy.cuda.get_current_stream().ptr)


CURRENT: dict[str, tuple[str, Callable[[Any, int], int]]] = {
    "torch": ("PyTorch's current stream", torch_stream),
    "cupy": ("CuPy's current stream", cupy_stream),
}
"""Libraries with a current stream, by module: what it is called, and its handle; 0 and 1 are the default stream."""


def foreign_capture(device: CudaDevice) -> str:
    """What is being captured, in words; empty where nothing is known to be.  The device must be current."""
    if device.is_capturing(LEGACY_STREAM):
        return "a stream that is ordered with the default stream"
    for library, (name, current) in CURRENT.items():
        if library not in sys.modules:
            continue
        try:
            stream = current(sys.modules[library], device.ordinal)
        except AttributeError:  # another thread is importing it
            continue
        if stream > LEGACY_STREAM and device.is_capturing(stream):
            return name
    return ""
