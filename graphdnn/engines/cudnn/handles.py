"""cuDNN handles: one a thread and device, its stream set only when it changes, since setting it costs 5 us.

Handles live as long as the process, since a captured graph may still need them; what a thread that ended leaves behind
serves the next one, so that their number is that of the threads that ran at once.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

NONE = -1
"""No stream: what a new handle is set to."""


@dataclass
class Held:
    """A handle, the stream it was last given, and a stream that goes with it, 0 where none was asked for."""

    handle: int
    stream: int
    own: int = 0


class Lifetime:
    """Ends with the thread whose local data holds it."""


class Handles(threading.local):
    """This thread's handles by device ordinal."""

    _free: defaultdict[int, deque[Held]] = defaultdict(deque)  # noqa: RUF012 - shared by all threads is what is meant

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._lifetime = Lifetime()
        weakref.finalize(self._lifetime, give_back, self._held, self._free).atexit = False

    def on(self, ordinal: int, stream: int) -> int:
        """The handle of the current device, which must be `ordinal`, set to `stream`."""
        held = self._held.get(ordinal)
        if held is None:
            held = self._held[ordinal] = self._lend(ordinal)
        if held.stream != stream:
            import cudnn

            cudnn.set_stream(held.handle, stream)
            held.stream = stream
        return held.handle

    @contextmanager
    def captured(self, ordinal: int) -> Iterator[int]:
        """The handle, on a stream that no other thread has, captured meanwhile; what is put there is thrown away.

        Raises RuntimeError where the driver makes no stream or captures none.
        """
        if ordinal not in self._held:
            self._held[ordinal] = self._lend(ordinal)
        held = self._held[ordinal]
        held.own = held.own or new_stream()
        handle = self.on(ordinal, held.own)
        begin_capture(held.own)
        try:
            yield handle
        finally:
            drop_capture(held.own)

    def _lend(self, ordinal: int) -> Held:
        try:
            return self._free[ordinal].pop()
        except IndexError:
            import cudnn

            return Held(cudnn.create_handle(), NONE)


def new_stream() -> int:
    """A stream of the current device that is not ordered with the default one.  Raises RuntimeError."""
    from cuda.bindings import driver

    status, stream = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    if status:
        raise RuntimeError(f"the driver makes no stream ({status.name})")
    return int(stream)


def begin_capture(stream: int) -> None:
    """Begins a capture that is in the way of no call, of this thread or another.  Raises RuntimeError."""
    from cuda.bindings import driver

    (status,) = driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    if status:
        raise RuntimeError(f"the driver captures no stream ({status.name})")


def drop_capture(stream: int) -> None:
    """Ends a capture, whatever has become of it."""
    from cuda.bindings import driver

    status, graph = driver.cuStreamEndCapture(stream)
    if not status:
        driver.cuGraphDestroy(graph)


def give_back(held: dict[int, Held], free: defaultdict[int, deque[Held]]) -> None:
    """Leaves a thread's handles to others."""
    for ordinal, one in held.items():
        free[ordinal].append(one)


HANDLES = Handles()
