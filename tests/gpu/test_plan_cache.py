"""Plans that persist, on the device: the same bits from a restored plan, nothing built twice, nothing damaged used."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, DevicePlan, Engine, HostPlan, Policy
from graphdnn.engines.cublaslt.engine import CublasLtEngine
from graphdnn.engines.cudnn import engine as cudnn_engine
from graphdnn.engines.cudnn.engine import CudnnEngine
from graphdnn.engines.cudnn.serialization import PLANS, decode_plan, environment_here
from graphdnn.engines.manifest import MANIFEST
from graphdnn.engines.nvrtc import compile as compiler
from graphdnn.engines.nvrtc.engine import NvrtcEngine
from graphdnn.engines.serialization import identity_of, key_text, pack
from graphdnn.ir.region import Region
from graphdnn.ir.types import row_major
from graphdnn.runtime.cache import Check, DiskStore
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.driver import LEGACY_STREAM
from graphdnn.runtime.process_pool import ProcessPool
from tests.engines.cudnn.layouts import whole
from tests.engines.cudnn.regions import bias, convolution, product
from tests.engines.cudnn.test_support import TAKEN
from tests.gpu.test_cudnn import drawn, run
from tests.numbers import relative_error
from tests.processes import child_environment

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
CONV = convolution(finish=lambda g, y: g.relu(bias(g, y)))


@pytest.fixture
def fresh(device: CudaDevice, tmp_path: Path) -> CudaDevice:
    """The device with a cache that is empty."""
    return device.with_store(DiskStore(tmp_path / "cache"))


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What cuDNN and NVRTC were asked for, in order."""
    seen: list[str] = []

    def spy(module: Any, name: str) -> None:
        real = getattr(module, name)

        def counted(*given: Any) -> Any:
            seen.append(name)
            return real(*given)

        monkeypatch.setattr(module, name, counted)

    for name in ("proposals", "build", "rebuild"):
        spy(cudnn_engine, name)
    spy(compiler, "run_compiler")
    return seen


def first(engine: Engine, region: Region, device: CudaDevice) -> Candidate:
    """The first candidate whose bits do not vary."""
    found = engine.candidates(region, device, Policy())
    assert not isinstance(found, Decline), str(found)
    return next(c for c in found if c.deterministic)


def built(engine: Engine, region: Region, device: CudaDevice) -> tuple[Candidate, DevicePlan]:
    """The first candidate that builds, with its plan; those whose bits vary come last."""
    found = engine.candidates(region, device, Policy())
    assert not isinstance(found, Decline), str(found)
    for one in sorted(found, key=lambda c: not c.deterministic):
        plan = engine.build(one, device)
        if not isinstance(plan, Decline | HostPlan):
            return one, plan
    raise AssertionError(f"no plan of {region.pattern} builds")


def same_bits(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(a[n].tobytes() == b[n].tobytes() for n in a)


def agree(candidate: Candidate, a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    """Equal bits, or within a thousandth of the peak for a plan whose bits vary from run to run anyway."""
    return same_bits(a, b) or (
        not candidate.deterministic and all(relative_error(a[n], b[n].astype(np.float64), 1e-3) < 2e-3 for n in a)
    )


def softmax() -> Region:
    g = gd.GraphBuilder()
    return whole(g.build({"y": g.softmax(g.input("x", (33, 65), gd.float16))}), row_major)


CASES: dict[str, tuple[Engine, Region]] = {
    **{f"cudnn, {name}": (CudnnEngine(), region) for name, region in TAKEN.items()},
    "cublaslt": (CublasLtEngine(), product()),
    "cublaslt, float32": (CublasLtEngine(), product(dtype=gd.float32)),
    "nvrtc, softmax": (NvrtcEngine(), softmax()),
    "nvrtc, conv": (NvrtcEngine(), CONV),
}


@pytest.mark.parametrize("name", CASES)
def test_a_restored_plan_gives_the_same_bits(
    name: str, fresh: CudaDevice, builds: list[str], rng: np.random.Generator
) -> None:
    engine, region = CASES[name]
    with fresh:
        candidate, plan = built(engine, region, fresh)
        arrays = drawn(region.graph, rng)
        wanted = run(fresh, region, plan, arrays)
        content = engine.save(candidate, plan)
        builds.clear()
        bare = Candidate(engine.name, region, candidate.name, 0, "")
        start = time.perf_counter()
        again = type(engine)().restore(bare, content, fresh)
        elapsed = 1e3 * (time.perf_counter() - start)
        assert not isinstance(again, Decline), str(again)
        assert set(builds) <= {"rebuild"}, "something was compiled"
        assert again.workspace_bytes == plan.workspace_bytes
        assert agree(candidate, run(fresh, region, again, arrays), wanted)
        assert engine.save(bare, again) == content
    print(f"{name}: {candidate.name}, {len(content)} bytes, restored in {elapsed:.1f} ms")


def test_a_second_engine_asks_and_builds_nothing(
    fresh: CudaDevice, builds: list[str], rng: np.random.Generator
) -> None:
    arrays = drawn(CONV.graph, rng)
    with fresh:
        candidate, plan = built(CudnnEngine(), CONV, fresh)
        assert "proposals" in builds
        assert "build" in builds
        builds.clear()
        again, warm = built(CudnnEngine(), CONV, fresh)
        assert builds == ["rebuild"]
        assert again == candidate
        assert same_bits(run(fresh, CONV, warm, arrays), run(fresh, CONV, plan, arrays))


class Renamed:
    """The device under another description."""

    def __init__(self, device: CudaDevice, **changes: Any) -> None:
        self._device = device
        self.target = replace(device.target, **changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


@pytest.mark.parametrize("changes", [{"name": "other"}, {"sm_count": 7}, {"versions": {"driver": "1"}}])
def test_what_another_machine_stored_is_not_used(fresh: CudaDevice, builds: list[str], changes: dict[str, Any]) -> None:
    other: Any = Renamed(fresh, **changes)
    with fresh:
        candidate = first(CudnnEngine(), CONV, fresh)
        plan = CudnnEngine().build(candidate, other)
        assert not isinstance(plan, Decline)
        content = CudnnEngine().save(candidate, plan)
        builds.clear()
        assert not isinstance(CudnnEngine().build(candidate, fresh), Decline)
        assert builds == ["build"]
        answer = CudnnEngine().restore(candidate, content, fresh)
        assert isinstance(answer, Decline)
        assert answer.code == Code.VERSION


@pytest.mark.parametrize("how", ["bit", "truncated", "another plan", "noise under a right checksum"])
def test_a_spoilt_entry_is_dropped_and_built_anew(
    how: str, fresh: CudaDevice, builds: list[str], rng: np.random.Generator
) -> None:
    import cudnn

    arrays = drawn(CONV.graph, rng)
    store = fresh.store
    assert isinstance(store, DiskStore)
    with fresh:
        candidate, plan = built(CudnnEngine(), CONV, fresh)
        wanted = run(fresh, CONV, plan, arrays)
        identity = identity_of(candidate, environment_here(cudnn, fresh.target))
        kept = store.get(PLANS, key_text(identity))
        assert kept is not None
        path = next(e.path for e in store.entries() if e.kind == PLANS and e.key() == key_text(identity))
        if how == "bit":
            raw = bytearray(path.read_bytes())
            raw[-20] ^= 4
            path.write_bytes(raw)
        elif how == "truncated":
            path.write_bytes(path.read_bytes()[:-100])
        else:
            read = decode_plan(kept, identity, CONV)
            assert not isinstance(read, Decline)
            beside = json.dumps({"bindings": read.bindings, "workspace": read.workspace}).encode()
            other = identity if how.startswith("noise") else {**identity, "plan": "eng0"}
            store.put(PLANS, key_text(identity), pack(other, beside, rng.bytes(4000)))
        builds.clear()
        with pytest.warns(RuntimeWarning, match="dropped"):
            again = CudnnEngine().build(candidate, fresh)
        assert not isinstance(again, Decline)
        assert builds == (["rebuild", "build"] if how.startswith("noise") else ["build"])
        assert same_bits(run(fresh, CONV, again, arrays), wanted)
        builds.clear()
        assert not isinstance(CudnnEngine().build(candidate, fresh), Decline)
        assert builds == ["rebuild"]


def test_reading_a_plan_leaves_the_default_stream_alone(fresh: CudaDevice) -> None:
    """Work that others put on the legacy stream meanwhile neither fails nor ends the capture that reading makes."""
    with fresh:
        candidate, plan = built(CudnnEngine(), CONV, fresh)
        content = CudnnEngine().save(candidate, plan)
        memory = fresh.allocate(1 << 20)
        done = threading.Event()

        def others() -> None:
            with fresh:
                while not done.is_set():
                    fresh.fill(memory.handle, 0, 1 << 20, LEGACY_STREAM)
                fresh.synchronize(LEGACY_STREAM)

        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(others)
            for _ in range(20):
                assert not isinstance(CudnnEngine().restore(candidate, content, fresh), Decline)
            done.set()
            work.result(60)


def test_a_wait_for_the_whole_device_beside_costs_no_plan(fresh: CudaDevice) -> None:
    """The driver refuses it during a capture, and ends the capture: the plan is read again."""
    with fresh:
        candidate, plan = built(CudnnEngine(), CONV, fresh)
        content = CudnnEngine().save(candidate, plan)
        done = threading.Event()

        def others() -> None:
            with fresh:
                while not done.is_set():
                    fresh.driver.cuCtxSynchronize()
                    done.wait(0.003)

        with ThreadPoolExecutor(1) as pool:
            work = pool.submit(others)
            try:
                for _ in range(40):
                    answer = CudnnEngine().restore(candidate, content, fresh)
                    assert not isinstance(answer, Decline), answer
            finally:
                done.set()
            work.result(60)


def test_threads_restore_at_the_same_time(fresh: CudaDevice, rng: np.random.Generator) -> None:
    """Eight threads, each reading plans while the others do and while this one runs and captures."""
    names = ["conv", "conv, clip", "matmul", "layer norm", "attention", "conv, two outputs"]
    made = []
    with fresh:
        for name in names:
            region = TAKEN[name]
            candidate, plan = built(CudnnEngine(), region, fresh)
            arrays = drawn(region.graph, rng)
            content = CudnnEngine().save(candidate, plan)
            made.append((candidate, content, arrays, run(fresh, region, plan, arrays)))

    def again(index: int) -> DevicePlan:
        candidate, content, _, _ = made[index % len(made)]
        with fresh:
            found = CudnnEngine().restore(candidate, content, fresh)
        assert not isinstance(found, Decline), str(found)
        return found

    with ThreadPoolExecutor(8) as pool:
        pending = [pool.submit(again, i) for i in range(48)]
        with fresh:
            for index, future in enumerate(pending):
                candidate, _, arrays, wanted = made[index % len(made)]
                assert same_bits(run(fresh, candidate.region, future.result(60), arrays), wanted)


def test_a_name_gives_the_plan_that_heuristics_proposed(fresh: CudaDevice, builds: list[str], tmp_path: Path) -> None:
    """As a lock file names it, on a cache that knows nothing: an operation graph tells what is known of the plan."""
    with fresh:
        known = CudnnEngine().candidates(CONV, fresh, Policy())
        assert not isinstance(known, Decline)
        elsewhere = fresh.with_store(DiskStore(tmp_path / "elsewhere"))
        builds.clear()
        for one in known:
            found = CudnnEngine().named(CONV, one.name, elsewhere, Policy())
            assert found == one, str(found)
        assert builds == []


SCRIPT = """
    import json, sys, time, warnings
    import numpy as np
    import graphdnn as gd
    from graphdnn.engines.cudnn import engine
    from graphdnn.engines.nvrtc import compile as compiler
    seen = {}

    def spy(module, name):
        real = getattr(module, name)

        def counted(*given):
            seen[name] = seen.get(name, 0) + 1
            return real(*given)

        setattr(module, name, counted)

    for name in ("proposals", "proposal", "build", "rebuild"):
        spy(engine, name)
    spy(compiler, "run_compiler")
    draw = np.random.default_rng(1)
    g = gd.GraphBuilder()
    x = g.input("x", (4, 16, 18, 18), gd.float16)
    for index, channels in enumerate((32, 64, 64)):
        w = g.constant((0.1 * draw.standard_normal((channels, x.type.shape[1], 3, 3))).astype(np.float16))
        b = g.constant(draw.standard_normal(channels).astype(np.float16))
        x = g.relu(g.bias(g.conv(x, w, padding=1), b, axis=1))
    y = g.softmax(g.reshape(g.max_pool(x, kernel=2), (4, 64 * 81)))
    graph = g.build({"y": y})
    options = gd.CompileOptions(cache_dir=sys.argv[1])
    warnings.simplefilter("error")
    start = time.perf_counter()
    exe = gd.compile(graph, target="cuda", options=options)
    elapsed = time.perf_counter() - start
    out = exe({"x": draw.standard_normal((4, 16, 18, 18)).astype(np.float16)})["y"]
    plans = [(r.engine, r.plan) for r in exe.report.regions]
    print(json.dumps({"seen": seen, "bits": out.tobytes().hex(), "plans": plans, "seconds": elapsed}))
"""


def started(folder: Path) -> subprocess.Popen[str]:
    """A process that compiles and runs a network, with a cache in `folder`."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(script), str(folder / "cache")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=child_environment())


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What such a process found."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(output)
    return found


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    cold, warm = (told(started(tmp_path)) for _ in range(2))
    assert cold["seen"]["proposals"] > 0
    assert cold["seen"]["build"] > 0
    assert cold["seen"]["run_compiler"] > 0
    assert set(warm["seen"]) <= {"rebuild"}
    assert (warm["bits"], warm["plans"]) == (cold["bits"], cold["plans"])
    print(f"compiled in {cold['seconds']:.2f} s cold and {warm['seconds']:.2f} s warm, in a fresh process each")


def test_processes_fill_one_cache_while_one_of_them_is_killed(tmp_path: Path) -> None:
    doomed, *others = [started(tmp_path) for _ in range(4)]
    cache, deadline = tmp_path / "cache", time.monotonic() + 120
    while not list(cache.glob("*/*.bin")) and time.monotonic() < deadline:
        time.sleep(0.005)
    doomed.kill()
    doomed.communicate()
    cold = [told(process) for process in others]
    assert all(check is Check.SOUND for _, check in DiskStore(cache).verify())
    warm = told(started(tmp_path))
    assert set(warm["seen"]) <= {"rebuild"}
    for one in cold:
        assert (one["bits"], one["plans"]) == (warm["bits"], warm["plans"])


def test_plans_that_children_build_are_read_here(fresh: CudaDevice, builds: list[str]) -> None:
    proposed = CudnnEngine().candidates(CONV, fresh, Policy())
    assert not isinstance(proposed, Decline)
    known = [c for c in proposed if c.is_known][:8]
    processes = ProcessPool({"cudnn": MANIFEST["cudnn"]}, fresh, Policy(), count=2)
    assert processes.takes("cudnn")
    begun = time.perf_counter()
    try:
        orders = [processes.order(CONV, "cudnn", c.name) for c in known]
        assert [order.result(120) for order in orders] == [None] * len(known)
    finally:
        processes.close()
    elsewhere = time.perf_counter() - begun
    entries = [e for e in fresh.store.entries() if e.kind == PLANS]  # type: ignore[attr-defined]
    assert entries, "cuDNN writes most plans down"
    builds.clear()
    begun = time.perf_counter()
    with fresh:
        plans = [CudnnEngine().build(c, fresh) for c in known]
    assert not any(isinstance(p, Decline) for p in plans)
    assert builds.count("build") == len(known) - len(entries), "what is in the store is not compiled again"
    here_s = time.perf_counter() - begun
    print(f"{len(known)} plans: {elsewhere:.2f} s in 2 children with their start, {here_s:.3f} s read here")
