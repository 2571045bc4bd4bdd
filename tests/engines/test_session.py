"""How a compilation's timing ends: nobody waits for what will not come, and nothing of it stays behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from graphdnn import compiler
from graphdnn.answer import Decline
from graphdnn.engines import tune
from graphdnn.engines.budget import Budget
from graphdnn.engines.choose import Selector
from graphdnn.engines.thread_pool import ThreadPool
from graphdnn.ir.region import Region
from graphdnn.planning import session
from tests.engines.compiled import compiled, double
from tests.engines.scripted import Act, Clock, Scripted


@pytest.fixture
def desks(monkeypatch: pytest.MonkeyPatch) -> list[Selector]:
    """The desks of all compilations, which build in eight threads."""
    made: list[Selector] = []

    def make(*given: Any, **named: Any) -> Selector:
        made.append(Selector(*given, **{**named, "threads": 8}))
        return made[-1]

    monkeypatch.setattr(compiler, "Selector", make)
    return made


@pytest.mark.parametrize("fails", [False, True])
def test_a_closed_session_leaves_no_tuner_behind(
    fails: bool, desks: list[Selector], clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks the selector later would have plans timed by what is closed, beyond any budget."""

    class Closing(session.Tuner):
        def __exit__(self, *error: object) -> None:
            super().__exit__(*error)
            if fails:
                raise RuntimeError("a thread would not end")

    monkeypatch.setattr(session, "Tuner", Closing)
    with_engines(Scripted("one", {"a": Act(30), "b": Act(12)}, clock))
    if fails:
        with pytest.raises(RuntimeError, match="would not end"):
            compiled(double())
    else:
        assert compiled(double()).report.regions[0].plan == "b"
    assert [selector.tuner for selector in desks] == [None]


class Slow:
    """Processes whose orders are begun at once and never come to an end, but by closing it."""

    def __init__(self, *_: object) -> None:
        self.orders: list[Future[Decline | None]] = []
        self.closed = 0

    def takes(self, engine: str) -> bool:
        return True

    def order(self, region: Region, engine: str, plan: str) -> Future[Decline | None]:
        self.orders.append(Future())
        self.orders[-1].set_running_or_notify_cancel()
        return self.orders[-1]

    def close(self) -> None:
        self.closed += 1
        for order in self.orders:
            order.set_result(None)


def test_nobody_waits_for_orders_that_will_not_be_built(
    desks: list[Selector], clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compilation ends while all its threads wait for a child: they neither wait on nor build here."""
    processes = Slow()
    monkeypatch.setattr(session, "ProcessPool", lambda *_: processes)
    monkeypatch.setattr(tune, "WORTH", 1)
    threading.Timer(5.0, lambda: processes.closed or processes.close()).start()  # what waits must not wait for ever

    settle = ThreadPool.settle

    def interrupt(self: ThreadPool, futures: Sequence[Future[Any]]) -> None:
        if processes.orders:
            raise KeyboardInterrupt
        settle(self, futures)  # what the engines propose

    monkeypatch.setattr(ThreadPool, "settle", interrupt)
    engine = Scripted("one", {"a": Act(30), "b": Act(12)}, clock)
    with_engines(engine)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        compiled(double())
    assert time.monotonic() - begun < 4
    assert (processes.closed, len(processes.orders), engine.built) == (1, 2, [])


def test_a_budget_waits_for_no_child(
    desks: list[Selector], clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads wait for a child that never comes to an end when the budget is spent."""
    processes = Slow()
    monkeypatch.setattr(session, "ProcessPool", lambda *_: processes)
    monkeypatch.setattr(session, "Budget", Budget)
    monkeypatch.setattr(tune, "WORTH", 1)
    threading.Timer(5.0, lambda: processes.closed or processes.close()).start()
    engine = Scripted("one", {"a": Act(30), "b": Act(12)}, clock)
    with_engines(engine)
    begun = time.monotonic()
    report = compiled(double(), tuning_budget_s=0.3).report
    assert time.monotonic() - begun < 2
    assert (report.regions[0].plan, report.regions[0].measured_us, engine.built) == ("a", None, ["a"])
    assert (processes.closed, len(processes.orders)) == (1, 2)


def test_what_is_to_be_closed_is_closed_whatever_goes_wrong(
    desks: list[Selector], clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(Slow):
        def close(self) -> None:
            raise RuntimeError("a child would not end")

    closed: list[ThreadPool] = []
    monkeypatch.setattr(session, "ProcessPool", Stuck)
    close = ThreadPool.close
    monkeypatch.setattr(ThreadPool, "close", lambda self: (closed.append(self), close(self)))
    with_engines(Scripted("one", {"a": Act(30)}, clock))
    with pytest.raises(RuntimeError, match="would not end"):
        compiled(double())
    assert len(set(map(id, closed))) >= 2
    assert desks[0].tuner is None
