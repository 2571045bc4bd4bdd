"""Which of graphdnn's files a file is, and which call reads it, for whoever was given another kind than it takes."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from graphdnn import files
from graphdnn.errors import SavedFileError
from graphdnn.serialization import container
from graphdnn.serialization.records import read_bounded, read_json


class Kind(StrEnum):
    """What a file is."""

    GRAPH = "graph"
    REPORT = "report"
    EXECUTABLE = "saved executable"
    LOCK = "lock file"
    FOLDER = "folder"
    PIPE = "pipe"
    EMPTY = "empty"
    NO_JSON = "no JSON"
    OTHER = "other"


SAID: dict[Kind, str] = {
    Kind.GRAPH: "it is a graph's document; gd.Graph.load reads it, and gd.compile compiles what that gives",
    Kind.REPORT: "it is a report; gd.CompileReport.model_validate_json reads its text, and graphdnn explain shows it",
    Kind.EXECUTABLE: "it is a saved executable; gd.load reads it, and graphdnn explain shows its report",
    Kind.LOCK: "it is a lock file; gd.compile(graph, lock=...) takes it",
    Kind.FOLDER: "it is a folder",
    Kind.PIPE: "it is no regular file",
    Kind.EMPTY: "it is empty",
    Kind.NO_JSON: "it is no file of graphdnn, or a damaged one: it is no JSON",
    Kind.OTHER: "it is no file of graphdnn: it does not say that it is a graph, a report or a lock file",
}
"""What a file is and what reads it, for the middle of a sentence."""

FORMATS = {"graphdnn": Kind.GRAPH, "graphdnn report": Kind.REPORT, "graphdnn lock": Kind.LOCK}
"""Kinds of JSON by what they say of themselves."""


def path_of(who: str, given: object) -> Path:
    """The path that a caller gave for a file.  Raises SavedFileError for what names none."""
    return files.path_of(who, given, SavedFileError)


def kind_of(path: Path) -> Kind:
    """What a file is, by how it begins and what it says of itself.  Raises OSError where it cannot be read."""
    if path.is_dir():
        return Kind.FOLDER
    if path.exists() and not path.is_file():
        return Kind.PIPE  # which can be read once, and looking at it might never end
    if container.is_container(path):
        return Kind.EXECUTABLE
    if not path.stat().st_size:
        return Kind.EMPTY
    try:
        found = read_json(path.name, read_bounded(path))
    except SavedFileError:
        return Kind.NO_JSON
    if not isinstance(found, dict):
        return Kind.OTHER
    if "format" not in found and {"regions", "candidates"} <= found.keys():
        return Kind.REPORT  # of a graphdnn whose reports did not say so
    says = found.get("format")
    return FORMATS.get(says, Kind.OTHER) if isinstance(says, str) else Kind.OTHER
