"""What `graphdnn explain` and `plans` take: graphs, saved executables, reports; a sentence for everything else."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import graphdnn as gd
from graphdnn.commands import cli
from graphdnn.serialization.kinds import Kind, kind_of
from tests.report.test_diff import block


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One file of each kind, by the name of its kind."""
    folder = tmp_path_factory.mktemp("kinds")
    graph = block(8)
    exe = gd.compile(graph, target="cpu", options=gd.CompileOptions(disabled_passes=("fuse",)))
    graph.save(str(folder / "graph.json"))
    exe.save(folder / "model.gdn")
    exe.save_lock(folder / "lock.json")
    (folder / "report.json").write_text(exe.report.model_dump_json())
    (folder / "empty.json").write_text("")
    (folder / "text.json").write_text("no JSON at all")
    os.mkfifo(folder / "pipe.json")
    (folder / "other.json").write_text(json.dumps({"format": "onnx"}))
    return {
        Kind.GRAPH: str(folder / "graph.json"),
        Kind.EXECUTABLE: str(folder / "model.gdn"),
        Kind.LOCK: str(folder / "lock.json"),
        Kind.REPORT: str(folder / "report.json"),
        Kind.EMPTY: str(folder / "empty.json"),
        Kind.NO_JSON: str(folder / "text.json"),
        Kind.OTHER: str(folder / "other.json"),
        Kind.FOLDER: str(folder),
        Kind.PIPE: str(folder / "pipe.json"),
    }


def test_kinds_are_told_apart(files: dict[str, str]) -> None:
    assert {kind: kind_of(Path(name)) for kind, name in files.items()} == {kind: kind for kind in Kind}


def printed(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    assert cli.main(arguments) == 0
    out: str = capsys.readouterr().out
    return out


@pytest.mark.parametrize("kind", [Kind.EXECUTABLE, Kind.REPORT])
def test_a_report_is_shown_as_it_was_written(
    kind: Kind, files: dict[str, str], capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gd.load(files[Kind.EXECUTABLE]).explain()
    monkeypatch.setattr(gd, "compile", None)
    assert printed(capsys, "explain", files[kind]) == expected + "\n"
    shown = printed(capsys, "explain", files[kind], "--json")
    assert gd.CompileReport.model_validate_json(shown).options["disabled_passes"] == ["fuse"]


def test_a_saved_executable_is_planned_anew_where_asked(files: dict[str, str], capsys: pytest.CaptureFixture) -> None:
    assert "for h200 (described)" in printed(capsys, "explain", files[Kind.EXECUTABLE], "--target", "h200")
    again = printed(capsys, "explain", files[Kind.EXECUTABLE], "--target", "cpu", "--json")
    assert gd.CompileReport.model_validate_json(again).options["disabled_passes"] == []
    assert "region sm" in printed(capsys, "plans", files[Kind.EXECUTABLE], "--region", "sm", "--target", "h200")


@pytest.mark.parametrize("command", ["explain", "plans"])
def test_a_report_cannot_be_planned_anew(command: str, files: dict[str, str], capsys: pytest.CaptureFixture) -> None:
    assert cli.main([command, files[Kind.REPORT], "--target", "h200"]) == 1
    assert "it is a report, and says what was decided; a target" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["explain", "plans"])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Kind.LOCK, "it is a lock file; gd.compile(graph, lock=...) takes it; a graph (of Graph.save), a saved"),
        (Kind.EMPTY, "it is empty; a graph"),
        (Kind.FOLDER, "it is a folder; a graph"),
        (Kind.PIPE, "it is no regular file; a graph"),
        (Kind.NO_JSON, "it is no JSON; a graph"),
        (Kind.OTHER, "it does not say that it is a graph, a report or a lock file; a graph"),
    ],
)
def test_other_files_are_named(
    command: str, kind: Kind, said: str, files: dict[str, str], capsys: pytest.CaptureFixture
) -> None:
    assert cli.main([command, files[kind]]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"graphdnn: {files[kind]}: ")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("kind", [Kind.LOCK, Kind.REPORT, Kind.EMPTY, Kind.FOLDER, Kind.PIPE, Kind.NO_JSON])
def test_what_cannot_be_replayed_is_named(kind: Kind, files: dict[str, str], capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["doctor", "--replay", files[kind]]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"graphdnn: {files[kind]}: it is ")
    assert err.endswith("; a graph (of Graph.save) or a saved executable is needed\n")


@pytest.mark.parametrize("command", [("explain",), ("plans",), ("explain", "--diff", "nowhere.json")])
def test_a_file_that_is_not_there_is_named(command: tuple[str, ...], capsys: pytest.CaptureFixture) -> None:
    assert cli.main([*command, "nowhere.json"]) == (2 if "--diff" in command else 1)
    assert capsys.readouterr().err == "graphdnn: nowhere.json: no such file or directory\n"


def test_a_graph_without_nodes_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    g = gd.GraphBuilder("none")
    path = str(tmp_path / "none.json")
    g.build({"y": g.input("x", (8,), gd.float16)}).save(path)
    assert printed(capsys, "explain", path, "--target", "h200").startswith("graph none for h200")


LOADED: list[tuple[Kind, str]] = [
    (Kind.GRAPH, r"graph.json: it is a graph's document; gd.Graph.load reads it, .* a saved executable, as Exec"),
    (Kind.REPORT, r"report.json: it is a report; gd.CompileReport.model_validate_json reads its text"),
    (Kind.LOCK, r"lock.json: it is a lock file; gd.compile\(graph, lock=...\) takes it"),
    (Kind.FOLDER, r"it is a folder; a saved executable"),
    (Kind.EMPTY, r"empty.json: it is empty"),
    (Kind.OTHER, r"other.json: it is no file of graphdnn"),
    (Kind.NO_JSON, r"text.json: it is no file of graphdnn, or a damaged one"),
]


@pytest.mark.parametrize(("kind", "said"), LOADED)
def test_load_names_what_it_was_given_and_what_reads_that(kind: Kind, said: str, files: dict[str, Any]) -> None:
    with pytest.raises(gd.SavedFileError, match=said):
        gd.load(files[kind])


def failed(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    """The sentence on stderr."""
    assert cli.main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("graphdnn: ")
    assert printed.err.count("\n") == 1
    return str(printed.err.removeprefix("graphdnn: ").rstrip())


@pytest.mark.parametrize("command", ["explain", "plans"])
@pytest.mark.parametrize("kind", [Kind.GRAPH, Kind.EXECUTABLE])
def test_an_empty_target_is_none(
    command: str, kind: Kind, files: dict[str, str], capsys: pytest.CaptureFixture
) -> None:
    said = failed(capsys, command, files[kind], "--target", "")
    assert said == "--target is ''; auto, cpu, cuda, h200 are known"


def test_an_empty_target_is_none_beside_a_report_either(files: dict[str, str], capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["explain", "--diff", files[Kind.GRAPH], files[Kind.GRAPH], "--target", ""]) == 2
    assert "--target is ''" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given", [("--inputs", "x.npz"), ("--target", "cpu"), ("--target", ""), ("--options", "{}")], ids=" ".join
)
def test_what_is_for_a_replay_only_is_refused_without_one(
    given: tuple[str, str], capsys: pytest.CaptureFixture
) -> None:
    said = failed(capsys, "doctor", *given)
    assert said == f"doctor: {given[0]} is for a replay, and there is none; --replay FILE is needed with it"


@pytest.mark.parametrize(
    ("target", "more"),
    [
        ("h200", "; graphdnn explain {graph} --target h200 plans for it"),
        ("H200", "; graphdnn explain {graph} --target h200 plans for it"),
        ("gpu", "; did you mean cuda?"),
        ("", ""),
        ("abacus", ""),
    ],
)
def test_a_target_that_is_not_here_is_no_target_of_a_replay(
    target: str, more: str, files: dict[str, str], capsys: pytest.CaptureFixture
) -> None:
    graph = files[Kind.GRAPH]
    said = failed(capsys, "doctor", "--replay", graph, "--target", target)
    assert said == f"--target is {target!r}; a replay runs plans here, on auto, cpu, cuda{more.format(graph=graph)}"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"regions": 3}, "regions is 3; a list is needed"),
        ({"graph": 1}, "graph is 1; text is needed"),
        ({"graph": True}, "graph is true; text is needed"),
        ({"regions": [3]}, "regions.0 is 3; an object is needed"),
        ({"graph": None}, "graph is null; text is needed"),
        ({"read_bytes": "many"}, "read_bytes is 'many'; a whole number is needed"),
        ({"read_bytes": 1.5}, "read_bytes is 1.5; a whole number is needed"),
        ({"exact_cover": []}, "exact_cover is a list; true or false is needed"),
        ({"versions": {"cudnn": {}}}, "versions.cudnn is an object; text is needed"),
        ({"versions": "9"}, "versions is '9'; an object is needed"),
        ({"more": 1}, "more: there is no such field"),
    ],
)
def test_a_damaged_report_is_named_as_it_was_given(
    damage: dict[str, Any], said: str, files: dict[str, str], capsys: pytest.CaptureFixture,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    whole = json.loads(Path(files[Kind.REPORT]).read_text())
    (tmp_path / "bad.json").write_text(json.dumps({**whole, **damage}))
    monkeypatch.chdir(tmp_path)
    for given in ("./bad.json", str(tmp_path / "bad.json")):
        assert failed(capsys, "explain", given) == f"{given}: {said}"
