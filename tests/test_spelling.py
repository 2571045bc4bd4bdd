"""Words of sentences: numbers of things are in the singular where there is one."""

import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.commands import cli
from graphdnn.specialize.variation import RepeatedBuildsWarning
from graphdnn.spelling import QUOTED, byte_count, counted, named, quoted

ONE = re.compile(r"(?<![\w.])1 (?:more )?[a-z]+s\b(?! (?:is|of))")
"""One of several: "1 plans"."""

RIGHT = {"1 us"}


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "entry", "1 entry"), (0, "entry", "0 entries"), (2, "axis", "2 axes"), (3, "plan", "3 plans")],
)
def test_counted(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text


def said(*arguments: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        cli.main(arguments)
    return out.getvalue()


def texts(folder: Path) -> Iterator[str]:
    """What is printed of a graph with one node, one plan, one region."""
    g = gd.GraphBuilder("one")
    graph = g.build({"y": g.relu(g.input("x", (8,), gd.float32), name="only")})
    graph.save(str(folder / "one.json"))
    exe = gd.compile(graph, target="cpu", options=gd.CompileOptions(selection="autotune"))
    exe.save_lock(folder / "one.lock.json")
    yield exe.explain()
    yield gd.compile(graph, target="cpu", lock=folder / "one.lock.json").explain()
    yield said("plans", str(folder / "one.json"), "--target", "cpu")
    yield said("explain", "--diff", str(folder / "one.json"), str(folder / "one.json"))
    yield said("doctor", "--replay", str(folder / "one.json"), "--target", "cpu")
    store = folder / "cache"
    (store / "cubin").mkdir(parents=True)
    (store / "cubin" / "x.bin").write_bytes(b"damaged")
    yield said("cache", "list", "--dir", str(store))
    yield said("cache", "verify", "--dir", str(store))
    f = gd.jit(lambda g, x: {"y": g.relu(x)}, target="cpu", warn_after=1)
    with pytest.warns(RepeatedBuildsWarning) as caught:
        f({"x": np.ones(3, np.float32)})
    yield str(caught[0].message)


def test_one_is_never_several(tmp_path: Path) -> None:
    wrong = {found[0] for text in texts(tmp_path) for found in ONE.finditer(text)}
    assert not wrong - RIGHT


def test_bytes_have_units() -> None:
    found = [byte_count(n) for n in (0, 1023, 1024, 1536, 5 << 20, 3 << 40)]
    assert found == ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "5.0 MiB", "3072.0 GiB"]


class Unwritten:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a\nb", repr("a\nb")),
        (np.eye(2), "array([[1., 0.], [0., 1.]])"),
        ("x" * 1000, f"'{'x' * (QUOTED - 1)}..."),
        (10**5000, "a value of type int that cannot be written out"),
        (Unwritten(), "a value of type Unwritten that cannot be written out"),
    ],
    ids=["lines", "array", "long", "digits", "failing"],
)
def test_what_was_given_is_told_in_one_line(value: object, text: str) -> None:
    assert quoted(value) == text


def test_names_stand_as_they_are_where_a_sentence_can_hold_them() -> None:
    assert [named("conv 1"), named("a\nb"), named("x" * 1000)] == ["conv 1", r"'a\nb'", f"'{'x' * (QUOTED - 1)}..."]
