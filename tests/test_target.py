"""Names of targets: those that nobody knows are answered with what is known and the nearest of it."""

from pathlib import Path

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.commands import cli


def relu() -> gd.Graph:
    g = gd.GraphBuilder()
    return g.build({"y": g.relu(g.input("x", (3,), gd.float32))})


MEANT = [
    ("gpu", "cuda"),
    ("GPU", "cuda"),
    ("cuda:x", "cuda"),
    ("cuda:0", "cuda"),
    (" cpu", "cpu"),
    ("Auto", "auto"),
    ("H100 ", "h200"),
    ("h200", "h200"),
    ("h-200", "h200"),
]


@pytest.mark.parametrize(("given", "name"), MEANT)
def test_an_unknown_word_is_named_with_what_is_known_and_the_nearest(given: str, name: str) -> None:
    with pytest.raises(gd.CompileError) as caught:
        gd.compile(relu(), target=given)
    said = str(caught.value)
    assert said.startswith(f"compile: target is {given!r}; ")
    assert '"auto", "cpu", "cuda" or a described device, gd.Target.named("h200"), is needed' in said
    call = f'gd.Target.named("{name}")' if name == "h200" else f'"{name}"'
    assert said.endswith(f"; did you mean {call}?")


@pytest.mark.parametrize("given", ["", "abacus", 7, None, ["cpu"]])
def test_what_is_like_nothing_is_likened_to_nothing(given: object) -> None:
    with pytest.raises(gd.CompileError, match=r"compile: target is .* is needed$"):
        gd.compile(relu(), target=given)


@pytest.mark.parametrize("given", ["h100", "H200", "h200.json"])
def test_an_unknown_description_is_likened_too(given: str) -> None:
    with pytest.raises(gd.CompileError, match=f"target '{given}' is not described here; known .*mean 'h200'"):
        gd.Target.named(given)


@pytest.mark.parametrize(("given", "name"), [m for m in MEANT if m[0] != "h200"])
def test_the_command_line_knows_both_kinds(
    given: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = str(tmp_path / "relu.json")
    relu().save(path)
    assert cli.main(["explain", path, "--target", given]) == 1
    said = capsys.readouterr().err
    assert f"--target is {given!r}; auto, cpu, cuda, h200 are known; did you mean {name}?" in said


def test_the_words_that_are_known_are_taken() -> None:
    assert gd.compile(relu(), target="cpu")({"x": np.ones(3, np.float32)})["y"].tolist() == [1, 1, 1]
