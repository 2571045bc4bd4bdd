"""Which memory of a device is written by its host: every call that fills or copies, with what it writes to."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from graphdnn.runtime.buffers import Memory


@dataclass
class Written:
    """Spans (first byte, number of bytes) by the call that wrote them, in order."""

    spans: list[tuple[str, int, int]] = field(default_factory=list)

    def loads(self) -> int:
        """How many constants were written, wherever they went."""
        return sum(how == "write" for how, _, _ in self.spans)

    def into(self, memory: Memory) -> list[tuple[str, int, int]]:
        """Those that touch a piece of memory, offsets counted from its start."""
        start, stop = memory.handle, memory.handle + memory.nbytes
        return [(how, at - start, n) for how, at, n in self.spans if at < stop and start < at + n]


def watch_writes(kind: type, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Notes from now on what any device of this kind is told to write."""
    noted = Written()
    for name in ("write", "copy", "upload", "fill"):
        monkeypatch.setattr(kind, name, noting(noted, name, getattr(kind, name)))
    return noted


def noting(noted: Written, name: str, call: Callable[..., None]) -> Callable[..., None]:
    def noting_call(device: object, target: int, source: int, nbytes: int, *rest: int) -> None:
        noted.spans.append((name, target, nbytes))
        call(device, target, source, nbytes, *rest)

    return noting_call
