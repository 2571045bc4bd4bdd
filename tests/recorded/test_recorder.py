"""The recorder without a device: what it writes of plans that do what they are told, and what a failure leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.plan_cases import CASES
from tests.gpu.record_candidates import TASKS, Task, document_text, record
from tests.recorded import made
from tests.recorded.lists import FILE, Recording, read

ABOUT = {"versions": {"device": "NVIDIA H200"}, "device": "NVIDIA H200", "commit": "abc", "date": "2026-12-02"}


@pytest.fixture(scope="module")
def lists() -> dict[str, Recording]:
    return {str(r): r for r in made.made()}


def test_every_engine_and_plan_is_there_in_its_order(lists: dict[str, Recording]) -> None:
    found = lists["made everything in tf32"]
    names = {o.engine: [p.name for p in o.plans] for o in found.offers}
    assert names == {**{engine: list(acts) for engine, acts in made.EVERYTHING.items()}, "shy": []}
    assert "cut_k2=1" not in {p.name for p in lists["made everything in ieee"].plans}
    shy = next(o for o in found.offers if o.engine == "shy")
    assert (shy.estimated_us, shy.refusal) == (None, "shy does not take mul")


def test_every_plan_has_what_is_known_of_it(lists: dict[str, Recording]) -> None:
    found = {p.name: p for p in lists["made everything in tf32"].plans}
    for name, act in made.EVERYTHING["cudnn"].items():
        plan = found[name]
        assert (plan.workspace, plan.deterministic, plan.is_known) == (act.workspace, act.deterministic, act.is_known)
        if act.fails:
            assert (plan.verdict, plan.us) == ("failed", None)
            assert plan.reason
        else:
            assert plan.us == pytest.approx(act.us)
            assert plan.verdict == ("wrong" if act.factor != 1 else "slower")
    assert found["cut_k2=1"].precision == "tf32"


def test_nothing_is_dropped_early_and_no_engine_ruled_out_by_its_estimate(lists: dict[str, Recording]) -> None:
    slow = next(p for p in lists["made everything in ieee"].plans if p.name == "eng4_k2=2")
    assert (slow.us, slow.reason) == (pytest.approx(900), "")
    hopeless = [p for p in lists["made hopeless in ieee"].plans if p.engine == "cublaslt"]
    assert [p.us for p in hopeless] == pytest.approx([2000, 2100])
    estimate = next(o.estimated_us for o in lists["made hopeless in ieee"].offers if o.engine == "cublaslt")
    assert estimate == 3000


def test_what_is_too_far_down_is_listed_untimed(lists: dict[str, Recording]) -> None:
    plans = lists["made many in ieee"].plans
    assert [p.us is None for p in plans] == [False] * 10 + [True] * 4
    assert {p.reason for p in plans[10:]} == {"its engine ranks it lower; not timed"}


def row(task: Task) -> list[dict[str, Any]]:
    plan = {"name": "eng1", "us": 1.23456, "notes": ["A"]}
    engine = {"engine": "cudnn", "estimated_us": 2.0, "plans": [plan, {**plan, "name": "eng2"}]}
    return [{"case": task.case, "precision": task.precision, "pattern": "relu", "engines": [engine]}]


def cases(path: Path) -> list[str]:
    return [r["case"] for r in json.loads(path.read_text())["regions"]]


def test_a_task_that_fails_loses_no_other(tmp_path: Path) -> None:
    path, seen = tmp_path / "new" / "lists.json", []

    def rows_of(task: Task) -> list[dict[str, Any]]:
        seen.append(cases(path) if path.exists() else [])
        if task.case == "b":
            raise RuntimeError("the device reports an illegal memory access")
        return row(task)

    assert record([Task("a"), Task("b"), Task("c")], rows_of, path, ABOUT) == 1
    assert seen == [[], ["a"], ["a"]]
    assert cases(path) == ["a", "c"]
    left_out = json.loads(path.read_text())["left_out"]
    assert left_out == {"b in ieee": "RuntimeError: the device reports an illegal memory access"}


def test_another_run_fills_in_what_is_missing_and_starts_anew_on_another_commit(tmp_path: Path) -> None:
    path = tmp_path / "lists.json"
    assert record([Task("a"), Task("b")], row, path, ABOUT) == 0
    assert record([Task("b"), Task("c"), Task("a", "tf32")], row, path, ABOUT) == 0
    assert cases(path) == ["a", "b", "c", "a"]
    assert record([Task("d")], row, path, {**ABOUT, "commit": "def"}) == 0
    assert cases(path) == ["d"]


def test_a_plan_is_a_line_and_times_have_four_digits(tmp_path: Path) -> None:
    path = tmp_path / "lists.json"
    record([Task("a")], row, path, ABOUT)
    lines = [line for line in path.read_text().splitlines() if line.startswith('{"name"')]
    assert len(lines) == 2
    assert '"us": 1.235' in lines[0]
    document = json.loads(path.read_text())
    assert json.loads(document_text(document)) == document


def test_tasks_are_cases_of_every_kind() -> None:
    assert {t.case for t in TASKS} <= set(CASES)
    assert len(set(TASKS)) == len(TASKS)
    kinds = {t.case.split()[0] for t in TASKS}
    assert {"conv", "depthwise", "matmul", "layer", "rms", "softmax", "attention", "add"} <= kinds
    assert {t.precision for t in TASKS} == {"ieee", "tf32"}


def test_the_file_is_small_and_of_one_device() -> None:
    assert FILE.stat().st_size < 1_000_000
    head = json.loads(FILE.read_text())
    assert {"versions", "device", "commit", "date", "left_out", "regions"} == set(head)
    assert "H200" in head["device"]
    assert {(r.case, r.precision) for r in read(FILE)} <= {(t.case, t.precision) for t in TASKS}
