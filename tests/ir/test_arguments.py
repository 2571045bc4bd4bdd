"""What callers hand to save, load, parse and evaluate: refused in one sentence, before anything is written."""

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdnn as gd


def small() -> gd.Graph:
    g = gd.GraphBuilder("small")
    w = g.constant(np.arange(2048, dtype=np.float32), name="w")
    return g.build({"y": g.relu(g.input("x", (2048,), gd.float32)) + w})


GRAPH = small()
EXE = gd.compile(GRAPH, target="cpu")
SAVES = {"save": GRAPH.save, "exe.save": EXE.save, "save_lock": EXE.save_lock}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "is a NoneType; a str or Path is needed"),
        (3, "is a int; a str or Path is needed"),
        (b"g.json", "is a bytes; a str or Path is needed"),
        (["g.json"], "is a list; a str or Path is needed"),
        ("", "is '', which names no file"),
        ("x\0y", r"is 'x\x00y', which names no file"),
        ("\ud800.json", r"is '\ud800.json', which names no file"),
        (Path(), "is '.', which is a folder; the path of a file is needed"),
    ],
)
@pytest.mark.parametrize("call", ["load", "Graph.load", *SAVES])
def test_what_names_no_file(call: str, given: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kind = gd.GraphError if call in ("save", "Graph.load") else gd.SavedFileError
    with pytest.raises(kind) as caught:
        {"load": gd.load, "Graph.load": gd.Graph.load, **SAVES}[call](given)
    assert str(caught.value) == f"{call.split('.')[-1]}: path {said}"
    assert not os.listdir(tmp_path)


def test_a_name_of_other_bytes_than_text_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.json")
    GRAPH.save(path)
    assert str(gd.Graph.load(path)) == str(GRAPH)


@pytest.mark.parametrize("call", SAVES)
@pytest.mark.parametrize("chain", [1, 2])
@pytest.mark.parametrize("exists", [True, False])
def test_links_stay_and_what_they_lead_to_is_written(call: str, chain: int, exists: bool, tmp_path: Path) -> None:
    real = tmp_path / "kept" / "real.json"
    real.parent.mkdir()
    if exists:
        real.write_text("old")
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.symlink_to(Path("kept") / "real.json")
    second.symlink_to("first.json")
    SAVES[call](first if chain == 1 else second)
    assert first.is_symlink()
    assert second.is_symlink()
    assert not real.is_symlink()
    assert real.stat().st_size > 100
    assert [p.name for p in real.parent.iterdir()] == ["real.json"]
    if call == "save":
        assert str(gd.Graph.load(second if chain == 2 else first)) == str(GRAPH)


def test_constants_follow_a_link_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "g.safetensors").symlink_to(Path("kept") / "large")
    GRAPH.save(tmp_path / "g.json")
    assert (tmp_path / "g.safetensors").is_symlink()
    assert gd.Graph.load(tmp_path / "g.json").payloads["w"].has_data


def pipe(place: Path) -> None:
    os.mkfifo(place)


def listening(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(place))


MADE = {"a folder": Path.mkdir, "no regular file": pipe, "a socket": listening}


@pytest.mark.parametrize("call", SAVES)
@pytest.mark.parametrize("what", MADE)
@pytest.mark.parametrize("linked", [True, False])
def test_what_is_no_regular_file_stays(
    call: str, what: str, linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    MADE[what](Path("there"))
    Path("link").symlink_to("there")
    before = os.lstat("there")
    with pytest.raises((gd.GraphError, gd.SavedFileError)) as caught:
        SAVES[call]("link" if linked else "there")
    found = "a folder" if what == "a folder" else "no regular file"
    name = "link" if linked else "there"
    assert str(caught.value).endswith(
        f"save{'_lock' if call == 'save_lock' else ''}: path is {name!r}, which is {found}; a new name or that of a "
        "regular file is needed"
    )
    assert os.lstat("there").st_ino == before.st_ino
    assert sorted(os.listdir()) == ["link", "there"]


def test_no_document_is_written_where_its_constants_cannot_be(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "g.safetensors")
    with pytest.raises(gd.GraphError, match=r"save: the constants' path is .*, which is no regular file"):
        GRAPH.save(tmp_path / "g.json")
    assert os.listdir(tmp_path) == ["g.safetensors"]


@pytest.mark.parametrize("given", [None, b"graph", 3, Path("g")])
def test_what_is_no_text(given: Any) -> None:
    for who, call in (("parse", gd.parse), ("from_json", gd.Graph.from_json)):
        with pytest.raises(gd.GraphError) as caught:
            call(given)
        assert str(caught.value) == f"{who}: text is a {type(given).__name__}; a str is needed"


@pytest.mark.parametrize("text", ["", "x\0y", "\ud800"])
def test_text_of_no_graph(text: str) -> None:
    for call in (gd.parse, gd.Graph.from_json):
        with pytest.raises(gd.GraphError) as caught:
            call(text)
        str(caught.value).encode()


@pytest.mark.parametrize("given", [3, b"abc", "x", [1.0], np.zeros(2)])
def test_what_maps_no_names_to_arrays(given: Any) -> None:
    needed = f" is a {type(given).__name__}; a mapping of names to arrays is needed"
    for said, call in (
        ("parse: constants", lambda: gd.parse(str(GRAPH), given)),
        ("from_json: constants", lambda: gd.Graph.from_json(GRAPH.to_json(), given)),
        ("evaluate: inputs", lambda: gd.evaluate(GRAPH, given)),
    ):
        with pytest.raises(gd.GraphError) as caught:
            call()
        assert str(caught.value) == said + needed


@pytest.mark.parametrize("given", [None, b"abc", "", "x\0y", 3])
def test_what_is_no_graph(given: Any) -> None:
    with pytest.raises(gd.GraphError) as caught:
        gd.evaluate(given, {})
    assert str(caught.value) == (
        f"evaluate: graph is a {type(given).__name__}; a Graph, as GraphBuilder.build gives, is needed"
    )
