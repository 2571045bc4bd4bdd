"""The command `graphdnn cache` on directories that are sound, damaged, empty or absent."""

from pathlib import Path

import pytest

from graphdnn import cli
from graphdnn.cache_cli import size
from graphdnn.engines.saved import spelled
from graphdnn.runtime.cache import DIRECTORY_VARIABLE, DiskStore

KEY = spelled({"engine": "cudnn", "plan": "eng4_k24=2", "region": "ab" * 32, "device": "h200", "driver": "580"})


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
    store.put("kernel", spelled({"plan": "\x1b[31m"}), b"")
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
    assert said(capsys, "list") == [f"0 entries, 0 B, in {tmp_path / 'absent'}"]
    assert said(capsys, "verify") == [f"0 of 0 entries are sound, in {tmp_path / 'absent'}"]
    assert said(capsys, "clear") == [f"removed 0 entries from {tmp_path / 'absent'}"]
    assert not (tmp_path / "absent").exists()


def test_sizes_have_units() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536, 5 << 20, 3 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "5.0 MiB",
        "3072.0 GiB",
    ]
