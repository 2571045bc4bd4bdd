"""Work that several threads want is done by one of them; nothing is remembered, or no more than was asked for."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from graphdnn.errors import ExecutionError
from graphdnn.once import MakeOnce, Once


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


@pytest.mark.parametrize("kind", [Once, lambda words: MakeOnce(2, words).get])
def test_work_that_asks_for_its_own_result_is_told_so(kind: Callable[[str], Callable[..., object]]) -> None:
    ask = kind("a function called itself")

    def work() -> object:
        return ask("other", lambda: ask("key", work))

    with pytest.raises(ExecutionError, match="a function called itself"):
        ask("key", work)
    assert ask("key", lambda: 7) == 7


def test_what_is_kept_is_bounded_and_the_least_recently_used_goes() -> None:
    cache: MakeOnce[str, str] = MakeOnce(2)
    for key in "abac":
        assert cache.get(key, lambda key=key: f"the {key}") == f"the {key}"
    assert [key for key, _ in cache.items()] == ["a", "c"]
    assert (cache.hits, cache.evictions) == (1, 1)
    assert cache.find("b") is None


def test_threads_make_an_entry_once_and_all_but_one_hit_it() -> None:
    cache: MakeOnce[str, object] = MakeOnce(2)
    gate, made = threading.Event(), []

    def make() -> object:
        made.append(threading.get_ident())
        assert gate.wait(10)
        return object()

    with ThreadPoolExecutor(6) as pool:
        entries = [pool.submit(cache.get, "key", make) for _ in range(6)]
        threading.Timer(0.05, gate.set).start()
        assert len({id(e.result(10)) for e in entries}) == 1
    assert (len(made), cache.hits) == (1, 5)


def test_an_entry_that_was_made_between_looking_and_making_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cache: MakeOnce[str, str] = MakeOnce(2)
    making = cache._making

    def late(key: str, work: Callable[[], str]) -> str:
        cache.put(key, "theirs")
        return making(key, work)

    monkeypatch.setattr(cache, "_making", late)
    assert cache.get("key", lambda: pytest.fail("made twice")) == "theirs"
    assert cache.hits == 1


def test_a_failed_make_leaves_nothing() -> None:
    cache: MakeOnce[str, int] = MakeOnce(2)
    with pytest.raises(ZeroDivisionError):
        cache.get("key", lambda: 1 // 0)
    assert cache.items() == []
    assert cache.get("key", lambda: 7) == 7
