"""Plans that the user rules out by name: never built, told with the option, and gone round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines.contract import Candidate
from graphdnn.engines.trial import Limits
from graphdnn.ir.region import Region
from tests.engines.compiled import answer, compiled, double, told
from tests.engines.scripted import Act, Clock, Scripted

X = np.arange(15, dtype=np.float32).reshape(3, 5) - 7
SELECTIONS = ("heuristic", "autotune", "measure")


@pytest.fixture(autouse=True)
def with_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the scripted engines are called."""
    from graphdnn import config

    monkeypatch.setattr(config, "MANIFEST", {"lib": "", "other": ""})


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize(
    ("disabled", "chosen", "excluded"),
    [
        ("lib:eng8_k24=2", "eng8_k24=3", {"eng8_k24=2"}),
        ("lib:eng8", "eng80_k1=0", {"eng8_k24=2", "eng8_k24=3"}),
        ("lib:eng", "eng8_k24=2", set()),
        ("other:eng8", "eng8_k24=2", set()),
    ],
)
def test_a_plan_or_an_engine_of_a_library_is_ruled_out(
    selection: str, disabled: str, chosen: str, excluded: set[str], clock: Clock, with_engines: Any
) -> None:
    acts = {"eng8_k24=2": Act(1), "eng8_k24=3": Act(2), "eng80_k1=0": Act(3)}
    engine = Scripted("lib", acts, clock)
    with_engines(engine)
    exe = compiled(double(), selection, disabled_plans=(disabled,))
    assert exe.report.regions[0].plan == chosen
    assert not excluded & set(engine.built)
    said = {p.name: p.reason for p in answer(exe.report, "lib").plans if p.verdict == "excluded"}
    assert said == dict.fromkeys(excluded, f'ruled out by disabled_plans=("{disabled}",)')
    np.testing.assert_array_equal(exe({"x": X})["y"], 2 * X)


@pytest.mark.parametrize("selection", SELECTIONS)
def test_an_engine_without_plans_left_is_excluded_and_the_next_one_runs(
    selection: str, clock: Clock, with_engines: Any
) -> None:
    with_engines(Scripted("lib", {"a": Act(1)}, clock, 1.0), Scripted("other", {"b": Act(9)}, clock, 9.0))
    report = compiled(double(), selection, disabled_plans=("lib:a", "other:z")).report
    assert report.regions[0].engine == "other"
    entry = answer(report, "lib")
    assert (entry.verdict, told(report, "lib")) == ("excluded", {"a": "excluded"})
    assert entry.fix is not None
    assert (entry.fix.attribute, entry.fix.after) == ("disabled_plans", "('other:z',)")


def test_where_that_leaves_nothing_the_error_names_the_option(clock: Clock, with_engines: Any) -> None:
    with_engines(Scripted("lib", {"a": Act(1)}, clock))
    with pytest.raises(gd.CompileError, match=r"double.*lib.*ruled out by disabled_plans"):
        compiled(double(), disabled_plans=("lib:a",))


def test_the_fix_is_for_the_plan_that_another_option_rules_out(clock: Clock, with_engines: Any) -> None:
    acts = {"a": Act(1), "b": Act(1, workspace=900)}
    with_engines(Scripted("lib", acts, clock), Scripted("other", {"c": Act(9)}, clock, 90.0))
    report = compiled(double(), disabled_plans=("lib:a",), workspace_limit=500).report
    entry = answer(report, "lib")
    assert entry.fix is not None
    assert (entry.fix.attribute, entry.fix.after) == ("workspace_limit", "900")


def test_disabled_plans_take_no_place_among_those_that_are_timed(clock: Clock, with_engines: Any) -> None:
    acts = {**{f"eng8_k1={i}": Act(5) for i in range(12)}, "eng9": Act(1)}
    with_engines(Scripted("lib", acts, clock))
    assert compiled(double(), disabled_plans=("lib:eng8",)).report.regions[0].plan == "eng9"


def test_names_end_where_parts_end() -> None:
    graph = double()
    region = Region.of(graph, graph.nodes)
    limits = Limits(disabled=("cudnn:eng8", "nvrtc:depthwise_4x7x2"))
    names = {"cudnn": ("eng8", "eng8_k1=2", "eng80", "eng1_eng8"), "nvrtc": ("depthwise_4x7x2", "depthwise_4x7x20")}
    barred = [n for e, plans in names.items() for n in plans if limits.bars(Candidate(e, region, n, 0, "float32"))]
    assert barred == ["eng8", "eng8_k1=2", "depthwise_4x7x2"]


@pytest.mark.parametrize("name", ["lib", "lib:", ":eng8", "nobody:eng8", "lib:eng 8", "lib:eng8\n"])
def test_other_forms_are_refused(name: str) -> None:
    with pytest.raises(gd.CompileError, match="disabled_plans"):
        gd.CompileOptions(disabled_plans=(name,))
