"""What ends timing from outside: who may press Ctrl-C."""

import signal

import pytest

from graphdnn.engines.budget import Budget
from tests.engines.scripted import Clock


@pytest.mark.usefixtures("ctrl_c")
def test_the_first_ctrl_c_ends_timing_only() -> None:
    with Budget() as budget:
        signal.raise_signal(signal.SIGINT)
        assert budget.is_over()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("ctrl_c")
def test_it_is_told_when_ctrl_c_came_and_not_when_somebody_asks() -> None:
    clock = Clock()
    with Budget(clock=clock) as budget:
        clock.now = 3.0
        signal.raise_signal(signal.SIGINT)
        clock.now = 60.0
    assert budget.ending == "timing was interrupted after 3.0 s"


@pytest.mark.usefixtures("ctrl_c")
def test_a_ctrl_c_that_the_process_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Budget() as budget:
        signal.raise_signal(signal.SIGINT)
    assert not budget.is_over()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
