"""Choosing by measurement on the device: what wins, that its numbers are right, and that limits and memory hold."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.engines.check import inputs_for
from graphdnn.engines.contract import Candidate, Device
from graphdnn.engines.nvrtc.engine import NvrtcEngine
from graphdnn.engines.outcome import Outcome
from graphdnn.engines.tune import Job, Tuner
from graphdnn.ir.region import Region
from graphdnn.ir.types import channels_last
from graphdnn.report.model import CompileReport, RegionReport
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.timing import CudaTimer
from tests.gpu.handwritten import Handwritten
from tests.numbers import relative_error

pytestmark = pytest.mark.gpu


def conv_block(batch: int = 8, channels: int = 64, size: int = 28) -> gd.Graph:
    g = gd.GraphBuilder("conv_block")
    shape = (batch, channels, size, size)
    x = g.input("x", shape, gd.float16, strides=channels_last(shape))
    rng = np.random.default_rng(0)
    w = g.constant((rng.standard_normal((channels, channels, 3, 3)) / 24).astype(np.float16))
    b = g.constant(rng.standard_normal(channels).astype(np.float16))
    y = g.relu(g.bias(g.conv(x, w, padding=1, name="conv"), b, axis=1))
    return g.build({"y": y}, strides={"y": channels_last(shape)})


def product(rows: int = 512, inner: int = 768, columns: int = 1024) -> gd.Graph:
    g = gd.GraphBuilder("product")
    a, w = g.input("a", (rows, inner), gd.bfloat16), g.input("w", (inner, columns), gd.bfloat16)
    return g.build({"y": g.matmul(a, w, name="product")})


def swiglu() -> gd.Graph:
    g = gd.GraphBuilder("swiglu")
    a = g.input("a", (512, 768), gd.bfloat16)
    gate, up = (g.matmul(a, g.input(n, (768, 2048), gd.bfloat16), name=f"{n}_product") for n in ("gate", "up"))
    return g.build({"y": g.mul(g.silu(gate), up)})


def depthwise() -> gd.Graph:
    g = gd.GraphBuilder("depthwise")
    shape = (16, 96, 28, 28)
    x = g.input("x", shape, gd.float16, strides=channels_last(shape))
    w = g.input("w", (96, 1, 5, 5), gd.float16)
    y = g.relu(g.conv(x, w, padding=2, groups=96, name="conv"))
    return g.build({"y": y}, strides={"y": channels_last(shape)})


def norms() -> gd.Graph:
    g = gd.GraphBuilder("norms")
    x = g.input("x", (1024, 2048), gd.bfloat16)
    s, b = g.input("s", (2048,), gd.bfloat16), g.input("b", (2048,), gd.bfloat16)
    return g.build({"y": g.softmax(g.layer_norm(x, s, b, name="norm"), name="soft")})


GRAPHS = {f.__name__: f for f in (conv_block, product, swiglu, depthwise, norms)}


def drawn(graph: gd.Graph, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Inputs of about one; weights so that products are, too."""
    found = {}
    for name, value in graph.inputs.items():
        scale = 1.0 if name in ("a", "x", "s", "b") else value.type.shape[0] ** -0.5
        found[name] = (scale * rng.standard_normal(value.type.shape)).astype(value.type.dtype.numpy)
    return found


def compiled(graph: gd.Graph, cache: Path | str, **options: Any) -> gd.Executable:
    return gd.compile(graph, "cuda", gd.CompileOptions(cache_dir=str(cache), progress=False, **options))


def timed(report: CompileReport, region: RegionReport) -> dict[tuple[str, str], float]:
    """Microseconds by engine and plan of all right plans of a region."""
    same = [c for c in report.candidates if c.nodes == region.nodes and c.pattern == region.pattern]
    return {
        (c.engine, p.name): p.measured_us
        for c in same
        for p in c.plans
        if p.measured_us is not None and p.verdict in ("chosen", "slower")
    }


@pytest.mark.parametrize("selection", ["autotune", "measure"])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_fastest_right_plan_runs(name: str, selection: str, tmp_path: Path, rng: np.random.Generator) -> None:
    graph = GRAPHS[name]()
    exe = compiled(graph, tmp_path, selection=selection)
    inputs = drawn(graph, rng)
    wanted = gd.evaluate(graph, inputs, gd.float64)["y"]
    assert relative_error(exe(inputs)["y"], wanted) <= 1.6e-2
    for region in exe.report.regions:
        times = timed(exe.report, region)
        assert region.measured_us == times[region.engine, region.plan] == min(times.values())
        assert region.measured_us > 0.5
    wrong = [(c.engine, p.name, p.reason) for c in exe.report.candidates for p in c.plans if p.verdict == "wrong"]
    assert not wrong, "every plan that the tables let through is right"


def test_several_engines_are_timed_for_a_product(tmp_path: Path) -> None:
    report = compiled(product(), tmp_path, selection="autotune").report
    (region,) = report.regions
    assert {engine for engine, _ in timed(report, region)} >= {"cudnn", "cublaslt"}


def test_a_second_compilation_times_nothing_and_gives_the_same_bits(tmp_path: Path, rng: np.random.Generator) -> None:
    graph = conv_block()
    first = compiled(graph, tmp_path, selection="measure")
    again = compiled(graph, tmp_path, selection="measure")
    assert "timed 0 regions" in again.report.effects[0]
    assert [(r.engine, r.plan, r.measured_us) for r in again.report.regions] == [
        (r.engine, r.plan, r.measured_us) for r in first.report.regions
    ]
    inputs = drawn(graph, rng)
    np.testing.assert_array_equal(first(inputs)["y"], again(inputs)["y"])


def test_a_plan_that_writes_nothing_is_wrong_however_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Idle:
        workspace_bytes = 0

        def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
            """Does nothing, quickly."""

    def broken(self: NvrtcEngine, candidate: Candidate, device: Device) -> Any:
        return Idle()

    monkeypatch.setattr(NvrtcEngine, "build", broken)
    g = gd.GraphBuilder("idle")
    graph = g.build({"y": g.silu(g.input("x", (300, 65), gd.float16), name="silu")})
    only = ("cudnn", "cublaslt")
    with pytest.raises(gd.CompileError, match=r"silu.*nvrtc.*19500 are not a number"):
        compiled(graph, tmp_path, selection="autotune", disabled_engines=only)
    compiled(graph, tmp_path, disabled_engines=only)  # heuristics compare nothing


def test_memory_limit_holds(tmp_path: Path, rng: np.random.Generator) -> None:
    g = gd.GraphBuilder("chain")
    x = g.input("x", (1024, 2048), gd.bfloat16)
    graph = g.build({"y": g.softmax(g.softmax(x, axis=0), axis=1)})
    free = compiled(graph, tmp_path)
    assert free.report.arena_bytes
    limit = free.report.arena_bytes
    exe = compiled(graph, tmp_path, memory_limit=limit, selection="autotune")
    assert exe.report.arena_bytes <= limit
    inputs = drawn(graph, rng)
    assert relative_error(exe(inputs)["y"], gd.evaluate(graph, inputs, gd.float64)["y"]) <= 1.6e-2
    with pytest.raises(gd.CompileError, match=r"needs an arena of \d+ bytes .*; memory_limit is 1000"):
        compiled(graph, tmp_path, memory_limit=1000)


ALLOWANCE_S = 8.0
"""What tuning may take beyond its budget: a build in each of eight threads, one after the other where the library holds
Python's lock, and one plan's timing."""

BUDGET_S = 3.0


def convolutions(count: int = 12) -> gd.Graph:
    """As many regions of which none equals another, each with some ten plans of cuDNN."""
    g = gd.GraphBuilder("convolutions")
    rng = np.random.default_rng(0)
    outputs, strides = {}, {}
    for number in range(count):
        shape = (4, 64, 12 + 2 * number, 12)
        x = g.input(f"x{number}", shape, gd.float16, strides=channels_last(shape))
        w = g.constant((rng.standard_normal((64, 64, 3, 3)) / 24).astype(np.float16))
        outputs[f"y{number}"] = g.relu(g.conv(x, w, padding=1, name=f"conv{number}"))
        strides[f"y{number}"] = channels_last(shape)
    return g.build(outputs, strides=strides)


def test_a_budget_is_kept(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """All plans of all regions take several times the budget; it ends with some regions timed and others not."""
    compiled(conv_block(), tmp_path / "warm")  # libraries are loaded
    tune, spent = Tuner.tune, []

    def watched(self: Tuner, jobs: Sequence[Job]) -> list[Outcome]:
        begun = time.monotonic()
        try:
            return tune(self, jobs)
        finally:
            spent.append(time.monotonic() - begun)

    monkeypatch.setattr(Tuner, "tune", watched)
    graph = convolutions()
    exe = compiled(graph, tmp_path / "cold", selection="autotune", tuning_budget_s=BUDGET_S)
    assert sum(spent) < BUDGET_S + ALLOWANCE_S
    assert "tuning_budget_s=3 was spent" in " ".join(exe.report.effects)
    regions = [r for r in exe.report.regions if r.nodes]
    timed = [r for r in regions if r.measured_us is not None]
    assert 1 <= len(timed) < len(regions)
    assert all("was spent" in " ".join(r.notes) for r in regions if r.measured_us is None)
    inputs = drawn(graph, rng)
    found = exe(inputs)
    for name, wanted in gd.evaluate(graph, inputs, gd.float64).items():
        assert relative_error(found[name], wanted) <= 2e-3


def test_ctrl_c_keeps_what_is_known_and_finishes(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when the third of five regions is about to be timed, with the plans of all of them built."""
    bench, asked = CudaTimer.bench, []

    def pressed(self: CudaTimer, region: Region, inputs: Sequence[np.ndarray]) -> Any:
        asked.append(region)
        if len(asked) == 3:
            signal.raise_signal(signal.SIGINT)
        return bench(self, region, inputs)

    monkeypatch.setattr(CudaTimer, "bench", pressed)
    graph = convolutions(5)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        exe = compiled(graph, tmp_path, selection="autotune")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert "timing was interrupted after " in " ".join(exe.report.effects)
    regions = [r for r in exe.report.regions if r.nodes]
    assert sum(r.measured_us is not None for r in regions) == 2
    assert all("interrupted" in " ".join(r.notes) for r in regions if r.measured_us is None)
    inputs = drawn(graph, rng)
    found = exe(inputs)
    for name, wanted in gd.evaluate(graph, inputs, gd.float64).items():
        assert relative_error(found[name], wanted) <= 2e-3


def test_memory_for_timing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is asked of the driver while plans are timed; a small limit is told, and one that is too small leaves
    the choice to heuristics."""
    from graphdnn.runtime.resource import DeferredResource

    tune, take, give = Tuner.tune, DeferredResource.allocate, DeferredResource.free
    held: dict[int, int] = {}
    most = 0

    def taken(self: DeferredResource, size: int, **given: Any) -> Any:
        nonlocal most
        buffer = take(self, size, **given)
        held[int(buffer.handle)] = size
        most = max(most, sum(held.values()))
        return buffer

    def given_back(self: DeferredResource, address: int) -> None:
        give(self, address)
        held.pop(address, None)

    def watched(self: Tuner, jobs: Sequence[Job]) -> list[Outcome]:
        held.clear()  # what was there before
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DeferredResource, "allocate", taken)
            patch.setattr(DeferredResource, "free", given_back)
            return tune(self, jobs)

    monkeypatch.setattr(Tuner, "tune", watched)
    for limit in (100_000, 16 << 20, 1 << 30):
        most = 0
        report = compiled(product(), tmp_path / str(limit), selection="autotune", tuning_memory=limit).report
        (region,) = report.regions
        assert most <= limit
        assert (region.measured_us is None) is (limit == 100_000)
        said = " ".join((*report.effects, *region.notes))
        assert ("tuning_memory" in said) is (limit < 1 << 30)


def test_deterministic_mode_gives_the_same_plans_and_bits(tmp_path: Path, rng: np.random.Generator) -> None:
    graph = conv_block()
    inputs = drawn(graph, rng)
    made = [compiled(graph, tmp_path / str(i), selection="autotune", deterministic=True) for i in range(2)]
    assert "deterministic=True fixes the choice" in made[0].report.effects[0]
    plans = [[(r.engine, r.plan) for r in exe.report.regions] for exe in made]
    assert plans[0] == plans[1]
    assert all(r.deterministic for exe in made for r in exe.report.regions)
    results = [exe(inputs)["y"] for exe in made for _ in range(3)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_plans_built_in_threads_are_those_of_one(tmp_path: Path, rng: np.random.Generator) -> None:
    from graphdnn import compiler

    graph = swiglu()
    many = compiled(graph, tmp_path / "many")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "THREADS", 1)
        one = compiled(graph, tmp_path / "one")
    assert [(r.engine, r.plan) for r in many.report.regions] == [(r.engine, r.plan) for r in one.report.regions]
    inputs = drawn(graph, rng)
    np.testing.assert_array_equal(many(inputs)["y"], one(inputs)["y"])


LATENCIES = """extern "C" __global__ void run(const unsigned* x, float* y) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= 4096 && i < COUNT) y[i] = x[i];
    if (i > 0) return;
    const long long begin = clock64();
    while (clock64() - begin < 100000) {}  // until the others are done, some 50 us
    for (int turn = 0; turn < 2; ++turn) {
        const long long start = clock64();
        for (unsigned place = 0; place < 4096;) {  // ends by what is read, which is no such NaN
            unsigned bits;
            asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(bits) : "l"(x + place) : "memory");
            place += 64 + (bits == 0x7f800001u);
        }
        y[turn] = (clock64() - start) / 64.f;
    }
}"""
"""Cycles that a read of the first 16 KiB takes, past the first cache, and those of the same read once more; what comes
after them is copied before."""


class Latencies(Handwritten):
    """Measures reads by one thread, and keeps the addresses it was given."""

    def __init__(self, count: int, device: CudaDevice) -> None:
        super().__init__(LATENCIES.replace("COUNT", str(count)), count, device)
        self.given: list[tuple[int, ...]] = []

    def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
        self.given.append(tuple(addresses))
        super().enqueue(addresses, stream, workspace)


@pytest.mark.parametrize("count", [1 << 12, 1 << 20], ids=["written over", "in turns"])
def test_inputs_are_read_from_memory_by_timed_runs(count: int, device: CudaDevice) -> None:
    """A second read of a line finds it in the cache; the first takes as long only where a run before it left it there,
    as the second of two runs on the same tensors shows."""
    g = gd.GraphBuilder()
    graph = g.build({"y": g.neg(g.input("x", (count,), gd.float32))})
    region = Region.of(graph, graph.nodes)
    bench = CudaTimer(device).bench(region, inputs_for(region, np.random.default_rng(0)))
    assert not isinstance(bench, Decline)
    plan = Latencies(count, device)

    def slower(output: int) -> float:
        """First read over second."""
        cycles = np.zeros(2, np.float32)
        device.download(cycles.ctypes.data, output, cycles.nbytes, device.stream)
        device.synchronize()
        return float(cycles[0] / cycles[1])

    with device:
        bench.measure(plan, float("inf"))
        timed = [slower(y) for _, y in set(plan.given)]
        for _ in range(2):
            plan.enqueue(plan.given[0], device.stream, 0)
        kept = slower(plan.given[0][1])
    bench.close()
    print(f"timed runs read in {min(timed):.2f} to {max(timed):.2f} of the time from the cache, then {kept:.2f}")
    assert np.median(timed) > 1.3 > 1.15 > kept


def test_a_whole_graph_takes_about_what_its_kernels_take(tmp_path: Path) -> None:
    exe = compiled(conv_block(32, 128, 28), tmp_path, selection="measure")
    parts = sum(r.measured_us or 0.0 for r in exe.report.regions)
    device = CudaDevice.current()
    whole = CudaTimer(device).whole(exe._present().schedule)
    assert 0.4 * parts < whole < 2 * parts + 10
