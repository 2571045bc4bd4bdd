"""Plans that other processes build: this one need not, and whatever becomes of a child, this process goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Policy
from graphdnn.runtime.cache import DiskStore
from graphdnn.runtime.child import DEPTH_VARIABLE
from graphdnn.runtime.device import HostDevice
from graphdnn.runtime.process_pool import MEMORY, MOST_CHILDREN, ProcessPool, children_for
from tests.runtime.faulty import PLACE, SHELF
from tests.runtime.test_probe import POLICY, some_region

ENGINES = {"faulty": PLACE, "storing": "tests.runtime.faulty:StoringReference"}
Opened = Callable[[int], ProcessPool]


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the engine `storing` leaves what it built, as others do in the store."""
    monkeypatch.setenv(SHELF, str(tmp_path))
    return tmp_path


@pytest.fixture
def opened(store: DiskStore, shelf: Path) -> Iterator[Opened]:
    """Gives workshops of so many children."""
    made: list[ProcessPool] = []

    def open(count: int, policy: Policy = POLICY) -> ProcessPool:
        made.append(ProcessPool(ENGINES, HostDevice(store), policy, count, seconds=20))
        return made[-1]

    yield open
    for processes in made:
        processes.close()
        for thread in processes._threads:
            thread.join(30)
            assert not thread.is_alive()


def test_children_build_what_was_ordered(opened: Opened, shelf: Path) -> None:
    processes = opened(2)
    orders = [processes.order(some_region(float(i)), "storing", f"plan{i}") for i in range(8)]
    assert not any(order.result(60) for order in orders)
    builders = {(shelf / f"plan{i}").read_text() for i in range(8)}
    assert str(os.getpid()) not in builders


def test_a_child_that_dies_of_a_plan_says_so_and_another_goes_on(opened: Opened, shelf: Path) -> None:
    processes = opened(1)
    plans = ("in build abort", "in build raise", "not built")
    answers = [processes.order(some_region(), "faulty", plan).result(60) for plan in plans[:1]]
    assert isinstance(answers[0], Decline)
    assert (answers[0].code, "SIGABRT" in answers[0].reason) == (Code.BUILD, True)
    # These are found out again where they are needed, or say nothing of the plan.
    for plan in plans[1:]:
        assert processes.order(some_region(), "faulty", plan).result(60) is None
    assert processes.order(some_region(), "storing", "after").result(60) is None
    assert (shelf / "after").exists()


def test_plans_are_built_and_not_run(opened: Opened) -> None:
    assert opened(1).order(some_region(), "faulty", "abort").result(60) is None


def test_nobody_waits_for_what_no_child_began(opened: Opened, shelf: Path) -> None:
    processes = opened(1)
    orders = [processes.order(some_region(), "storing", name) for name in ("a", "b")]
    assert orders[0].cancel()
    assert orders[1].result(60) is None
    assert not (shelf / "a").exists()


def test_closing_ends_children_and_orders(opened: Opened) -> None:
    processes = opened(1)
    stuck = processes.order(some_region(), "faulty", "in build hang")
    waiting = [processes.order(some_region(), "faulty", "good") for _ in range(3)]
    for _ in range(200):
        if stuck.running():
            break
        time.sleep(0.05)
    assert stuck.running()
    begun = time.monotonic()
    processes.close()
    assert all(order.cancelled() for order in waiting)
    assert stuck.result(15) is None
    assert time.monotonic() - begun < 15


def test_without_children_orders_stay_open(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEPTH_VARIABLE, "2")
    processes = opened(2)
    orders = [processes.order(some_region(), "storing", "a") for _ in range(3)]
    assert not wait(orders, timeout=0.5).done
    assert all(order.cancel() for order in orders)


def test_what_is_taken(opened: Opened) -> None:
    assert opened(1).takes("faulty")
    assert not opened(1).takes("nvrtc")
    assert not opened(0).takes("faulty")
    assert not ProcessPool(ENGINES, HostDevice(), POLICY, 1).takes("faulty")


@pytest.mark.parametrize(
    ("cores", "gib", "count"), [(1, 139, 0), (2, 139, 1), (16, 139, MOST_CHILDREN), (16, 24, 3), (16, 6, 0)]
)
def test_how_many_children_there_are(cores: int, gib: int, count: int) -> None:
    assert MEMORY == 8 << 30
    assert children_for(cores, gib << 30) == count
