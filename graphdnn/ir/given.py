"""What callers hand to the calls that read, write and evaluate graphs: paths of files, text, arrays by name.

What is none is refused in one sentence before anything is opened or written.  `pathlib` is loaded when a path is given:
importing graphdnn needs none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING

from graphdnn.errors import GraphDnnError, GraphError
from graphdnn.spelling import quoted

if TYPE_CHECKING:
    from pathlib import Path


def path_of(who: str, given: object, error: type[GraphDnnError]) -> Path:
    """The path that a caller gave for a file.  Raises `error` for what names none."""
    from pathlib import Path

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
    from pathlib import Path

    try:
        mode = os.stat(path).st_mode
    except OSError:  # it is not there yet, or cannot be, as writing it will tell
        return Path(os.path.realpath(path))
    if not S_ISREG(mode):
        found = "a folder" if S_ISDIR(mode) else "no regular file"
        raise error(f"{who} is {quoted(str(path))}, which is {found}; a new name or that of a regular file is needed")
    return Path(os.path.realpath(path))


def text_of(who: str, given: object) -> str:
    """The text that a caller gave.  Raises GraphError for anything else."""
    if isinstance(given, str):
        return given
    raise GraphError(f"{who}: text is a {type(given).__name__}; a str is needed")


def check_arrays(who: str, what: str, given: object) -> None:
    """Raises GraphError for what is no mapping of arrays by name."""
    if not isinstance(given, Mapping):
        raise GraphError(f"{who}: {what} is a {type(given).__name__}; a mapping of names to arrays is needed")
