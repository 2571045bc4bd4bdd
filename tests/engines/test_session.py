"""How a compilation's timing ends: nobody waits for what will not come, and nothing of it stays behind."""

from __future__ import annotations

from typing import Any

import pytest

from graphdnn import compiler, session
from graphdnn.engines.choose import Desk
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
