"""The command `graphdnn cache` on directories that are sound, damaged, empty or absent."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphdnn.commands import cli
from graphdnn.engines.serialization import key_text
from graphdnn.runtime.cache import DIRECTORY_VARIABLE, DiskStore

KEY = key_text({"engine": "cudnn", "plan": "eng4_k24=2", "region": "ab" * 32, "device": "h200", "driver": "580"})


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    made = DiskStore(tmp_path / "cache")
    made.put("cudnn-plan", KEY, bytes(3000))
    made.put("cubin", "0123456789abcdef" * 4, bytes(100))
    return made


def said(capsys: pytest.CaptureFixture, *arguments: str, status: int = 0) -> list[str]:
    assert cli.main(["cache", *arguments]) == status
    lines: list[str] = capsys.readouterr().out.splitlines()
    return lines


def test_list_tells_what_each_entry_is_of(store: DiskStore, capsys: pytest.CaptureFixture) -> None:
    *entries, total = said(capsys, "list", "--dir", str(store.directory))
    assert len(entries) == 2
    plan = next(line for line in entries if line.startswith("cudnn-plan"))
    assert plan.endswith("engine cudnn, plan eng4_k24=2, region abababababab, device h200")
    assert " 3.1 KiB " in plan
    cubin = next(line for line in entries if line.startswith("cubin"))
    assert cubin.endswith("  0123456789abcdef01234567")
    assert total.startswith("2 entries, 3.3 KiB, in ")
    assert total.endswith(str(store.directory))


def test_list_of_one_kind(store: DiskStore, capsys: pytest.CaptureFixture) -> None:
    entry, total = said(capsys, "list", "--kind", "cubin", "--dir", str(store.directory))
    assert entry.startswith("cubin")
    assert total.startswith("1 entry,")


def test_keys_cannot_write_to_the_terminal(store: DiskStore, capsys: pytest.CaptureFixture) -> None:
    store.put("kernel", "\x1b[2J\n", b"")
    store.put("kernel", key_text({"plan": "\x1b[31m"}), b"")
    assert not [line for line in said(capsys, "list", "--dir", str(store.directory)) if "\x1b" in line]


def test_list_shows_what_is_damaged(store: DiskStore, capsys: pytest.CaptureFixture) -> None:
    path = store.entries()[0].path
    path.write_bytes(path.read_bytes()[:20])
    assert any(line.endswith("(damaged)") for line in said(capsys, "list", "--dir", str(store.directory)))


def test_verify_removes_what_is_damaged(store: DiskStore, capsys: pytest.CaptureFixture) -> None:
    where = ("--dir", str(store.directory))
    assert said(capsys, "verify", *where) == [f"2 of 2 entries are sound, in {store.directory}"]
    path = store.entries()[0].path
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    first, last = said(capsys, "verify", *where, status=1)
    assert first.startswith(f"removed {path}")
    assert last.startswith("1 of 2")
    assert said(capsys, "verify", *where) == [f"1 of 1 entry is sound, in {store.directory}"]


def test_clear_removes_one_kind_or_all(store: DiskStore, capsys: pytest.CaptureFixture) -> None:
    where = ("--dir", str(store.directory))
    assert said(capsys, "clear", "--kind", "cubin", *where) == [f"removed 1 entry from {store.directory}"]
    assert [e.kind for e in store.entries()] == ["cudnn-plan"]
    assert said(capsys, "clear", *where) == [f"removed 1 entry from {store.directory}"]
    assert store.entries() == []


def test_the_default_directory_may_be_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "absent"))
    absent = f"{tmp_path / 'absent'}, which is not there"
    assert said(capsys, "list") == [f"0 entries, 0 B, in {absent}"]
    assert said(capsys, "verify") == [f"0 of 0 entries are sound, in {absent}"]
    assert said(capsys, "clear") == [f"removed 0 entries from {absent}"]
    assert not (tmp_path / "absent").exists()


PARTS = ("list", "verify", "clear")


def refused(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    assert cli.main(["cache", *arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    err: str = printed.err
    return err


@pytest.mark.parametrize("part", PARTS)
def test_an_empty_directory_is_no_trouble(part: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (line,) = said(capsys, part, "--dir", str(tmp_path))
    assert line.endswith(str(tmp_path))
    assert "0" in line


@pytest.mark.parametrize("part", PARTS)
def test_what_is_no_directory_is_refused(part: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'} is no folder; a folder is needed" in refused(capsys, part, "--dir", f"{tmp_path}/file")
    assert "--dir is empty" in refused(capsys, part, "--dir", "")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("where", ["", "cubin"])
def test_a_directory_that_cannot_be_read_is_no_empty_one(
    part: str, where: str, store: DiskStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    closed = store.directory / where
    look = Path.iterdir

    def guarded(self: Path) -> Iterator[Path]:
        if self == closed:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return look(self)

    monkeypatch.setattr(Path, "iterdir", guarded)
    assert refused(capsys, part, "--dir", str(store.directory)) == f"graphdnn: {closed}: permission denied\n"


def test_an_entry_that_cannot_be_read_is_not_passed_over(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    path, read = store.entries()[0].path, Path.read_bytes

    def guarded(self: Path) -> bytes:
        if self == path:
            raise PermissionError(errno.EACCES, "closed", str(self))
        return read(self)

    monkeypatch.setattr(Path, "read_bytes", guarded)
    first, last = said(capsys, "verify", "--dir", str(store.directory), status=1)
    assert first == f"{path} cannot be read"
    assert last.startswith("1 of 2 entries is sound")


def test_what_cannot_be_removed_is_said(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """As in a folder that may only be read."""
    stuck, unlink, where = store.entries()[0].path, Path.unlink, ("--dir", str(store.directory))
    stuck.write_bytes(stuck.read_bytes()[:-1])

    def guarded(self: Path, missing_ok: bool = False) -> None:
        if self == stuck:
            raise PermissionError(errno.EACCES, "closed", str(self))
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", guarded)
    first, last = said(capsys, "verify", *where, status=1)
    assert first == f"{stuck} has the name of an entry and is damaged or none, and cannot be removed"
    assert last.startswith("1 of 2 entries is sound")
    first, last = said(capsys, "clear", *where, status=1)
    assert first == f"{stuck} cannot be removed"
    assert last == f"removed 1 entry from {store.directory}"
    assert [e.path for e in store.entries()] == [stuck]


@pytest.mark.parametrize("part", ["list", "clear"])
def test_a_misspelt_kind_is_told(part: str, store: DiskStore, capsys: pytest.CaptureFixture) -> None:
    first, last = said(capsys, part, "--kind", "cubn", "--dir", str(store.directory))
    assert first == "there is no entry of kind 'cubn'; did you mean 'cubin'? (kinds here are cubin, cudnn-plan)"
    assert "0 entries" in last
    assert len(store.entries()) == 2
