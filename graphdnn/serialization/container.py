"""The container: magic, version and a digest, a JSON header of sections, then the sections one behind the other.

There is no padding and no section has an offset of its own: what stands where follows from the sizes, so that sections
cannot overlap or leave a gap, and every byte of the file is under the header's digest or a section's.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BufferedReader
from pathlib import Path
from threading import Lock
from typing import Annotated

import numpy as np
from pydantic import Field

from graphdnn.errors import SavedFileError
from graphdnn.files import AtomicFile
from graphdnn.ir.types import Array
from graphdnn.serialization.records import read_record
from graphdnn.strict_json import Record

MAGIC = b"\x89gdnn\r\n\x1a"
"""No text starts so, and a transfer that converts line ends breaks it."""

VERSION = 2
"""2 since the report has tables."""

START = struct.Struct("<8sIQ")
"""Magic, version, bytes of the header.  SHA-256 over these and the header follows, then the header."""

DIGEST = 32
"""Bytes of a SHA-256."""

MOST_SECTIONS = 1 << 18
"""Plans and constants of one file: more than any graph has nodes."""

LARGEST_HEADER = 1 << 26
"""Bytes: MOST_SECTIONS with names, sizes and digests of 256 bytes each."""

THREADS = 8
"""Sections that are hashed at the same time."""

LARGE = 1 << 16
"""Bytes of a section from which on its checksum is worth another thread."""

Bytes = bytes | memoryview
"""A section's content."""


class SectionModel(Record):
    """One section: its name, its bytes and their SHA-256."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9.]{1,80}$")]
    size: Annotated[int, Field(ge=0, lt=1 << 62)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class HeaderModel(Record):
    """The sections in the order in which they stand in the file."""

    sections: Annotated[list[SectionModel], Field(max_length=MOST_SECTIONS)]


def write(path: Path, sections: Mapping[str, Bytes]) -> None:
    """Writes the sections in their order.  The file appears whole."""
    with ThreadPoolExecutor(THREADS) as pool:
        digests = list(pool.map(digest, sections.values()))
    header = HeaderModel(
        sections=[
            SectionModel(name=name, size=len(content), sha256=found)
            for (name, content), found in zip(sections.items(), digests, strict=True)
        ]
    )
    text = header.model_dump_json().encode()
    start = START.pack(MAGIC, VERSION, len(text))
    with AtomicFile(path) as file:
        file.write(start + hashlib.sha256(start + text).digest() + text)
        for content in sections.values():
            file.write(content)


def is_container(path: Path) -> bool:
    """Whether a file begins as one.  Raises OSError where it cannot be opened."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read(path: Path) -> dict[str, Array]:
    """Every section by name, as read-only arrays of bytes, all of them checked.

    Nothing is allocated before the file's own size has confirmed it and the machine's memory has room for it: a file
    may be sparse and claim any size.  Raises SavedFileError saying what is wrong with the file, OSError where it cannot
    be opened.
    """
    who = path.name
    if path.exists() and not path.is_file():
        raise SavedFileError(f"{who}: it is no regular file; a saved executable is needed")
    with open(path, "rb") as file, ThreadPoolExecutor(THREADS) as pool:
        available = os.fstat(file.fileno()).st_size
        header, start = read_header(who, file, available)
        check_sizes(who, header, available - start)
        read_at = ReadAt(file)
        found: dict[str, Array] = {}
        waiting = []
        for section in header.sections:
            try:
                content = np.empty(section.size, np.uint8)
            except MemoryError:
                raise SavedFileError(f"{who}: {too_large(section)}; there is not so much memory") from None
            found[section.name] = content
            if section.size >= LARGE:
                waiting.append(pool.submit(read_section, who, section, content, start, read_at))
            else:
                read_section(who, section, content, start, read_at)
            start += section.size
        for each in waiting:
            each.result()
    for content in found.values():
        content.flags.writeable = False
    return found


class ReadAt:
    """Reads from a place of one open file, in several threads at a time where the system has a call for that."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._lock = Lock()

    def __call__(self, start: int, into: memoryview) -> int:
        """Bytes that were read: fewer than there is room for at the end of the file or of what one call reads."""
        if hasattr(os, "preadv"):
            return os.preadv(self._file.fileno(), [into], start)
        with self._lock:
            self._file.seek(start)
            return self._file.readinto(into)


def read_section(who: str, section: SectionModel, content: Array, start: int, read_at: ReadAt) -> None:
    """Fills a section's array and checks it."""
    left = content.data
    while len(left):
        count = read_at(start, left)
        if not count:
            raise SavedFileError(f"{who}: it ended within section {section.name} while it was read")
        start, left = start + count, left[count:]
    if digest(content.data) != section.sha256:
        raise SavedFileError(f"{who}: section {section.name} is damaged: its checksum does not match")


def too_large(section: SectionModel) -> str:
    return f"section {section.name} takes {section.size} bytes"


def machine_memory() -> int | None:
    """Bytes of memory that this machine has; None where it does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def digest(content: Bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_header(who: str, file: BufferedReader, available: int) -> tuple[HeaderModel, int]:
    """The header and where the sections start."""
    start = file.read(START.size)
    checksum = file.read(DIGEST)
    if len(checksum) < DIGEST or not start.startswith(MAGIC):
        raise SavedFileError(f"{who}: it does not begin as a saved executable does; it is damaged or another file")
    _, version, length = START.unpack(start)
    if version != VERSION:
        raise SavedFileError(f"{who}: its format has version {version}; this graphdnn reads version {VERSION}")
    left = available - START.size - DIGEST
    if length > min(left, LARGEST_HEADER):
        raise SavedFileError(f"{who}: its header is said to take {length} bytes, but {left} follow; it is damaged")
    text = file.read(length)
    if hashlib.sha256(start + text).digest() != checksum:
        raise SavedFileError(f"{who}: its header is damaged: the checksum does not match")
    return read_record(f"{who}: header", text, HeaderModel), available - left + length


def check_sizes(who: str, header: HeaderModel, available: int) -> None:
    """Raises SavedFileError unless the sections have names of their own, fill the file, and fit into memory."""
    names: set[str] = set()
    for section in header.sections:
        if section.name in names:
            raise SavedFileError(f"{who}: two sections are named {section.name}")
        names.add(section.name)
    needed = sum(section.size for section in header.sections)
    if needed != available:
        raise SavedFileError(f"{who}: its sections take {needed} bytes, but {available} follow the header")
    memory = machine_memory()
    if memory is not None and needed > memory:
        largest = max(header.sections, key=lambda section: section.size)
        raise SavedFileError(f"{who}: {too_large(largest)}; this machine has {memory} bytes of memory")
