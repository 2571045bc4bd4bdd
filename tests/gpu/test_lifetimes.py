"""How long memory, plans and captured graphs live on a real device: in a caller's own graph, and over many compiles."""

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.errors import ExecutionError
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.program import Program
from tests.gpu.handwritten import SHAPE, affine, check, draw, program
from tests.processes import child_environment

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def exe(device: CudaDevice) -> Program:
    return program(affine(), device)


def free_bytes() -> int:
    return torch.cuda.mem_get_info()[0]


def resident_bytes() -> int:
    """Host memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def captured(bound: object) -> torch.cuda.CUDAGraph:
    """A bound call in a graph of PyTorch's."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        bound(stream=torch.cuda.current_stream().cuda_stream)  # type: ignore[operator]
    return graph


def dying(kind: str, number: int) -> gd.Executable:
    """An executable of one engine with plans and captured graphs of its own."""
    g = gd.GraphBuilder(f"{kind}{number}")
    x = g.input("x", (4, 32, 18, 18), gd.float16)
    draw = np.random.default_rng(number).standard_normal
    if kind == "nvrtc":
        y = g.softmax(g.add(x, float(number)), axis=1)
    elif kind == "cudnn":
        y = g.relu(g.conv(x, g.constant((draw((32, 32, 3, 3)) / 17).astype(np.float16)), padding=1))
    else:
        y = g.matmul(x, g.constant((draw((18, 40)) / 4).astype(np.float16)))
    exe = gd.compile(g.build({"y": y}), target="cuda", options=gd.CompileOptions(cache_dir=""))
    assert kind in {r.engine for r in exe.report.regions}
    return exe


@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["same thread", "another thread"])
@pytest.mark.parametrize("kind", ["nvrtc", "cudnn", "cublaslt"])
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_executables_that_go_during_a_capture_leave_it_whole(mode: str, kind: str, is_elsewhere: bool) -> None:
    """Plans, kernels and captured graphs go when nobody holds them any more, which nobody chooses the moment of."""
    x = torch.randn(4, 32, 18, 18, dtype=torch.float16, device="cuda")
    held = [dying(kind, i) for i in range(2)]
    for exe in held:
        for _ in range(2):
            exe({"x": x})
        bound = exe.bind({"x": x})
        bound()
    gone = [weakref.ref(exe._program) for exe in held]
    del exe, bound

    def drop() -> None:
        held.clear()
        gc.collect()

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        y = x * 2
        if is_elsewhere:
            thread = threading.Thread(target=drop)
            thread.start()
            thread.join()
        else:
            drop()
        z = y + 1
    assert not any(one() for one in gone)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(z, x * 2 + 1)


def test_a_callers_capture_replays_fresh_values(exe: Program, rng: np.random.Generator) -> None:
    """Case T3: also when nobody holds the bound call any more and other plans have run."""
    x = torch.zeros(SHAPE, device="cuda")
    context = exe.context()
    bound = context.bind({"x": x})
    found = bound()
    outputs = {n: torch.from_dlpack(a) for n, a in found.items()}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        with pytest.raises(ExecutionError, match="called on a stream that is being captured"):
            context.run({"x": x}, stream)
        with pytest.raises(ExecutionError, match="on the default stream is not possible while PyTorch's current"):
            context.run({"x": x})
        x.mul_(2)
        bound(stream=stream)
    del bound, found, context
    gc.collect()
    for _ in range(3):
        other = program(affine((300, 129)), exe.device)
        other.run({"x": draw(rng, (300, 129))})
        value = draw(rng)
        x.copy_(torch.tensor(value))
        for array in outputs.values():
            array.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        check(outputs, 2 * value)


def test_a_callers_graph_holds_what_it_replays_and_no_longer(device: CudaDevice, rng: np.random.Generator) -> None:
    x = torch.tensor(draw(rng), device="cuda")
    own = program(affine(), device)
    bound = own.bind({"x": x})
    outputs = {n: torch.from_dlpack(a) for n, a in bound().items()}
    graphs = [captured(bound) for _ in range(2)]
    alive = weakref.ref(bound)
    del bound, own
    for graph in graphs:
        gc.collect()
        device.sweep()
        assert alive() is not None
        for array in outputs.values():
            array.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        check(outputs, x.cpu().numpy())
    del graph
    graphs.clear()
    gc.collect()
    deadline = time.monotonic() + 10  # the driver calls back when it likes
    while alive() is not None and time.monotonic() < deadline:
        torch.cuda.synchronize()
        device.sweep()
        gc.collect()
        time.sleep(0.01)
    assert alive() is None


def test_a_closed_context_leaves_a_callers_graph_as_it_was(exe: Program, rng: np.random.Generator) -> None:
    x = torch.zeros(SHAPE, device="cuda")
    own = exe.context()
    bound = own.bind({"x": x})
    outputs = {n: torch.from_dlpack(a) for n, a in bound().items()}
    graph = captured(bound)
    said = r"^graph affine was used in a context that was closed; "
    for _ in range(2):
        own.close()
        with pytest.raises(ExecutionError, match=said):
            bound()
        with pytest.raises(ExecutionError, match=said):
            own.run({"x": x})
        with pytest.raises(ExecutionError, match=said):
            own.bind({"x": x})
    del bound, own
    for _ in range(3):
        gc.collect()
        program(affine((300, 129)), exe.device).run({"x": draw(rng, (300, 129))})
        x.copy_(torch.tensor(draw(rng)))
        for array in outputs.values():
            array.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        check(outputs, x.cpu().numpy())


@pytest.mark.alone
def test_a_closed_context_gives_its_memory_back(device: CudaDevice) -> None:
    g = gd.GraphBuilder("total")
    total = g.add(g.state("total", (64 << 20,), gd.float32), g.input("x", (64 << 20,), gd.float32))
    own = program(g.build({"y": g.neg(total)}, {"total": total}), device)
    device.allocate(1)
    before = free_bytes()
    own.close()
    device.allocate(1)
    assert free_bytes() - before >= 4 * 64 << 20


def test_a_process_may_end_while_a_graph_holds_something() -> None:
    code = """
    import torch
    from graphdnn.runtime.device import CudaDevice
    from tests.gpu.handwritten import affine, program
    from tests.gpu.test_lifetimes import captured
    x = torch.zeros((33, 65), device="cuda")
    bound = program(affine(), CudaDevice.current()).bind({"x": x})
    bound()
    graph = captured(bound)
    graph.replay()
    print("replayed")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, timeout=300, check=False,
        env=child_environment(),
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "replayed"), done.stderr


@pytest.mark.alone
def test_dropped_outputs_are_used_again(exe: Program, rng: np.random.Generator) -> None:
    x = torch.tensor(draw(rng), device="cuda")
    for _ in range(3):
        exe.run({"x": x})
    before = free_bytes()
    for _ in range(300):
        exe.run({"x": x})
    torch.cuda.synchronize()
    assert free_bytes() == before


@pytest.mark.alone
def test_programs_that_are_dropped_leave_nothing(device: CudaDevice, rng: np.random.Generator) -> None:
    x = torch.tensor(draw(rng, (300, 1000)), device="cuda")
    graph = affine((300, 1000))

    def cycle() -> None:
        exe = program(graph, device)
        exe.run({"x": x})
        bound = exe.bind({"x": x})
        bound()
        bound()

    for _ in range(50):
        cycle()
    gc.collect()
    device.allocate(1)
    before = free_bytes()
    for _ in range(300):
        cycle()
    gc.collect()
    device.allocate(1)
    assert before - free_bytes() < 2 << 20


@pytest.mark.alone
@pytest.mark.slow
def test_a_thousand_compiles_leave_nothing(rng: np.random.Generator) -> None:
    """Compiled, run both ways and dropped, with a library's plan, a generated kernel, constants and a state."""
    w = rng.standard_normal((16, 8, 3, 3)).astype(np.float16)
    x = torch.tensor(rng.standard_normal((2, 8, 20, 20)), device="cuda", dtype=torch.float16)

    def graph() -> gd.Graph:
        g = gd.GraphBuilder("cycle")
        value = g.relu(g.conv(g.input("x", x.shape, gd.float16), g.constant(w, name="w"), padding=1))
        total = g.state("total", value.type.shape, gd.float16)
        new = g.add(total, value)
        return g.build({"y": g.softmax(new, axis=1)}, {"total": new})

    same = graph()

    def cycle() -> None:
        exe = gd.compile(same, target="cuda")
        exe({"x": x})
        bound = exe.bind({"x": x})
        bound()
        bound()

    for _ in range(50):
        cycle()
    torch.cuda.synchronize()
    gc.collect()
    device = CudaDevice.current()
    device.allocate(1)
    host, free = resident_bytes(), free_bytes()
    for _ in range(1000):
        cycle()
    torch.cuda.synchronize()
    gc.collect()
    device.allocate(1)
    grown, taken = resident_bytes() - host, free - free_bytes()
    print(f"1000 cycles: {grown / 2**20:.1f} MiB more on the host, {taken / 2**20:.1f} MiB more on the device")
    assert grown < 16 << 20
    assert taken < 2 << 20
