"""Names with characters that a terminal obeys: shown escaped, on one line, and left as they are in data."""

import json
import re
from pathlib import Path

import pytest

import graphdnn as gd
from graphdnn.commands import cli
from graphdnn.report.diff import difference
from graphdnn.report.explain import escaped, explain, printable
from graphdnn.report.model import CompileReport
from graphdnn.report.plans import plans
from tests.planned import h200_report

OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e]")
CLEAR, TITLE, TURNED, LINES = "\x1b[2J", "a\x1b]0;owned\x07", "\u202eexe", "one\ntwo\r\u2028three"


def named() -> gd.Graph:
    g = gd.GraphBuilder(f"graph{CLEAR}")
    x = g.input(f"x{LINES}", (4, 8), gd.float32)
    y = g.softmax(g.relu(x, name=LINES), name=TURNED)
    wide = g.add(y, g.input("half", (4, 8), gd.float16), name=TITLE)
    return g.build({f"out{CLEAR}": g.matmul(wide, g.input("w", (8, 8), gd.float32), name=CLEAR)})


@pytest.fixture(scope="module")
def report() -> CompileReport:
    return h200_report(named())


def assert_obeys_nothing(text: str) -> None:
    assert not OBEYED.search(text)
    assert "\ntwo" not in text


def test_explaining_escapes_names(report: CompileReport) -> None:
    text = explain(report)
    assert_obeys_nothing(text)
    assert r"graph\x1b[2J" in text
    assert r"a\x1b]0;owned\x07" in text


def test_plans_are_found_by_the_name_itself(report: CompileReport) -> None:
    for region in report.regions:
        text = plans(report, region.name)
        assert_obeys_nothing(text)
        assert f"region {escaped(region.name)}: {region.pattern}" in text


def test_differences_escape_names(report: CompileReport) -> None:
    text = difference(report, h200_report(named(), disabled_passes=("fuse",)))
    assert_obeys_nothing(text)
    assert r"\x1b[2J" in text


def test_the_commands_escape_names(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = str(tmp_path / "g.json")
    named().save(path)
    commands = (
        ["explain", path, "--target", "cpu"],
        ["plans", path, "--target", "cpu"],
        ["plans", path, "--target", "cpu", "--region", f"none{CLEAR}"],
        ["doctor", "--replay", path, "--target", "cpu"],
        ["explain", f"{tmp_path}/{CLEAR}"],
    )
    for command in commands:
        cli.main(command)
        printed = capsys.readouterr()
        assert_obeys_nothing(printed.out + printed.err)
        assert r"\x1b" in printed.out + printed.err


def test_json_keeps_names(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = str(tmp_path / "g.json")
    named().save(path)
    assert cli.main(["explain", path, "--target", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["graph"] == f"graph{CLEAR}"


def test_ordinary_reports_are_not_copied() -> None:
    g = gd.GraphBuilder("äöü 東京 🙂")
    report = gd.compile(g.build({"y": g.relu(g.input("x", (2,), gd.float32))}), target="cpu").report
    assert printable(report) is report
    assert "graph äöü 東京 🙂 for cpu" in explain(report)


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a b", "a b"), ("\ttab", r"\ttab"), ("\x00", r"\x00"), ("\x9b1m", r"\x9b1m"), ("\ud800", r"\ud800")],
)
def test_escapes(text: str, shown: str) -> None:
    assert escaped(text) == shown
