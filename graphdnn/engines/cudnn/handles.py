"""cuDNN handles: one a thread and device, its stream set only when it changes, since setting it costs 5 us."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass
class Held:
    """A handle and the stream it was last given."""

    handle: int
    stream: int


class Handles(threading.local):
    """This thread's handles by device ordinal.  They end with the process: a captured graph may still need them."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}

    def on(self, ordinal: int, stream: int) -> int:
        """The handle of the current device, which must be `ordinal`, set to `stream`."""
        held = self._held.get(ordinal)
        if held is None:
            import cudnn

            held = self._held[ordinal] = Held(cudnn.create_handle(), -1)
        if held.stream != stream:
            import cudnn

            cudnn.set_stream(held.handle, stream)
            held.stream = stream
        return held.handle


HANDLES = Handles()
