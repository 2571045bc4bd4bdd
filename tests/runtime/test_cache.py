"""The disk cache: what is damaged or foreign is never used, several processes share it, and its size is bounded."""

import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from graphdnn.errors import SetupError
from graphdnn.files import AtomicFile
from graphdnn.runtime.cache import (
    DIRECTORY_VARIABLE,
    FULL,
    HEADER,
    KEEP,
    LOOK,
    MAGIC,
    STALE_S,
    Check,
    DiskStore,
    Entry,
    NullStore,
    default_directory,
    default_store,
    pack,
    unpack,
)

CONTENT = bytes(range(256)) * 3


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "cache")


def test_what_was_put_is_got(store: DiskStore) -> None:
    assert store.get("kernel", "a") is None
    store.put("kernel", "a", CONTENT)
    store.put("plan", "a", b"")
    assert store.get("kernel", "a") == CONTENT
    assert store.get("plan", "a") == b""
    assert store.get("kernel", "b") is None
    store.put("kernel", "a", b"newer")
    assert DiskStore(store.directory).get("kernel", "a") == b"newer"
    assert [e.kind for e in store.entries()] in (["kernel", "plan"], ["plan", "kernel"])
    store.clear()
    assert store.entries() == []


def test_keys_may_be_any_text(store: DiskStore) -> None:
    keys = ["../../escape", "a/b", "x" * 5000, "", "ümlaut", "a\0b"]
    for key in keys:
        store.put("kernel", key, key.encode())
    for key in keys:
        assert store.get("kernel", key) == key.encode()
    assert all(e.path.parent == store.directory / "kernel" for e in store.entries())


@pytest.mark.parametrize("position", range(0, HEADER.size + 1 + 20, 3))
def test_a_flipped_bit_is_noticed(store: DiskStore, position: int) -> None:
    store.put("kernel", "a", CONTENT[:20])
    path = store.entries()[0].path
    raw = bytearray(path.read_bytes())
    raw[position] ^= 1 << position % 8
    path.write_bytes(raw)
    with pytest.warns(RuntimeWarning, match="damaged or foreign; it is dropped"):
        assert store.get("kernel", "a") is None
    assert not path.exists()
    assert store.get("kernel", "a") is None


@pytest.mark.parametrize("size", [0, 1, HEADER.size - 1, HEADER.size, HEADER.size + 1, -1])
def test_a_truncated_entry_is_dropped(store: DiskStore, size: int) -> None:
    store.put("kernel", "a", CONTENT)
    path = store.entries()[0].path
    path.write_bytes(path.read_bytes()[:size])
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert store.get("kernel", "a") is None


def test_an_entry_of_another_key_is_foreign(store: DiskStore) -> None:
    store.put("kernel", "a", CONTENT)
    store.put("kernel", "b", b"other")
    first, second = store._path("kernel", "a"), store._path("kernel", "b")
    os.replace(first, second)
    with pytest.warns(RuntimeWarning, match="foreign"):
        assert store.get("kernel", "b") is None


def test_absurd_lengths_are_refused() -> None:
    raw = bytearray(pack("a", b"content"))
    raw[8:12] = (1 << 31).to_bytes(4, "little")
    assert unpack(bytes(raw)) is None
    assert unpack(pack("a", b"content") + b"x") is None
    assert unpack(pack("a", b"content")) == ("a", b"content")


def sparse(path: Path, name_bytes: int = 1) -> None:
    """A file that claims to be an entry of a terabyte, and takes no room."""
    with open(path, "wb") as file:
        file.write(HEADER.pack(MAGIC, name_bytes, (1 << 40) - HEADER.size - name_bytes, bytes(32)))
        file.truncate(1 << 40)


def test_a_sparse_file_of_any_size_is_damaged(store: DiskStore) -> None:
    store.put("kernel", "a", CONTENT)
    path = store.entries()[0].path
    sparse(path, (1 << 32) - 1)
    assert store.entries()[0].key() is None
    with pytest.warns(RuntimeWarning, match="damaged or foreign; it is dropped"):
        assert store.get("kernel", "a") is None
    sparse(path)
    assert [check for _, check in store.verify()] == [Check.REMOVED]
    assert not path.exists()


def test_a_pipe_in_an_entrys_place_is_not_waited_for(store: DiskStore) -> None:
    store.put("kernel", "a", CONTENT)
    path = store.entries()[0].path
    path.unlink()
    os.mkfifo(path)
    with pytest.warns(RuntimeWarning, match="cannot be read .it is no regular file.; it and others"):
        assert store.get("kernel", "a") is None


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    size = len(pack("00", CONTENT))
    store = DiskStore(tmp_path, limit=20 * size)
    for number in range(16):
        store.put("kernel", f"{number:02}", CONTENT)
        os.utime(store._path("kernel", f"{number:02}"), (number, number))
    assert store.get("kernel", "00") == CONTENT
    for number in range(16, 60):
        store.put("kernel", f"{number:02}", CONTENT)
        assert sum(e.nbytes for e in store.entries()) <= store.limit
        store.get("kernel", "00")
        left = {n for n in range(60) if store._path("kernel", f"{n:02}").exists()}
        assert {0, number} <= left
    assert len(left) > 20 * (KEEP - LOOK) - 2
    assert 1 not in left


def test_entries_go_in_the_order_of_their_last_use(tmp_path: Path) -> None:
    size = len(pack("000", CONTENT))
    store = DiskStore(tmp_path, limit=40 * size)
    order = [37 * n % 32 for n in range(32)]
    for age, number in enumerate(order):
        store.put("kernel", f"{number:03}", CONTENT)
        os.utime(store._path("kernel", f"{number:03}"), (age, age))
    coming = 100
    while len(left := [n for n in order if store._path("kernel", f"{n:03}").exists()]) == len(order):
        store.put("kernel", str(coming), CONTENT)
        coming += 1
    assert 0 < len(left) < len(order)
    assert left == order[-len(left) :]


def test_the_bound_holds_with_many_small_entries(tmp_path: Path) -> None:
    """Each is far below what is written between two looks at the folder."""
    size = len(pack("000", CONTENT))
    store = DiskStore(tmp_path, limit=400 * size)
    for number in range(900):
        store.put("kernel", f"{number:03}", CONTENT)
        if number % 20 == 0:
            assert sum(e.nbytes for e in store.entries()) <= store.limit * (FULL + LOOK)


def test_what_is_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, limit=100)
    store.put("kernel", "a", CONTENT)
    assert store.entries() == []


def test_unfinished_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    (tmp_path / "kernel").mkdir()
    old, young = (AtomicFile(store._path("kernel", name)).part for name in ("old", "young"))
    foreign = tmp_path / "kernel" / "film.part"
    for path, age in ((old, STALE_S + 60), (young, 5), (foreign, STALE_S + 60)):
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    store.put("kernel", "a", CONTENT)
    assert (old.exists(), young.exists(), foreign.exists()) == (False, True, True)


def test_a_directory_that_cannot_be_written_is_reported_once(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = DiskStore(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="cannot be written .*; nothing more is cached"):
        store.put("kernel", "a", CONTENT)
    store.put("kernel", "b", CONTENT)
    assert not recwarn.list


def test_a_file_in_the_directorys_place_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    store = DiskStore(tmp_path / "cache")
    assert store.get("kernel", "a") is None
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        store.put("kernel", "a", CONTENT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.get("kernel", "b") is None
        store.put("kernel", "b", CONTENT)


def test_entries_that_cannot_be_read_are_reported_once(store: DiskStore) -> None:
    for key in "abc":
        store.put("kernel", key, CONTENT)
    for entry in store.entries():
        entry.path.unlink()
        entry.path.mkdir()
    with pytest.warns(RuntimeWarning) as said:
        assert [store.get("kernel", key) for key in "abc"] == [None] * 3
    (one,) = said
    assert "cannot be read" in str(one.message)


def test_an_entry_tells_its_key_without_its_content(store: DiskStore) -> None:
    store.put("kernel", '{"plan": "eng0"}', CONTENT)
    (entry,) = store.entries()
    assert entry.key() == '{"plan": "eng0"}'
    with open(entry.path, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    assert entry.key() == '{"plan": "eng0"}'
    entry.path.write_bytes(entry.path.read_bytes()[:-1])
    assert store.entries()[0].key() is None
    entry.path.write_bytes(b"GIF89a")
    assert store.entries() == []
    assert store.candidates()[0].key() is None
    entry.path.unlink()
    assert entry.key() is None


def test_what_is_dropped_is_gone(store: DiskStore) -> None:
    store.put("kernel", "a", CONTENT)
    store.drop("kernel", "b")
    store.drop("plan", "a")
    assert store.get("kernel", "a") == CONTENT
    store.drop("kernel", "a")
    assert store.get("kernel", "a") is None


def test_one_kind_can_be_cleared(store: DiskStore) -> None:
    for kind in ("kernel", "plan"):
        for key in "ab":
            store.put(kind, key, CONTENT)
    assert len(store.clear("plan")) == 2
    assert [e.kind for e in store.entries()] == ["kernel", "kernel"]
    assert len(store.clear()) == 2


def test_verify_finds_and_removes_what_is_not_sound(store: DiskStore) -> None:
    for key in "abcd":
        store.put("kernel", key, CONTENT)
    paths = {key: store._path("kernel", key) for key in "abcd"}
    paths["b"].write_bytes(paths["b"].read_bytes()[:-1])
    paths["c"].write_bytes(paths["c"].read_bytes()[:-1] + b"?")
    os.replace(paths["d"], paths["d"].with_name("0" * 64 + ".bin"))
    found = {entry.path: check for entry, check in store.verify()}
    assert [found[paths[key]] for key in "abc"] == [Check.SOUND, Check.REMOVED, Check.REMOVED]
    assert found[paths["d"].with_name("0" * 64 + ".bin")] is Check.REMOVED
    assert [e.path for e in store.entries()] == [paths["a"]]


@pytest.mark.parametrize("replaced", [True, False])
def test_what_another_process_does_to_an_entry_meanwhile_is_no_damage(
    replaced: bool, store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("kernel", "a", CONTENT)
    path, read = store.entries()[0].path, Path.read_bytes

    def and_then(self: Path) -> bytes:
        raw = read(self)
        if replaced:
            DiskStore(store.directory).put("kernel", "a", CONTENT * 2)
        else:
            path.unlink()
        return raw

    monkeypatch.setattr(Path, "read_bytes", and_then)
    assert [check for _, check in store.verify()] == [Check.SOUND]
    monkeypatch.undo()
    assert store.get("kernel", "a") == (CONTENT * 2 if replaced else None)


def test_verify_says_what_cannot_be_read_and_passes_over_what_is_gone(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in "abc":
        store.put("kernel", key, CONTENT)
    failures = {"a": PermissionError("closed"), "b": FileNotFoundError("gone")}
    paths, read = {store._path("kernel", key): error for key, error in failures.items()}, Path.read_bytes

    def guarded(self: Path) -> bytes:
        if self in paths:
            raise paths[self]
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", guarded)
    found = {entry.path: check for entry, check in store.verify()}
    assert found == {store._path("kernel", "a"): Check.UNREAD, store._path("kernel", "c"): Check.SOUND}


def test_only_files_are_entries(store: DiskStore) -> None:
    store.put("kernel", "a", CONTENT)
    (store.directory / "kernel" / "folder.bin").mkdir()
    os.mkfifo(store.directory / "kernel" / "pipe.bin")
    (store.directory / "kernel" / "nowhere.bin").symlink_to(store.directory / "gone")
    assert [check for _, check in store.verify()] == [Check.SOUND]
    assert len(store.clear()) == 1


HEX = "ab" * 32
FOREIGN = {
    "another name": "bert/pytorch_model.bin",
    "in the directory itself": f"{HEX}.bin",
    "another ending": f"cubin/{HEX}.safetensors",
    "capitals": f"cubin/{HEX.upper()}.bin",
    "too long": f"cubin/{HEX}0.bin",
    "a line end": f"cubin/{HEX}.bin\n",
    "folder of another form": f"My Models/{HEX}.bin",
    "deeper": f"cubin/more/{HEX}.bin",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_not_named_as_entries_are_is_never_touched(what: str, tmp_path: Path) -> None:
    """The directory is the user's choice and may be one that holds models."""
    path = tmp_path / FOREIGN[what]
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(CONTENT * 10)
    os.utime(path, (1, 1))
    store = DiskStore(tmp_path, limit=4000)
    for number in range(5):
        store.put("cubin", str(number), CONTENT)
    assert {e.kind for e in store.entries()} == {"cubin"}
    assert all(check is Check.SOUND for _, check in store.verify())
    assert store.clear()
    assert path.read_bytes() == CONTENT * 10


def test_what_is_named_as_entries_are_is_removed_where_it_begins_as_one(tmp_path: Path) -> None:
    path = tmp_path / "objects" / f"{HEX}.bin"
    path.parent.mkdir()
    path.write_bytes(CONTENT * 10)
    os.utime(path, (1, 1))
    store = DiskStore(tmp_path, limit=4000)
    for number in range(8):
        store.put("cubin", str(number), CONTENT)
    assert len(store.entries()) >= 2  # what is somebody's own takes no room from them
    assert len(store.clear()) >= 2
    assert path.exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = DiskStore(tmp_path / "elsewhere")
    for number in range(4):
        elsewhere.put("cubin", str(number), CONTENT)
        os.utime(elsewhere._path("cubin", str(number)), (1, 1))
    damaged = tmp_path / "elsewhere" / "cubin" / f"{HEX}.bin"
    damaged.write_bytes(b"")
    store = DiskStore(tmp_path / "cache", limit=4000)
    store.put("plan", "a", CONTENT)
    (store.directory / "linked").symlink_to(tmp_path / "elsewhere" / "cubin")
    (store.directory / "plan" / f"{HEX}.bin").symlink_to(elsewhere._path("cubin", "0"))
    for number in range(8):
        store.put("plan", str(number), CONTENT)
    assert {e.kind for e in store.entries()} == {"plan"}
    assert all(check is Check.SOUND for _, check in store.verify())
    assert 0 < len(store.clear()) < 9
    assert len(elsewhere.entries()) == 4
    assert damaged.exists()
    assert (store.directory / "plan" / f"{HEX}.bin").is_symlink()


def test_nothing_is_opened_while_there_is_room(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        DiskStore(store.directory).put("kernel", str(number), CONTENT)
    monkeypatch.setattr(Entry, "is_ours", property(lambda _: pytest.fail("opened")))
    store.put("kernel", "another", CONTENT)


def test_the_bound_holds_with_large_entries(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, limit=10_000)
    for number in range(12):
        store.put("kernel", str(number), bytes(900 * (number + 1) - 200))
        assert sum(e.nbytes for e in store.entries()) <= store.limit


def test_a_failed_write_leaves_nothing_behind(store: DiskStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("kernel", "a", CONTENT)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        store.put("kernel", "a", b"newer")
    assert store.get("kernel", "a") == CONTENT
    assert [p.name for p in (store.directory / "kernel").iterdir()] == [store.entries()[0].path.name]


def test_processes_share_a_directory(tmp_path: Path) -> None:
    script = Path(__file__).with_name("hammer.py")
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", str(script), str(tmp_path), str(seed)],
            env={**os.environ, "PYTHONPATH": str(root)}, stderr=subprocess.PIPE,
        )
        for seed in range(4)
    ]  # fmt: skip
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    assert not list(tmp_path.glob("*/*.part"))
    largest = 4_500  # Entries are a fourteenth of the limit here, so each other process may add one that nobody saw.
    assert sum(e.nbytes for e in DiskStore(tmp_path).entries()) <= 60_000 + 3 * largest


def test_the_default_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DIRECTORY_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_directory() == Path("/xdg/graphdnn")
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_directory() == Path("/home/somebody/.cache/graphdnn")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_directory() == Path("/home/somebody/.cache/graphdnn")
    monkeypatch.setenv(DIRECTORY_VARIABLE, "/chosen")
    assert default_directory() == Path("/chosen")


def test_a_user_without_a_home_has_no_cache_unless_one_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a container that runs as a user of no name."""
    for name in (DIRECTORY_VARIABLE, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}["no such user"])
    with pytest.raises(SetupError, match="this user has no home; GRAPHDNN_CACHE_DIR in the environment names one"):
        default_directory()
    with pytest.warns(RuntimeWarning, match="no home.*; nothing is cached"):
        assert isinstance(default_store(), NullStore)
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    store = default_store()
    assert isinstance(store, DiskStore)
    assert store.directory == tmp_path


def test_a_directory_may_be_named_from_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert DiskStore("~/kernels").directory == Path("/home/somebody/kernels")
    assert DiskStore(Path("~/kernels")).directory == Path("/home/somebody/kernels")


def test_the_null_store_forgets() -> None:
    store = NullStore()
    store.put("kernel", "a", CONTENT)
    store.drop("kernel", "a")
    assert store.get("kernel", "a") is None


def test_a_file_whose_writing_fails_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "whole"
    path.write_bytes(b"before")

    def write() -> None:
        with AtomicFile(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_finished_leaves_nothing(tmp_path: Path) -> None:
    """What is written last may not fit, which shows when the file is closed."""
    unfinished = AtomicFile(tmp_path / "whole")
    file = unfinished.__enter__()
    file.write(b"what stays in the buffer")
    os.close(file.fileno())
    with pytest.raises(OSError, match=re.escape(str(tmp_path / "whole"))):
        unfinished.__exit__(None, None, None)
    assert not list(tmp_path.iterdir())
