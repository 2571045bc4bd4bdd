"""The benchmark of plan choice without a device: its regions, and a whole row on the CPU."""

import json
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

import graphdnn as gd
from benchmarks import comparison, plan_cases, plan_choice
from benchmarks.build_ahead import build_ahead, keep_to_one_core
from benchmarks.results import Row
from benchmarks.timing import Ceilings
from graphdnn.passes.canonicalize import canonicalize
from graphdnn.runtime.cache import DiskStore
from tests.benchmarks.processor import Processor
from tests.planned import h200_report

CEILINGS = Ceilings(4e12, {"float16": 8e14, "bfloat16": 8e14, "float32": 5e13})


def test_there_are_regions_of_every_kind() -> None:
    kinds = {name.split()[0] for name in plan_cases.CASES}
    assert {"conv", "depthwise", "matmul", "swiglu", "layer", "rms", "softmax", "attention"} <= kinds
    assert len(plan_cases.CASES) >= 100


SMALL = {
    "conv": lambda: plan_cases.convolution(2, 3, 8, 3, 1, 7, "add relu"),
    "depthwise": lambda: plan_cases.depthwise(2, 5, 7, 3, 2, "hard_swish"),
    "matmul": lambda: plan_cases.product(5, 7, 9, gd.float16, "bias add gelu"),
    "norm": lambda: plan_cases.norm("add layer norm", 3, 17, gd.float16),
    "attention": lambda: plan_cases.attention(1, 4, 2, 3, 5, 8, gd.float16, "top_left"),
    "pool": lambda: plan_cases.pool("max_pool", (2, 5, 9, 7), kernel=3, stride=2, padding=1),
}


def lost(graph: gd.Graph) -> tuple[str, ...]:
    """Names of nodes that the compiler does not compute, since they equal others or nothing but constants."""
    kept = {n.origins for n in canonicalize(graph).graph.nodes}
    return tuple(n.name for n in graph.nodes if (n.name,) not in kept)


def test_a_node_that_equals_another_counts_as_lost() -> None:
    g = gd.GraphBuilder("twins")
    x = g.input("x", (2, 3), gd.float16)
    twins = [g.matmul(x, g.constant(np.ones((3, 4), np.float16)), name=name) for name in ("gate", "up")]
    assert set(lost(g.build({"y": g.mul(*twins, name="both")}))) == {"gate", "up"}


@pytest.mark.parametrize("build", [*SMALL.values(), lambda: plan_cases.swiglu(5, 7, 9)])
def test_no_node_of_a_small_case_is_lost(build: plan_cases.Build) -> None:
    assert not lost(build())


@pytest.mark.parametrize("name", plan_cases.CASES)
def test_no_node_of_a_case_is_lost(name: str, numbers_by_name: None) -> None:
    assert not lost(plan_cases.CASES[name]())


def test_constants_of_other_names_have_other_numbers() -> None:
    w, again, other = (plan_cases.drawn(name, (3, 5), gd.float16) for name in ("w", "w", "b"))
    assert np.array_equal(w, again)
    assert not np.isin(w, other).all()


def test_both_products_of_swiglu_are_planned(numbers_by_name: None) -> None:
    report = h200_report(plan_cases.CASES["swiglu 4096x4096x14336 bfloat16"]())
    assert sum(region.pattern.count("matmul") for region in report.regions) == 2
    assert "matmul+matmul+silu+mul" in {c.pattern for c in report.candidates}


@pytest.mark.parametrize("name", SMALL)
def test_a_row_is_measured_on_the_cpu(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(plan_cases.CASES, name, SMALL[name])
    row = plan_choice.measure(Processor(), name, CEILINGS, samples=3, cache=str(tmp_path)).as_json()
    assert row["peers"].keys() == {"best"}
    assert row["error"] <= 1.6e-2
    assert row["floor_us"] > 0
    assert min(row["settings"][k] for k in ("cold_s", "warm_s", "timing_s")) > 0
    assert all(c["measured_us"] > 0 for c in row["settings"]["candidates"])
    json.dumps(row)


def test_regions_are_built_ahead_by_processes_whose_timings_are_forgotten(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = [name for name in plan_cases.CASES if name.startswith("softmax")][:1]
    seconds = build_ahead([*names, "no such region"], "cpu", str(tmp_path))
    assert list(seconds) == names
    assert seconds[names[0]] > 0
    assert "no such region was not built ahead" in capfd.readouterr().out
    store = DiskStore(tmp_path)
    assert not [e for e in store.entries() if e.kind == "tuning"]


def test_a_process_that_builds_ahead_keeps_to_one_core() -> None:
    before = os.sched_getaffinity(0)
    try:
        keep_to_one_core(sorted(before), multiprocessing.Value("i", 0))
        assert os.sched_getaffinity(0) == {min(before)}
        with plan_choice.one_core():
            assert len(os.sched_getaffinity(0)) == 1
    finally:
        os.sched_setaffinity(0, before)


def test_every_region_is_printed_with_times_and_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"tuning_s": 12.34, "cold_s": 1.2345, "warm_s": 0.0567, "timing_s": 3.0}
    row = Row("matmul a", 6.0, {"best": 4.0}, 1.0, 1e-4, None, 15, 5.0, settings)
    monkeypatch.setattr(comparison, "device_versions", dict)
    monkeypatch.setattr(comparison.torch.cuda, "empty_cache", lambda: None)
    options = comparison.arguments("plan_choice", "").parse_args(["--out", str(tmp_path / "rows.json")])
    assert comparison.run_suite("plan_choice", options, ["matmul a"], lambda _: row, plan_choice.sentence) == 0
    assert (
        "matmul a: heuristic 6.0 us, best 4.0 us, heuristic over best 1.500; "
        "tuning 12.3 s, compiling 1.23 s cold and 0.057 s warm; estimated 5.0 us, error 1.0e-04\n"
    ) in capsys.readouterr().out


def test_the_summary_weighs_every_timed_candidate() -> None:
    def row(ours: float, best: float, *pairs: tuple[float, float]) -> dict:
        candidates = [{"estimated_us": e, "measured_us": m} for e, m in pairs]
        return {"ours_us": ours, "peers": {"best": best}, "settings": {"candidates": candidates}}

    text = plan_choice.summary([row(10.0, 10.0, (8.0, 8.0), (4.0, 1.0)), row(6.0, 4.0, (1.0, 2.0)), row(11.0, 10.0)])
    assert text == (
        "3 regions, 3 candidates timed: median |log2(estimated / measured)| 1.00; "
        "by estimate over by measurement 1.100 in the median, 1.50 at most"
    )
