"""Saved executables: the same bits and report again without compiling, or compiled anew with the reason, or refused."""

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import graphdnn as gd
from graphdnn import compiler
from graphdnn.engines import manifest
from graphdnn.serialization import container
from graphdnn.serialization.manifest import difference, environment
from graphdnn.serialization.weights import from_memory, in_memory
from tests.cases.fake_engine import FakeEngine
from tests.passes.random_graphs import random_arrays, random_graph

Change = Callable[[dict[str, Any]], object]


def block(dtype: Any = gd.bfloat16) -> gd.Graph:
    """A convolution with a folded norm, a state, a literal that JSON lacks, and outputs with strides of their own."""
    rng = np.random.default_rng(3)
    g = gd.GraphBuilder("block")
    x = g.input("x", (2, 5, 7, 6), dtype)
    w = g.constant(rng.standard_normal((16, 5, 3, 3)).astype(dtype.numpy), name="w")
    mean, var, scale, shift = (g.constant(rng.uniform(0.5, 1, 16).astype(np.float32)) for _ in range(4))
    y = g.relu(g.batch_norm(g.conv(x, w, padding=1), mean, var, scale, shift), name="act")
    total = g.state("total", (2, 16, 7, 6), dtype)
    more = g.add(total, y, name="more")
    clipped = g.clip(y, min=-np.inf, max=2.0)
    return g.build({"y": clipped, "total": more}, updates={"total": more}, strides={"y": (16 * 42, 1, 96, 16)})


def arrays(graph: gd.Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    return {n: rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy) for n, v in graph.inputs.items()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(a[n].tobytes() == b[n].tobytes() and a[n].strides == b[n].strides for n in a)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gdn"


@pytest.fixture
def exe(path: Path) -> gd.Executable:
    made = gd.compile(block(), target="cpu")
    made.save(path)
    return made


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr(compiler, "fitted", refuse)
    monkeypatch.setattr("graphdnn.engines.reference.ReferenceEngine.candidates", refuse)
    monkeypatch.setattr("graphdnn.engines.reference.ReferenceEngine.supports", refuse)


def test_the_same_bits_and_report_without_compiling(exe: gd.Executable, path: Path, no_compiler: None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = gd.load(path)
    assert again.report == exe.report
    assert again.explain() == exe.explain()
    x = arrays(exe.graph)
    for _ in range(2):  # the state moves on
        assert same(again(x), exe(x))
    assert again.graph.to_json() == exe.graph.to_json()
    assert again._present().schedule.arena_bytes == exe.report.arena_bytes


def test_states_start_at_zero_and_contexts_and_bound_calls_work(
    exe: gd.Executable, path: Path, no_compiler: None
) -> None:
    x = arrays(exe.graph)
    exe(x)
    exe.save(path)
    again = gd.load(path)
    assert not again.state["total"].astype(np.float32).any()
    first = again.bind(x)()["total"].copy()
    assert again.state["total"].astype(np.float32).any()
    assert not again.context().state["total"].astype(np.float32).any()
    assert same({"total": again.context()(x)["total"]}, {"total": first})


def test_saving_what_was_loaded_gives_the_same_file(exe: gd.Executable, path: Path, tmp_path: Path) -> None:
    gd.load(path).save(tmp_path / "second.gdn")
    assert (tmp_path / "second.gdn").read_bytes() == path.read_bytes()


def test_two_executables_of_one_graph_give_one_file(exe: gd.Executable, path: Path, tmp_path: Path) -> None:
    gd.compile(block(), target="cpu").save(tmp_path / "second.gdn")
    assert (tmp_path / "second.gdn").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("number", range(12))
def test_random_graphs_come_back(number: int, seed: int, path: Path) -> None:
    rng = np.random.default_rng([seed, number])
    graph = random_graph(rng, steps=int(rng.integers(4, 20)))
    made = gd.compile(graph, target="cpu")
    made.save(path)
    again = gd.load(path, rebuild=False)
    inputs, states = random_arrays(graph, rng)
    for executable in (made, again):
        for name, array in states.items():
            executable.state[name] = array
    assert same(again(inputs), made(inputs))
    keys = [[(p.region.key, p.region.origins) for p in e.compilation.picks] for e in (made, again)]
    assert keys[0] == keys[1]
    assert [r.nodes for r in again.report.regions] == [p.region.origins for p in again.compilation.picks]


def test_a_region_with_a_view_inside_comes_back(path: Path) -> None:
    g = gd.GraphBuilder("moved")
    x = g.input("x", (3, 4), gd.float32)
    y = g.pad(g.unsqueeze(g.sigmoid(x), 1), [(1, 0), (0, 1), (0, 0)], value=0.5)
    made = gd.compile(g.build({"y": y}), target="cpu")
    assert [n.op.label for n in made.compilation.picks[0].region.nodes] == ["sigmoid", "unsqueeze", "pad"]
    made.save(path)
    inputs = {"x": np.random.default_rng(0).standard_normal((3, 4), np.float32)}
    assert same(gd.load(path, rebuild=False)(inputs), made(inputs))


def test_a_constant_that_lies_otherwise_gives_the_same_bits(path: Path) -> None:
    g = gd.GraphBuilder("sums")
    images = g.constant(np.random.default_rng(0).uniform(-1, 1, (8, 3, 16, 24)))
    turned = g.transpose(images, (1, 2, 3, 0))
    made = gd.compile(g.build({"y": g.reduce_mean(turned, axes=(0, 2, 3), keepdims=True)}), target="cpu")
    made.save(path)
    assert same(gd.load(path, rebuild=False)({}), made({}))


def test_weights_that_two_graphs_hold_stand_in_the_file_once(path: Path) -> None:
    g = gd.GraphBuilder("plain")
    w = g.constant(np.random.default_rng(0).standard_normal((256, 512)).astype(np.float32))
    twice = g.constant(np.asarray(g.build({"w": w}).payloads["constant"].array()))
    x = g.input("x", (1, 256), gd.float32)
    gd.compile(g.build({"y": g.matmul(x, w), "z": g.matmul(g.relu(x), twice)}), target="cpu").save(path)
    assert sum(name.startswith("constant.") for name in container.read(path)) == 1
    assert path.stat().st_size < 1.1 * 256 * 512 * 4


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.int8, np.bool_])
@pytest.mark.parametrize("strides", [None, (60, 1, 12), (1, 40, 8), (100, 20, 5), (0, 4, 1), (60, 12, 3)])
def test_constants_lie_in_the_file_as_in_memory(dtype: Any, strides: tuple[int, ...] | None) -> None:
    shape = {(60, 1, 12): (2, 12, 5), (1, 40, 8): (8, 3, 5), (100, 20, 5): (2, 5, 4)}.get(strides or (), (2, 5, 4))
    type = gd.TensorType(shape, gd.DType(np.dtype(dtype).name, "float", 8 * np.dtype(dtype).itemsize, ""), strides)
    array = (np.arange(np.prod(shape)).reshape(shape) % 2).astype(dtype)
    content = in_memory(array, type)
    if type.is_dense:
        lying = np.empty(type.size, dtype)
        type.strided(lying)[:] = array
        assert content.tobytes() == lying.tobytes()
    assert np.array_equal(from_memory(content, type), array)


def test_a_scalar_constant_and_a_large_one_of_one_element(path: Path) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3,), gd.float32)
    y = g.mul(x, g.constant(np.float32(2.5).reshape(())))
    gd.compile(g.build({"y": y}), target="cpu").save(path)
    assert gd.load(path)({"x": np.ones(3, np.float32)})["y"].tolist() == [2.5] * 3


def test_options_come_back_and_name_no_folder(path: Path, tmp_path: Path) -> None:
    options = gd.CompileOptions(deterministic=True, disabled_passes=("fuse",), cache_dir=str(tmp_path / "cache"))
    gd.compile(block(), target="cpu", options=options).save(path)
    again = gd.load(path).compilation.options
    assert again == gd.CompileOptions(deterministic=True, disabled_passes=("fuse",))
    assert str(tmp_path).encode() not in container.read(path)["manifest"].tobytes()


def test_a_described_device_has_no_plans_to_save(path: Path) -> None:
    planned = gd.compile(block(), target=gd.Target.named("h200"))
    with pytest.raises(gd.ExecutionError, match="was planned for h200"):
        planned.save(path)
    assert not path.exists()


def rewritten(path: Path, **changes: bytes | Change | None) -> Path:
    """The file with sections replaced, changed as JSON, or left out; its checksums are right."""
    sections: dict[str, Any] = {name: content.tobytes() for name, content in container.read(path).items()}
    for name, change in changes.items():
        name = name.replace("_", ".")
        if change is None:
            del sections[name]
        elif isinstance(change, bytes):
            sections[name] = change
        else:
            content = json.loads(sections[name])
            change(content)
            sections[name] = json.dumps(content).encode()
    container.write(path, sections)
    return path


def test_another_version_is_compiled_anew_with_a_warning(exe: gd.Executable, path: Path) -> None:
    rewritten(path, manifest=lambda m: m["environment"].update(graphdnn="0.0.1"))
    with pytest.warns(RuntimeWarning, match=r"model\.gdn: it was compiled for graphdnn 0\.0\.1, and here is graphdnn"):
        again = gd.load(path)
    x = arrays(exe.graph)
    assert same(again(x), exe(x))
    with pytest.raises(gd.SavedFileError, match="with rebuild=True it is compiled anew"):
        gd.load(path, rebuild=False)


def test_another_release_of_the_driver_restores_the_plans(exe: gd.Executable, path: Path) -> None:
    rewritten(path, manifest=lambda m: m["environment"].update(driver_release="580.65.06"))
    x = arrays(exe.graph)
    assert same(gd.load(path, rebuild=False)(x), exe(x))


def test_another_device_is_compiled_anew_with_a_warning(exe: gd.Executable, path: Path) -> None:
    rewritten(path, manifest=lambda m: m["environment"].update(device="NVIDIA A100", driver="12.4", cudnn="9.1.0"))
    with pytest.warns(RuntimeWarning, match=r"compiled for device NVIDIA A100, and here is device cpu"):
        again = gd.load(path, "cpu")
    x = arrays(exe.graph)
    assert same(again(x), exe(x))


def test_a_target_that_is_none_is_refused_by_load(exe: gd.Executable, path: Path) -> None:
    with pytest.raises(gd.CompileError, match=r'^load: target is .gpu.; .* is needed; did you mean "cuda"'):
        gd.load(path, "gpu")


def test_a_described_target_gets_a_report(exe: gd.Executable, path: Path) -> None:
    with pytest.warns(RuntimeWarning, match=r"h200 \(described\) is not here"):
        assert gd.load(path, gd.Target.named("h200")).report.target == "h200 (described)"


def test_a_plan_that_does_not_come_back_is_compiled_anew(exe: gd.Executable, path: Path) -> None:
    plan = container.read(path)["plan.0"].tobytes()
    for content in (b"", plan[:-1], plan[:20] + bytes([plan[20] ^ 1]) + plan[21:], bytes(300)):
        rewritten(path, plan_0=content)
        with pytest.warns(
            RuntimeWarning, match=r"plan 'numpy' of reference was not restored \(a saved plan is damaged"
        ):
            again = gd.load(path)
        x = arrays(exe.graph)
        assert same(again(x), gd.compile(exe.graph, target="cpu")(x))
    with pytest.raises(gd.SavedFileError, match="was not restored"):
        gd.load(path, rebuild=False)


def test_a_plan_of_another_region_is_not_taken(exe: gd.Executable, path: Path) -> None:
    other = container.read(path)["plan.1"].tobytes()
    with pytest.warns(RuntimeWarning, match="was not restored"):
        gd.load(rewritten(path, plan_0=other))


def test_an_engine_that_is_gone_is_compiled_around(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(manifest.MANIFEST, "fake", "tests.cases.fake_engine:FakeEngine")
        patch.setitem(manifest.BY_KIND, "cpu", ("fake", "reference"))
        patch.setattr(FakeEngine, "BUILT", [])
        made = gd.compile(block(), target="cpu")
        made.save(path)
        assert {r.engine for r in gd.load(path, rebuild=False).report.regions} == {"fake"}
    with pytest.warns(RuntimeWarning, match="there is no engine 'fake' here"):
        again = gd.load(path)
    assert {r.engine for r in again.report.regions} == {"reference"}


def first_name(m: dict[str, Any]) -> str:
    return str(m["steps"][0]["nodes"][0])


@pytest.mark.parametrize(
    ("section", "change", "said"),
    [
        ("manifest", lambda m: m.update(more=1), "manifest: more"),
        ("manifest", lambda m: m.pop("plans"), "manifest: plans"),
        ("manifest", lambda m: m.update(kind="tpu"), "manifest: kind"),
        ("manifest", lambda m: m["options"].update(cache_dir="/etc"), "a file names no folders"),
        ("manifest", lambda m: m["options"].update(precision="low"), "precision"),
        ("manifest", lambda m: m["options"].update(workspace_limit=-1), "workspace_limit"),
        ("manifest", lambda m: m["options"].update(unheard=1), "unheard"),
        ("manifest", lambda m: m["environment"].update(driver=13), "environment.driver"),
        ("manifest", lambda m: m["plans"][0].update(workspace_bytes=2**70), "workspace_bytes"),
        ("manifest", lambda m: m["plans"][0].update(workspace_bytes=True), "workspace_bytes"),
        ("manifest", lambda m: m["plans"].append(m["plans"][0]), "the steps use plans"),
        ("manifest", lambda m: m["steps"][0].update(plan=10**6), "the steps use plans"),
        ("manifest", lambda m: m["steps"][0].update(plan=1), "not alike|use plans"),
        ("manifest", lambda m: m["steps"][0].update(nodes=[]), "steps.0.nodes"),
        ("manifest", lambda m: m["steps"][0]["nodes"].append("../x"), "'../x', which is no node left to compute"),
        ("manifest", lambda m: m["steps"][0]["nodes"].append(first_name(m)), "no node left to compute"),
        ("manifest", lambda m: m["steps"].append(m["steps"][0]), "no node left to compute"),
        ("manifest", lambda m: m["steps"].pop(), "no step computes|the steps use plans"),
        ("manifest", lambda m: m["steps"].clear(), "no step computes"),
        ("prepared", lambda m: m["nodes"].reverse(), "prepared: nodes"),
        ("prepared", lambda m: m.update(version=9), "prepared: document: version is 9"),
        ("prepared", lambda m: m["constants"][0].update(sha256="0" * 64), "has no section|another content"),
        ("prepared", lambda m: m["outputs"].pop("total"), "its outputs are not those of the graph|not alike"),
        ("prepared", lambda m: m["inputs"][0]["type"].update(shape=[2**40, 2**40]), "shape"),
        ("graph", lambda m: m["nodes"][0].update(op="system"), "graph: nodes.0"),
        ("graph", lambda m: m["inputs"][0].update(name="z"), "graph: nodes.0"),
        ("report", lambda m: m.update(more=1), "report: more"),
        ("report", lambda m: m["answers"][0].update(verdict="best"), "report: answers: verdict"),
        ("report", lambda m: m["regions"][0].update(alternatives="999"), "report: '999' is no number below"),
        ("report", lambda m: m["regions"][0].update(alternatives=7), "no numbers of candidates"),
        ("report", lambda m: m["regions"][0].update(alternatives=[{}]), "no numbers of candidates"),
        ("report", lambda m: m["regions"][0].pop("alternatives"), "no numbers of candidates"),
        ("report", lambda m: m.update(version=3), "report: version is 3; this graphdnn reads version 2"),
        ("report", lambda m: m["regions"][0].update(kernels="many"), "report: regions.0.kernels"),
    ],
)  # fmt: skip
def test_forged_sections_are_refused(exe: gd.Executable, path: Path, section: str, change: Change, said: str) -> None:
    with pytest.raises(gd.SavedFileError, match=said) as caught:
        gd.load(rewritten(path, **{section: change}))
    assert str(caught.value).startswith("model.gdn: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.update(graph="another"), "it is of graph 'another'; this one is 'block'"),
        (lambda r: r["regions"].pop(), "it has [0-9]+ regions; the manifest has"),
        (lambda r: r["regions"].append(r["regions"][0]), "it has [0-9]+ regions; the manifest has"),
        (lambda r: r["regions"][0].update(pattern="conv"), "is not the one that the manifest has in its place"),
        (lambda r: r["regions"][0].update(engine="nvrtc"), "is not the one that the manifest has in its place"),
        (lambda r: r["regions"][0].update(plan="fast"), "is not the one that the manifest has in its place"),
        (lambda r: r["regions"][0].update(nodes=["elsewhere"]), "is not the one that the manifest has in its place"),
    ],
)  # fmt: skip
def test_a_report_of_another_executable_is_refused(exe: gd.Executable, path: Path, change: Change, said: str) -> None:
    with pytest.raises(gd.SavedFileError, match=f"model.gdn: report: .*{said}"):
        gd.load(rewritten(path, report=change))


def test_the_whole_report_of_another_graph_is_refused(exe: gd.Executable, path: Path, tmp_path: Path) -> None:
    g = gd.GraphBuilder("other")
    gd.compile(g.build({"z": g.relu(g.input("x", (3,), gd.float32))}), "cpu").save(tmp_path / "other.gdn")
    report = container.read(tmp_path / "other.gdn")["report"].tobytes()
    with pytest.raises(gd.SavedFileError, match="report: it is of graph 'other'"):
        gd.load(rewritten(path, report=report))


@pytest.mark.parametrize("name", ["more", "plan.99", "plan.x", "constant." + "0" * 64, "plan"])
def test_sections_that_belong_to_nothing_are_refused(exe: gd.Executable, path: Path, name: str) -> None:
    sections: dict[str, Any] = {n: c.tobytes() for n, c in container.read(path).items()}
    container.write(path, {**sections, name: b"abc"})
    with pytest.raises(gd.SavedFileError, match=f"section {name} (is none of|belongs to nothing)"):
        gd.load(path)


@pytest.mark.parametrize("name", ["manifest", "graph", "prepared", "report", "plan_0"])
@pytest.mark.parametrize("content", [None, b"", b"\xff", b"[" * 200_000, b"null", b"7", b'{"a":1,"a":2}'])
def test_sections_that_are_missing_or_nonsense_are_refused(
    exe: gd.Executable, path: Path, name: str, content: bytes | None
) -> None:
    rewritten(path, **{name: content})
    with pytest.raises(gd.SavedFileError):
        gd.load(path, rebuild=False)


def test_a_constant_of_another_size_is_refused(exe: gd.Executable, path: Path) -> None:
    sections: dict[str, Any] = {n: c.tobytes() for n, c in container.read(path).items()}
    name = next(n for n in sections if n.startswith("constant."))
    sections[name] += b"\0\0"
    container.write(path, sections)
    with pytest.raises(gd.SavedFileError, match=r"constant \w+ is .* bytes; its section has"):
        gd.load(path)


def test_a_plan_of_one_region_is_not_run_for_another(path: Path) -> None:
    """Which would read and write beyond tensors that are smaller than its own; nothing else in the file tells."""
    g = gd.GraphBuilder("rows")
    sizes = {"a": 300, "b": 4, "c": 4}
    outputs = {n: g.softmax(g.input(f"x{n}", (3, size), gd.float32), name=n) for n, size in sizes.items()}
    gd.compile(g.build(outputs), target="cpu").save(path)

    def swapped(m: dict[str, Any]) -> None:
        assert [(s["nodes"], s["plan"]) for s in m["steps"]] == [(["a"], 0), (["b"], 1), (["c"], 1)]
        m["steps"][2]["plan"] = 0

    with pytest.raises(gd.SavedFileError, match="plan 0 is said to run two regions that are not alike"):
        gd.load(rewritten(path, manifest=swapped), rebuild=False)


@pytest.mark.parametrize("what", ["inputs", "states", "outputs"])
def test_a_prepared_graph_that_is_called_otherwise_is_refused(what: str, exe: gd.Executable, path: Path) -> None:
    old, new = {"inputs": (b'"x"', b'"q"'), "states": (b'"total"', b'"sum"'), "outputs": (b'"y":', b'"z":')}[what]
    prepared = container.read(path)["prepared"].tobytes()
    assert old in prepared
    with pytest.raises(gd.SavedFileError, match=f"prepared: its {what} are not those of the graph"):
        gd.load(rewritten(path, prepared=prepared.replace(old, new)), rebuild=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "h100"}, "it was compiled for device h200, and here is device h100"),
        ({"compute_capability": (10, 0)}, "it was compiled for architecture sm_90, and here is architecture sm_100"),
        ({"sm_count": 16}, "it was compiled for multiprocessors 132, and here is multiprocessors 16"),
        ({"versions": {"cudnn": "9.25.0"}}, "it was compiled for cudnn 9.19.0, and here is cudnn 9.25.0"),
        ({"versions": {}}, "it was compiled for cudnn 9.19.0, and here is no cudnn"),
        ({"ordinal": 3}, ""),
    ],
)
def test_machines_that_differ_have_other_environments(change: dict[str, Any], said: str) -> None:
    here = gd.Target.named("h200")
    assert difference(environment(here), environment(replace(here, **change))) == said


def test_a_region_that_waits_for_itself_is_refused(path: Path) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3, 4), gd.float32)
    a = g.reduce_sum(x, axes=1, name="a")
    b = g.softmax(a, axis=0, name="b")
    apart = gd.CompileOptions(disabled_passes=("fuse",))
    gd.compile(g.build({"y": g.reduce_sum(b, axes=0, name="c")}), target="cpu", options=apart).save(path)

    def ring(m: dict[str, Any]) -> None:
        m["steps"] = [{"nodes": ["a", "c"], "plan": 0}, {"nodes": ["b"], "plan": 1}]
        m["plans"] = m["plans"][:2]

    with pytest.raises(gd.SavedFileError, match=r"steps\.0 would wait for its own result"):
        gd.load(rewritten(path, manifest=ring), rebuild=False)


def test_absurd_states_are_refused(path: Path) -> None:
    g = gd.GraphBuilder("idle")
    g.state("idle", (3,), gd.float64)
    gd.compile(g.build({"y": g.relu(g.input("x", (2,), gd.float32))}), target="cpu").save(path)

    def enormous(m: dict[str, Any]) -> None:
        m["states"][0]["type"]["shape"] = [2**48]

    with pytest.raises(gd.SavedFileError, match="its states need more memory than there is"):
        gd.load(rewritten(path, graph=enormous, prepared=enormous))


def test_damage_anywhere_in_a_saved_model_is_refused(exe: gd.Executable, path: Path, seed: int) -> None:
    whole = path.read_bytes()
    rng = np.random.default_rng(seed)
    for place in rng.choice(len(whole), 40, replace=False):
        changed = bytearray(whole)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        with pytest.raises(gd.SavedFileError):
            gd.load(path)
    for end in rng.choice(len(whole), 20, replace=False):
        path.write_bytes(whole[:end])
        with pytest.raises(gd.SavedFileError):
            gd.load(path)
