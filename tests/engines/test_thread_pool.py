"""The pool of threads that build plans, where there is one thread: whoever asks does the work."""

import pytest

from graphdnn.engines.thread_pool import ThreadPool


def test_an_interrupt_ends_the_work_that_was_not_begun() -> None:
    done: list[int] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ThreadPool(1).all([lambda: done.append(0), interrupted, lambda: done.append(2)])
    assert done == [0]


def test_an_error_is_raised_once_all_work_was_done() -> None:
    done: list[int] = []

    def broken() -> None:
        raise ValueError("a fault of ours")

    with pytest.raises(ValueError, match="a fault of ours"):
        ThreadPool(1).all([broken, lambda: done.append(1)])
    assert done == [1]
