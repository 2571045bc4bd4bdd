"""The benchmark of plan choice without a device: its regions, and a whole row on the CPU."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest

import graphdnn as gd
from benchmarks import plan_cases, plan_choice
from benchmarks.build_ahead import build_ahead, keep_to_one_core
from benchmarks.timing import Ceilings
from graphdnn.runtime.cache import DiskStore
from tests.benchmarks.processor import Processor

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


def test_the_summary_weighs_every_timed_candidate() -> None:
    def row(ours: float, best: float, *pairs: tuple[float, float]) -> dict:
        candidates = [{"estimated_us": e, "measured_us": m} for e, m in pairs]
        return {"ours_us": ours, "peers": {"best": best}, "settings": {"candidates": candidates}}

    text = plan_choice.summary([row(10.0, 10.0, (8.0, 8.0), (4.0, 1.0)), row(6.0, 4.0, (1.0, 2.0)), row(11.0, 10.0)])
    assert text == (
        "3 regions, 3 candidates timed: median |log2(estimated / measured)| 1.00; "
        "by estimate over by measurement 1.100 in the median, 1.50 at most"
    )
