"""What says nothing of a plan on a real device: memory that is not there, and what comes after another plan's fault."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate
from graphdnn.engines.trial import TrialMemory, trial
from graphdnn.errors import OutOfMemoryError
from graphdnn.ir.region import Region
from graphdnn.runtime.cache import DIRECTORY_VARIABLE
from graphdnn.runtime.device import CudaDevice
from tests.gpu.test_runtime import child

pytestmark = pytest.mark.gpu

TOO_MUCH = 1 << 45


class Greedy:
    """A plan that asks for more scratch memory than any device has."""

    workspace_bytes = TOO_MUCH

    def enqueue(self, addresses: object, stream: int, workspace: int) -> None:
        raise AssertionError("there is no such memory")


def test_the_drivers_lack_of_memory_is_an_error_of_its_own_and_passes(device: CudaDevice) -> None:
    g = gd.GraphBuilder("small")
    graph = g.build({"y": g.relu(g.input("x", (4, 5), gd.float32))})
    region = Region.of(graph, graph.nodes)
    with pytest.raises(OutOfMemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        device.allocate(TOO_MUCH)
    with TrialMemory(device) as memory:
        answer = trial(Greedy(), Candidate("greedy", region, "all", TOO_MUCH, "float32"), memory)
    assert isinstance(answer, Decline)
    assert answer.code is Code.TRANSIENT
    x = np.full((4, 5), 2.0, np.float32)
    np.testing.assert_array_equal(gd.compile(graph, "cuda")({"x": x})["y"], x)


def test_a_plan_that_faults_while_it_is_timed_ends_the_contest(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    out = child("""
        from graphdnn.engines.manifest import MANIFEST
        from graphdnn.errors import ContextLostError
        MANIFEST["nvrtc"] = "tests.gpu.faulting:FaultsAmongOthers"
        tried = []
        sys.addaudithook(lambda event, given: event == "graphdnn.trying" and tried.append(given[1]))
        g = gd.GraphBuilder("timed")
        graph = g.build({"y": g.softmax(g.input("x", (64, 128), gd.float32))})
        options = gd.CompileOptions(selection="autotune", disabled_engines=("cudnn", "cublaslt"))
        try:
            gd.compile(graph, "cuda", options)
        except ContextLostError as error:
            print(error)
        print([name for name in tried if tried.count(name) > 1])
        print([e.kind for e in device.store.entries() if e.kind != "cubin"])
    """)
    error, ran, kept = out.strip().splitlines()
    assert error.startswith("plan faulty of nvrtc for softmax failed on its first run: the CUDA context of ")
    assert "faulty" in ran
    assert "last" not in ran
    assert kept == "[]"


def test_a_lost_context_names_the_graph_wherever_a_caller_meets_it() -> None:
    out = child("""
        g = gd.GraphBuilder("counter")
        total = g.add(g.state("total", (3,), gd.float32), g.input("x", (3,), gd.float32))
        exe = gd.compile(g.build({"y": total}, updates={"total": total}), "cuda")
        x = np.ones(3, np.float32)
        exe({"x": x})
        b = gd.GraphBuilder("faulty")
        try:
            program(b.build({"y": b.abs(b.input("x", (3,), gd.float32))}), device).run({"x": x})
        except ExecutionError:
            pass
        for call in (
            lambda: exe.bind({"x": x}),
            lambda: exe.state["total"],
            lambda: exe.state.update(total=x),
            lambda: exe.context(),
        ):
            try:
                call()
            except ExecutionError as error:
                print(error)
    """)
    lines = out.strip().splitlines()
    assert len(lines) == 4
    assert all(line.startswith("graph counter could not run: the CUDA context of ") for line in lines)


@pytest.mark.parametrize("selection", ["heuristic", "autotune"])
def test_a_product_stays_with_cublaslt_where_no_scratch_is_left(
    selection: str, device: CudaDevice, rng: np.random.Generator
) -> None:
    """Its best plan divides K and needs memory for the parts; within `memory_limit` it has others."""
    g = gd.GraphBuilder("long")
    graph = g.build({"y": g.matmul(g.input("a", (64, 8192), gd.float16), g.input("b", (8192, 512), gd.float16))})
    options = gd.CompileOptions(memory_limit=0, selection=selection, disabled_engines=("cudnn",), cache_dir="")
    exe = gd.compile(graph, "cuda", options)
    (region,) = exe.report.regions
    assert (region.engine, region.workspace_bytes, exe.report.arena_bytes) == ("cublaslt", 0, 0)
    a, b = (rng.standard_normal(shape, np.float32).astype(np.float16) / 8 for shape in ((64, 8192), (8192, 512)))
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(exe({"a": a, "b": b})["y"] - wanted).max() < 2e-3 * np.abs(wanted).max()
