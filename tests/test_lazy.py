import threading

import pytest

from graphdnn.lazy import cached_property


class Counted:
    def __init__(self) -> None:
        self.computed = 0
        self.begun, self.go_on = threading.Event(), threading.Event()

    @cached_property
    def number(self) -> list[int]:
        """How often this was computed."""
        self.computed += 1
        self.begun.set()
        self.go_on.wait(10)
        return [self.computed]

    @cached_property
    def impossible(self) -> int:
        self.computed += 1
        raise ValueError("no")


def counted() -> Counted:
    one = Counted()
    one.go_on.set()
    return one


def test_computed_once_and_kept() -> None:
    one, other = counted(), counted()
    assert one.number is one.number
    assert one.number is not other.number
    assert (one.computed, other.computed) == (1, 1)


def test_the_class_shows_the_property_itself() -> None:
    assert isinstance(Counted.number, cached_property)
    assert Counted.number.__doc__ == "How often this was computed."


def test_a_failure_is_not_kept() -> None:
    one = counted()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            _ = one.impossible
    assert one.computed == 2


def test_another_object_does_not_wait_and_threads_get_one_value() -> None:
    slow, quick = Counted(), counted()
    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda: found.append(slow.number)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert slow.begun.wait(10)
    assert quick.number == [1]  # with functools' in Python 3.11 it waits for the slow one, which waits for us
    slow.go_on.set()
    for thread in threads:
        thread.join()
    assert found[0] is found[1] is slow.number
