"""Reports from files: the JSON that `explain --json` prints, or the report within a saved executable."""

from __future__ import annotations

import json
from pathlib import Path

from graphdnn.report import CompileReport
from graphdnn.saved import container
from graphdnn.saved.load import File
from graphdnn.saved.records import read_record


def is_report(path: Path) -> bool:
    """Whether a file is no graph's document: a saved executable, or JSON with regions."""
    with open(path, "rb") as file:
        content = file.read(len(container.MAGIC))
        if content == container.MAGIC:
            return True
        content += file.read()
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "regions" in found


def read_report(path: Path) -> CompileReport:
    """The report.  Raises SavedFileError naming the file and what is wrong with it, OSError where there is none."""
    with open(path, "rb") as file:
        content = file.read(len(container.MAGIC))
        if content == container.MAGIC:
            return File(path.name, container.read(path)).report
        content += file.read()
    return read_record(path.name, content, CompileReport)
