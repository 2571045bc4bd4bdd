"""Reports in files: whole, as `explain --json` prints them, or compact within a saved executable.

A report repeats a candidate at every region that it overlaps, which is most of its bytes and of the time to read it;
compact, a region has the ids of its alternatives.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from graphdnn.errors import SavedFileError
from graphdnn.report import CandidateReport, CompileReport
from graphdnn.saved import container
from graphdnn.saved.records import Strict, complaint, read_record

CANDIDATES = TypeAdapter(tuple[CandidateReport, ...])


class CompactModel(Strict):
    """The report with alternatives by id."""

    candidates: list[Any]
    regions: list[dict[str, Any]]
    rest: dict[str, Any]


def compact(report: CompileReport) -> bytes:
    """The report for a saved executable."""
    rest = report.model_dump(mode="json")
    candidates, regions = rest.pop("candidates"), rest.pop("regions")
    for region in regions:
        region["alternatives"] = [candidate["id"] for candidate in region["alternatives"]]
    return json.dumps({"candidates": candidates, "regions": regions, "rest": rest}, separators=(",", ":")).encode()


def expanded(who: str, content: bytes) -> CompileReport:
    """The report that `compact` spelled.  Raises SavedFileError naming the field that is wrong."""
    found = read_record(who, content, CompactModel)
    try:
        candidates = CANDIDATES.validate_python(found.candidates)
        by_id = {candidate.id: candidate for candidate in candidates}
        regions = [
            {**region, "alternatives": tuple(by_id[id] for id in region["alternatives"])} for region in found.regions
        ]
        return CompileReport.model_validate({**found.rest, "candidates": candidates, "regions": regions})
    except ValidationError as error:
        raise SavedFileError(f"{who}: {complaint(error)}") from None
    except (KeyError, TypeError):
        raise SavedFileError(f"{who}: the alternatives of a region are no ids of candidates") from None


def read_report(path: Path) -> CompileReport:
    """The report.  Raises SavedFileError naming the file and what is wrong with it, OSError where there is none."""
    if not container.is_container(path):
        return read_record(path.name, path.read_bytes(), CompileReport)
    sections = container.read(path)
    if "report" not in sections:
        raise SavedFileError(f"{path.name}: section report is missing")
    return expanded(f"{path.name}: report", sections["report"].tobytes())
