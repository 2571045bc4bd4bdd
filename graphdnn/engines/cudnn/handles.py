"""cuDNN handles: one a thread and device, its stream set only when it changes, since setting it costs 5 us.

Handles live as long as the process, since a captured graph may still need them; what a thread that ended leaves behind
serves the next one, so that their number is that of the threads that ran at once.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from dataclasses import dataclass

UNKNOWN = -1
"""No stream: what a handle is set to is not known."""


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

    def alone(self, ordinal: int) -> int:
        """The handle, set to a stream that no other thread has and that is not ordered with the default one.

        Raises RuntimeError where the driver makes no stream.
        """
        if ordinal not in self._held:
            self._held[ordinal] = self._lend(ordinal)
        held = self._held[ordinal]
        held.own = held.own or new_stream()
        return self.on(ordinal, held.own)

    def distrust(self, ordinal: int) -> None:
        """Has this thread's stream set anew at the next use: a call that failed may have left another one behind."""
        if ordinal in self._held:
            self._held[ordinal].stream = UNKNOWN

    def _lend(self, ordinal: int) -> Held:
        try:
            return self._free[ordinal].pop()
        except IndexError:
            import cudnn

            return Held(cudnn.create_handle(), UNKNOWN)


def new_stream() -> int:
    """A stream of the current device that is not ordered with the default one.  Raises RuntimeError."""
    from cuda.bindings import driver

    status, stream = driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
    if status:
        raise RuntimeError(f"the driver makes no stream ({status.name})")
    return int(stream)


def give_back(held: dict[int, Held], free: defaultdict[int, deque[Held]]) -> None:
    """Leaves a thread's handles to others."""
    for ordinal, one in held.items():
        free[ordinal].append(one)


HANDLES = Handles()
