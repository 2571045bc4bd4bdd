"""Lock files: the same regions, engines, plans and bits again; what does not fit is said and compiled as usual."""

import json
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines import manifest
from graphdnn.passes.fuse import propose
from graphdnn.serialization import lock
from graphdnn.serialization.kinds import Kind, kind_of
from tests.cases.fake_engine import FakeEngine
from tests.passes.random_graphs import random_arrays, random_graph
from tests.report.test_diff import block

H200 = gd.Target.named("h200")
APART = gd.CompileOptions(disabled_passes=("fuse",))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "block.lock.json"


def cover(exe: gd.Executable) -> list[tuple[object, ...]]:
    return [(r.name, r.nodes, r.pattern, r.engine, r.plan) for r in exe.report.regions]


def quietly(graph: gd.Graph, path: Path, target: Any = "cpu", **options: Any) -> gd.Executable:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return gd.compile(graph, target=target, options=gd.CompileOptions(**options), lock=path)


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def region(content: dict[str, Any], name: str) -> dict[str, Any]:
    return next(r for r in content["regions"] if r["region"] == name)


@pytest.mark.parametrize("target", ["cpu", H200], ids=str)
def test_the_same_decisions_again(path: Path, target: Any) -> None:
    made = gd.compile(block(), target=target)
    made.save_lock(path)
    again = quietly(block(), path, target)
    assert cover(again) == cover(made)
    count = len(made.report.regions)
    assert again.report.effects == (f"lock file block.lock.json decided {count} of {count} regions",)


def test_a_cover_that_the_compiler_would_not_choose_is_kept(path: Path) -> None:
    split = gd.compile(block(), target=H200, options=APART)
    split.save_lock(path)
    edited(path, lambda c: c["options"].update(disabled_passes=[]))
    again = quietly(block(), path, H200)
    assert cover(again) == cover(split)
    assert cover(again) != cover(gd.compile(block(), target=H200))


def test_an_engine_that_the_compiler_would_not_choose_is_kept(path: Path) -> None:
    made = gd.compile(block(), target=H200)
    made.save_lock(path)
    assert next(r for r in made.report.regions if r.name == "conv").engine == "cudnn"
    edited(path, lambda c: region(c, "conv").update(engine="nvrtc"))
    again = quietly(block(), path, H200)
    assert next(r for r in again.report.regions if r.name == "conv").engine == "nvrtc"


@pytest.mark.parametrize("number", range(10))
def test_random_graphs_are_compiled_the_same_again(number: int, seed: int, path: Path) -> None:
    rng = np.random.default_rng([seed, number])
    graph = random_graph(rng, steps=int(rng.integers(4, 20)))
    for target in ("cpu", H200):
        made = gd.compile(graph, target=target)
        made.save_lock(path)
        again = quietly(graph, path, target)
        assert cover(again) == cover(made)
        assert [p.region.mask for p in again.compilation.picks] == [p.region.mask for p in made.compilation.picks]
    made = gd.compile(graph, target="cpu")
    made.save_lock(path)
    again = quietly(graph, path)
    inputs, states = random_arrays(graph, rng)
    for exe in (made, again):
        for name, array in states.items():
            exe.state[name] = array
    a, b = made(inputs), again(inputs)
    assert all(a[n].tobytes() == b[n].tobytes() for n in a)


def test_regions_that_are_alike_and_of_one_node_are_told_apart(path: Path) -> None:
    """Both halves of a raised or expanded node may have one structure; which of them was fused is kept."""
    graph = block()
    prepared = gd.compile(graph, target=H200).compilation.prepared
    alike = lock.alike(p.region for p in propose(prepared))
    for regions in alike.values():
        assert [r.mask for r in regions] == sorted({r.mask for r in regions})
    assert sum(map(len, alike.values())) == len({p.region.mask for p in propose(prepared)})


def test_the_file_is_text_a_region_a_line_and_the_same_each_time(path: Path) -> None:
    made = gd.compile(block(), target=H200)
    made.save_lock(path)
    text = path.read_text()
    gd.compile(block(), target=H200).save_lock(path)
    assert path.read_text() == text
    lines = [json.loads(line.rstrip(",")) for line in text.splitlines() if line.startswith("  {")]
    assert [r["region"] for r in lines] == [r.name for r in made.report.regions]
    assert [(r["nodes"], r["pattern"]) for r in lines] == [(list(r.nodes), r.pattern) for r in made.report.regions]
    head = json.loads(text)
    assert head["environment"]["device"] == "h200"
    assert head["environment"]["graphdnn"] == gd.__version__
    assert head["options"]["precision"] == "ieee"
    assert str(Path.home()) not in text


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeEngine]:
    monkeypatch.setitem(manifest.MANIFEST, "fake", "tests.cases.fake_engine:FakeEngine")
    monkeypatch.setitem(manifest.BY_KIND, "cpu", ("fake", "reference"))
    monkeypatch.setattr(FakeEngine, "BUILT", [])
    monkeypatch.setattr(FakeEngine, "PLANS", ("good", "good", "good"))
    return FakeEngine


def test_the_plan_is_the_one_named_and_no_other_is_built(fake: type[FakeEngine], path: Path) -> None:
    gd.compile(block(8), target="cpu").save_lock(path)
    edited(path, lambda c: [r.update(plan="plan2") for r in c["regions"]])
    fake.BUILT.clear()
    again = quietly(block(8), path)
    assert set(fake.BUILT) == {"plan2"}
    assert {r.plan for r in again.report.regions} == {"plan2"}


@pytest.mark.parametrize("deterministic", [False, True])
def test_nothing_is_timed_where_the_lock_decides(fake: type[FakeEngine], path: Path, deterministic: bool) -> None:
    gd.compile(block(8), target="cpu", options=gd.CompileOptions(deterministic=deterministic)).save_lock(path)
    edited(path, lambda c: [r.update(plan="plan1") for r in c["regions"]])
    fake.BUILT.clear()
    options = {"selection": "autotune", "progress": False, "deterministic": deterministic}
    again = quietly(block(8), path, **options)
    assert {r.plan for r in again.report.regions} == {"plan1"}
    assert set(fake.BUILT) == {"plan1"}


def test_a_plan_that_is_gone_falls_back_for_its_region_alone(fake: type[FakeEngine], path: Path) -> None:
    gd.compile(block(8), target="cpu").save_lock(path)

    def change(content: dict[str, Any]) -> None:
        for entry in content["regions"]:
            entry["plan"] = "plan9" if entry["region"] == "conv" else "plan1"

    edited(path, change)
    said = r"lock file block\.lock\.json: region conv runs on plan0; plan9 is not usable here"
    with pytest.warns(RuntimeWarning, match=said):
        again = gd.compile(block(8), target="cpu", lock=path)
    assert {r.name: r.plan for r in again.report.regions} == {
        r.name: "plan0" if r.name == "conv" else "plan1" for r in again.report.regions
    }
    assert any("plan9 is not usable" in line for line in again.report.effects)


def test_a_plan_that_fails_falls_back_for_its_region_alone(
    fake: type[FakeEngine], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gd.compile(block(8), target="cpu").save_lock(path)
    monkeypatch.setattr(fake, "PLANS", ("build", "good", "good"))
    with pytest.warns(RuntimeWarning, match="runs on plan1; plan0 is not usable here: plan0 needs 300 registers"):
        again = gd.compile(block(8), target="cpu", lock=path)
    assert {r.plan for r in again.report.regions} == {"plan1"}


def test_a_graph_that_changed_falls_back_where_it_changed(path: Path) -> None:
    def two(width: int) -> gd.Graph:
        g = gd.GraphBuilder("two")
        x = g.input("x", (4, 8), gd.float32)
        w = g.constant(np.ones((6, width), np.float32), name="w")
        z = g.input("z", (4, 6), gd.float32)
        return g.build({"y": g.softmax(x, axis=1, name="sm"), "z": g.relu(g.matmul(z, w, name="mm"), name="re")})

    gd.compile(two(5), target="cpu").save_lock(path)
    with pytest.warns(RuntimeWarning, match="is not in this graph, or no engine takes it") as caught:
        again = gd.compile(two(7), target="cpu", lock=path)
    assert len(caught) == 1
    assert again.report.effects[0] == f"lock file block.lock.json decided 1 of {len(again.report.regions)} regions"
    assert again({n: np.ones(v.type.shape, np.float32) for n, v in again.graph.inputs.items()})["z"].shape == (4, 7)


@pytest.mark.parametrize("target", ["cpu", H200], ids=str)
def test_nodes_that_the_file_does_not_have_are_said(path: Path, target: Any) -> None:
    def branches(number: int) -> gd.Graph:
        g = gd.GraphBuilder("branches")
        inputs = [g.input(f"x{i}", (64, 64), gd.float32) for i in range(number)]
        return g.build({f"y{i}": g.softmax(g.tanh(x, name=f"t{i}"), name=f"s{i}") for i, x in enumerate(inputs)})

    gd.compile(branches(2), target).save_lock(path)
    quietly(branches(2), path, target)
    said = "lock file block.lock.json: node{} in none of its regions, and what runs there was chosen anew"
    for length, who in ((3, "s t2, s2 are"), (7, "s t2, s2, t3, s3, t4, s4 and 4 more are")):
        with pytest.warns(RuntimeWarning) as caught:
            again = gd.compile(branches(length), target, lock=path)
        assert again.report.effects[-1] == said.format(who)
        assert len(caught) == 1
    g = gd.GraphBuilder("branches")
    graph = g.build({"y": g.softmax(g.input("x", (64, 64), gd.float32), name="other")})
    edited(path, lambda content: content["regions"].clear())
    with pytest.warns(RuntimeWarning, match=re.escape(said.format(" other is"))):
        gd.compile(graph, target, lock=path)


def test_another_device_takes_what_fits_region_by_region(path: Path) -> None:
    gd.compile(block(8), target=H200).save_lock(path)
    with pytest.warns(RuntimeWarning, match="made for device h200, and this is cpu; regions that do not fit"):
        again = gd.compile(block(8), target="cpu", lock=path)
    assert cover(again) == cover(gd.compile(block(8), target="cpu"))
    names = {e["region"] for e in json.loads(path.read_text())["regions"]}
    assert all(any(f"region {name} " in said for said in again.report.effects) for name in names)


def test_a_smaller_device_follows_the_file_where_it_can(path: Path) -> None:
    made = gd.compile(block(8), target=H200)
    made.save_lock(path)
    smaller = replace(H200, name="smaller", sm_count=8)
    with pytest.warns(RuntimeWarning, match="made for device h200, and this is smaller; regions that do not fit"):
        again = gd.compile(block(8), target=smaller, lock=path)
    assert cover(again) == cover(made)
    decided = next(said for said in again.report.effects if " decided " in said)
    assert decided.endswith(f"decided {len(made.report.regions)} of {len(made.report.regions)} regions")


def test_another_version_and_options_are_said(path: Path) -> None:
    made = gd.compile(block(8), target="cpu")
    made.save_lock(path)
    edited(path, lambda c: c["environment"].update(graphdnn="0.0.1"))
    with pytest.warns(RuntimeWarning, match=r"made with graphdnn 0\.0\.1, and this is"):
        assert cover(gd.compile(block(8), target="cpu", lock=path)) == cover(made)
    made.save_lock(path)
    with pytest.warns(RuntimeWarning, match="the option precision='ieee', and this is 'tf32'"):
        gd.compile(block(8), target="cpu", options=gd.CompileOptions(precision="tf32"), lock=path)


def test_another_release_of_the_driver_is_nothing_to_say(path: Path) -> None:
    made = gd.compile(block(8), target="cpu")
    made.save_lock(path)
    edited(path, lambda c: c["environment"].update(driver_release="580.65.06"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cover(gd.compile(block(8), target="cpu", lock=path)) == cover(made)


def test_another_graph_and_unknown_options_are_said(path: Path) -> None:
    made = gd.compile(block(8), target="cpu")
    made.save_lock(path)
    edited(path, lambda c: c.update(graph="other"))
    with pytest.warns(RuntimeWarning, match=f"it was made for graph 'other', and this is '{made.report.graph}'"):
        again = gd.compile(block(8), target="cpu", lock=path)
    assert cover(again) == cover(made)
    made.save_lock(path)
    edited(path, lambda c: c["options"].update(zzz=1))
    with pytest.warns(RuntimeWarning, match="its option 'zzz' is none that lock files hold"):
        again = gd.compile(block(8), target="cpu", lock=path)
    assert any("'zzz'" in e for e in again.report.effects)


@pytest.mark.parametrize("nth", [5, 2**31])
def test_a_region_that_does_not_fit_is_not_counted(nth: int, path: Path) -> None:
    gd.compile(block(), target="cpu").save_lock(path)
    edited(path, lambda c: c["regions"][0].update(nth=nth))
    with pytest.warns(RuntimeWarning, match=f"is said to be number {nth} of those alike; here are 1"):
        again = gd.compile(block(), target="cpu", lock=path)
    count = len(again.report.regions)
    assert f"decided {count - 1} of {count} region" in again.report.effects[0]


def test_its_plan_is_not_taken_either(fake: type[FakeEngine], path: Path) -> None:
    gd.compile(block(), target="cpu").save_lock(path)
    edited(path, lambda c: c["regions"][0].update(nth=5, plan="plan1"))
    with pytest.warns(RuntimeWarning, match="number 5 of those alike"):
        again = gd.compile(block(), target="cpu", lock=path)
    assert again.report.regions[0].plan == "plan0"


def test_the_lock_is_named_where_it_decides_and_nothing_is_timed(path: Path) -> None:
    options = gd.CompileOptions(deterministic=True, selection="autotune")
    gd.compile(block(8), target="cpu", options=options).save_lock(path)
    first, second = quietly(block(8), path, deterministic=True, selection="autotune").report.effects
    assert first.startswith("deterministic=True fixes the choice by the lock file, and by heuristics where")
    assert second.startswith("lock file block.lock.json decided")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "is a int; a str or Path is needed"),
        (b"/tmp/l.json", "is a bytes; a str or Path is needed"),
        ("", "is '', which names no file"),
        ("a\0b", "which names no file"),
        (Path(), "is '.', which is a folder"),
        ("/", "is '/', which is a folder"),
    ],
)
def test_what_is_no_path_of_a_file_is_refused(given: Any, said: str) -> None:
    exe = gd.compile(block(8), target="cpu")
    for who, call in (
        ("save_lock: path ", exe.save_lock),
        ("save: path ", exe.save),
        ("load: path ", gd.load),
        ("compile: lock ", lambda lock: gd.compile(block(8), target="cpu", lock=lock)),
    ):
        with pytest.raises(gd.SavedFileError) as caught:
            call(given)
        assert str(caught.value).startswith(who)
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_might_never_end_is_not_read(tmp_path: Path) -> None:
    pipe, sparse = tmp_path / "pipe", tmp_path / "sparse"
    os.mkfifo(pipe)
    with open(sparse, "wb") as file:
        file.truncate(1 << 40)
    for place, said in (
        (pipe, "no regular file"),
        (tmp_path, "no regular file"),
        (Path("/dev/zero"), "no regular file"),
        (sparse, r"more than \d+ bytes"),
    ):
        with pytest.raises(gd.SavedFileError, match=said):
            gd.compile(block(8), target="cpu", lock=place)
    for place in (pipe, tmp_path, Path("/dev/zero")):
        with pytest.raises(gd.GraphError, match="no regular file"):
            gd.Graph.load(str(place))
    assert kind_of(sparse) is Kind.NO_JSON


def test_an_engine_that_does_not_take_it_is_said(path: Path) -> None:
    gd.compile(block(8), target=H200).save_lock(path)
    edited(path, lambda c: region(c, "sm").update(engine="cublaslt"))
    with pytest.warns(RuntimeWarning, match=r"region sm \(softmax\) is not taken by cublaslt here"):
        again = gd.compile(block(8), target=H200, lock=path)
    assert cover(again) == cover(gd.compile(block(8), target=H200))


def test_regions_that_overlap_or_wait_for_each_other_are_not_taken(path: Path) -> None:
    g = gd.GraphBuilder("crossed")
    x, y = g.input("x", (4,), gd.float32), g.input("y", (4,), gd.float32)
    a, c = g.relu(x, name="a"), g.sigmoid(y, name="c")
    t = g.softmax(g.input("z", (4, 5), gd.float32), name="t")
    graph = g.build({"d": g.add(a, c, name="d"), "b": g.mul(c, a, name="b"), "t": t})
    made = gd.compile(graph, target="cpu")
    made.save_lock(path)
    by_nodes = {p.region.origins: p.region for p in propose(made.compilation.prepared)}

    def with_regions(*covers: tuple[str, ...]) -> Callable[[dict[str, Any]], object]:
        return lambda content: content.update(
            regions=[
                {
                    "region": nodes[0], "nodes": list(nodes), "pattern": "+".join(nodes), "engine": "reference",
                    "key": by_nodes[nodes].key[: lock.KEY_LENGTH], "plan": "numpy",
                }
                for nodes in covers
            ]
        )  # fmt: skip

    edited(path, with_regions(("a", "d"), ("a", "b"), ("c",)))
    with pytest.warns(RuntimeWarning, match="overlaps one that stands before it"):
        again = gd.compile(graph, target="cpu", lock=path)
    assert ("a", "d") in [r.nodes for r in again.report.regions]
    edited(path, with_regions(("a", "d"), ("c", "b"), ("t",)))
    with pytest.warns(RuntimeWarning, match="with its regions the rest could not be compiled"):
        again = gd.compile(graph, target="cpu", lock=path)
    assert cover(again) == cover(made)
    assert again.report.effects[0] == "lock file block.lock.json decided 0 of 2 regions"


def test_passes_that_were_left_out_are_left_out_again(path: Path) -> None:
    made = gd.compile(block(), target=H200)
    lock.write_lock(made.report, replace(made.compilation, left_out=("sink",)), path)
    assert "sink" not in [p.name for p in quietly(block(), path, H200).report.passes]
    edited(path, lambda c: c.update(left_out=["sink", "promote", "../x"]))
    with pytest.warns(RuntimeWarning, match=r"the pass 'promote' cannot be left out; exe\.report\.effects has 1 more"):
        again = gd.compile(block(), target=H200, lock=path)
    assert "sink" not in [p.name for p in again.report.passes]
    assert "promote" in [p.name for p in again.report.passes]


def test_a_loaded_executable_has_the_same_lock(path: Path, tmp_path: Path) -> None:
    made = gd.compile(block(8), target="cpu")
    made.save_lock(path)
    made.save(tmp_path / "block.gdn")
    gd.load(tmp_path / "block.gdn").save_lock(tmp_path / "second.json")
    assert (tmp_path / "second.json").read_text() == path.read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c.update(more=1), "more"),
        (lambda c: c.pop("regions"), "regions: it is missing"),
        (lambda c: c.update(version=2), "version is 2"),
        (lambda c: c.update(version=True), "version"),
        (lambda c: c.update(version="1" * 10_000), "version is"),
        (lambda c: c.update(format="graphdnn"), "no lock file"),
        (lambda c: c.update(environment=[]), "environment"),
        (lambda c: c["environment"].update(device=7), "environment.device"),
        (lambda c: c["regions"][0].update(key="xyz"), "regions.0.key"),
        (lambda c: c["regions"][0].update(key="../../etc/passwd"), "regions.0.key"),
        (lambda c: c["regions"][0].update(nth=-1), "regions.0.nth"),
        (lambda c: c["regions"][0].update(nth=10**400), "regions.0.nth|no JSON"),
        (lambda c: c["regions"][0].update(plan=None), "regions.0.plan"),
        (lambda c: c["regions"][0].update(note="mine"), "regions.0.note"),
        (lambda c: c["regions"].append(5), "regions"),
    ],
)
def test_damaged_locks_are_refused(path: Path, change: Callable[[dict[str, Any]], object], said: str) -> None:
    gd.compile(block(8), target="cpu").save_lock(path)
    with pytest.raises(gd.SavedFileError, match=said) as caught:
        gd.compile(block(8), target="cpu", lock=edited(path, change))
    assert str(caught.value).startswith("block.lock.json: ")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"7", b"[" * 200_000, b'{"a":1,"a":2}', b'{"format":NaN}'])
def test_nonsense_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(gd.SavedFileError, match=r"^block\.lock\.json: "):
        gd.compile(block(8), target="cpu", lock=path)
    with pytest.raises(FileNotFoundError):
        gd.compile(block(8), target="cpu", lock=path.with_name("none.json"))


def test_every_truncation_is_refused(path: Path) -> None:
    gd.compile(block(8), target="cpu").save_lock(path)
    whole = path.read_bytes().rstrip()
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(gd.SavedFileError):
            lock.read_lock(path)


def test_flips_are_refused_or_only_change_what_is_compiled(path: Path, rng: np.random.Generator) -> None:
    """A text file has no checksum, since people edit it; whatever it says, the numbers are right."""
    exe = gd.compile(block(8), target="cpu")
    exe.save_lock(path)
    x = {"x": rng.standard_normal((8, 32, 28, 28)).astype(np.float16)}
    wanted = exe(x)["y"]
    whole = path.read_bytes()
    for place in rng.choice(len(whole), 25, replace=False):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(7))
        path.write_bytes(changed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                again = gd.compile(block(8), target="cpu", lock=path)
            except gd.SavedFileError:
                continue
        assert np.array_equal(again(x)["y"], wanted)


def test_a_lock_tells_of_disabled_plans(tmp_path: Path) -> None:
    """They decide which plan runs, and so which bits come out."""
    path = tmp_path / "plans.lock.json"
    options = gd.CompileOptions(disabled_plans=("nvrtc:rows",))
    gd.compile(block(8), target="cpu", options=options).save_lock(path)
    assert json.loads(path.read_text())["options"]["disabled_plans"] == ["nvrtc:rows"]
    with pytest.warns(RuntimeWarning, match=r"made with the option disabled_plans=\['nvrtc:rows'\], and this is \[\]"):
        gd.compile(block(8), target="cpu", lock=path)


def test_a_lock_that_names_no_disabled_plans_has_none(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """As those that were written before the option was among them."""
    path = tmp_path / "older.lock.json"
    gd.compile(block(8), target="cpu").save_lock(path)
    document = json.loads(path.read_text())
    del document["options"]["disabled_plans"]
    path.write_text(json.dumps(document))
    made = gd.compile(block(8), target="cpu", lock=path)
    assert not recwarn.list
    assert len(made.report.effects) == 1
