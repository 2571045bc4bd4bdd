"""What was timed is remembered, for the same region in any graph, and no longer than it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline, Fix
from graphdnn.runtime.cache import DiskStore
from graphdnn.runtime.device import HostDevice
from tests.engines.compiled import answer, compiled, double
from tests.engines.scripted import Act, Clock, Scripted

X = np.arange(15, dtype=np.float32).reshape(3, 5) - 7


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> DiskStore:
    store = DiskStore(tmp_path)
    from graphdnn import compiler

    monkeypatch.setattr(compiler, "device_for", lambda *_: HostDevice(store))
    return store


@pytest.mark.parametrize("selection", ["autotune", "measure"])
def test_a_second_compilation_times_nothing(selection: str, store: DiskStore, clock: Clock, with_engines: Any) -> None:
    acts = {"a": Act(30), "b": Act(12), "c": Act(3, factor=2), "d": Act(fails="build")}
    with_engines(Scripted("one", acts, clock))
    first = compiled(double(), selection).report
    spent = clock.now
    engine = Scripted("one", acts, clock)
    with_engines(engine)
    again = compiled(double(), selection)
    assert (clock.now, engine.built, engine.asked) == (spent, ["b"], [])
    assert again.report.regions == first.regions
    assert again.report.candidates == first.candidates
    assert "timed 0 regions and remembered 1" in again.report.effects[0]
    np.testing.assert_array_equal(again({"x": X})["y"], 2 * X)


def test_what_is_wrong_is_told_without_names_of_another_graph(
    store: DiskStore, clock: Clock, with_engines: Any
) -> None:
    for name in ("theirs", "ours"):
        with_engines(Scripted("one", {"a": Act(30), "b": Act(1, factor=2), "c": Act(2, fails="run")}, clock))
        g = gd.GraphBuilder(name)
        outputs = {f"y{i}": g.exp(g.input(f"x{i}", (3, 5), gd.float32), name=f"{name}{i}") for i in range(2)}
        report = compiled(g.build(outputs)).report
    assert "timed 0 regions and remembered 1" in report.effects[0]
    assert "theirs" not in report.model_dump_json()
    for entry in report.candidates:
        wrong, failed = entry.plans[1:]
        assert (wrong.verdict, failed.verdict) == ("wrong", "failed")
        assert wrong.reason.startswith("15 of 15 elements are off")


def test_an_engine_that_proposed_nothing_is_remembered_too(store: DiskStore, clock: Clock, with_engines: Any) -> None:
    no = Decline(Code.PRECISION, "nothing keeps float32", Fix("options", "precision", "ieee", "tf32"))
    reports = []
    for _ in range(2):
        shy = Scripted("shy", {}, clock, 1.0, refuses=no)
        with_engines(shy, Scripted("one", {"a": Act(10)}, clock))
        reports.append(compiled(double()).report)
    assert reports[0].candidates == reports[1].candidates
    assert answer(reports[1], "shy").fix == answer(reports[0], "shy").fix is not None
    assert shy.asked == []


def test_other_options_and_other_devices_are_timed_anew(store: DiskStore, clock: Clock, with_engines: Any) -> None:
    with_engines(Scripted("one", {"a": Act(30), "b": Act(12)}, clock))
    compiled(double())
    for options in ({"workspace_limit": 100}, {"precision": "tf32"}):
        assert "timed 1 region and remembered 0" in compiled(double(), **options).report.effects[0]


def test_a_remembered_plan_that_is_gone_leaves_the_choice_to_heuristics(
    store: DiskStore, clock: Clock, with_engines: Any
) -> None:
    with_engines(Scripted("one", {"a": Act(30), "b": Act(12)}, clock))
    compiled(double())
    with_engines(Scripted("one", {"a": Act(30), "c": Act(5)}, clock))
    exe = compiled(double())
    assert exe.report.regions[0].plan == "a"
    np.testing.assert_array_equal(exe({"x": X})["y"], 2 * X)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b"\xff",
        b"[" * 100_000,
        b'{"engines": {"one": [{"verdict": "chosen"}]}}',
        b'{"engines": {"one": [{"verdict": "slower", "us": 1, "name": "a", "workspace": 1e999}]}}',
    ],
)
def test_entries_that_cannot_be_read_are_timed_anew(
    content: bytes, store: DiskStore, clock: Clock, with_engines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_engines(Scripted("one", {"a": Act(30)}, clock))
    monkeypatch.setattr(DiskStore, "get", lambda *_: content)
    with pytest.warns(RuntimeWarning, match="a cached timing of .* is dropped"):
        assert "timed 1 region " in compiled(double()).report.effects[0]


def test_what_was_interrupted_is_not_remembered(store: DiskStore, clock: Clock, with_engines: Any) -> None:
    acts = {"a": Act(50_000), "b": Act(20_000), "c": Act(5)}
    with_engines(Scripted("one", acts, clock))
    assert compiled(double(), tuning_budget_s=0.45).report.regions[0].plan != "c"
    assert compiled(double()).report.regions[0].plan == "c"
