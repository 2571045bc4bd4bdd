"""What each option for choosing did is told in a sentence, and one that did nothing is told as well."""

from __future__ import annotations

from typing import Any

import pytest

import graphdnn as gd
from tests.engines.compiled import compiled, double
from tests.engines.scripted import Act, Clock, Scripted
from tests.planned import h200_report


def single(rows: int = 65) -> gd.Graph:
    """Two float32 products of other shapes, and a softmax."""
    g = gd.GraphBuilder("single")
    x = g.matmul(g.input("x", (rows, 300), gd.float32), g.input("w", (300, 129), gd.float32), name="first")
    y = g.softmax(x, name="soft")
    return g.build({"y": g.matmul(y, g.input("v", (129, 40), gd.float32), name="last")})


@pytest.mark.parametrize("precision", ["tf32", "reduced"])
def test_regions_that_compute_in_less_are_named(precision: str) -> None:
    report = h200_report(single(), precision=precision)
    loose = [r.name for r in report.regions if r.precision == "tf32"]
    assert set(loose) == {"first", "last"}
    assert report.effects == (
        f'precision="{precision}" lets 2 of {len(report.regions)} regions compute in less than their types say: '
        "first, last (tf32)",
    )
    assert h200_report(single()).effects == ()


def test_a_precision_that_changed_nothing_is_told() -> None:
    g = gd.GraphBuilder("half")
    graph = g.build({"y": g.softmax(g.input("x", (65, 33), gd.float16))})
    said = h200_report(graph, precision="tf32").effects
    assert said == ('precision="tf32" changed nothing: every region computes in its own types',)


def test_many_regions_are_not_all_named() -> None:
    g = gd.GraphBuilder("many")
    x = g.input("x", (65, 96), gd.float32)
    for i in range(5):
        x = g.softmax(g.matmul(x, g.input(f"w{i}", (96, 96), gd.float32), name=f"p{i}"))
    (said,) = h200_report(g.build({"y": x}), precision="tf32").effects
    assert said.endswith(" regions compute in less than their types say: p0, p1, p2 and 2 more (tf32)")


@pytest.mark.parametrize("selection", ["heuristic", "autotune"])
def test_plans_that_determinism_rules_out_are_counted(selection: str, clock: Clock, with_engines: Any) -> None:
    acts = {"a": Act(deterministic=False), "b": Act(deterministic=False), "c": Act(), "d": Act(deterministic=False)}
    with_engines(Scripted("one", acts, clock))
    report = compiled(double(), selection, deterministic=True).report
    assert report.regions[0].plan == "c"
    words = "deterministic=True rules out 2 plans that give other bits from run to run: "
    assert report.effects[-1] == f"{words}one:a for double, one:b for double"
    with_engines(Scripted("one", {"c": Act()}, clock))
    assert not [e for e in compiled(double(), selection, deterministic=True).report.effects if "rules out" in e]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tuning_budget_s": 5}, "tuning_budget_s=5 bounds nothing"),
        ({"tuning_memory": 1 << 30}, f"tuning_memory={1 << 30} bounds nothing"),
        ({"tuning_budget_s": 0.5, "tuning_memory": 7}, "tuning_budget_s=0.5 and tuning_memory=7 bound nothing"),
    ],
)
def test_limits_on_timing_without_timing_are_told(options: dict[str, Any], said: str) -> None:
    report = compiled(double(), "heuristic", **options).report
    assert report.effects == (f'{said}: selection="heuristic" times nothing',)
    assert said in compiled(double(), "heuristic", **options).explain()
    assert not any("bounds nothing" in e for e in compiled(double(), "autotune", **options).report.effects)
