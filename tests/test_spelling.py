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
from graphdnn.spelling import byte_count, counted

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
