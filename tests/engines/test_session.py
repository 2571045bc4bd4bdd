"""How a compilation's timing ends: nobody waits for what will not come, and nothing of it stays behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from graphdnn import compiler, session
from graphdnn.answer import Decline
from graphdnn.engines import tune
from graphdnn.engines.budget import Budget
from graphdnn.engines.choose import Desk
from graphdnn.engines.pool import Pool
from graphdnn.ir.region import Region
from tests.engines.compiled import compiled, double
from tests.engines.scripted import Act, Clock, Scripted


@pytest.fixture
def desks(monkeypatch: pytest.MonkeyPatch) -> list[Desk]:
    """The desks of all compilations, which build in eight threads."""
    made: list[Desk] = []

    def make(*given: Any, **named: Any) -> Desk:
        made.append(Desk(*given, **{**named, "threads": 8}))
        return made[-1]

    monkeypatch.setattr(compiler, "Desk", make)
    return made


@pytest.mark.parametrize("fails", [False, True])
def test_a_closed_session_leaves_no_tuner_behind(
    fails: bool, desks: list[Desk], clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks the desk later would have plans timed by what is closed, beyond any budget."""

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
    assert [desk.tuner for desk in desks] == [None]


class Slow:
    """A workshop whose orders are begun at once and never come to an end, but by closing it."""

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
    desks: list[Desk], clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compilation ends while all its threads wait for a child: they neither wait on nor build here."""
    workshop = Slow()
    monkeypatch.setattr(session, "Workshop", lambda *_: workshop)
    monkeypatch.setattr(tune, "WORTH", 1)
    threading.Timer(5.0, lambda: workshop.closed or workshop.close()).start()  # what waits must not wait for ever

    settle = Pool.settle

    def interrupt(self: Pool, futures: Sequence[Future[Any]]) -> None:
        if workshop.orders:
            raise KeyboardInterrupt
        settle(self, futures)  # what the engines propose

    monkeypatch.setattr(Pool, "settle", interrupt)
    engine = Scripted("one", {"a": Act(30), "b": Act(12)}, clock)
    with_engines(engine)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        compiled(double())
    assert time.monotonic() - begun < 4
    assert (workshop.closed, len(workshop.orders), engine.built) == (1, 2, [])


def test_a_budget_waits_for_no_child(
    desks: list[Desk], clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All threads wait for a child that never comes to an end when the budget is spent."""
    workshop = Slow()
    monkeypatch.setattr(session, "Workshop", lambda *_: workshop)
    monkeypatch.setattr(session, "Budget", Budget)
    monkeypatch.setattr(tune, "WORTH", 1)
    threading.Timer(5.0, lambda: workshop.closed or workshop.close()).start()
    engine = Scripted("one", {"a": Act(30), "b": Act(12)}, clock)
    with_engines(engine)
    begun = time.monotonic()
    report = compiled(double(), tuning_budget_s=0.3).report
    assert time.monotonic() - begun < 2
    assert (report.regions[0].plan, report.regions[0].measured_us, engine.built) == ("a", None, ["a"])
    assert (workshop.closed, len(workshop.orders)) == (1, 2)


def test_what_is_to_be_closed_is_closed_whatever_goes_wrong(
    desks: list[Desk], clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stuck(Slow):
        def close(self) -> None:
            raise RuntimeError("a child would not end")

    closed: list[Pool] = []
    monkeypatch.setattr(session, "Workshop", Stuck)
    close = Pool.close
    monkeypatch.setattr(Pool, "close", lambda self: (closed.append(self), close(self)))
    with_engines(Scripted("one", {"a": Act(30)}, clock))
    with pytest.raises(RuntimeError, match="would not end"):
        compiled(double())
    assert len(set(map(id, closed))) >= 2
    assert desks[0].tuner is None
