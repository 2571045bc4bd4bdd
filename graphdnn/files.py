"""Files by the paths that callers gave: paths that name none are refused before anything is opened, and what is written
appears whole or not at all."""

from __future__ import annotations

import os
import secrets
from os import PathLike
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from graphdnn.errors import GraphDnnError
from graphdnn.spelling import quoted

UNFINISHED = ".part"
"""How the names of files end that are being written."""


class AtomicFile:
    """A binary file that takes the place of `path` once it is written whole, with the rights of any new file.

    Raises OSError naming `path` where it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{UNFINISHED}")

    def __enter__(self) -> Any:
        try:
            self.file = open(self.part, "xb")
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        return self.file

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self.file.close()  # writes what is left, for which there may be no room
            if kind is None:
                os.replace(self.part, self.path)
        except OSError as failure:
            os.unlink(self.part)
            raise OSError(failure.errno, failure.strerror, str(self.path)) from None
        if kind is not None:
            os.unlink(self.part)


def path_of(who: str, given: object, error: type[GraphDnnError]) -> Path:
    """The path that a caller gave for a file.  Raises `error` for what names none."""
    text = os.fspath(given) if isinstance(given, str | PathLike) else None
    if not isinstance(text, str):
        raise error(f"{who} is a {type(given).__name__}; a str or Path is needed")
    if not text or "\0" in text or not is_encodable(text):
        raise error(f"{who} is {quoted(text)}, which names no file")
    path = Path(text)
    if not path.name:
        raise error(f"{who} is {quoted(text)}, which is a folder; the path of a file is needed")
    return path


def is_encodable(text: str) -> bool:
    """Whether the system can have a file of this name; a lone surrogate stands for no bytes."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def path_to_write(who: str, path: Path, error: type[GraphDnnError]) -> Path:
    """Where the file is, or will be, that `path` leads to: links are followed, so that they stay.

    Raises `error` where a folder, a pipe or a device is, which a file must not take the place of.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:  # it is not there yet, or cannot be, as writing it will tell
        return Path(os.path.realpath(path))
    if not S_ISREG(mode):
        found = "a folder" if S_ISDIR(mode) else "no regular file"
        raise error(f"{who} is {quoted(str(path))}, which is {found}; a new name or that of a regular file is needed")
    return Path(os.path.realpath(path))
