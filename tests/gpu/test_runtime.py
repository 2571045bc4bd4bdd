"""The runtime on a real device: streams, captures, bound calls, contexts, memory; beside PyTorch and CuPy."""

import gc
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.answer import Decline
from graphdnn.errors import ExecutionError
from graphdnn.ir.region import Region
from graphdnn.runtime.describe import from_attributes
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.driver import PER_THREAD_STREAM, RELEASE
from graphdnn.runtime.program import Program
from graphdnn.runtime.timing import CudaTimer
from tests.gpu.handwritten import SHAPE, affine, check, draw, expected, pointwise, program
from tests.processes import child_environment, in_threads

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def exe(device: CudaDevice) -> Program:
    return program(affine(), device)


def sleep(milliseconds: float = 20.0) -> None:
    """Keeps PyTorch's current stream busy."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))


def free_bytes() -> int:
    return torch.cuda.mem_get_info()[0]


def test_the_device_is_described(device: CudaDevice) -> None:
    target = device.target
    assert target.present
    assert target.kind == "cuda"
    assert RELEASE.fullmatch(target.versions["driver_release"])
    assert target.compute_capability == torch.cuda.get_device_capability()
    assert target.sm_count == torch.cuda.get_device_properties(0).multi_processor_count
    if "H200" in torch.cuda.get_device_name():
        assert target.name == "h200"
    other = from_attributes(device, {})
    assert other.compute_capability == target.compute_capability
    assert min(other.bandwidth, *other.rates.values(), other.l2_bytes, other.shared_bytes) > 0
    if target.name == "h200":
        assert 0.5 < other.bandwidth / target.bandwidth < 2
        assert 0.5 < other.rates["float16"] / target.rates["float16"] < 2


def test_memory_is_aligned_and_given_back(device: CudaDevice) -> None:
    blocks = [device.allocate(n) for n in (1, 7, 255, 257, 100_000)]
    assert all(b.handle % 256 == 0 for b in blocks)
    big = device.allocate(1 << 30)
    low = free_bytes()
    del big
    device.allocate(1)
    assert free_bytes() - low >= 1 << 30
    with pytest.raises(
        ExecutionError, match=r"CUDA was asked to allocate .* bytes and answered CUDA_ERROR_OUT_OF_MEMORY"
    ):
        device.allocate(1 << 45)


def test_numpy_in_numpy_out(exe: Program, rng: np.random.Generator) -> None:
    held = [(x, exe.run({"x": x})) for x in (draw(rng) for _ in range(4))]
    wide = draw(rng, (70, 99))
    held += [(x, exe.run({"x": x})) for x in (wide[:33, ::1][:, :65], wide[:65, :33].T, np.asfortranarray(draw(rng)))]
    for x, found in held:
        assert all(type(a) is np.ndarray for a in found.values())
        check(found, x)


def test_large_numpy_arrays_go_in_parts(device: CudaDevice, rng: np.random.Generator) -> None:
    shape = (1031, 4097)
    large = program(affine(shape), device)
    for _ in range(3):
        x = draw(rng, shape)
        check(large.run({"x": x}), x)
        check(large.run({"x": np.asfortranarray(x)}), x)


def test_torch_arrays_are_read_in_place(exe: Program, rng: np.random.Generator) -> None:
    x = torch.tensor(draw(rng), device="cuda")
    for _ in range(4):
        x.copy_(torch.tensor(draw(rng)))
        check(exe.run({"x": x}), x.cpu().numpy())
    bound = exe.bind({"x": x})
    bound()
    assert bound.graph.counts["MEMCPY"] == 0
    assert bound.kernels == 4


def test_other_layouts_are_converted(exe: Program, rng: np.random.Generator) -> None:
    wide = torch.tensor(draw(rng, (70, 99)), device="cuda")
    raw = torch.tensor(draw(rng, (33 * 65 + 1,)), device="cuda")
    for x in (wide[:33, :65], wide[:65, :33].T, wide[0, :65].expand(33, 65), raw[1:].reshape(33, 65)):
        check(exe.run({"x": x}), x.cpu().numpy())
        check(exe.bind({"x": x})(), x.cpu().numpy())
    import cupy

    turned = cupy.asarray(draw(rng))[::-1, ::-1]
    check(exe.run({"x": turned}), cupy.asnumpy(turned))


class TestStreams:
    def test_a_call_waits_for_what_another_stream_makes(self, exe: Program, rng: np.random.Generator) -> None:
        """A long kernel and the input's values come late on a side stream; our call is on the default stream."""
        side = torch.cuda.Stream()
        for _ in range(3):
            value, x = torch.tensor(draw(rng), device="cuda"), torch.full(SHAPE, torch.nan, device="cuda")
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                sleep()
                x.copy_(value)
                found = exe.run({"x": x})
            check(found, value.cpu().numpy())

    def test_torch_waits_for_a_call_on_another_stream(
        self, device: CudaDevice, exe: Program, rng: np.random.Generator
    ) -> None:
        side = torch.cuda.Stream()
        value, x = torch.tensor(draw(rng), device="cuda"), torch.full(SHAPE, torch.nan, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            sleep()
            x.copy_(value)
            found = exe.run({"x": x}, side.cuda_stream)
        taken = {n: torch.from_dlpack(a) * 1 for n, a in found.items()}
        check(taken, value.cpu().numpy())

    def test_the_per_thread_stream_waits_for_torch(self, exe: Program, rng: np.random.Generator) -> None:
        """PyTorch orders nothing before that stream; the tensor is made late, on a stream and on the default one."""
        for side in (torch.cuda.Stream(), torch.cuda.default_stream()):
            value, x = torch.tensor(draw(rng), device="cuda"), torch.full(SHAPE, torch.nan, device="cuda")
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                sleep()
                x.copy_(value)
                found = exe.run({"x": x}, PER_THREAD_STREAM)
            check({n: torch.from_dlpack(a) * 1 for n, a in found.items()}, value.cpu().numpy())

    def test_cupy_streams(self, exe: Program, rng: np.random.Generator) -> None:
        import cupy

        side = cupy.cuda.Stream(non_blocking=True)
        value, x = torch.tensor(draw(rng), device="cuda"), cupy.full(SHAPE, cupy.nan, cupy.float32)
        cupy.cuda.Device().synchronize()
        with torch.cuda.stream(torch.cuda.ExternalStream(side.ptr)):
            sleep()
        with side:
            x[...] = cupy.from_dlpack(value)
            found = exe.run({"x": x}, side.ptr)
        taken = {n: cupy.asnumpy(cupy.from_dlpack(a) + 0) for n, a in found.items()}
        check(taken, value.cpu().numpy())

    def test_calls_on_several_streams_take_turns(self, exe: Program, rng: np.random.Generator) -> None:
        """One context, one arena: each call's stream waits for the one before."""
        streams = [torch.cuda.Stream() for _ in range(4)]
        held = []
        for turn in range(24):
            x = torch.tensor(draw(rng), device="cuda")
            torch.cuda.current_stream().synchronize()
            stream = streams[turn % 4]
            with torch.cuda.stream(stream):
                sleep(1.0)
            held.append((x, exe.run({"x": x}, stream.cuda_stream)))
        for x, found in held:
            check(found, x.cpu().numpy())

    def test_a_stream_object(self, exe: Program, rng: np.random.Generator) -> None:
        class Mine:
            def __init__(self) -> None:
                self.inner = torch.cuda.Stream()

            def __cuda_stream__(self) -> tuple[int, int]:
                return (0, self.inner.cuda_stream)

        for _ in range(3):
            x = torch.tensor(draw(rng), device="cuda")
            torch.cuda.synchronize()
            check(exe.run({"x": x}, Mine()), x.cpu().numpy())
            gc.collect()


def test_outputs_are_not_overwritten_while_held(exe: Program, rng: np.random.Generator) -> None:
    held = []
    for turn in range(12):
        x = torch.tensor(draw(rng), device="cuda")
        found = exe.run({"x": x})
        held.append((x, {n: torch.from_dlpack(a) for n, a in found.items()} if turn % 3 else found))
    torch.cuda.synchronize()
    for x, found in held:
        check(found, x.cpu().numpy())


def test_outputs_are_not_overwritten_while_parts_of_them_are_held(exe: Program, rng: np.random.Generator) -> None:
    """By views that other libraries made of them, their arrays and ours long gone."""
    import cupy

    parts = {
        "torch, a slice": lambda a: torch.from_dlpack(a)[5:].T,
        "torch, by the interface": lambda a: torch.as_tensor(a, device="cuda")[5:].T,
        "cupy, a slice": lambda a: torch.from_dlpack(cupy.from_dlpack(a)[5:].T),
        "cupy, by the interface": lambda a: torch.from_dlpack(cupy.asarray(a)[5:].T),
    }
    held = []
    for _ in range(3):
        for name, part in parts.items():
            value = draw(rng)
            found = exe.run({"x": torch.tensor(value, device="cuda")})
            held.append((name, value, part(found["z"])))
            del found
    torch.cuda.synchronize()
    for name, value, found in held:
        np.testing.assert_allclose(found.cpu(), expected(value)["z"][5:].T, rtol=1e-6, atol=1e-6, err_msg=name)


class TestBound:
    def test_reads_and_overwrites(self, exe: Program, rng: np.random.Generator) -> None:
        x, y = torch.empty(SHAPE, device="cuda"), torch.full(SHAPE, torch.nan, device="cuda")
        bound = exe.bind({"x": x}, {"y": y})
        own = bound()["z"]
        for _ in range(5):
            x.copy_(torch.tensor(draw(rng)))
            found = bound()
            assert found["y"] is y
            assert found["z"] is own
            check(found, x.cpu().numpy())

    def test_on_a_side_stream(self, exe: Program, rng: np.random.Generator) -> None:
        side = torch.cuda.Stream()
        x, value = torch.zeros(SHAPE, device="cuda"), torch.tensor(draw(rng), device="cuda")
        bound = exe.bind({"x": x})
        bound()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            sleep()
            x.copy_(value)
            found = bound(stream=side.cuda_stream)
        check(found, value.cpu().numpy())

    def test_numpy_arrays(self, exe: Program, rng: np.random.Generator) -> None:
        x, y = draw(rng), np.full(SHAPE, np.nan, np.float32)
        bound = exe.bind({"x": x}, {"y": y})
        for _ in range(4):
            x[...] = draw(rng)
            found = bound()
            assert found["y"] is y
            check(found, x)
        assert bound.graph.counts["MEMCPY"] == 3


def test_threads_with_contexts_of_their_own(exe: Program, seed: int) -> None:
    """Case T4: own streams, 100 calls each on one compiled graph, in threads that never touched CUDA."""

    def work(number: int) -> None:
        rng = np.random.default_rng([seed, number])
        own = exe.context() if number < 3 else exe
        for turn in range(100):
            value = draw(rng)
            if turn % 4 == 0 or number == 2:
                check(own.run({"x": value}), value)
                continue
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                x = torch.tensor(value, device="cuda")
                found = own.run({"x": x}, side.cuda_stream)
                taken = {n: torch.from_dlpack(a).cpu() for n, a in found.items()}
            check(taken, value)

    in_threads(work, 5)


def test_states_live_on_the_device(device: CudaDevice, rng: np.random.Generator) -> None:
    g = gd.GraphBuilder("sums")
    x = g.input("x", SHAPE, gd.float32)
    total, last = g.state("total", SHAPE, gd.float32), g.state("last", SHAPE, gd.float32)
    new = g.add(total, x)
    exe = program(g.build({"change": g.sub(x, last)}, {"total": new, "last": x}), device)
    assert exe.schedule.places[new].space == "state"
    assert not exe.state["total"].numpy().any()
    sum_, before = np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32)
    for turn in range(6):
        value = draw(rng)
        found = exe.run({"x": torch.tensor(value, device="cuda") if turn % 2 else value})["change"]
        np.testing.assert_allclose(found if isinstance(found, np.ndarray) else found.numpy(), value - before)
        sum_, before = sum_ + value, value
        np.testing.assert_allclose(exe.state["total"].numpy(), sum_, rtol=1e-6)
        np.testing.assert_array_equal(exe.state["last"].numpy(), before)
    exe.state["total"] = torch.ones(SHAPE, device="cuda")
    exe.state["last"] = draw(rng)
    bound = exe.bind({"x": torch.ones(SHAPE, device="cuda")})
    for _ in range(4):
        bound()
    np.testing.assert_array_equal(exe.state["total"].numpy(), np.full(SHAPE, 5, np.float32))
    assert not exe.context().state["total"].numpy().any()


def test_counting_and_timing(device: CudaDevice) -> None:
    g = gd.GraphBuilder()
    small, large = g.input("small", (1 << 20,), gd.float32), g.input("large", (1 << 26,), gd.float32)
    graph = g.build({"a": g.neg(small), "b": g.neg(large)})
    times = []
    for node in graph.nodes:
        region = Region.of(graph, [node])
        plan, nbytes = pointwise(region, device), node.result.type.nbytes
        memory = [device.allocate(nbytes) for _ in range(2)]
        addresses = [m.handle for m in memory]
        assert device.capture(lambda s, p=plan, a=addresses: p.enqueue(a, s, 0)).kernels == 1
        bench = CudaTimer(device).bench(region, [np.ones(v.type.shape, np.float32) for v in region.inputs])
        assert not isinstance(bench, Decline)
        times.append(bench.measure(plan, float("inf")).us)
    floor = 2 * (1 << 28) / 8e12 * 1e6
    assert floor < times[1] < 100 * floor
    assert times[0] < times[1] / 4


def test_many_small_host_calls_do_not_disturb_each_other(exe: Program, rng: np.random.Generator) -> None:
    """The pinned staging memory is written again only when its last copy is over."""
    y = torch.full(SHAPE, torch.nan, device="cuda")
    x = draw(rng)
    bound = exe.bind({"x": x}, {"y": y})
    for _ in range(50):
        x[...] = draw(rng)
        value = x.copy()
        found = bound()
        x[...] = np.nan
        check(found, value)


CHILD = """
import os, sys
import numpy as np
import torch
from graphdnn.errors import ExecutionError
from graphdnn.runtime.describe import from_attributes
from graphdnn.runtime.device import CudaDevice
from tests.gpu.handwritten import affine, program
import graphdnn as gd
device = CudaDevice.current()
"""


def child(text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CHILD + textwrap.dedent(text)],
        capture_output=True, text=True, timeout=300, check=False, env=child_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("behind", [0, 300])
def test_a_fault_names_the_graph_and_every_later_call_says_so(behind: int) -> None:
    """Whether the call's end meets it, or the launch of a kernel behind the one at fault."""
    out = child(f"""
        g = gd.GraphBuilder("faulty")
        y = g.abs(g.input("x", (3,), gd.float32))
        for _ in range({behind}):
            y = g.neg(y)
        bad = program(g.build({{"y": y}}), device)
        good = program(affine((3, 5)), device)
        for exe, x in ((bad, np.zeros(3, np.float32)), (good, np.zeros((3, 5), np.float32))):
            try:
                exe.run({{"x": x}})
            except ExecutionError as error:
                print(error)
    """)
    first, second = out.strip().splitlines()
    assert first.startswith("graph faulty could not run: the CUDA context of ")
    assert "handwritten:abs for abs" in first
    assert second.startswith("graph affine could not run: the CUDA context of ")
    assert "does not work any more since" in second


def test_a_forked_child_gets_a_clear_error() -> None:
    out = child("""
        exe, x = program(affine((3, 5)), device), np.zeros((3, 5), np.float32)
        exe.run({"x": x})
        bound = exe.bind({"x": torch.zeros((3, 5), device="cuda")})
        bound()
        bound()
        sys.stdout.flush()
        if os.fork() == 0:
            for call in (lambda: exe.run({"x": x}), bound):
                try:
                    call()
                except ExecutionError as error:
                    print(error, flush=True)
            os._exit(0)
        os.wait()
    """)
    assert out.count("this process was forked after CUDA had been used") == 2
    assert out.count("spawn") == 2


def test_a_child_of_a_process_that_used_pytorch_alone_gets_a_clear_error() -> None:
    text = """
        import os, torch
        import graphdnn as gd
        torch.zeros(1, device="cuda")
        g = gd.GraphBuilder("small")
        graph = g.build({"y": g.relu(g.input("x", (3, 5), gd.float32))})
        if os.fork() == 0:
            try:
                gd.compile(graph, target="cuda")
            except gd.GraphDnnError as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True, text=True, timeout=300, check=False, env=child_environment(),
    )  # fmt: skip
    assert "in a process that was forked after CUDA had been used" in done.stdout, done.stderr
    assert "spawn" in done.stdout


def test_current_device(device: CudaDevice) -> None:
    assert CudaDevice.current() is CudaDevice.current(0)
    with pytest.raises(gd.SetupError, match="CUDA device 99 was asked for, but this machine has"):
        CudaDevice.current(99)
    with device:
        assert int(device.driver.cuCtxGetCurrent()[1]) == int(device._context)
