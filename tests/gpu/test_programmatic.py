"""Small kernels are launched while those before them still run: they see all that came before, and nobody sees less."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.engines.nvrtc.launch import overlapped_blocks
from graphdnn.runtime.device import CudaDevice

pytestmark = pytest.mark.gpu

ROWS, WIDTH, LENGTH = 48, 512, 12
TURNS = 40


def chain() -> gd.Graph:
    """Small norms, each of which reads what the one before wrote, through an arena of few places."""
    g = gd.GraphBuilder("chain")
    x = y = g.input("x", (ROWS, WIDTH), gd.float32)
    for _ in range(LENGTH):
        y = g.rms_norm(y * 3.0)
    return g.build({"y": y, "sum": g.reduce_sum(g.relu(y), axes=1), "x": g.neg(x)})


def expected(x: torch.Tensor) -> torch.Tensor:
    y = x.double()
    for _ in range(LENGTH):
        y = torch.nn.functional.rms_norm(y * 3.0, (WIDTH,), eps=1e-5)
    return y


@pytest.fixture(scope="module")
def exe(device: CudaDevice) -> gd.Executable:
    if device.target.compute_capability >= (9, 0):
        assert overlapped_blocks(device.target) == 2 * device.target.sm_count
    made = gd.compile(chain(), target=device.target, options=gd.CompileOptions(cache_dir=""))
    assert {r.engine for r in made.report.regions} == {"nvrtc"}
    return made


def busy() -> None:
    """Keeps the current stream busy for long enough that a kernel which does not wait would be seen."""
    torch.cuda._sleep(200_000)


def by_kernel(x: torch.Tensor, new: torch.Tensor) -> None:
    busy()
    torch.add(new, 0.0, out=x)


def by_copy(x: torch.Tensor, new: torch.Tensor) -> None:
    busy()
    x.copy_(new)


def by_host_copy(x: torch.Tensor, new: torch.Tensor) -> None:
    pinned = new.cpu().pin_memory()
    busy()
    x.copy_(pinned, non_blocking=True)


def by_memset_and_kernel(x: torch.Tensor, new: torch.Tensor) -> None:
    busy()
    x.zero_()
    x.add_(new)


def by_another_stream(x: torch.Tensor, new: torch.Tensor) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        busy()
        x.copy_(new)
    torch.cuda.current_stream().wait_stream(side)


WRITERS = [by_kernel, by_copy, by_host_copy, by_memset_and_kernel, by_another_stream]


def near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool((found.double() - wanted).abs().max() <= 1e-5 * wanted.abs().max())


@pytest.mark.parametrize("is_bound", [True, False], ids=["bound", "plain"])
@pytest.mark.parametrize("write", WRITERS, ids=lambda w: w.__name__)
def test_what_came_before_on_the_stream_is_seen(
    exe: gd.Executable, write: Callable[[torch.Tensor, torch.Tensor], None], is_bound: bool
) -> None:
    stream = torch.cuda.Stream()
    news = torch.randn(TURNS, ROWS, WIDTH, device="cuda")
    wanted = [expected(new) for new in news]
    x = torch.full((ROWS, WIDTH), torch.nan, device="cuda")
    found, negative = [], []
    run = exe.bind({"x": x}) if is_bound else None
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for new in news:
            write(x, new)
            out = run(stream=stream.cuda_stream) if run else exe({"x": x}, stream=stream.cuda_stream)
            y, minus = (torch.from_dlpack(out[name]) for name in ("y", "x"))
            found.append(y.clone())
            negative.append(minus.clone())
            x.fill_(torch.nan)  # what the call still read would be seen
    torch.cuda.synchronize()
    assert all(map(near, found, wanted))
    assert all(torch.equal(minus, -new) for minus, new in zip(negative, news, strict=True))


def test_inside_a_capture_of_the_callers(exe: gd.Executable) -> None:
    x, source = (torch.zeros(ROWS, WIDTH, device="cuda") for _ in range(2))
    run = exe.bind({"x": x})
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.copy_(source)
        out = run(stream=torch.cuda.current_stream().cuda_stream)
        y = torch.from_dlpack(out["y"]) * 2.0
        x.zero_()
    for _ in range(TURNS):
        new = torch.randn(ROWS, WIDTH, device="cuda")
        source.copy_(new)
        busy()
        graph.replay()
        assert near(y, 2 * expected(new))


def test_two_contexts_at_once(exe: gd.Executable) -> None:
    streams = [torch.cuda.Stream() for _ in range(3)]
    xs = [torch.randn(ROWS, WIDTH, device="cuda") for _ in streams]
    runs = [exe.context().bind({"x": x}) for x in xs]
    torch.cuda.synchronize()
    outs: list[list[torch.Tensor]] = [[] for _ in streams]
    for _ in range(TURNS):
        for stream, run, found in zip(streams, runs, outs, strict=True):
            with torch.cuda.stream(stream):
                found.append(torch.from_dlpack(run(stream=stream.cuda_stream)["y"]).clone())
    torch.cuda.synchronize()
    for x, found in zip(xs, outs, strict=True):
        wanted = expected(x)
        assert all(near(y, wanted) for y in found)


def test_numpy_arrays_bound(exe: gd.Executable) -> None:
    """The copies to and from the device are nodes of the graph beside small kernels."""
    x = np.zeros((ROWS, WIDTH), np.float32)
    run = exe.bind({"x": x})
    rng = np.random.default_rng(0)
    for _ in range(TURNS):
        x[...] = rng.standard_normal(x.shape)
        out = run()
        assert near(torch.from_numpy(np.array(out["y"])), expected(torch.from_numpy(x)))
        assert np.array_equal(out["x"], -x)
