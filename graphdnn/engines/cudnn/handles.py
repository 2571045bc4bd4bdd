"""cuDNN handles: one a thread and device, its stream set only when it changes, since setting it costs 5 us.

Handles live as long as the process, since a captured graph may still need them; what a thread that ended leaves behind
serves the next one, so that their number is that of the threads that ran at once.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from dataclasses import dataclass

from graphdnn.relaxed import relaxed

NONE = -1
"""No stream: what a new handle is set to."""


@dataclass
class LentHandle:
    """A handle and the stream it was last given."""

    handle: int
    stream: int


class Lifetime:
    """Ends with the thread whose local data holds it."""


class Handles(threading.local):
    """This thread's handles by device ordinal."""

    _free: defaultdict[int, deque[LentHandle]] = defaultdict(deque)  # noqa: RUF012 - shared by all threads is what is meant

    def __init__(self) -> None:
        self._held: dict[int, LentHandle] = {}
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

    def _lend(self, ordinal: int) -> LentHandle:
        try:
            return self._free[ordinal].pop()
        except IndexError:
            import cudnn

            # This thread's first plan may be put into a capture of its caller's; nothing of a handle's is put there.
            with relaxed():
                return LentHandle(cudnn.create_handle(), NONE)


def give_back(held: dict[int, LentHandle], free: defaultdict[int, deque[LentHandle]]) -> None:
    """Leaves a thread's handles to others."""
    for ordinal, one in held.items():
        free[ordinal].append(one)


HANDLES = Handles()
