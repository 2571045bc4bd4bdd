"""JSON that graphdnn wrote, read as if anybody had: strict types, no name twice, bounded length, one error sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from graphdnn.errors import SavedFileError
from graphdnn.ir.tensorfile import distinct

LONGEST = 1 << 28
"""Bytes of one JSON text; the report of a model of ten thousand nodes has a tenth of that."""

SHOWN = 60
"""Characters of a wrong entry that an error repeats."""


NEEDED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("model_type", "dict_type"), "an object"),
    "string_type": "text",
}
"""What an entry of a wrong type should have been, by pydantic's word for the mistake."""


class Strict(BaseModel):
    """Base of what stands in our files: nothing is converted, nothing unknown is let through."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


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


def complaint(error: ValidationError) -> str:
    """The first field that is wrong: what it is, and what it should be."""
    first = error.errors(include_url=False)[0]
    kind, where = first["type"], ".".join(str(part) for part in first["loc"])[:SHOWN]
    if kind == "missing":
        return f"{where}: it is missing"
    if kind == "extra_forbidden":
        return f"{where}: there is no such field"
    if kind in NEEDED:
        return f"{where or 'the whole'} is {in_json(first['input'])}; {NEEDED[kind]} is needed"
    if kind == "literal_error":
        return f"{where} is {in_json(first['input'])}; {first['ctx']['expected']} is needed"
    said = first["msg"].removeprefix("Value error, ")
    if kind == "value_error" and not where:
        return said
    return f"{where or 'the whole'}: {said[:1].lower()}{said[1:]}"


def in_json(found: object) -> str:
    """A wrong entry in a few words."""
    if isinstance(found, dict | BaseModel):
        return "an object"
    if isinstance(found, list | tuple):
        return "a list"
    text = repr(found) if isinstance(found, str) else json.dumps(found, default=str)
    return f"{text:.{SHOWN}}"


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
