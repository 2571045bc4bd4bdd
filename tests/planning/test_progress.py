"""The progress of timing: shown on a terminal or when asked for, with what the user wants to know."""

from __future__ import annotations

import io
import sys

import pytest

from graphdnn.engines.tune import Progress
from graphdnn.planning.progress import ProgressLine, watcher


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("wanted", "stream", "is_shown"),
    [(None, io.StringIO(), False), (None, Terminal(), True), (True, io.StringIO(), True), (False, Terminal(), False)],
)
def test_it_is_shown_on_a_terminal_or_as_asked(
    wanted: bool | None, stream: io.StringIO, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    assert (watcher(wanted) is not None) is is_shown


def test_it_says_region_candidates_best_time_and_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    line = ProgressLine()
    line.show(Progress("conv+bias[relu]", 2, 7, "cudnn eng4_k24=2", 3, 24, 51.13, 8.0))
    line._bar.refresh()
    line.close()
    text = out.getvalue()
    for word in ("conv+bias[relu]", "candidate 3 of 24", "cudnn eng4_k24=2", "best 51.1 us", "8 s left", "1/7"):
        assert word in text, word


def test_nothing_is_drawn_where_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    ProgressLine().close()
    assert not out.getvalue()
