"""Work that several threads want is done by one of them, and nothing is remembered."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from graphdnn.engines.once import Once


def test_one_thread_works_and_all_get_its_answer() -> None:
    once, gate, done = Once(), threading.Event(), []

    def work() -> object:
        done.append(threading.get_ident())
        assert gate.wait(10)
        return object()

    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(once, "key", work) for _ in range(6)]
        threading.Timer(0.05, gate.set).start()
        assert len({id(a.result(10)) for a in answers}) == 1
    assert len(done) == 1
    assert once("key", lambda: 7) == 7


def test_different_keys_do_not_wait_for_each_other() -> None:
    once, both = Once(), threading.Barrier(2, timeout=10)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(once, key, both.wait) for key in "ab"]
        assert sorted(a.result(10) for a in answers) == [0, 1]


def test_a_failure_reaches_all_and_is_forgotten() -> None:
    once, gate = Once(), threading.Event()

    def work() -> object:
        assert gate.wait(10)
        raise ValueError("no")

    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(once, "key", work) for _ in range(4)]
        threading.Timer(0.05, gate.set).start()
        for answer in answers:
            with pytest.raises(ValueError, match="no"):
                answer.result(10)
    assert once("key", lambda: 7) == 7


def test_an_interruption_is_nobody_elses_answer() -> None:
    once, begun, gate = Once(), threading.Event(), threading.Event()

    def work() -> object:
        begun.set()
        assert gate.wait(10)
        raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as pool:
        interrupted = pool.submit(once, "key", work)
        assert begun.wait(10)
        other = pool.submit(once, "key", lambda: 7)
        threading.Timer(0.05, gate.set).start()
        assert isinstance(interrupted.exception(10), KeyboardInterrupt)
        assert other.result(10) == 7
