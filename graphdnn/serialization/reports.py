"""Reports in files: as `explain --json` prints them, or within a saved executable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from graphdnn.errors import SavedFileError
from graphdnn.report.model import CompileReport
from graphdnn.report.tables import tabled
from graphdnn.serialization import container
from graphdnn.serialization.records import read_bounded, read_record

ANY: TypeAdapter[Any] = TypeAdapter(Any)
"""Writes models within plain containers."""


def read_report(path: Path, who: str) -> CompileReport:
    """The report.  Raises SavedFileError naming `who` and what is wrong with it, OSError where there is none."""
    if not container.is_container(path):
        return read_record(who, read_bounded(path), CompileReport)
    sections = container.read(path)
    if "report" not in sections:
        raise SavedFileError(f"{who}: section report is missing")
    return decode_report(f"{who}: report", sections["report"].tobytes())


def encode_report(report: CompileReport) -> bytes:
    """The report for a saved executable, always with tables: most of a plain one repeats itself."""
    return ANY.dump_json(tabled(report))


def decode_report(who: str, content: bytes) -> CompileReport:
    """The report that `encode_report` wrote.  Raises SavedFileError naming the field that is wrong."""
    return read_record(who, content, CompileReport)
