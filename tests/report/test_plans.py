"""`graphdnn plans`: engines, plans, notes, scratch, times and verdicts of a region, and one sentence for bad input."""

import json
import re
from pathlib import Path

import pytest

import graphdnn as gd
from graphdnn.commands import cli
from graphdnn.report.model import CompileReport, PlanReport
from graphdnn.report.plans import plans
from tests.planned import h200_report
from tests.report.test_diff import block


@pytest.fixture(scope="module")
def report() -> CompileReport:
    return h200_report(block())


@pytest.fixture
def graph(tmp_path: Path) -> str:
    path = str(tmp_path / "block.json")
    block(8).save(path)
    return path


def plan(name: str, verdict: str, **other: object) -> PlanReport:
    fields = {"name": name, "verdict": verdict, "workspace_bytes": 0, "deterministic": True, "precision": "float16"}
    return PlanReport.model_validate(fields | other)


def timed(report: CompileReport) -> CompileReport:
    """As after tuning on a device: the chosen engine's plans with their times."""
    tried = (
        plan("eng4_k24=2", "slower", measured_us=9.25, workspace_bytes=4096, reason="took 9.2 us against 5.5"),
        plan("eng1", "chosen", measured_us=5.5, notes=("tensor core", "runtime compiled")),
        plan("eng0", "excluded", deterministic=False, reason="gives other bits from run to run"),
        plan("eng9", "wrong", reason="is off by 0.5 of the peak"),
    )
    chosen = [i for i, c in enumerate(report.candidates) if c.verdict == "chosen" and "conv" in c.nodes]
    candidates = list(report.candidates)
    candidates[chosen[0]] = candidates[chosen[0]].model_copy(update={"plans": tried, "measured_us": 5.5})
    return report.model_copy(update={"candidates": tuple(candidates)})


def rows(text: str) -> list[list[str]]:
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("engine"))
    end = next((i for i, line in enumerate(lines) if i > start and not line), len(lines))
    return [line.split() for line in lines[start + 2 : end]]


def test_plans_with_knobs_notes_scratch_times_and_verdicts(report: CompileReport) -> None:
    text = plans(timed(report), "conv")
    found = rows(text)
    assert [(r[0], r[1], r[2]) for r in found[:2]] == [("cudnn", "eng1", "chosen"), ("cudnn", "eng4_k24=2", "slower")]
    assert found[0][-4:] == ["tensor", "core;", "runtime", "compiled"]
    assert "4.0 KiB" in text and "9.25" in text and "5.50" in text  # noqa: PT018
    assert ["eng0", "excluded"] in [r[1:3] for r in found]
    assert ["eng9", "wrong"] in [r[1:3] for r in found]
    assert "cudnn eng9: is off by 0.5 of the peak" in text
    assert "cudnn eng0: gives other bits from run to run" in text
    assert next(line for line in text.splitlines() if line.startswith("engine")).split()[:4] == [
        "engine", "plan", "verdict", "scratch",
    ]  # fmt: skip


def test_answers_where_there_are_no_plans(report: CompileReport) -> None:
    text = plans(report, "conv")
    assert [r[:2] for r in rows(text)] == [["cudnn", "chosen"], ["nvrtc", "slower"], ["cublaslt", "declined"]]
    assert "cublaslt: cuBLASLt runs one matmul at a time" in text
    assert "conv+bias " in text.split("other sets of nodes")[1]
    assert text.startswith(
        "region conv: conv+bias+relu\n  does the work of conv, bias, relu\n  runs on cudnn: 1 kernel"
    )


def test_what_lost_is_slower_whatever_it_would_have_run_itself(report: CompileReport) -> None:
    region = report.region("conv")
    beside = [c for c in region.alternatives if (c.nodes, c.pattern) != (region.nodes, region.pattern)]
    loser = next(c for c in region.alternatives if c.engine == "nvrtc" and c not in beside)
    loser = loser.model_copy(update={"plans": (plan("tile", "chosen"),), "ruled_out": "limit=0 rules out more"})
    changed = region.model_copy(update={"alternatives": (loser, *beside)})
    regions = tuple(changed if r.name == "conv" else r for r in report.regions)
    text = plans(report.model_copy(update={"regions": regions}), "conv")
    assert ["nvrtc", "tile", "slower"] in [r[:3] for r in rows(text)]
    assert "nvrtc: limit=0 rules out more" in text
    declined = sum(c.verdict == "declined" for c in beside)
    assert f"declined besides: {declined} answers for other sets of nodes" in text


def test_every_region_has_its_view(report: CompileReport) -> None:
    for region in report.regions:
        first = rows(plans(report, region.name))[0]
        assert first[0] == region.engine
        assert "chosen" in first


def test_the_command(graph: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["plans", graph, "--region", "conv", "--target", "h200"]) == 0
    assert rows(capsys.readouterr().out)[0][:2] == ["cudnn", "chosen"]
    options = json.dumps({"disabled_passes": ["fuse"]})
    assert cli.main(["plans", graph, "--region", "relu", "--target", "cpu", "--options", options]) == 0
    assert rows(capsys.readouterr().out)[0][:3] == ["reference", "numpy", "chosen"]


def test_reports_and_executables_are_read_as_they_are(
    report: CompileReport, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = gd.compile(block(8), target="cpu")
    made.save(tmp_path / "block.gdn")
    (tmp_path / "report.json").write_text(timed(report).model_dump_json())
    monkeypatch.setattr(gd, "compile", None)
    assert cli.main(["plans", str(tmp_path / "report.json"), "--region", "conv"]) == 0
    assert "eng4_k24=2" in capsys.readouterr().out
    name = made.report.regions[0].name
    assert cli.main(["plans", str(tmp_path / "block.gdn"), "--region", name]) == 0
    assert "numpy" in capsys.readouterr().out


def test_a_missing_region_names_those_there_are(graph: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["plans", graph, "--region", "konv", "--target", "h200"]) == 1
    err = capsys.readouterr().err
    assert "there is no region 'konv'; did you mean 'conv'? (regions are " in err
    assert "conv" in err.split("regions are")[1]


@pytest.mark.parametrize("content", ["", "[", "[]", "7", '{"format": "graphdnn"}', '{"regions": 1}', "[" * 100_000])
def test_files_that_are_neither(content: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(content)
    assert cli.main(["plans", str(bad), "--region", "conv", "--target", "cpu"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("graphdnn: ") and err.count("\n") == 1  # noqa: PT018
    assert "bad.json" in err


def test_wrong_options_are_named(graph: str, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["plans", graph, "--region", "conv", "--options", '{"precision": "low"}']) == 1
    assert "precision" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["plans", graph, "--region", "conv", "--options", "[]"])


def test_without_a_region_they_are_listed(graph: str, capsys: pytest.CaptureFixture) -> None:
    options = json.dumps({"disabled_passes": ["fuse"]})
    assert cli.main(["plans", graph, "--target", "cpu", "--options", options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(" relu ") and "reference" in line for line in lines)
    assert re.fullmatch(r"[2-9] regions; --region NAME shows the candidates of one", lines[-1])


def test_an_only_region_is_shown_without_its_name(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    g = gd.GraphBuilder("one")
    path = str(tmp_path / "one.json")
    g.build({"y": g.relu(g.input("x", (8,), gd.float16), name="only")}).save(path)
    assert cli.main(["plans", path, "--target", "h200"]) == 0
    assert capsys.readouterr().out.startswith("region only: relu")


def test_a_region_of_which_the_report_holds_no_answer(report: CompileReport) -> None:
    bare = report.regions[0].model_copy(update={"name": "bare", "nodes": (), "alternatives": ()})
    text = plans(report.model_copy(update={"regions": (bare,), "candidates": ()}), "bare")
    assert text.startswith("region bare: ")
    assert text.endswith("\n\nthe report holds no engine's answer for just these nodes")
