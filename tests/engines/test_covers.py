"""Covers that are kept: taken again where nothing has changed, with the same report, and never where something has."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn import compiler
from graphdnn.answer import Code, Decline
from graphdnn.compiler import compile_for
from graphdnn.config import CompileOptions
from graphdnn.engines.choose import Decision
from graphdnn.engines.contract import Policy, Support
from graphdnn.errors import ContextLostError
from graphdnn.ir.region import Region
from graphdnn.passes.fuse import Proposal
from graphdnn.planning import covers, planner
from graphdnn.planning.covers import KIND
from graphdnn.runtime.device import HostDevice
from graphdnn.target import Target
from tests.engines.scripted import Act, Clock, Scripted
from tests.engines.shelf import Shelf


def net(scale: float = 2.0, width: int = 5, name: str = "net") -> gd.Graph:
    g = gd.GraphBuilder(name)
    x = g.input("x", (3, width), gd.float32)
    y = g.softmax(g.relu(g.mul(x, scale, name="scaled"), name="relu"), name="soft")
    return g.build({"y": y, "z": g.reshape(g.softmax(g.exp(y, name="exp"), name="again"), (width, 3))})


class Inner(Scripted):
    """A scripted engine that counts as one of the package's own, and tells how it was asked."""

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        return super().supports(region, target, policy)


Inner.__module__ = f"{covers.OURS}inner"


def inner(name: str, estimated_us: float = 10.0, takes: tuple[str, ...] | None = None, **acts: Act) -> Inner:
    return Inner(name, acts or {"a": Act(), "b": Act()}, Clock(), estimated_us, takes)


@pytest.fixture
def proposing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the graphs that regions were proposed for."""
    asked: list[str] = []

    def propose(graph: gd.Graph) -> tuple[Proposal, ...]:
        asked.append(graph.name)
        return real(graph)

    real = planner.propose
    monkeypatch.setattr(planner, "propose", propose)
    return asked


def compiled(shelf: Shelf, graph: gd.Graph | None = None, fixed: Any = None, **options: Any) -> gd.Executable:
    return compile_for(graph or net(), Target.cpu(), HostDevice(shelf), CompileOptions(**options), fixed)


def run(exe: gd.Executable) -> dict[str, Any]:
    return exe({"x": np.random.default_rng(0).standard_normal((3, 5), np.float32)})


def test_a_second_compilation_takes_the_cover_of_the_first(with_engines: Any, proposing: list[str]) -> None:
    first, other = inner("first", 30.0), inner("other", 1.0, ("softmax",))
    with_engines(first, other)
    shelf = Shelf()
    cold = compiled(shelf)
    assert KIND in shelf.kinds()
    assert proposing == ["net"]
    asked = len(first.asked) + len(other.asked)
    warm = compiled(shelf)
    assert proposing == ["net"], "nothing is proposed again"
    assert len(first.asked) + len(other.asked) == asked, "no engine is asked for its plans"
    assert [(p.engine, p.chosen.name) for p in warm.compilation.picks if p.chosen] == [
        (p.engine, p.chosen.name) for p in cold.compilation.picks if p.chosen
    ]
    for name, array in run(cold).items():
        np.testing.assert_array_equal(run(warm)[name], array)


def test_the_report_is_that_of_the_first(with_engines: Any) -> None:
    """What the plans were chosen among is found out when the report is read."""
    with_engines(inner("first", 30.0), inner("other", 1.0, ("softmax",)), inner("third", 2.0, ("relu", "exp+softmax")))
    shelf = Shelf()
    cold = compiled(shelf).report
    again = compiled(shelf)
    assert again.report == cold
    assert len(cold.candidates) > len(cold.regions)
    assert any(len(c.plans) == 2 for c in cold.candidates)
    assert again.explain() == compiled(shelf).explain()


def test_a_report_is_written_after_the_device_was_lost(with_engines: Any) -> None:
    """What a recalled plan was ranked above is then not known; the rest is that of the first."""

    class Losing(HostDevice):
        is_lost = False

        def __enter__(self) -> HostDevice:
            if self.is_lost:
                raise ContextLostError("the device does not work any more")
            return self

    with_engines(inner("first", 30.0), inner("other", 1.0, ("softmax",)))
    shelf = Shelf()
    cold = compiled(shelf).report
    device = Losing(shelf)
    exe = compile_for(net(), Target.cpu(), device, CompileOptions())
    device.is_lost = True
    assert [(r.name, r.engine, r.plan) for r in exe.report.regions] == [
        (r.name, r.engine, r.plan) for r in cold.regions
    ]
    assert [(c.nodes, c.engine, c.verdict) for c in exe.report.candidates] == [
        (c.nodes, c.engine, c.verdict) for c in cold.candidates
    ]


def test_the_report_is_the_same_with_the_engines_of_a_processor() -> None:
    shelf = Shelf()
    cold = compiled(shelf).report
    assert KIND in shelf.kinds()
    assert compiled(shelf).report == cold


@pytest.mark.parametrize(
    "changed",
    [
        {"graph": net(3.0)},
        {"graph": net(width=7)},
        {"graph": net(name="another")},
        {"deterministic": True},
        {"workspace_limit": 0},
        {"precision": "tf32"},
        {"disabled_passes": ("fuse",)},
        {"disabled_plans": ("cudnn:eng8",)},
        {"selection": "autotune", "progress": False},
        {"memory_limit": 1 << 20},
        {"cache_dir": ""},
        {"fixed": True},
    ],
    ids=str,
)
def test_what_decides_about_a_cover_stands_in_its_key(
    changed: dict[str, Any], with_engines: Any, proposing: list[str]
) -> None:
    class Free:
        left_out: tuple[str, ...] = ()

        def decided(self, region: Region) -> Decision | None:
            return None

        def narrowed(self, offers: Any) -> Any:
            return offers

    with_engines(inner("first"))
    shelf = Shelf()
    compiled(shelf)
    proposing.clear()
    if changed.pop("fixed", False):
        changed = {"fixed": Free()}
    compiled(shelf, **changed)
    assert proposing


def test_other_engines_are_asked_anew(with_engines: Any, proposing: list[str]) -> None:
    shelf = Shelf()
    with_engines(inner("first"))
    compiled(shelf)
    with_engines(inner("first"), inner("second", 1.0))
    assert {r.engine for r in compiled(shelf).report.regions} == {"second"}


def test_other_code_chooses_anew(with_engines: Any, proposing: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with_engines(inner("first"))
    shelf = Shelf()
    compiled(shelf)
    monkeypatch.setattr(covers, "code_digest", lambda: "of another state")
    compiled(shelf)
    compiled(shelf)
    assert proposing == ["net"] * 2


def test_another_version_of_a_library_is_another_machine(with_engines: Any, proposing: list[str]) -> None:
    with_engines(inner("first"))
    shelf = Shelf()
    for version, is_new in (("1.22.0", True), ("1.22.0", False), ("1.23.0", True)):
        proposing.clear()
        machine = replace(Target.cpu(), versions={"cudnn_frontend": version})
        compile_for(net(), machine, HostDevice(shelf), CompileOptions())
        assert bool(proposing) is is_new


def test_weights_have_no_part_in_it(with_engines: Any, proposing: list[str]) -> None:
    def graph(value: float) -> gd.Graph:
        g = gd.GraphBuilder("weights")
        x = g.input("x", (3, 5), gd.float32)
        return g.build({"y": g.matmul(x, g.constant(np.full((5, 4), value, np.float32)))})

    with_engines(inner("first"))
    shelf = Shelf()
    compiled(shelf, graph(1.0))
    warm = compiled(shelf, graph(2.0))
    assert proposing == ["weights"]
    np.testing.assert_allclose(warm({"x": np.ones((3, 5), np.float32)})["y"], 10.0)


@pytest.mark.parametrize(
    "engines",
    [
        [inner("first", a=Act(fails="build"), b=Act())],
        [inner("first"), inner("never", 1.0, a=Act(fails="build"))],
        [Scripted("first", {"a": Act()}, Clock())],
    ],
    ids=["a plan that is not built", "an engine without plans", "an engine of others"],
)
def test_what_did_not_go_smoothly_is_not_kept(engines: list[Scripted], with_engines: Any) -> None:
    with_engines(*engines)
    shelf = Shelf()
    compiled(shelf)
    assert KIND not in shelf.kinds()


def test_what_a_limit_ruled_out_is_not_kept(with_engines: Any) -> None:
    with_engines(inner("first", a=Act(workspace=100), b=Act()))
    shelf = Shelf()
    compiled(shelf, workspace_limit=10)
    assert KIND not in shelf.kinds()


@pytest.mark.parametrize("code", [Code.SETUP, Code.TRANSIENT])
def test_an_answer_of_the_moment_is_in_the_way(code: Code, with_engines: Any) -> None:
    class Absent(Inner):
        def supports(self, region: Region, target: Target, policy: Policy) -> Decline:
            return Decline(code, "no library")

    Absent.__module__ = Inner.__module__
    with_engines(inner("first"), Absent("absent", {}, Clock()))
    shelf = Shelf()
    compiled(shelf)
    assert KIND not in shelf.kinds()


def test_code_that_is_not_what_runs_keeps_and_finds_nothing(
    with_engines: Any, proposing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_engines(inner("first"))
    shelf, empty = Shelf(), Shelf()
    compiled(shelf)
    monkeypatch.setattr(covers, "is_as_loaded", lambda: False)
    compiled(shelf)
    compiled(empty)
    assert KIND not in empty.kinds()
    assert len(proposing) == 3


def test_a_plan_that_is_gone_is_chosen_anew(with_engines: Any, proposing: list[str]) -> None:
    """An engine that does not know the name any more proposes; one without a plan that runs is ruled out."""
    shelf = Shelf()
    with_engines(inner("first", 1.0), inner("second"))
    compiled(shelf)
    with_engines(inner("first", 1.0, c=Act()), inner("second"))
    assert {r.plan for r in compiled(shelf).report.regions} == {"c"}
    with_engines(inner("first", 1.0, a=Act(fails="build")), inner("second"))
    exe = compiled(shelf)
    assert {r.engine for r in exe.report.regions} == {"second"}
    assert {c.verdict for c in exe.report.candidates if c.engine == "first"} <= {"failed", "slower", "conflict"}


def entry(shelf: Shelf) -> tuple[tuple[str, str], dict[str, Any]]:
    (place,) = [k for k in shelf.kept if k[0] == KIND]
    return place, json.loads(shelf.kept[place])


Spoil = Callable[[dict[str, Any]], object]


def first_row(said: dict[str, Any]) -> list[Any]:
    row: list[Any] = said["regions"][0]
    return row


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: s.update(format=2),
        lambda s: s.pop("regions"),
        lambda s: s.update(regions=[]),
        lambda s: s["regions"].pop(),
        lambda s: s["regions"].append(s["regions"][0]),
        lambda s: s["regions"].reverse(),
        lambda s: s.update(regions=7),
        lambda s: first_row(s).__setitem__(0, "zz"),
        lambda s: first_row(s).__setitem__(0, "0"),
        lambda s: first_row(s).__setitem__(0, "-1"),
        lambda s: first_row(s).__setitem__(0, "f" * 100),
        lambda s: first_row(s).__setitem__(0, None),
        lambda s: first_row(s).__setitem__(1, "nobody"),
        lambda s: first_row(s).__setitem__(1, []),
        lambda s: first_row(s).__setitem__(2, float("nan")),
        lambda s: first_row(s).__setitem__(2, "cheap"),
        lambda s: first_row(s).pop(),
    ],
)
def test_an_entry_that_makes_no_sense_is_dropped(spoil: Spoil, with_engines: Any, proposing: list[str]) -> None:
    with_engines(inner("first", takes=("mul+relu", "softmax", "exp")))
    shelf = Shelf()
    expected = compiled(shelf).report
    assert len(expected.regions) == 4
    place, said = entry(shelf)
    spoil(said)
    shelf.kept[place] = json.dumps(said).encode()
    with pytest.warns(RuntimeWarning, match="a cached cover of net is dropped"):
        exe = compiled(shelf)
    assert proposing == ["net", "net"]
    assert exe.report == expected


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"null", b"[" * 100_000, b'{"format": 1}'])
def test_bytes_of_anybody_are_dropped(content: bytes, with_engines: Any, proposing: list[str]) -> None:
    with_engines(inner("first"))
    shelf = Shelf()
    compiled(shelf)
    place, _ = entry(shelf)
    shelf.kept[place] = content
    with pytest.warns(RuntimeWarning, match="a cached cover of net is dropped"):
        compiled(shelf)
    assert proposing == ["net", "net"]


def test_a_described_device_keeps_none(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plans were never built, so that nobody knows whether they can be."""
    asked: list[object] = []
    monkeypatch.setattr(compiler, "Covers", lambda *a: asked.append(a))
    gd.compile(net(), Target.named("h200"), CompileOptions(cache_dir=str(tmp_path)))
    assert not asked
