"""A cache of bytes on disk: cubins, plans, timings.  Nothing of an entry is used before header and checksum match."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import struct
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from graphdnn.errors import SetupError
from graphdnn.files import UNFINISHED, AtomicFile
from graphdnn.forking import renew_in_children

MAGIC = b"gdnncch1"
HEADER = struct.Struct("<8sIQ32s")
"""Magic, bytes of the key, bytes of the content, SHA-256 over key and content."""

DEFAULT_LIMIT = 2 << 30
LOOK = 1 / 64
"""Part of the limit that one process may write between two looks at the folder's real size."""

FULL = 7 / 8
"""Part of the limit above which entries go: what eight processes may write between two looks stays below the limit."""

KEEP = 3 / 4
"""Part of the limit that eviction leaves, so that not every further entry evicts again."""

LONGEST_KEY = 1 << 20
"""Bytes of a key that are read to say what an entry is of; ours have some hundreds."""

STALE_S = 3600.0
"""Age after which an unfinished temporary file belongs to a process that died."""

DIRECTORY_VARIABLE = "GRAPHDNN_CACHE_DIR"

KIND = re.compile(r"[a-z]+(-[a-z]+)*")
NAME = re.compile(r"[0-9a-f]{64}\.bin")
UNFINISHED_NAME = re.compile(rf"\.{NAME.pattern}\.\d+\.[0-9a-f]+{re.escape(UNFINISHED)}")
"""How our folders, entries and temporary files are named.  The directory is the user's choice: what else lies in it is
somebody's own, and neither counted nor removed."""


@dataclass(frozen=True)
class Entry:
    """One file of the cache; `used` is when it was last read or written, in seconds since the epoch."""

    path: Path
    kind: str
    nbytes: int
    used: float

    @property
    def is_ours(self) -> bool:
        """Whether it begins as our entries do; so may one that is damaged further on."""
        try:
            with open(self.path, "rb") as file:
                return file.read(len(MAGIC)) == MAGIC
        except OSError:
            return False

    def key(self) -> str | None:
        """What it is stored under, read off the file's start; None where that is no header."""
        try:
            with open(self.path, "rb") as file:
                start = file.read(HEADER.size)
                if len(start) < HEADER.size:
                    return None
                magic, name_bytes, content_bytes, _ = HEADER.unpack(start)
                if (
                    magic != MAGIC
                    or HEADER.size + name_bytes + content_bytes != self.nbytes
                    or name_bytes > LONGEST_KEY
                ):
                    return None
                return str(file.read(name_bytes), "utf-8")
        except (OSError, UnicodeDecodeError):
            return None


class Check(Enum):
    """What came of checking an entry: it is sound, was damaged and is removed, is damaged and cannot be removed, or
    cannot be read."""

    SOUND = auto()
    REMOVED = auto()
    STUCK = auto()
    UNREAD = auto()


def default_directory() -> Path:
    """GRAPHDNN_CACHE_DIR, else graphdnn under XDG_CACHE_HOME, else ~/.cache/graphdnn.

    A relative XDG_CACHE_HOME counts as unset, as its specification has it.  Raises SetupError where there is no home.
    """
    chosen = os.environ.get(DIRECTORY_VARIABLE)
    if chosen:
        return Path(chosen)
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "graphdnn"
    try:
        return Path.home() / ".cache" / "graphdnn"
    except RuntimeError:
        raise SetupError(
            f"the disk cache has no directory: this user has no home; {DIRECTORY_VARIABLE} in the environment names one"
        ) from None


def default_store() -> DiskStore | NullStore:
    """The cache in its default directory, or none where there is no such directory, which is said."""
    try:
        return DiskStore(default_directory())
    except SetupError as error:
        warnings.warn(f"{error}; nothing is cached", RuntimeWarning, stacklevel=2)
        return NullStore()


class NullStore:
    """Remembers nothing."""

    def get(self, kind: str, key: str) -> bytes | None:
        return None

    def put(self, kind: str, key: str, content: bytes) -> None:
        """Nothing is kept."""

    def drop(self, kind: str, key: str) -> None:
        """There is nothing."""


class DiskStore:
    """Bytes by kind and key in one directory, `limit` bytes at most, the least recently used going first.

    Writes are atomic, so several processes may share the directory.  A damaged or foreign entry is dropped with a
    warning; that entries cannot be read is reported once, and so is a directory that cannot be written, and the cache
    then only reads.
    """

    def __init__(self, directory: str | Path, limit: int = DEFAULT_LIMIT) -> None:
        self.directory = Path(os.path.expanduser(directory))
        self.limit = limit
        self._unaccounted: float | None = None
        self._read_only = False
        self._is_unreadable = False
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes the lock anew."""
        self._lock = threading.Lock()

    def get(self, kind: str, key: str) -> bytes | None:
        """The content stored under this key, or None."""
        path = self._path(kind, key)
        try:
            raw = self._raw(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if not self._is_unreadable:
                self._is_unreadable = True
                text = f"cache entry {path} cannot be read ({error}); it and others like it are ignored"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            return None
        found = unpack(raw)
        if found is None or found[0] != key:
            warnings.warn(f"cache entry {path} is damaged or foreign; it is dropped", RuntimeWarning, stacklevel=2)
            remove(path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return found[1]

    def put(self, kind: str, key: str, content: bytes) -> None:
        """Stores content under a key; the last of several writers wins."""
        if self._read_only:
            return
        raw = pack(key, content)
        if len(raw) > self.limit:
            return
        path = self._path(kind, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._make_room(len(raw))
            with AtomicFile(path) as file:
                file.write(raw)
        except OSError as error:
            self._read_only = True
            warnings.warn(
                f"cache directory {self.directory} cannot be written ({error}); nothing more is cached",
                RuntimeWarning,
                stacklevel=2,
            )

    def drop(self, kind: str, key: str) -> None:
        """Removes an entry where there is one."""
        remove(self._path(kind, key))

    def entries(self) -> list[Entry]:
        """Every entry, least recently used first."""
        return [e for e in self.candidates() if e.is_ours]

    def candidates(self) -> list[Entry]:
        """Every file that is named and placed as our entries are, whatever it holds, least recently used first."""
        found = []
        for kind, file in self._files(NAME):
            with contextlib.suppress(OSError):
                status = file.stat(follow_symlinks=False)
                found.append(Entry(Path(file.path), kind, status.st_size, status.st_mtime))
        return sorted(found, key=lambda e: (e.used, e.path))

    def _files(self, name: re.Pattern[str]) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Kind and file for each regular file of such a name in our folders; links are followed nowhere."""
        for folder in listing(self.directory):
            if KIND.fullmatch(folder.name) and folder.is_dir(follow_symlinks=False):
                for file in listing(folder):
                    if name.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                        yield folder.name, file

    def clear(self, kind: str | None = None) -> list[tuple[Entry, bool]]:
        """Removes every entry, or every one of a kind, and says of each whether it is gone."""
        return [(entry, remove(entry.path)) for entry in self.entries() if kind in (None, entry.kind)]

    def verify(self) -> Iterator[tuple[Entry, Check]]:
        """Reads all that is named as our entries are, whole, and removes what is not sound.

        What other processes remove meanwhile is passed over.
        """
        for entry in self.candidates():
            try:
                found = unpack(self._raw(entry.path))
            except FileNotFoundError:
                continue
            except OSError:
                yield entry, Check.UNREAD
                continue
            if found is not None and entry.path == self._path(entry.kind, found[0]):
                yield entry, Check.SOUND
            else:
                yield entry, Check.REMOVED if remove(entry.path) else Check.STUCK

    def _raw(self, path: Path) -> bytes:
        """What a file holds; nothing where it is larger than entries may be, as a sparse file is that takes no room.

        Raises OSError where it cannot be read.
        """
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is no regular file")  # a pipe might never end
        return path.read_bytes() if status.st_size <= self.limit else b""

    def _path(self, kind: str, key: str) -> Path:
        name = hashlib.sha256(f"{kind}\0{key}".encode()).hexdigest()
        return self.directory / kind / f"{name}.bin"

    def _make_room(self, nbytes: int) -> None:
        """Looks at the folder's size before the first write, and again each time a part of the limit was written."""
        with self._lock:
            if self._unaccounted is not None and self._unaccounted + nbytes < self.limit * LOOK:
                self._unaccounted += nbytes
                return
            self._unaccounted = 0.0
        self._evict(nbytes)

    def _evict(self, coming: int) -> None:
        for _, stale in self._files(UNFINISHED_NAME):
            with contextlib.suppress(OSError):
                if time.time() - stale.stat(follow_symlinks=False).st_mtime > STALE_S:
                    os.unlink(stale)
        candidates = self.candidates()
        if sum(e.nbytes for e in candidates) + coming <= self.limit * FULL:
            return  # without opening any of them
        entries = [e for e in candidates if e.is_ours]
        total = sum(e.nbytes for e in entries) + coming
        if total <= self.limit * FULL:
            return
        for entry in entries:
            if total <= self.limit * KEEP:
                return
            remove(entry.path)
            total -= entry.nbytes


def listing(folder: str | os.PathLike[str]) -> list[os.DirEntry[str]]:
    """What lies in a folder; nothing where it is none or cannot be read."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def remove(path: Path) -> bool:
    """Removes a file, which another process may have done already; whether it is gone."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def pack(key: str, content: bytes) -> bytes:
    name = key.encode()
    checksum = hashlib.sha256(name + content).digest()
    return HEADER.pack(MAGIC, len(name), len(content), checksum) + name + content


def unpack(raw: bytes) -> tuple[str, bytes] | None:
    """Key and content of an entry, or None when header, lengths or checksum do not match."""
    if len(raw) < HEADER.size:
        return None
    magic, name_bytes, content_bytes, checksum = HEADER.unpack_from(raw)
    if magic != MAGIC or len(raw) != HEADER.size + name_bytes + content_bytes:
        return None
    body = raw[HEADER.size :]
    if hashlib.sha256(body).digest() != checksum:
        return None
    try:
        return str(body[:name_bytes], "utf-8"), body[name_bytes:]
    except UnicodeDecodeError:
        return None
