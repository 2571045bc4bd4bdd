"""The container: what is written comes back; a damaged, cut, forged or foreign file is refused by one sentence."""

import hashlib
import json
import os
import random
import time
from pathlib import Path

import pytest

from graphdnn import SavedFileError
from graphdnn.serialization import container

SECTIONS = {"manifest": b'{"a":1}', "empty": b"", "plan.0": bytes(range(40))}
BEGIN = container.START.size + container.DIGEST


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "small.gdn"
    container.write(place, SECTIONS)
    return place


def forged(path: Path, header: bytes, body: bytes = b"") -> Path:
    """A file with this header under a right digest: what somebody writes who knows the format."""
    start = container.START.pack(container.MAGIC, container.VERSION, len(header))
    path.write_bytes(start + hashlib.sha256(start + header).digest() + header + body)
    return path


def section(name: str, body: bytes, **other: object) -> dict[str, object]:
    return {"name": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest(), **other}


def header(*sections: dict[str, object]) -> bytes:
    return json.dumps({"sections": sections}).encode()


def test_what_is_written_comes_back(path: Path) -> None:
    found = container.read(path)
    assert {name: content.tobytes() for name, content in found.items()} == SECTIONS
    assert not any(content.flags.writeable for content in found.values())


def test_a_forged_file_with_a_right_header_is_read(path: Path) -> None:
    """So the refusals below come from what each of them changes."""
    found = container.read(forged(path, header(section("a", b"xy"), section("b", b"z")), b"xyz"))
    assert {n: c.tobytes() for n, c in found.items()} == {"a": b"xy", "b": b"z"}


def test_a_flip_in_any_byte_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for place in range(len(whole)):
        for flip in (1 << place % 8, 0xFF):
            changed = bytearray(whole)
            changed[place] ^= flip
            path.write_bytes(changed)
            with pytest.raises(SavedFileError, match=r"^small\.gdn: "):
                container.read(path)


def test_every_truncation_and_extension_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for content in (*(whole[:end] for end in range(len(whole))), whole + b"\0", whole + whole, b"\0" + whole):
        path.write_bytes(content)
        with pytest.raises(SavedFileError, match=r"^small\.gdn: "):
            container.read(path)


def test_garbage_is_refused(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    whole = path.read_bytes()
    for _ in range(150):
        kept = draw.randrange(len(whole))
        path.write_bytes(whole[:kept] + draw.randbytes(draw.randrange(1, 600)))
        with pytest.raises(SavedFileError):
            container.read(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[" * 100_000, "nested too deeply|no JSON"),
        (b'{"sections":' + b'[{"name":' * 50_000, "nested too deeply|no JSON"),
        (b'{"sections":[],"sections":[]}', "twice"),
        (b'{"sections":NaN}', "NaN"),
        (b'{"sections":[' + b"1" * 10_000 + b"]}", "no JSON"),
        (b"[]", "dictionary|object|valid"),
        (b"null", "dictionary|object|valid"),
        (b'{"sections":{}}', "list"),
        (b"{}", "sections: it is missing"),
        (b'{"sections":[],"more":1}', "more"),
        (b'{"sections":[7]}', "sections.0"),
        (header(section("a", b"", size="3")), "size"),
        (header(section("a", b"", size=1.5)), "size"),
        (header(section("a", b"", size=True)), "size"),
        (header(section("a", b"", size=-1)), "size"),
        (header(section("a", b"", size=2**63)), "size"),
        (header(section("a", b"", size=10**300)), "size"),
        (header(section("a", b"", sha256="0" * 63)), "sha256"),
        (header(section("a", b"", sha256="A" * 64)), "sha256"),
        (header(section("a", b"", offset=0)), "offset"),
        (header(section("../../etc/passwd", b"")), "name"),
        (header(section("/tmp/x", b"")), "name"),
        (header(section("a\n", b"")), "name"),
        (header(section("a\0b", b"")), "name"),
        (header(section("", b"")), "name"),
        (header(section("a" * 81, b"")), "name"),
        (header(section("a", b""), section("a", b"")), "two sections are named a"),
        (header(section("a", b"", size=2**61)), "take 2305843009213693952 bytes, but 0 follow"),
        (header(section("a", b"x")), "take 1 bytes, but 0 follow"),
    ],
)
def test_forged_headers_are_refused(path: Path, text: bytes, said: str) -> None:
    with pytest.raises(SavedFileError, match=said) as caught:
        container.read(forged(path, text))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_a_sparse_file_of_any_size_is_refused_before_memory_is_asked_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 40
    begin = forged(path, header(section("a", b"", size=size))).stat().st_size
    try:
        os.truncate(path, begin + size)
    except OSError:
        size = 1 << 33
        begin = forged(path, header(section("a", b"", size=size))).stat().st_size
        os.truncate(path, begin + size)
    monkeypatch.setattr(container, "machine_memory", lambda: 1 << 32)
    with pytest.raises(SavedFileError, match=f"section a takes {size} bytes; this machine has {1 << 32} bytes"):
        container.read(path)

    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(container, "machine_memory", lambda: None)
    monkeypatch.setattr(container.np, "empty", full)
    with pytest.raises(SavedFileError, match=f"section a takes {size} bytes; there is not so much memory"):
        container.read(path)


def test_what_the_machine_has_is_known() -> None:
    assert (container.machine_memory() or 0) > 1 << 24


def test_many_sections_are_read_in_no_time(path: Path) -> None:
    made = forged(path, header(*(section(f"s{i}", b"") for i in range(100_000))))
    begin = time.process_time()
    assert len(container.read(made)) == 100_000
    assert time.process_time() - begin < 3


def test_sections_must_fill_the_file(path: Path) -> None:
    with pytest.raises(SavedFileError, match="take 2 bytes, but 3 follow the header"):
        container.read(forged(path, header(section("a", b"xy")), b"xyz"))


def test_a_section_under_another_checksum_is_named(path: Path) -> None:
    with pytest.raises(SavedFileError, match="section b is damaged"):
        container.read(forged(path, header(section("a", b"xy"), section("b", b"z")), b"xyw"))


def test_a_header_longer_than_the_file_is_refused_before_it_is_read(path: Path) -> None:
    for length in (2**40, 2**64 - 1):
        start = container.START.pack(container.MAGIC, container.VERSION, length)
        path.write_bytes(start + bytes(container.DIGEST))
        with pytest.raises(SavedFileError, match=f"header is said to take {length} bytes, but 0 follow"):
            container.read(path)


def test_another_version_is_named(path: Path) -> None:
    path.write_bytes(container.START.pack(container.MAGIC, 1, 0) + bytes(100))
    with pytest.raises(SavedFileError, match="version 1; this graphdnn reads version 2"):
        container.read(path)


@pytest.mark.parametrize("content", [b"", b"PK\3\4" + bytes(200), b'{"format": "graphdnn"}', bytes(500)])
def test_other_files_are_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(SavedFileError, match="does not begin as a saved executable"):
        container.read(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for place in (tmp_path, pipe):
        with pytest.raises(SavedFileError, match="no regular file"):
            container.read(place)
    with pytest.raises(FileNotFoundError):
        container.read(tmp_path / "none.gdn")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()

    class Full:
        def __len__(self) -> int:
            return 3

        def __buffer__(self, flags: int) -> memoryview:
            raise OSError("no space left")

    monkeypatch.setattr(container, "digest", lambda content: "0" * 64)
    with pytest.raises((OSError, TypeError)):
        container.write(path, {"a": b"x", "b": Full()})  # type: ignore[dict-item]
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_new_file_has_the_rights_of_any_new_file(path: Path) -> None:
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
