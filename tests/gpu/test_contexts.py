"""Contexts, captures and scratch memory with the libraries' own plans, through the public calls."""

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.engines.cudnn.handles import HANDLES
from graphdnn.runtime.device import CudaDevice
from tests.gpu.capturing import SHAPE, convolution
from tests.numbers import relative_error
from tests.processes import child_environment, in_threads

pytestmark = pytest.mark.gpu


def product(inner: int) -> gd.Graph:
    """Few tiles and a long sum, which a library splits into parts that lie in scratch memory."""
    g = gd.GraphBuilder(f"product{inner}")
    a, b = g.input("a", (64, inner), gd.float16), g.input("b", (inner, 512), gd.float16)
    return g.build({"y": g.softmax(g.matmul(a, b))})


def test_t4_convolutions_in_threads_with_streams_of_their_own(seed: int) -> None:
    graph = convolution()
    exe = gd.compile(graph, target="cuda")

    def work(number: int) -> None:
        rng = np.random.default_rng([seed, number])
        values = [rng.standard_normal(SHAPE).astype(np.float16) for _ in range(4)]
        wanted = [gd.evaluate(graph, {"x": v}, gd.float64)["y"] for v in values]
        own, side = exe.context(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            x = torch.empty(SHAPE, dtype=torch.float16, device="cuda", memory_format=torch.channels_last)
            bound = own.bind({"x": x})
            for turn in range(100):
                x.copy_(torch.from_numpy(values[turn % 4]))
                call = bound if turn % 2 else lambda *, stream: own({"x": x}, stream=stream)
                found = torch.from_dlpack(call(stream=side.cuda_stream)["y"]).cpu().numpy()
                error = relative_error(found, wanted[turn % 4])
                assert error <= 2e-3, f"turn {turn} of thread {number}: {error}"

    in_threads(work, 2)


def test_t3_scratch_memory_stays_where_a_callers_graph_replays_it(rng: np.random.Generator) -> None:
    """Captured with scratch memory W; then the executable is dropped and one that needs more runs; then a replay."""
    graph = product(8192)
    exe = gd.compile(graph, target="cuda")
    assert any(r.workspace_bytes for r in exe.report.regions), "no plan here has scratch memory: nothing is tested"
    drawn = {n: rng.standard_normal(v.type.shape).astype(np.float16) / 8 for n, v in graph.inputs.items()}
    inputs = {n: torch.from_numpy(a.astype(np.float16)).cuda() for n, a in drawn.items()}
    bound = exe.bind(inputs)
    y = torch.from_dlpack(bound()["y"])
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        bound(stream=torch.cuda.current_stream().cuda_stream)
    del bound, exe
    gc.collect()
    larger = product(16384)
    other = gd.compile(larger, target="cuda")
    for _ in range(3):
        other({n: torch.full(v.type.shape, torch.nan, dtype=torch.float16).cuda() for n, v in larger.inputs.items()})
        y.fill_(torch.nan)
        captured.replay()
        torch.cuda.synchronize()
        wanted = gd.evaluate(graph, {n: a.cpu().numpy() for n, a in inputs.items()}, gd.float64)["y"]
        # float16 logits of about 6 are off by 2e-3, and so is what becomes of them
        assert relative_error(y.cpu().numpy(), wanted) <= 8e-3


def test_threads_whose_first_call_is_captured(rng: np.random.Generator) -> None:
    """cuDNN's handle of a thread is made in the thread's own capture, where none is left over from another."""
    graph = convolution()
    exe = gd.compile(graph, target="cuda", options=gd.CompileOptions(disabled_engines=("nvrtc",)))
    assert {r.engine for r in exe.report.regions} == {"cudnn"}
    value = rng.standard_normal(SHAPE).astype(np.float16)
    x = torch.zeros(SHAPE, dtype=torch.float16, device="cuda").contiguous(memory_format=torch.channels_last)
    bound = exe.bind({"x": x})
    y = torch.from_dlpack(bound()["y"])
    wanted = gd.evaluate(graph, {"x": value}, gd.float64)["y"]

    def work(mode: str) -> None:
        HANDLES._free.clear()
        side, captured = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=side, capture_error_mode=mode):
            bound(stream=side.cuda_stream)
        x.copy_(torch.from_numpy(value))
        y.fill_(torch.nan)
        captured.replay()
        torch.cuda.synchronize()
        assert relative_error(y.cpu().numpy(), wanted) <= 2e-3

    for mode in ("global", "thread_local"):
        with ThreadPoolExecutor(1) as pool:  # a thread that made no call
            pool.submit(work, mode).result(60)


def test_a_bound_call_is_made_while_another_thread_waits_for_the_device(rng: np.random.Generator) -> None:
    """The driver ends captures of ours then: what they were of has run, and is captured by a later call."""
    graph = convolution()
    exe = gd.compile(graph, target="cuda")
    value = rng.standard_normal(SHAPE).astype(np.float16)
    wanted = gd.evaluate(graph, {"x": value}, gd.float64)["y"]
    x = torch.from_numpy(value).cuda().contiguous(memory_format=torch.channels_last)
    device, done = CudaDevice.current(), threading.Event()

    def others() -> None:
        with device:
            while not done.is_set():
                device.driver.cuCtxSynchronize()

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(others)
        try:
            for _ in range(50):
                bound = exe.bind({"x": x})
                for _ in range(3):
                    found = bound()["y"]
                assert relative_error(found.numpy(), wanted) <= 2e-3
        finally:
            done.set()
        work.result(60)


def normed(scale: float, eps: float) -> gd.Graph:
    """Attention and a layer norm: cuDNN reads the scale and epsilon from host memory when a plan is put on a stream."""
    g = gd.GraphBuilder("normed")
    q, k, v = (g.input(name, (2, 3, 65, 64), gd.float16) for name in "qkv")
    ones, zeros = g.constant(np.ones(64, np.float16)), g.constant(np.zeros(64, np.float16))
    return g.build({"y": g.layer_norm(g.attention(q, k, v, scale=scale), ones, zeros, eps=eps)})


def test_t3_host_scalars_stay_where_a_callers_graph_replays_them(rng: np.random.Generator) -> None:
    """Captured, then everything dropped, host and device memory used by others, then replayed on fresh values."""
    options, graph = gd.CompileOptions(disabled_engines=("nvrtc",)), normed(0.3, 0.5)
    exe = gd.compile(graph, target="cuda", options=options)
    assert {(r.pattern, r.engine) for r in exe.report.regions} == {("attention", "cudnn"), ("layer_norm", "cudnn")}
    inputs = {n: torch.empty(v.type.shape, dtype=torch.float16, device="cuda") for n, v in graph.inputs.items()}
    bound = exe.bind(inputs)
    y = torch.from_dlpack(bound()["y"])
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        bound(stream=torch.cuda.current_stream().cuda_stream)
    exe.close()
    del bound, exe
    for turn in range(3):
        gc.collect()
        held = [np.full(size, 0xFF, np.uint8) for size in range(8, 2048, 8) for _ in range(20)]
        other = gd.compile(normed(2.0 + turn, 3.0 + turn), target="cuda", options=options)
        other({n: torch.full(a.shape, torch.nan, dtype=torch.float16, device="cuda") for n, a in inputs.items()})
        for array in inputs.values():
            array.copy_(torch.from_numpy(rng.standard_normal(array.shape).astype(np.float16)))
        y.fill_(torch.nan)
        captured.replay()
        torch.cuda.synchronize()
        wanted = gd.evaluate(graph, {n: a.cpu().numpy() for n, a in inputs.items()}, gd.float64)["y"]
        # another scale or epsilon is off by more than a half
        assert relative_error(y.cpu().numpy(), wanted) <= 5e-3
        del held, other


def test_building_inside_a_callers_capture_raises_and_later_works(tmp_path: Path) -> None:
    """In a process of its own, since a capture that is left open would be in the way of all other tests."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.capturing", str(tmp_path)],
        capture_output=True, text=True, timeout=300, check=False, env=child_environment(),
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("refused, and the capture is good") == 2 * 3 * 3
    assert done.stdout.strip().endswith("all is good")
