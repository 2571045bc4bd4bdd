"""`graphdnn plans` on the lists of a real H200: every plan has its own row, with all that was recorded of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from graphdnn.commands import cli
from graphdnn.report.model import CompileReport, PlanReport
from graphdnn.report.plans import ORDER
from graphdnn.spelling import byte_count
from tests.recorded.lists import FILE, Plan, Recording, read
from tests.recorded.replay import Machine, reported

REAL = read(FILE)
UNIFORM = "conv 3x3 s1 n32 64->64 56x56 relu in ieee"
"""A list whose first plans all need scratch."""

Place = tuple[str, str]

every = pytest.mark.parametrize("recording", REAL, ids=str)


def shown(report: CompileReport, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command prints of a report's one region."""
    path = folder / "report.json"
    path.write_text(report.model_dump_json())
    assert cli.main(["plans", str(path), "--region", report.regions[0].name]) == 0
    return capsys.readouterr().out


def rows(text: str) -> dict[Place, list[str]]:
    """The cells of each plan's row that are not empty, by engine and plan."""
    lines = text.split("\n\n")[1].splitlines()
    found = [re.split(r" {2,}", line.strip()) for line in lines[2:]]
    of_plans = [cells for cells in found if cells[1] not in ORDER]
    plans = {(cells[0], cells[1]): cells for cells in of_plans}
    assert len(plans) == len(of_plans), "two plans have the same row"
    return plans


def expected(plan: Plan, told: PlanReport, estimated_us: float) -> list[str]:
    """A plan's row as the list has it, with its verdict and time of this compilation."""
    time = "" if told.measured_us is None else f"{told.measured_us:.2f}"
    steady = "yes" if plan.deterministic else "no"
    notes = "; ".join(plan.notes)
    cells = [plan.engine, plan.name, told.verdict, byte_count(plan.workspace), f"{estimated_us:.2f}", time, steady]
    return [cell for cell in (*cells, plan.precision, notes) if cell]


@every
def test_every_recorded_plan_has_its_row(
    recording: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Machine(recording).compiled().report
    text = shown(report, tmp_path, capsys)
    found, told = rows(text), reported(report)
    estimates = {o.engine: o.estimated_us for o in recording.offers}
    assert set(found) == {(p.engine, p.name) for p in recording.plans}
    for plan in recording.plans:
        estimate = estimates[plan.engine]
        assert estimate is not None
        assert found[plan.engine, plan.name] == expected(plan, told[plan.engine, plan.name], estimate)
    winner = recording.fastest
    assert found[winner.engine, winner.name][2] == "chosen"
    assert [row[2] for row in found.values()].count("chosen") == 1
    assert f"{winner.us:.2f}" in found[winner.engine, winner.name]


@every
def test_by_heuristics_the_chosen_engines_plans_are_shown_untimed(
    recording: Recording, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Machine(recording).compiled("heuristic").report
    text = shown(report, tmp_path, capsys)
    heading, table = text.split("\n\n")[:2]
    (region,) = report.regions
    assert f"runs on {region.engine} {region.plan}: 1 kernel, scratch {byte_count(region.workspace_bytes)}, " in heading
    assert heading.endswith(f"estimated {region.estimated_us:.2f} us, not timed")
    assert "time us" not in table
    shown_names = {name for engine, name in rows(text) if engine == region.engine}
    assert shown_names == {p.name for p in recording.plans if p.engine == region.engine}


def test_the_lists_show_all_there_is_to_show() -> None:
    """Otherwise the tests above would pass without a note, a knob or scratch memory in any list."""
    plans = [p for r in REAL for p in r.plans]
    assert sum("_k" in p.name for p in plans) > 100
    assert sum(bool(p.notes) for p in plans) > 100
    assert sum(p.workspace > 0 for p in plans) > 50
    assert any(not p.deterministic for p in plans)


def test_what_a_limit_excludes_is_shown_with_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (recording,) = [r for r in REAL if str(r) == UNIFORM]
    text = shown(Machine(recording).compiled(workspace_limit=0).report, tmp_path, capsys)
    first = recording.candidates[0]
    assert first.workspace > 0
    assert rows(text)[first.engine, first.name][2:4] == ["excluded", byte_count(first.workspace)]
    assert f"needs {first.workspace} bytes of scratch; workspace_limit is 0" in text
