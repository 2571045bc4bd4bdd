"""Reports of many candidates: everything comes back, what is repeated is written once, and no document is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import graphdnn as gd
from graphdnn.report import model as report_module
from graphdnn.report import tables
from graphdnn.report.model import CandidateReport, CompileReport, FixReport
from graphdnn.report.tables import ranges, tabled
from graphdnn.serialization.kinds import Kind, kind_of
from tests.planned import H200, h200_report
from tests.report.golden import GOLDEN, Wishes
from tests.report.test_diff import block

BYTES_A_NODE = 5_000_000 / 3000


@pytest.fixture
def with_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "PLAIN", 0)


def chain(length: int) -> gd.Graph:
    """Pointwise nodes one behind another, of each of which engines are asked about thirty sets."""
    g = gd.GraphBuilder("chain")
    x = y = g.input("x", (64, 64), gd.float16)
    for i in range(length):
        y = (g.relu(y), g.mul(y, x), g.add(y, 0.5))[i % 3]
    return g.build({"y": y})


def again(report: CompileReport, **layout: Any) -> CompileReport:
    return CompileReport.model_validate_json(report.model_dump_json(**layout))


@pytest.mark.parametrize("name", GOLDEN)
def test_everything_comes_back(name: str, with_tables: None) -> None:
    report = h200_report(GOLDEN[name](Wishes()))
    assert "ops" in json.loads(report.model_dump_json())
    assert again(report) == report
    assert again(report, indent=2) == report


def test_a_report_of_many_candidates_is_small() -> None:
    report = h200_report(chain(300))
    text = report.model_dump_json()
    assert len(report.candidates) > 10_000
    assert len(text) < 300 * BYTES_A_NODE
    assert len(report.model_dump_json(indent=2)) < 300 * BYTES_A_NODE
    assert again(report) == report


@pytest.mark.slow
def test_a_report_of_three_thousand_nodes_is_under_five_megabytes() -> None:
    report = gd.compile(chain(3000), target=H200).report
    assert len(report.model_dump_json()) < 5_000_000
    assert again(report) == report


def test_a_reason_that_is_repeated_stands_once() -> None:
    document = json.loads(h200_report(chain(100)).model_dump_json())
    reasons = [answer.get("reason", "") for answer in document["answers"]]
    assert len({r for r in reasons if "cuBLASLt runs one matmul" in r}) <= 4, (
        "one for each op alone, one for the others"
    )


def test_few_candidates_stand_as_they_are() -> None:
    report = h200_report(block(8))
    document = json.loads(report.model_dump_json())
    assert document["candidates"][0]["engine"] == report.candidates[0].engine
    assert document["regions"][0]["alternatives"][0]["verdict"]
    assert again(report) == report


def marked(c: CandidateReport) -> CandidateReport:
    return c.model_copy(update={"reason": "{pattern} is what a user may call a node"})


CHANGES: dict[str, Callable[[CompileReport], CompileReport]] = {
    "reasons with the mark": lambda r: r.model_copy(update={"candidates": tuple(map(marked, r.candidates))}),
    "other ids": lambda r: r.model_copy(
        update={"candidates": tuple(c.model_copy(update={"id": f"other {c.id}"}) for c in r.candidates)}
    ),
    "fewer candidates": lambda r: r.model_copy(update={"candidates": r.candidates[3:-2]}),
    "no candidates": lambda r: r.model_copy(update={"candidates": ()}),
    "no regions": lambda r: r.model_copy(update={"regions": ()}),
    "fixes": lambda r: r.model_copy(
        update={
            "candidates": tuple(
                c.model_copy(
                    update={"fix": FixReport(target=c.id, attribute="dtype", before="a", after="b", sentence="é\n")}
                )
                for c in r.candidates
            )
        }
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_reports_that_no_compiler_wrote_come_back_too(change: str, with_tables: None) -> None:
    report = CHANGES[change](h200_report(block(8)))
    document = tabled(report)
    assert CompileReport.model_validate(json.loads(report.model_dump_json())) == report
    assert document["format"] == "graphdnn report"


def test_odd_names_come_back(with_tables: None) -> None:
    g = gd.GraphBuilder("odd")
    x = g.input("0-2 5: 3", (4, 4), gd.float16)
    y = g.tanh(g.softmax(x, axis=-1, name="{pattern}"), name="1")
    report = h200_report(g.build({"y": g.relu(y, name=" : ")}))
    assert again(report) == report


WRONG: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("version", lambda d: d.update(version=1), "version is 1; this graphdnn reads version 2"),
    ("no version", lambda d: d.pop("version"), "version is None"),
    ("true", lambda d: d.update(version=True), "version is True"),
    ("format", lambda d: d.update(format="graphdnn lock"), "format is 'graphdnn lock'; 'graphdnn report' is needed"),
    ("no names", lambda d: d.pop("names"), "names is no list of texts"),
    ("names of numbers", lambda d: d.update(names=[1]), "names is no list of texts"),
    ("row", lambda d: d["candidates"].append("0: 1"), "'0: 1' is no row of nodes, pattern and answers"),
    ("node", lambda d: d["candidates"].append("0-99999999999999: 0: 0"), "'99999999999999' is no number below"),
    ("words", lambda d: d["candidates"].append("zero: 0: 0"), "'zero' is no number"),
    ("digits", lambda d: d["candidates"].append("²: 0: 0"), "is no number"),
    ("negative", lambda d: d["candidates"].append("-1: 0: 0"), "is no number"),
    ("pattern", lambda d: d["candidates"].append("0: 99999: 0"), "'99999' is no number below"),
    ("answer", lambda d: d["candidates"].append("0: 0: 99999"), "'99999' is no number below"),
    ("op", lambda d: d["patterns"].append("77"), "'77' is no number below"),
    ("answers", lambda d: d["answers"].append([]), "answers is no list of objects"),
    (
        "verdict",
        lambda d: d["answers"].append({"engine": "e", "verdict": "good"}),
        "answers: verdict is 'good'; 'chosen', ",
    ),
    ("ids", lambda d: d.update(ids=["c0"]), "ids: it has 1, and there are more candidates"),
    ("count", lambda d: d.update(candidate_count=10**9), "is no number below"),
    ("count of text", lambda d: d.update(candidate_count="many"), "is no number below"),
    ("alternatives", lambda d: d["regions"][0].update(alternatives=[0]), "no numbers of candidates"),
    ("regions", lambda d: d.update(regions=[1]), "regions is no list of objects"),
    ("more", lambda d: d.update(more=1), "more"),
]


@pytest.mark.parametrize(("change", "said"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_wrong_documents_are_refused(change: Callable[[dict[str, Any]], object], said: str, with_tables: None) -> None:
    document = json.loads(h200_report(block(8)).model_dump_json())
    change(document)
    with pytest.raises(ValidationError) as caught:
        CompileReport.model_validate(document)
    assert said in str(caught.value)


def test_ranges_that_stand_for_too_much_are_refused(with_tables: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short row names thousands of nodes, and there may be millions of rows."""
    document = json.loads(h200_report(block(8)).model_dump_json())
    document["names"] = [str(i) for i in range(10_000)]
    document["candidates"] += ["0-9999: 0: 0"] * 20
    monkeypatch.setattr(tables, "MOST", 100_000)
    with pytest.raises(ValidationError, match="stand for more than"):
        CompileReport.model_validate(document)


def test_kinds_of_both_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = h200_report(block(8))
    (tmp_path / "plain.json").write_text(report.model_dump_json())
    monkeypatch.setattr(report_module, "PLAIN", 0)
    (tmp_path / "tables.json").write_text(report.model_dump_json())
    assert {kind_of(tmp_path / name) for name in ("plain.json", "tables.json")} == {Kind.REPORT}


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 5], "0-2 5"), ([2, 1, 1], "2 1 1"), ([9, 10, 0], "9-10 0")]
)
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text
