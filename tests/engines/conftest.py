"""A clock that only scripted engines move, and scripted engines in the place of the reference."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from graphdnn.engines import manifest
from graphdnn.engines.budget import Budget
from graphdnn.planning import session
from graphdnn.runtime.timing import HostTimer
from tests.engines.scripted import Clock, Scripted


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(session, "timer_for", lambda device, memory: HostTimer(clock))
    monkeypatch.setattr(session, "Budget", lambda seconds: Budget(seconds, clock))
    return clock


@pytest.fixture
def with_engines(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts engines in the place of the reference."""

    def put(*engines: Scripted) -> None:
        by_name = {e.name: e for e in engines}
        monkeypatch.setattr(manifest, "load_engine", by_name.__getitem__)
        monkeypatch.setitem(manifest.BY_KIND, "cpu", tuple(by_name))

    return put


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Python's own answer to Ctrl-C: a process that a script started in the background inherits that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
