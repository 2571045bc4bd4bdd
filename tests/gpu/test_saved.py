"""Saved executables and lock files on the device: the same bits without compiling, in this process and in another."""

import json
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pytest

import graphdnn as gd
from examples.models import resnet
from graphdnn.engines.nvrtc import compile as nvrtc_compile
from graphdnn.planning import planner
from graphdnn.serialization import container
from tests.numbers import relative_error
from tests.processes import ROOT, child_environment

pytestmark = pytest.mark.gpu

UNCACHED = gd.CompileOptions(cache_dir="")


def mixed() -> gd.Graph:
    """Work for every engine, a state, and weights that are folded and laid out anew."""
    rng = np.random.default_rng(5)

    def weight(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.1).astype(np.float16)

    g = gd.GraphBuilder("mixed")
    x = g.input("x", (4, 32, 14, 14), gd.float16)
    y = g.relu(g.bias(g.conv(x, g.constant(weight(64, 32, 3, 3)), padding=1), g.constant(weight(64)), axis=1))
    flat = g.reshape(g.avg_pool(y, kernel=14), (4, 64))
    logits = g.matmul(flat, g.constant(weight(64, 128)))
    total = g.state("total", (4, 128), gd.float16)
    more = g.add(total, logits)
    return g.build({"y": g.softmax(more, axis=-1), "logits": logits}, updates={"total": more})


def image(shape: tuple[int, ...], seed: int = 0) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float16)}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(a[n].tobytes() == b[n].tobytes() for n in a)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gdn"


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr(planner, "planned", refuse)
    monkeypatch.setattr(nvrtc_compile, "compile_cubin", refuse)
    monkeypatch.setattr("graphdnn.engines.nvrtc.engine.compile_cubin", refuse)
    for engine in ("cudnn.engine.CudnnEngine", "cublaslt.engine.CublasLtEngine", "nvrtc.engine.NvrtcEngine"):
        monkeypatch.setattr(f"graphdnn.engines.{engine}.candidates", refuse)


def test_every_engine_comes_back_without_compiling(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = gd.compile(mixed(), target="cuda", options=UNCACHED)
    made.save(path)
    assert len({r.engine for r in made.report.regions}) >= 2
    x = image((4, 32, 14, 14))
    wanted = [made(x), made(x)]
    forbid(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = gd.load(path, rebuild=False)
    assert again.report == made.report
    assert same(again(x), wanted[0])
    assert same(again(x), wanted[1])  # the state moved on
    assert same(again.context()(x), wanted[0])


def test_the_first_use_may_be_a_capture(path: Path) -> None:
    """Restored plans ran once while loading, so that nothing is loaded lazily within a capture."""
    made = gd.compile(mixed(), target="cuda", options=UNCACHED)
    made.save(path)
    x = image((4, 32, 14, 14))
    assert same(gd.load(path, rebuild=False).bind(x)(), made(x))


def test_loaded_executables_save_again(path: Path, tmp_path: Path) -> None:
    gd.compile(mixed(), target="cuda", options=UNCACHED).save(path)
    gd.load(path, rebuild=False).save(tmp_path / "second.gdn")
    assert (tmp_path / "second.gdn").read_bytes() == path.read_bytes()


def test_another_process_gives_the_same_bits(path: Path, tmp_path: Path) -> None:
    made = gd.compile(mixed(), target="cuda", options=UNCACHED)
    made.save(path)
    x = image((4, 32, 14, 14))
    np.save(tmp_path / "x.npy", x["x"])
    script = (
        "import sys, numpy as np, graphdnn as gd\n"
        "exe = gd.load(sys.argv[1], rebuild=False)\n"
        "np.savez(sys.argv[3], **exe({'x': np.load(sys.argv[2])}))\n"
    )
    arguments = [str(path), str(tmp_path / "x.npy"), str(tmp_path / "y.npz")]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, timeout=300)
    with np.load(tmp_path / "y.npz") as found:
        assert same(dict(found), made(x))


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("cudnn", "9.0.0"),
        ("device", "NVIDIA A100"),
        ("architecture", "sm_80"),
        ("multiprocessors", "7"),
        ("driver", "12.0"),
    ],
)
def test_another_device_or_version_is_compiled_anew_or_refused(fact: str, value: str, path: Path) -> None:
    made = gd.compile(mixed(), target="cuda", options=UNCACHED)
    made.save(path)
    sections = {n: c.tobytes() for n, c in container.read(path).items()}
    manifest = json.loads(sections["manifest"])
    assert fact in manifest["environment"]
    manifest["environment"][fact] = value
    container.write(path, {**sections, "manifest": json.dumps(manifest).encode()})
    said = rf"compiled for {fact} {value}, and here is {fact} \S"
    with pytest.raises(gd.SavedFileError, match=said):
        gd.load(path, rebuild=False)
    with pytest.warns(RuntimeWarning, match=said):
        again = gd.load(path)
    x = image((4, 32, 14, 14))
    assert relative_error(again(x)["y"], made(x)["y"]) <= 2e-3


def test_damaged_plans_are_compiled_anew(path: Path) -> None:
    made = gd.compile(mixed(), target="cuda", options=UNCACHED)
    made.save(path)
    whole = {n: c.tobytes() for n, c in container.read(path).items()}
    for name in [n for n in whole if n.startswith("plan.")]:
        for content in (whole[name][: len(whole[name]) // 2], whole[name][:-1] + bytes([whole[name][-1] ^ 1])):
            container.write(path, {**whole, name: content})
            with pytest.raises(gd.SavedFileError, match="was not restored"):
                gd.load(path, rebuild=False)
    with pytest.warns(RuntimeWarning, match="was not restored"):
        again = gd.load(path)
    x = image((4, 32, 14, 14))
    assert relative_error(again(x)["y"], made(x)["y"]) <= 2e-3


def test_a_file_of_the_processor_is_read_there(path: Path) -> None:
    gd.compile(mixed(), target="cpu").save(path)
    assert gd.load(path, rebuild=False).report.target == "cpu"
    with pytest.warns(RuntimeWarning, match="compiled for device cpu, and here is device"):
        assert gd.load(path, "cuda").report.target != "cpu"


def test_resnet50_comes_back_without_compiling(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How long that takes is measured by benchmarks/compile_time.py."""
    made = gd.compile(resnet.build(resnet.random_parameters(seed=0), 1, gd.float16), target="cuda")
    made.save(path)
    forbid(monkeypatch)
    x = image((1, 3, 224, 224))
    assert same(gd.load(path, rebuild=False)(x), made(x))


def test_a_lock_gives_the_same_plans_and_bits(tmp_path: Path) -> None:
    lock = tmp_path / "mixed.lock.json"
    made = gd.compile(mixed(), target="cuda", options=UNCACHED)
    made.save_lock(lock)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = gd.compile(mixed(), target="cuda", options=UNCACHED, lock=lock)
    assert [(r.nodes, r.engine, r.plan) for r in again.report.regions] == [
        (r.nodes, r.engine, r.plan) for r in made.report.regions
    ]
    x = image((4, 32, 14, 14))
    assert same(again(x), made(x))


LOCKED = """
    import json, sys, warnings
    import numpy as np
    import graphdnn as gd
    from tests.gpu.test_saved import UNCACHED, mixed

    warnings.simplefilter("error")
    exe = gd.compile(mixed(), "cuda", UNCACHED, lock=sys.argv[1])
    np.savez(sys.argv[3], **exe({"x": np.load(sys.argv[2])}))
    print(json.dumps([exe.report.effects, [(r.nodes, r.engine, r.plan) for r in exe.report.regions]]))
"""


def test_a_lock_gives_the_same_plans_and_bits_in_another_process(tmp_path: Path) -> None:
    """Among them plans that were timed, which heuristics would not choose."""
    options = gd.CompileOptions(cache_dir="", selection="measure", progress=False)
    made = gd.compile(mixed(), target="cuda", options=options)
    lock, x, y = tmp_path / "mixed.lock.json", tmp_path / "x.npy", tmp_path / "y.npz"
    made.save_lock(lock)
    inputs = image((4, 32, 14, 14))
    np.save(x, inputs["x"])
    command = [sys.executable, "-c", textwrap.dedent(LOCKED), str(lock), str(x), str(y)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=300, cwd=ROOT, env=child_environment()
    )
    effects, plans = json.loads(done.stdout)
    count = len(made.report.regions)
    assert f"lock file mixed.lock.json decided {count} of {count} regions" in effects
    assert plans == [[list(r.nodes), r.engine, r.plan] for r in made.report.regions]
    if all(r.deterministic for r in made.report.regions):
        with np.load(y) as found:
            assert same(dict(found), made(inputs))


def test_a_lock_names_a_plan_that_heuristics_rank_lower(tmp_path: Path) -> None:
    lock = tmp_path / "mixed.lock.json"
    made = gd.compile(mixed(), target="cuda", options=UNCACHED)
    made.save_lock(lock)
    conv = next(r for r in made.report.regions if "conv" in r.pattern.split("+"))
    answer = next(c for c in made.report.candidates if c.verdict == "chosen" and c.nodes == conv.nodes)
    others = [p.name for p in answer.plans if p.verdict == "slower"]
    assert others, "the engine proposed one plan only"
    content = json.loads(lock.read_text())
    x = image((4, 32, 14, 14))
    for name in others[:2]:
        for entry in content["regions"]:
            if entry["region"] == conv.name:
                entry["plan"] = name
        lock.write_text(json.dumps(content))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = gd.compile(mixed(), target="cuda", options=UNCACHED, lock=lock)
        plan = next(r for r in again.report.regions if r.nodes == conv.nodes).plan
        assert plan == name or any(f"{name} is not usable here" in line for line in again.report.effects)
        assert relative_error(again(x)["y"], made.context()(x)["y"]) <= 2e-3  # the state begins anew


def test_a_lock_and_autotune_time_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "mixed.lock.json"
    gd.compile(mixed(), target="cuda", options=UNCACHED).save_lock(lock)
    options = gd.CompileOptions(cache_dir="", selection="autotune", progress=False)
    again = gd.compile(mixed(), target="cuda", options=options, lock=lock)
    assert all(r.measured_us is None for r in again.report.regions)
    options = gd.CompileOptions(cache_dir="", selection="autotune", progress=False, deterministic=True)
    steady = gd.compile(mixed(), target="cuda", options=options)
    steady.save_lock(lock)
    x = image((4, 32, 14, 14))
    assert same(gd.compile(mixed(), target="cuda", options=options, lock=lock)(x), steady(x))
