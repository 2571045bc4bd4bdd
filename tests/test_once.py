"""Work that several threads want is done by one of them; nothing is remembered, or no more than was asked for."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from graphdnn.errors import ExecutionError
from graphdnn.once import MakeOnce, Once, Waits


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
def test_work_that_asks_for_its_own_result_is_told_so(kind: Callable[..., Callable[..., object]]) -> None:
    ask = kind(lambda key: f"{key} called itself")

    def work() -> object:
        return ask("other", lambda: ask("key", work))

    with pytest.raises(ExecutionError, match=r"^key called itself$"):
        ask("key", work)
    assert ask("key", lambda: 7) == 7


@pytest.mark.parametrize("length", [2, 3, 5])
def test_work_of_several_threads_that_waits_in_a_circle_is_told_so(length: int) -> None:
    """Each thread works under its own key, in its own Once, and asks for the next one's: nobody would ever end."""
    all_begun = threading.Barrier(length, timeout=10)
    onces = [Once(lambda key: f"{key} leads back to itself") for _ in range(length)]

    def work(number: int) -> object:
        def ask() -> object:
            all_begun.wait()
            following = (number + 1) % length
            return onces[following](following, lambda: pytest.fail("is being made"))

        return onces[number](number, ask)

    with ThreadPoolExecutor(length) as pool:
        answers = [pool.submit(work, n) for n in range(length)]
        said = [str(a.exception(10)) for a in answers]
    assert len(set(said)) == 1, "one thread closes the circle, and its failure reaches the others"
    assert said[0].endswith(" leads back to itself")
    assert [once(n, lambda n=n: n) for n, once in enumerate(onces)] == list(range(length))


def test_threads_that_wait_in_a_row_are_no_circle() -> None:
    """c waits for b, which waits for a; then a's thread asks for what is made meanwhile, and gets it."""
    once, gate = Once(), threading.Event()

    def slow() -> str:
        assert gate.wait(10)
        return "a"

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(once, "a", slow)
        second = pool.submit(once, "b", lambda: once("a", slow) + "b")
        third = pool.submit(once, "c", lambda: once("b", lambda: once("a", slow) + "b") + "c")
        threading.Timer(0.1, gate.set).start()
        assert [first.result(10), second.result(10), third.result(10)] == ["a", "ab", "abc"]


def test_a_wait_that_is_over_closes_no_circle() -> None:
    """The other thread has its answer from this one, and has not noticed yet when this one comes to wait for it."""
    waits, answer, ours = Waits(), Future[int](), threading.get_ident()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(threading.get_ident).result(10)
        assert pool.submit(waits.begin, answer, ours).result(10)
        assert not waits.begin(Future(), other)
        answer.set_result(1)
        assert waits.begin(Future(), other)
        assert not pool.submit(waits.begin, Future(), ours).result(10)
        waits.end()
        assert pool.submit(waits.begin, Future(), ours).result(10)


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
