"""JSON that graphdnn wrote, read as if anybody had: strict types, no name twice, bounded length, one error sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from graphdnn.errors import SavedFileError
from graphdnn.ir.tensorfile import distinct
from graphdnn.strict_json import complaint

LONGEST = 1 << 28
"""Bytes of one JSON text; the report of a model of ten thousand nodes has a tenth of that."""

M = TypeVar("M", bound=BaseModel)


def read_bounded(path: Path) -> bytes:
    """A file's content, or so much of it that `read_json` refuses it: a file may be sparse and have any size."""
    with open(path, "rb") as file:
        return file.read(LONGEST + 1)


def read_record(who: str, content: bytes, model: type[M]) -> M:
    """The record of one JSON text.  Raises SavedFileError naming `who` and the first field that is wrong."""
    try:
        return model.model_validate(read_json(who, content))
    except ValidationError as error:
        raise SavedFileError(f"{who}: {complaint(error)}") from None
    except RecursionError:
        raise SavedFileError(f"{who}: it is nested too deeply") from None


REASON = 100
"""Characters of what Python says of a wrong JSON text, which may repeat some of it."""


def read_json(who: str, content: bytes) -> Any:
    """What a JSON text says.  Raises SavedFileError for bytes that are no such text, or too many."""
    if len(content) > LONGEST:
        raise SavedFileError(f"{who}: it has more than {LONGEST} bytes, which is no JSON of graphdnn")
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=distinct, parse_constant=no_number)
    except RecursionError:
        raise SavedFileError(f"{who}: it is nested too deeply") from None
    except UnicodeDecodeError:
        raise SavedFileError(f"{who}: it is no JSON (it is no text in UTF-8)") from None
    except ValueError as error:
        raise SavedFileError(f"{who}: it is no JSON ({str(error)[:REASON]})") from None


def no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")
