"""Reports of many candidates as tables: engines say the same of many sets of nodes, and here it stands once.

A row is the answers for one set of nodes, as numbers of tables: "0-2 5: 3: 0 7 1" are the nodes 0, 1, 2 and 5 of
`names`, pattern 3 of `patterns`, which are numbers of `ops`, and, engine by engine, answers 0, 7 and 1 of `answers`.
Candidates are numbered in the rows' order; a region's alternatives are such numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from graphdnn.report.model import CandidateReport, CompileReport
from graphdnn.spelling import is_whole_number, quoted
from graphdnn.strict_json import complaint

FORMAT = "graphdnn report"
VERSION = 2
"""Version 1 is the report without tables, which does not say so."""

OWN = ("id", "nodes", "pattern")
"""Fields of a candidate that stand in its row; the others are its answer."""

SAID = tuple(name for name in CandidateReport.model_fields if name not in OWN)
ANSWER = [(name, CandidateReport.model_fields[name].get_default()) for name in SAID]
"""An answer's fields and what they are where an answer does not have them."""

TABLES = ("names", "ops", "patterns", "answers", "candidates", "ids")

PATTERN = "{pattern}"
"""What stands in a `general` answer's reason for the pattern of its row."""

MOST = 1 << 25
"""Numbers that the ranges of one document may stand for; a graph of ten thousand nodes has a tenth of that."""


def tabled(report: CompileReport) -> dict[str, Any]:
    """The document of a report."""
    every = list(report.candidates)
    places = {id(c): i for i, c in enumerate(every)}
    by_id = {c.id: i for i, c in enumerate(every)}
    regions = []
    for region in report.regions:
        numbers = []
        for entry in region.alternatives:
            place = places.get(id(entry))
            if place is None:
                place = by_id.get(entry.id)
                if place is None or every[place] != entry:  # known to this region only
                    place = len(every)
                    every.append(entry)
                places[id(entry)] = place
            numbers.append(place)
        regions.append({**region.model_dump(mode="json", exclude={"alternatives"}), "alternatives": ranges(numbers)})
    rest = {name: getattr(report, name) for name in CompileReport.model_fields if name not in ("regions", "candidates")}
    document = {"format": FORMAT, "version": VERSION, **rest, "regions": regions, **rows(every)}
    if len(every) > len(report.candidates):
        document["candidate_count"] = len(report.candidates)
    return document


def rows(entries: Sequence[CandidateReport]) -> dict[str, Any]:
    """Rows and the tables that they point into, and ids where they are not c0, c1, ..."""
    names: dict[str, int] = {}
    patterns: dict[str, int] = {}
    answers: dict[tuple[object, ...], int] = {}
    ops: dict[str, int] = {}
    found: list[str] = []
    last: tuple[object, object] | None = None
    for entry in entries:
        reason = general(entry)
        said = (reason, *[getattr(entry, n) if reason is None or n != "reason" else reason for n in SAID])
        answer = answers.setdefault(said, len(answers))
        if last == (entry.nodes, entry.pattern):
            found[-1] += f" {answer}"
            continue
        last = entry.nodes, entry.pattern
        nodes = ranges([names.setdefault(name, len(names)) for name in entry.nodes])
        found.append(f"{nodes}: {patterns.setdefault(entry.pattern, len(patterns))}: {answer}")
    ids = [entry.id for entry in entries]
    return {
        "names": list(names),
        "patterns": [ranges([ops.setdefault(op, len(ops)) for op in p.split("+")]) for p in patterns],
        "ops": list(ops),
        "answers": [shortened(said) for said in answers],
        "candidates": found,
        **({} if all(id == f"c{i}" for i, id in enumerate(ids)) else {"ids": ids}),
    }


def general(entry: CandidateReport) -> str | None:
    """The reason with a mark for the pattern, where it holds one of several ops; else all such reasons differ."""
    if "+" not in entry.pattern or entry.pattern not in entry.reason or PATTERN in entry.reason:
        return None
    return entry.reason.replace(entry.pattern, PATTERN)


def shortened(said: tuple[object, ...]) -> dict[str, object]:
    """An answer without the fields that are as they are by default."""
    reason, *others = said
    fields = {name: value for (name, usual), value in zip(ANSWER, others, strict=True) if value != usual}
    return fields if reason is None else {**fields, "reason": reason, "general": True}


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in their order, those that follow one another as first and last: "0-2 5"."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] + 1 == number:
            found[-1][1] = number
        else:
            found.append([number, number])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def untabled(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a report from its document.  Raises ValueError saying what is wrong with it."""
    rest = dict(document)
    if rest.pop("format") != FORMAT:
        raise ValueError(f"format is {quoted(document['format'])}; {FORMAT!r} is needed")
    version = rest.pop("version", None)
    if type(version) is not int or version != VERSION:
        raise ValueError(f"version is {quoted(version)}; this graphdnn reads version {VERSION}")
    reader = Reader()
    entries = read_rows(reader, {name: rest.pop(name, None) for name in TABLES})
    count = reader.number(str(rest.pop("candidate_count", len(entries))), len(entries) + 1)
    regions = listed("regions", rest.pop("regions", None), dict)
    for region in regions:
        numbers = region.get("alternatives")
        if not isinstance(numbers, str):
            raise ValueError("the alternatives of a region are no numbers of candidates")
        region["alternatives"] = tuple([entries[i] for i in reader.numbers(numbers, len(entries))])
    return {**rest, "regions": regions, "candidates": tuple(entries[:count])}


def read_rows(reader: Reader, tables: Mapping[str, Any]) -> list[CandidateReport]:
    """The candidates of all rows."""
    names, ops, patterns, written = (listed(n, tables[n], str) for n in ("names", "ops", "patterns", "candidates"))
    ids = None if tables["ids"] is None else listed("ids", tables["ids"], str)
    texts = ["+".join([ops[i] for i in reader.numbers(pattern, len(ops))]) for pattern in patterns]
    answers = [Answer.of(fields) for fields in listed("answers", tables["answers"], dict)]
    entries: list[CandidateReport] = []
    for row in written:
        nodes, place, numbers = reader.row(row)
        pattern = texts[reader.number(place, len(texts))]
        own = {"nodes": tuple([names[i] for i in reader.numbers(nodes, len(names))]), "pattern": pattern}
        for number in reader.numbers(numbers, len(answers)):
            if ids is not None and len(entries) == len(ids):
                raise ValueError(f"ids: it has {len(ids)}, and there are more candidates")
            id = f"c{len(entries)}" if ids is None else ids[len(entries)]
            entries.append(answers[number].given({"id": id, **own}))
    return entries


@dataclass(frozen=True)
class Answer:
    """What engines say of several sets of nodes; `is_general` where the reason holds the mark for the pattern."""

    entry: CandidateReport
    is_general: bool

    @staticmethod
    def of(fields: dict[str, Any]) -> Answer:
        is_general = fields.pop("general", False)
        try:
            entry = CandidateReport.model_validate({**fields, "id": "", "nodes": (), "pattern": ""})
        except ValidationError as error:
            raise ValueError(f"answers: {complaint(error)}") from None
        return Answer(entry, is_general is True)

    def given(self, own: dict[str, Any]) -> CandidateReport:
        """The candidate for one set of nodes."""
        if self.is_general:
            own["reason"] = self.entry.reason.replace(PATTERN, own["pattern"])
        return self.entry.model_copy(update=own)


def listed(name: str, found: Any, kind: type) -> list[Any]:
    """A table of a document, its dicts copied.  Raises ValueError for anything else."""
    if not isinstance(found, list | tuple) or not all(isinstance(entry, kind) for entry in found):
        raise ValueError(f"{name} is no list of {'texts' if kind is str else 'objects'}")
    return [dict(entry) for entry in found] if kind is dict else list(found)


class Reader:
    """Reads numbers and ranges, and counts what they stand for."""

    def __init__(self) -> None:
        self._count = 0

    def row(self, row: str) -> list[str]:
        """Nodes, pattern and answers."""
        parts = row.split(":")
        if len(parts) != 3:
            raise ValueError(f"candidates: {quoted(row)} is no row of nodes, pattern and answers")
        return parts

    def number(self, text: str, size: int) -> int:
        """A place in a table of this size."""
        text = text.strip()
        if not (is_whole_number(text) and int(text) < size):
            raise ValueError(f"{quoted(text)} is no number below {size}")
        return int(text)

    def numbers(self, text: str, size: int) -> list[int]:
        """Places in a table of this size."""
        found: list[int] = []
        for part in text.split():
            first, dash, last = part.partition("-")
            start = self.number(first, size)
            end = self.number(last, size) if dash else start
            self._count += max(1, end + 1 - start)
            if self._count > MOST:
                raise ValueError(f"its ranges stand for more than {MOST} numbers")
            found.extend(range(start, end + 1))
        return found
