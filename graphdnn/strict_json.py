"""What our JSON is read into: records that convert nothing and let nothing unknown through, and what is wrong with one.

Graphs, reports, lock files and manifests are such records.  It loads pydantic, so that it is imported where needed.
"""

from __future__ import annotations

import json

from pydantic import BaseModel, ConfigDict, ValidationError

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


class Record(BaseModel):
    """Base of all that stands in our JSON: frozen, strict types, and no field that is not named."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


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
