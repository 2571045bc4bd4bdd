import threading

import pytest

from graphdnn.engines.cudnn.handles import Handles


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Calls of the library, which makes handles 1, 2, ..."""
    import cudnn

    calls: list[tuple[str, ...]] = []

    def create() -> int:
        calls.append(("create",))
        return sum(c[0] == "create" for c in calls)

    monkeypatch.setattr(cudnn, "create_handle", create)
    monkeypatch.setattr(cudnn, "set_stream", lambda handle, stream: calls.append(("stream", handle, stream)))
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
