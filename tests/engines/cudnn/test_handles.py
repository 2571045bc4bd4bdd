import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from graphdnn.engines.cudnn import handles as module
from graphdnn.engines.cudnn.handles import Handles


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Calls of the library, which makes handles 1, 2, ..."""
    import cudnn

    calls: list[tuple[str, ...]] = []

    local = threading.local()

    def create() -> int:
        assert local.may_allocate
        calls.append(("create",))
        return sum(c[0] == "create" for c in calls)

    @contextmanager
    def relaxed() -> Iterator[None]:
        local.may_allocate = True
        yield
        local.may_allocate = False

    monkeypatch.setattr(module, "relaxed", relaxed)
    monkeypatch.setattr(cudnn, "create_handle", create)
    monkeypatch.setattr(cudnn, "set_stream", lambda handle, stream: calls.append(("stream", handle, stream)))
    monkeypatch.setattr(Handles, "_free", defaultdict(deque))
    return calls


def test_the_stream_is_set_only_when_it_changes(library: list[tuple[str, ...]]) -> None:
    handles = Handles()
    assert [handles.on(0, s) for s in (5, 5, 5, 6, 5)] == [1] * 5
    assert library == [("create",), ("stream", 1, 5), ("stream", 1, 6), ("stream", 1, 5)]


def test_each_device_and_each_thread_has_its_own(library: list[tuple[str, ...]]) -> None:
    handles, found = Handles(), []
    found += [handles.on(0, 5), handles.on(1, 5), handles.on(0, 5)]
    thread = threading.Thread(target=lambda: found.append(handles.on(0, 5)))
    thread.start()
    thread.join()
    assert found == [1, 2, 1, 3]


def test_what_a_thread_leaves_behind_serves_the_next(library: list[tuple[str, ...]]) -> None:
    handles, found = Handles(), []
    for _ in range(5):
        thread = threading.Thread(target=lambda: found.append((handles.on(0, 5), handles.on(1, 5))))
        thread.start()
        thread.join()
    assert len({frozenset(pair) for pair in found}) == 1
    assert library.count(("create",)) == 2


def test_threads_that_run_at_once_never_share(library: list[tuple[str, ...]]) -> None:
    handles, found, gate = Handles(), [], threading.Barrier(8)

    def work() -> None:
        gate.wait()
        found.append(handles.on(0, 5))
        gate.wait()

    for _ in range(3):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found[-8:])) == 8
    assert library.count(("create",)) == 8
