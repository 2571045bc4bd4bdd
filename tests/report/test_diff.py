"""`explain --diff`: every kind of change is said, equal reports are equal, bad files are one sentence and status 2."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.commands import cli
from graphdnn.report.diff import difference, groups
from graphdnn.report.model import CompileReport, PromotionReport, RegionReport
from tests.planned import h200_report


def block(channels: int = 64) -> gd.Graph:
    g = gd.GraphBuilder("block")
    x = g.input("x", (8, 32, 28, 28), gd.float16)
    w = g.constant(np.ones((channels, 32, 3, 3), np.float16), name="w")
    b = g.constant(np.ones(channels, np.float16), name="b")
    y = g.relu(g.bias(g.conv(x, w, padding=1, name="conv"), b, name="bias", axis=1), name="relu")
    return g.build({"y": g.softmax(y, axis=1, name="sm")})


@pytest.fixture(scope="module")
def report() -> CompileReport:
    return h200_report(block())


@pytest.fixture(scope="module")
def apart() -> CompileReport:
    return h200_report(block(), disabled_passes=("fuse",))


def region(name: str, *nodes: str, **other: Any) -> RegionReport:
    fields: dict[str, Any] = {
        "name": name, "nodes": nodes, "pattern": "+".join(nodes) or "convert", "engine": "nvrtc", "plan": "p",
        "kernels": 1, "precision": "float32", "estimated_us": 2.0, "workspace_bytes": 0, "read_bytes": 10,
        "written_bytes": 20, "deterministic": True, "last_resort": False,
    }  # fmt: skip
    return RegionReport(**fields | other)


def with_regions(report: CompileReport, *regions: RegionReport) -> CompileReport:
    return report.model_copy(update={"regions": regions})


def said(old: CompileReport, new: CompileReport) -> list[str]:
    """The lines about regions."""
    text = difference(old, new)
    return [line.strip() for line in re.findall(r"^regions\n((?:  .*\n?)+)", text, re.M)[0].splitlines()]


def test_equal_reports_have_no_difference(report: CompileReport) -> None:
    assert difference(report, CompileReport.model_validate_json(report.model_dump_json())) == ""


def test_a_split_and_a_fusion(report: CompileReport, apart: CompileReport) -> None:
    (split,) = said(report, apart)
    assert split.startswith(
        "split: conv (conv+bias+relu on cudnn) -> conv (conv on cudnn), bias (bias on nvrtc), relu (relu on nvrtc); "
        "kernels 1 -> 3; read "
    )
    (fused,) = said(apart, report)
    assert fused.startswith(
        "fused: conv (conv on cudnn), bias (bias on nvrtc), relu (relu on nvrtc) -> conv (conv+bias"
    )
    text = difference(report, apart)
    assert "disabled_passes: [] -> ['fuse']" in text
    assert f"kernels {report.kernel_count} -> {apart.kernel_count}" in text
    assert "estimated us" in text


def test_another_device_and_its_versions(report: CompileReport) -> None:
    other = gd.compile(block(), target="cpu").report
    text = difference(report, other)
    assert text.startswith("graph block for h200 (described) -> cpu\n")
    assert re.search(r"target cudnn: \S+ -> absent", text)


def test_engine_plan_times_bytes_kernels_and_notes_of_one_region(report: CompileReport) -> None:
    old = with_regions(report, region("a", "a", measured_us=4.0, notes=("one",)))
    new = with_regions(
        report,
        region("a", "a", engine="cudnn", plan="eng4", kernels=2, estimated_us=3.0, measured_us=3.0,
               workspace_bytes=4096, read_bytes=2048, precision="tf32", deterministic=False,
               last_resort=True, notes=("two",)),
    )  # fmt: skip
    assert said(old, new) == [
        "a: nvrtc p -> cudnn eng4; kernels 1 -> 2; estimated us 2.00 -> 3.00 (+50.0 %); measured us 4.00 -> 3.00 "
        "(-25.0 %); scratch 0 B -> 4.0 KiB; read 10 B -> 2.0 KiB; precision float32 -> tf32; deterministic True "
        "-> False; last_resort False -> True; note - one; note + two"
    ]
    assert "measured us 4.00 -> 3.00 (-25.0 %)" in difference(old, new).split("regions")[0]


def test_times_that_are_new_and_bytes_spelled_alike(report: CompileReport) -> None:
    old = with_regions(report, region("a", "a", read_bytes=10 * 2**20))
    new = with_regions(report, region("a", "a", read_bytes=10 * 2**20 + 4, measured_us=1.5))
    assert said(old, new) == ["a: measured us none -> 1.50; read 10.0 MiB -> 10.0 MiB (+4 B)"]


def test_regrouped_new_and_gone_regions(report: CompileReport) -> None:
    old = with_regions(report, region("convert"), region("a", "a", "b"), region("c", "c", "d"), region("e", "e"))
    new = with_regions(report, region("a", "a"), region("b", "b", "c", "d"), region("e", "e"), region("f", "f"))
    assert said(old, new) == [
        "gone: convert (convert on nvrtc p)",
        "regrouped: a (a+b on nvrtc p), c (c+d on nvrtc p) -> a (a on nvrtc p), b (b+c+d on nvrtc p)",
        "new: f (f on nvrtc p)",
    ]


def test_every_region_is_in_one_group(rng: np.random.Generator) -> None:
    def cover(prefix: str) -> list[RegionReport]:
        cuts = sorted({0, 12, *map(int, rng.integers(1, 12, 4))})
        spans = [tuple(f"n{i}" for i in range(a, b)) for a, b in itertools.pairwise(cuts)]
        return [region(f"{prefix}{i}", *s) for i, s in enumerate(spans)] + [region(f"{prefix}c")] * int(rng.integers(3))

    for _ in range(200):
        old, new = cover("o"), cover("n")
        found = groups(old, new)
        assert sorted(r.name for g in found for r in g.old) == sorted(r.name for r in old)
        assert sorted(r.name for g in found for r in g.new) == sorted(r.name for r in new)
        for group in found:
            if group.old and group.new:
                assert {n for r in group.old for n in r.nodes} == {n for r in group.new for n in r.nodes}


def test_versions_options_passes_and_answers(report: CompileReport) -> None:
    first = report.passes[0]
    new = report.model_copy(
        update={
            "versions": {**report.versions, "numpy": "9.9"},
            "options": {**report.options, "precision": "tf32"},
            "passes": (first.model_copy(update={"changes": ("dropped 1",)}), *report.passes[1:-1]),
            "candidates": report.candidates[1:],
            "effects": ("limit=0 rules out more",),
            "promotions": (PromotionReport(node="add", operand="x", before="float16", after="float32"),),
        }
    )
    text = difference(report, new)
    assert re.search(r"numpy: \S+ -> 9\.9", text)
    assert "precision: ieee -> tf32" in text
    assert "effects of the options\n  + limit=0 rules out more" in text
    assert re.search(r"promotions\n  \+ .*float16.*float32", text)
    assert f"{first.name} + dropped 1" in text
    assert f"{report.passes[-1].name} did not run now" in text
    assert "1 answer of before differ from 0 answers of now" in text


def test_whatever_differs_is_a_difference(report: CompileReport) -> None:
    for name, field in CompileReport.model_fields.items():
        if field.annotation in (int, str):
            value = "another" if field.annotation is str else getattr(report, name) + 1
            text = difference(report, report.model_copy(update={name: value}))
            assert len(text.splitlines()) > (field.annotation is int), name
    assert "bounded" in difference(report, report.model_copy(update={"exact_cover": not report.exact_cover}))


OTHER: dict[type, Any] = {str: "another", int: 77, float: 7.5, bool: True}


def test_whatever_differs_of_a_region_is_said(report: CompileReport) -> None:
    old = region("a", "a", "b", deterministic=False)
    for name, field in RegionReport.model_fields.items():
        if name != "alternatives":  # which are among the answers, and told there
            value = {"measured_us": 7.5, "nodes": ("a", "another"), "notes": ("another",)}.get(name)
            new = old.model_copy(update={name: OTHER[field.annotation] if value is None else value})
            (line,) = said(with_regions(report, old), with_regions(report, new))
            assert re.search(r"another|77|7\.50|True", line), name


def test_names_nodes_options_and_order_of_regions(report: CompileReport) -> None:
    old = with_regions(report, region("a", "a", "b"), region("c", "c"), region("d", "d", ruled_out="limit=0"))
    new = with_regions(report, region("d", "d"), region("x", "x", "b", pattern="a+b"), region("c.2", "c"))
    assert said(old, new) == ["d: option - limit=0", "a -> x: node - a; node + x", "c -> c.2: renamed"]
    turned = with_regions(report, *reversed(old.regions))
    assert said(old, turned) == ["they run in another order"]


@pytest.fixture
def files(tmp_path: Path, report: CompileReport, apart: CompileReport) -> tuple[str, str]:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(report.model_dump_json(indent=2))
    b.write_text(apart.model_dump_json())
    return str(a), str(b)


def test_the_command(files: tuple[str, str], capsys: pytest.CaptureFixture) -> None:
    a, b = files
    assert cli.main(["explain", "--diff", a, b]) == 1
    assert "split: conv" in capsys.readouterr().out
    assert cli.main(["explain", "--diff", a, a]) == 0
    assert capsys.readouterr().out == "the reports are equal\n"


def test_saved_executables_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for name, options in (("a", gd.CompileOptions()), ("b", gd.CompileOptions(disabled_passes=("fuse",)))):
        gd.compile(block(8), target="cpu", options=options).save(tmp_path / f"{name}.gdn")
    a, b = str(tmp_path / "a.gdn"), str(tmp_path / "b.gdn")
    assert cli.main(["explain", "--diff", a, b]) == 1
    assert "split: conv" in capsys.readouterr().out
    assert cli.main(["explain", "--diff", b, b]) == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no file of graphdnn"),
        (b"{}", "no file of graphdnn"),
        (b'{"format": "graphdnn lock"}', "it is a lock file; gd.compile"),
        (b'{"format": "graphdnn report"}', "field required|version"),
        (b'{"format": "graphdnn"}', "field required"),
        (b'{"format": ["graphdnn"]}', "no file of graphdnn"),
        (b'{"graph": NaN}', "no JSON"),
        (b'{"graph": "a", "graph": "b"}', "no JSON"),
        (b"\x89gdnn\r\n\x1a" + bytes(99), "version 0"),
    ],
)
def test_files_that_are_no_reports(
    files: tuple[str, str], content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(content)
    for pair in ((str(bad), files[0]), (files[0], str(bad))):
        assert cli.main(["explain", "--diff", *pair]) == 2
        err = capsys.readouterr().err
        assert re.search(said, err)
        assert re.match(r"graphdnn: \S*bad.json: ", err)
        assert err.count("\n") == 1


def test_missing_files_and_wrong_use(files: tuple[str, str], capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["explain", "--diff", files[0], "nowhere.json"]) == 2
    assert "nowhere.json" in capsys.readouterr().err
    assert cli.main(["explain", files[0], "--diff", *files]) == 2
    assert "third one" in capsys.readouterr().err
    assert cli.main(["explain", "--json", "--diff", *files]) == 2
    assert "--diff is text" in capsys.readouterr().err
    assert cli.main(["explain"]) == 1
    assert "FILE is needed, a graph" in capsys.readouterr().err


def test_a_graph_is_compared_as_its_report_was_made(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """For the same target with the same options: what differs is what the compiler does now."""
    graph = str(tmp_path / "block.graph.json")
    block().save(graph)
    for old, new in ((files[0], graph), (graph, files[0]), (files[1], graph), (graph, graph)):
        assert cli.main(["explain", "--diff", old, new]) == 0, (old, new)
        assert capsys.readouterr().out == "the reports are equal\n"
    assert cli.main(["explain", "--diff", files[0], graph, "--disable-pass", "fuse"]) == 2
    assert "a target or options need the graph" in capsys.readouterr().err
    assert cli.main(["explain", "--diff", graph, graph, "--disable-pass", "fuse", "--target", "h200"]) == 0


def test_an_executable_is_compared_with_a_graph(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    graph, saved = str(tmp_path / "block.json"), str(tmp_path / "block.gdn")
    block(8).save(graph)
    gd.compile(block(8), target="cpu", options=gd.CompileOptions(disabled_passes=("fuse",))).save(saved)
    assert cli.main(["explain", "--diff", saved, graph]) == 0
    assert cli.main(["explain", "--diff", saved, graph, "--target", "h200"]) == 0, "both are compiled for it"
    capsys.readouterr()
