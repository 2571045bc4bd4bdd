"""What the committed measurements of plan choice must show: estimates near the times, and choices that cost little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import log2
from statistics import median
from typing import Any

import pytest

from benchmarks import plan_cases, tables
from tests.benchmarks.conftest import by_name
from tests.planned import h200_report

Rows = list[dict[str, Any]]
Answer = tuple[str, str]
"""An engine and what it runs."""


@pytest.fixture(scope="module")
def rows() -> Rows:
    return tables.result_files()["h200"]["plan_choice"]["rows"]


@pytest.fixture(scope="module")
def today(rows: Rows) -> dict[str, list[tuple[float, float]]]:
    """Today's estimate and the measured time of each candidate, by region."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_cases, "drawn", by_name)
        return {row["name"]: list(estimated_and_measured(row)) for row in rows}


def estimated_and_measured(row: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """Of candidates that are planned as they were: an engine answers as often for a pattern, and each time the same."""
    now: dict[Answer, list[float]] = {}
    for candidate in h200_report(plan_cases.CASES[row["name"]]()).candidates:
        if candidate.estimated_us is not None:
            now.setdefault((candidate.engine, candidate.pattern), []).append(candidate.estimated_us)
    recorded = row["settings"]["candidates"]
    before = Counter((c["engine"], c["pattern"]) for c in recorded)
    for c in recorded:
        answer = c["engine"], c["pattern"]
        found = now.get(answer, [])
        if len(found) == before[answer] and max(found) == min(found):
            yield found[0], c["measured_us"]


def off(estimated_us: float, measured_us: float) -> float:
    return abs(log2(estimated_us / measured_us))


def test_there_are_a_hundred_regions_with_fused_depthwise_and_swiglu(rows: Rows) -> None:
    assert len({row["name"] for row in rows}) >= 100
    timed = {row["name"]: {c["pattern"] for c in row["settings"]["candidates"]} for row in rows}
    depthwise = [patterns for name, patterns in timed.items() if name.startswith("depthwise")]
    swiglu = [patterns for name, patterns in timed.items() if name.startswith("swiglu")]
    assert len(depthwise) >= 5
    assert all({"conv+bias", "conv+bias+relu", "conv+bias+hard_swish"} & patterns for patterns in depthwise)
    assert swiglu
    assert all({"matmul+matmul+silu+mul", "matmul+silu+mul"} <= patterns for patterns in swiglu)


def test_recorded_estimates_are_near_the_measured_times(rows: Rows) -> None:
    found = [off(c["estimated_us"], c["measured_us"]) for row in rows for c in row["settings"]["candidates"]]
    assert len(found) >= 100
    assert median(found) < 0.5


def test_estimates_of_today_are_near_the_measured_times(today: dict[str, list[tuple[float, float]]]) -> None:
    assert sum(bool(pairs) for pairs in today.values()) >= 100, "too few regions are planned as measured; measure anew"
    assert median(off(*pair) for pairs in today.values() for pair in pairs) < 0.5


@pytest.mark.parametrize("kind", ["conv", "depthwise", "matmul", "norm", "softmax", "attention", "pool"])
def test_no_kind_of_region_is_estimated_far_off(kind: str, today: dict[str, list[tuple[float, float]]]) -> None:
    """An octave is what separates a choice by estimate from one by chance."""
    pairs = [pair for name, found in today.items() if kind in name.split() for pair in found]
    assert median(off(*pair) for pair in pairs) < 1


def test_what_estimates_choose_costs_little(rows: Rows) -> None:
    assert median(row["ours_us"] / row["peers"]["best"] for row in rows) <= 1.15


def test_every_region_tells_what_choosing_took(rows: Rows) -> None:
    for row in rows:
        assert all(row["settings"][word] > 0 for word in ("tuning_s", "cold_s", "warm_s")), row["name"]
