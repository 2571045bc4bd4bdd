"""What a plan depends on besides its region: the device, its driver, the libraries and this package's code.

It is part of the cache keys of plans and answers, so that those of another machine or version are never found.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from graphdnn.ir import LOADED
from graphdnn.target import Target

PACKAGE = Path(__file__).parents[1]
GENERATED = "__pycache__"

SHARED = (
    "answer.py",
    "errors.py",
    "files.py",
    "forking.py",
    "lazy.py",
    "once.py",
    "relaxed.py",
    "spelling.py",
    "strict_json.py",
    "target.py",
)
"""Files beside the folders that these import."""

CHOOSING = ("passes", "planning")
"""Folders that decide which regions a graph falls into, and nothing about what an engine makes of one."""


def environment(target: Target, engine: str, **libraries: str) -> dict[str, str]:
    """The facts by name; `libraries` are versions, as the libraries themselves tell them."""
    return {
        "device": target.name,
        "arch": target.arch,
        "sm_count": str(target.sm_count),
        "driver": target.versions.get("driver", ""),
        "driver_release": target.versions.get("driver_release", ""),
        "code": code_digest(engine),
        **libraries,
    }


@dataclass(frozen=True)
class Source:
    """A file of the package: its place there, what it holds, and when that was written, in seconds since the epoch."""

    place: str
    digest: bytes
    written: float

    def is_of(self, engine: str) -> bool:
        """Whether it decides what an engine makes of a region: all but what is other engines' own does."""
        top, _, rest = self.place.partition("/")
        folder, _, own = rest.partition("/")
        if top in CHOOSING:
            return False
        return top != "engines" or not own or folder == engine


@functools.cache
def sources() -> tuple[Source, ...]:
    """Every file that decides about answers, covers and plans, as it is on disk when this is first asked, in order."""
    package = str(PACKAGE)
    found = []
    shared = (os.path.join(package, name) for name in SHARED)
    for path in (*shared, *(p for folder in ("ir", "engines", *CHOOSING) for p in tree(package, folder))):
        try:
            with open(path, "rb", buffering=0) as file:
                content, written = file.read(), os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:  # an editor's own, gone since the folder was listed
            continue
        place = path[len(package) + 1 :].replace(os.sep, "/")
        found.append(Source(place, hashlib.sha256(content).digest(), written))
    return tuple(sorted(found, key=lambda s: s.place))


def tree(package: str, folder: str) -> Iterator[str]:
    """Paths of all files below a folder of the package, but of those that Python generates."""
    for parent, folders, files in os.walk(os.path.join(package, folder)):
        folders[:] = [f for f in folders if f != GENERATED]
        yield from (os.path.join(parent, name) for name in files)


@functools.cache
def code_digest(engine: str | None = None) -> str:
    """SHA-256 over the files that decide what an engine makes of a region, or what any does.

    A version number would stay the same while rules are being changed.
    """
    digest = hashlib.sha256()
    for source in sources():
        if engine is None or source.is_of(engine):
            digest.update(f"{source.place}\0".encode())
            digest.update(source.digest)
    return digest.hexdigest()[:32]


def is_as_loaded() -> bool:
    """Whether the code on disk is what this process runs: it is there, and was last written before it was loaded."""
    return bool(sources()) and all(source.written <= LOADED for source in sources())
