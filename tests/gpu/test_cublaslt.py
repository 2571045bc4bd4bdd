"""The cublaslt engine on a device: every algorithm it proposes, odd sizes, strides, addresses, threads, captures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, Policy
from graphdnn.engines.cublaslt.engine import CublasLtEngine
from graphdnn.engines.cublaslt.plan import CublasLtPlan
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array
from graphdnn.runtime.device import CudaDevice
from tests.engines.cublaslt.product import (
    TAILS,
    Strided,
    behind,
    draw,
    expected,
    packed,
    product,
    residual,
    scale_of,
    tail_for,
    vector,
)
from tests.gpu.region_runs import Filled, Placed

pytestmark = pytest.mark.gpu

LIMITS = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2, "int32": 0.0}
TF32_LIMIT = 1e-3
SIZES = (1, 3, 5, 7, 23, 24, 33, 63, 65, 127, 129, 300)
FLOATS = (gd.float16, gd.bfloat16, gd.float32, gd.float64)

CASES: dict[str, tuple[Strided, Strided]] = {
    "rows": (Strided((65, 129)), Strided((129, 33))),
    "weights by columns": (Strided((65, 128)), Strided((128, 40), (1, 128))),
    "left by columns": (Strided((65, 129), (1, 67)), Strided((129, 33))),
    "gaps": (Strided((65, 129), (131, 1)), Strided((129, 33), (1, 136))),
    "one row": (Strided((1, 300)), Strided((300, 63))),
    "one column": (Strided((63, 300)), Strided((300, 1))),
    "outer product": (Strided((63, 1)), Strided((1, 65))),
    "batched": (Strided((3, 23, 65)), Strided((3, 65, 24))),
    "shared left": (Strided((23, 65)), Strided((3, 65, 24))),
    "shared right": (Strided((2, 3, 23, 65)), Strided((65, 24))),
    "heads": (Strided((1, 3, 23, 8), (552, 8, 24, 1)), Strided((1, 3, 8, 23), (552, 8, 1, 24))),
}
"""Operands by layout; extents are unequal everywhere."""

SEVERAL: dict[str, tuple[tuple[Strided, Strided], tuple[int, ...] | None, int]] = {
    "scores": ((packed(2, 3, 33, 64), packed(2, 3, 65, 64, by_columns=True)), None, 2),
    "odd scores": ((packed(3, 5, 23, 7), packed(3, 5, 63, 7, by_columns=True)), None, 3),
    "more sequences than heads": ((packed(5, 2, 65, 24), packed(5, 2, 33, 24, by_columns=True)), None, 2),
    "scores with gaps": ((packed(2, 3, 33, 40, gap=3), packed(2, 3, 65, 40, by_columns=True, gap=5)), None, 2),
    "context": ((Strided((2, 3, 33, 65)), packed(2, 3, 65, 24)), (33 * 72, 24, 72, 1), 2),
    "shared keys": (
        (
            Strided((2, 3, 4, 33, 24), (33 * 288, 96, 24, 288, 1)),
            Strided((2, 3, 1, 24, 65), (65 * 216, 24, 24, 1, 216)),
        ),
        None,
        6,
    ),
    "crossed": ((Strided((2, 1, 33, 63)), Strided((1, 3, 63, 24))), None, 2),
}
"""Operands whose batch axes do not lie as one, strides of the result, and the calls that they take."""


class Run:
    """One region's inputs and output on the device, `shift` bytes behind 256-byte boundaries."""

    def __init__(self, device: CudaDevice, region: Region, inputs: Mapping[str, Array], shift: int = 0) -> None:
        self.device, self.region, self.inputs = device, region, inputs
        self.right = expected(region, inputs)
        with device:
            self.sources = [Placed(device, v.type, shift).filled(inputs[v.name]) for v in region.inputs]
            self.shift = shift
            self.result = self.fresh()

    def fresh(self) -> Filled:
        (output,) = self.region.outputs
        self.result = Placed(self.device, output.type, self.shift).filled(None)
        return self.result

    @property
    def addresses(self) -> Sequence[int]:
        return [p.address for p in (*self.sources, self.result)]

    def error(self) -> float:
        """Error of what lies in the result now, relative to the scale; infinite where it has NaN."""
        found = self.result.read().astype(np.float64)
        worst = float(np.abs(found - self.right).max())
        return np.inf if np.isnan(worst) else worst / scale_of(self.region, self.inputs, self.right)

    def through(self, plan: CublasLtPlan) -> float:
        """Error of one run of a plan into poisoned memory."""
        with self.device:
            self.fresh()
            workspace = self.device.allocate(plan.workspace_bytes)
            plan.enqueue(self.addresses, self.device.stream, workspace.handle)
            self.device.synchronize()
            return self.error()

    def captured(self, plan: CublasLtPlan, launches: int) -> tuple[float, int]:
        """Error after some launches of a plan captured into poisoned memory, and the kernels of one."""
        with self.device:
            self.fresh()
            workspace = self.device.allocate(plan.workspace_bytes)
            addresses = self.addresses
            graph = self.device.capture(lambda s: plan.enqueue(addresses, s, workspace.handle))
            for _ in range(launches):
                graph.launch(self.device.stream)
            self.device.synchronize()
            return self.error(), graph.kernels


def proposed(device: CudaDevice, region: Region, policy: Policy | None = None) -> list[Candidate]:
    chosen = policy or Policy()
    with device:
        answer = CublasLtEngine().supports(region, device.target, chosen)
        assert not isinstance(answer, Decline), str(answer)
        found = CublasLtEngine().candidates(region, device, chosen)
    assert not isinstance(found, Decline), str(found)
    return list(found)


def built(device: CudaDevice, candidate: Candidate) -> CublasLtPlan:
    with device:
        plan = CublasLtEngine().build(candidate, device)
    assert isinstance(plan, CublasLtPlan), str(plan)
    return plan


def first(device: CudaDevice, region: Region, policy: Policy | None = None) -> CublasLtPlan:
    return built(device, proposed(device, region, policy)[0])


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_every_epilogue_of_every_type(device: CudaDevice, dtype: gd.DType, tail: str, rng: np.random.Generator) -> None:
    region = product(*CASES["rows"], dtype, tail_for(dtype, tail))
    assert Run(device, region, draw(region, rng)).through(first(device, region)) <= LIMITS[dtype.name]


@pytest.mark.parametrize("tail", ["alone", "bias gelu", "bias residual gelu"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_layouts(device: CudaDevice, case: str, dtype: gd.DType, tail: str, rng: np.random.Generator) -> None:
    region = product(*CASES[case], dtype, tail_for(dtype, tail))
    assert Run(device, region, draw(region, rng)).through(first(device, region)) <= LIMITS[dtype.name]


@pytest.mark.parametrize("tail", ["alone", "bias gelu", "bias residual gelu", "negated"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", SEVERAL)
def test_several_calls(device: CudaDevice, case: str, dtype: gd.DType, tail: str, rng: np.random.Generator) -> None:
    """What lies between the elements of the operands, and in the result before, is NaN; nothing else is written."""
    operands, strides, calls = SEVERAL[case]
    region = product(*operands, dtype, tail_for(dtype, tail), strides)
    (candidate, *_) = proposed(device, region)
    assert candidate.notes[1:] == (f"{calls} calls",)
    assert Run(device, region, draw(region, rng)).through(built(device, candidate)) <= LIMITS[dtype.name]


@pytest.mark.parametrize("dtype", [gd.float32, gd.float16], ids=str)
def test_every_algorithm_in_several_calls(device: CudaDevice, dtype: gd.DType, rng: np.random.Generator) -> None:
    """Long sums; where an algorithm splits them, their parts lie in the same scratch in every call."""
    region = product(packed(3, 2, 40, 4096), packed(3, 2, 24, 4096, by_columns=True), dtype, TAILS["bias"])
    run = Run(device, region, draw(region, rng))
    errors = {c.name: run.through(built(device, c)) for c in proposed(device, region)}
    assert max(errors.values()) <= LIMITS[dtype.name], errors


@pytest.mark.parametrize("dtype", [gd.float32, gd.float16], ids=str)
def test_several_calls_off_a_vector(device: CudaDevice, dtype: gd.DType, rng: np.random.Generator) -> None:
    """Of one plan the calls start at wide loads, of the other they do not, wherever the tensors are."""
    for depth in (24, 7):
        region = product(packed(3, 4, 33, depth), packed(3, 4, 40, depth, by_columns=True), dtype, TAILS["bias relu"])
        plan, inputs = first(device, region), draw(region, rng)
        for shift in (0, dtype.itemsize, 0):
            assert Run(device, region, inputs, shift).through(plan) <= LIMITS[dtype.name], (depth, shift)


@pytest.mark.parametrize("shape", [(3, 1, 1, 24), (1, 4, 1, 24), (3, 4, 1, 24)])
def test_a_bias_for_each_call(device: CudaDevice, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    def tail(g: gd.GraphBuilder, y: gd.Value, new: Callable[..., gd.Value]) -> gd.Value:
        return g.relu(g.add(y, new("bias", shape, gd.float16)))

    region = product(packed(3, 4, 33, 24), packed(3, 4, 24, 24, by_columns=True), gd.float16, tail)
    plan, run = first(device, region), Run(device, region, draw(region, rng))
    assert run.through(plan) <= LIMITS["float16"]
    assert run.through(plan) <= LIMITS["float16"]


def test_several_calls_in_a_capture(device: CudaDevice, rng: np.random.Generator) -> None:
    """Each call is a kernel, or two where sums are split, of one captured graph that is launched twice."""
    region = product(packed(3, 2, 40, 1032), packed(3, 2, 24, 1032, by_columns=True), gd.float32, TAILS["bias"])
    run = Run(device, region, draw(region, rng))
    for candidate in proposed(device, region):
        plan = built(device, candidate)
        run.through(plan)
        error, kernels = run.captured(plan, launches=2)
        assert error <= LIMITS["float32"], candidate.name
        assert kernels in (2, 4), candidate.name


@pytest.mark.parametrize("saved", [False, True])
def test_heads_of_several_sequences_end_to_end(saved: bool, tmp_path: Path, rng: np.random.Generator) -> None:
    """The report counts the kernels of all calls, before and after saving; slices of the input are read where they
    are."""
    g = gd.GraphBuilder("sequences")
    packed_heads = g.input("x", (3, 33, 3, 4, 40), gd.float32)
    thirds = (g.squeeze(g.slice(packed_heads, [i], [i + 1], axes=[2]), axes=[2]) for i in range(2))
    q, k = (g.transpose(third, (0, 2, 1, 3)) for third in thirds)
    graph = g.build({"y": g.matmul(q, g.transpose(k, (0, 1, 3, 2)))})
    exe = gd.compile(graph, target="cuda", options=gd.CompileOptions(disabled_engines=("nvrtc",)))
    (region,) = exe.report.regions
    assert (region.engine, "3 calls" in region.notes) == ("cublaslt", True)
    if saved:
        exe.save(tmp_path / "heads.gdn")
        exe = gd.load(tmp_path / "heads.gdn")
    inputs = {"x": rng.standard_normal((3, 33, 3, 4, 40)).astype(np.float32)}
    wanted = gd.evaluate(graph, inputs, dtype=gd.float64)["y"]
    run = exe.bind(inputs)
    for found in (exe(inputs)["y"], run()["y"]):
        assert np.abs(found - wanted).max() <= LIMITS["float32"] * np.abs(wanted).max()
    assert run.kernels == exe.report.kernel_count == region.kernels
    assert region.kernels in (3, 6)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_odd_sizes(device: CudaDevice, dtype: gd.DType, rng: np.random.Generator) -> None:
    for m, n, k in zip(SIZES, rng.permutation(SIZES), rng.permutation(SIZES), strict=True):
        region = product(Strided((m, k)), Strided((k, n)), dtype, TAILS["bias relu"])
        error = Run(device, region, draw(region, rng)).through(first(device, region))
        assert error <= LIMITS[dtype.name], (m, n, k)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("m", "n", "k"), [(129, 300, 63), (16, 1024, 4096), (256, 512, 1032), (1, 640, 2049)])
def test_every_algorithm(device: CudaDevice, m: int, n: int, k: int, dtype: gd.DType, rng: np.random.Generator) -> None:
    region = product(Strided((m, k)), Strided((k, n), (1, k)), dtype, tail_for(dtype, "bias residual gelu"))
    run = Run(device, region, draw(region, rng))
    errors = {c.name: run.through(built(device, c)) for c in proposed(device, region)}
    assert errors
    assert max(errors.values()) <= LIMITS[dtype.name], errors


def test_tf32_only_where_asked(device: CudaDevice, rng: np.random.Generator) -> None:
    region = product(Strided((256, 1024)), Strided((1024, 512)), gd.float32)
    run = Run(device, region, draw(region, rng))
    asked = Policy(precision="tf32")
    relaxed = [run.through(built(device, c)) for c in proposed(device, region, asked)]
    strict = [run.through(built(device, c)) for c in proposed(device, region)]
    assert max(relaxed) <= TF32_LIMIT
    assert relaxed[0] > 10 * max(strict)
    assert max(strict) <= LIMITS["float32"]


@pytest.mark.parametrize("case", ["m 256", "m 12", "batched"])
def test_whole_numbers(device: CudaDevice, case: str, rng: np.random.Generator) -> None:
    a, b = {
        "m 256": (Strided((256, 512)), Strided((512, 128), (1, 512))),
        "m 12": (Strided((12, 68)), Strided((68, 20), (1, 68))),
        "batched": (Strided((3, 33, 64)), Strided((3, 64, 40), (2560, 1, 64))),
    }[case]
    region = product(a, b, gd.int8)
    run = Run(device, region, draw(region, rng))
    for candidate in proposed(device, region):
        assert run.through(built(device, candidate)) == 0, candidate.name


def test_whole_numbers_by_a_constant_as_people_write_it(device: CudaDevice, rng: np.random.Generator) -> None:
    """Row-major weights are laid out along the inner axis at compile time."""
    g = gd.GraphBuilder()
    x = g.input("x", (64, 256), gd.int8)
    w = g.constant(rng.integers(-128, 128, (256, 96)).astype(np.int8))
    graph = g.build({"y": g.matmul(x, w)})
    exe = gd.compile(graph, target=device.target)
    assert [r.engine for r in exe.report.regions] == ["cublaslt"]
    inputs = {"x": rng.integers(-128, 128, (64, 256)).astype(np.int8)}
    assert np.array_equal(exe(inputs)["y"], gd.evaluate(graph, inputs)["y"])


@pytest.mark.parametrize("source", [gd.float16, gd.bfloat16], ids=str)
def test_halves_into_float32(device: CudaDevice, source: gd.DType, rng: np.random.Generator) -> None:
    region = product(*CASES["rows"], source, lambda g, y, new: g.cast(y, gd.float32))
    assert Run(device, region, draw(region, rng)).through(first(device, region)) <= LIMITS["float32"]


def test_a_bias_for_each_batch_entry(device: CudaDevice, rng: np.random.Generator) -> None:
    region = product(*CASES["batched"], gd.float16, lambda g, y, new: g.relu(g.add(y, new("bias", (3, 1, 24)))))
    assert Run(device, region, draw(region, rng)).through(first(device, region)) <= LIMITS["float16"]


def test_a_residual_that_repeats_over_the_batch(device: CudaDevice, rng: np.random.Generator) -> None:
    region = product(*CASES["batched"], gd.float16, lambda g, y, new: g.add(y, new("c", (23, 24))))
    assert Run(device, region, draw(region, rng)).through(first(device, region)) <= LIMITS["float16"]


def test_a_result_by_columns_with_gaps(device: CudaDevice, rng: np.random.Generator) -> None:
    region = product(*CASES["rows"], gd.float16, vector(-2), strides=(1, 67))
    assert Run(device, region, draw(region, rng)).through(first(device, region)) <= LIMITS["float16"]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("case", ["rows", "weights by columns", "batched"])
def test_addresses_off_a_vector(device: CudaDevice, case: str, dtype: gd.DType, rng: np.random.Generator) -> None:
    """One plan, addresses of every alignment in turn, and aligned ones again afterwards."""
    region = product(*CASES[case], dtype, tail_for(dtype, "bias residual gelu"))
    plan = first(device, region)
    inputs = draw(region, rng)
    for shift in (0, dtype.itemsize, 2 * dtype.itemsize, 16, 0):
        assert Run(device, region, inputs, shift).through(plan) <= LIMITS[dtype.name], shift


@pytest.mark.parametrize("limit", [0, 512, 1 << 20, None])
def test_workspace_limits(device: CudaDevice, limit: int | None, rng: np.random.Generator) -> None:
    region = product(Strided((16, 4096)), Strided((4096, 1032), (1, 4096)), gd.float16, TAILS["bias"])
    run = Run(device, region, draw(region, rng))
    offered = proposed(device, region, Policy(workspace_limit=limit))
    within = [c for c in offered if limit is None or c.workspace_bytes <= limit]
    assert within
    for candidate in within:
        plan = built(device, candidate)
        assert limit is None or plan.workspace_bytes <= limit
        assert run.through(plan) <= LIMITS["float16"], candidate.name


def test_the_same_bits_on_each_run(device: CudaDevice, rng: np.random.Generator) -> None:
    region = product(Strided((16, 4096)), Strided((4096, 1032), (1, 4096)), gd.bfloat16, TAILS["bias gelu"])
    run = Run(device, region, draw(region, rng))
    for candidate in proposed(device, region, Policy(deterministic=True)):
        assert candidate.deterministic
        plan = built(device, candidate)
        seen = set()
        for _ in range(5):
            run.through(plan)
            seen.add(run.result.read().tobytes())
        assert len(seen) == 1, candidate.name


@pytest.mark.parametrize("shape", [(129, 300, 63), (16, 1024, 4096), (256, 512, 1032)])
def test_a_capture_runs_as_a_plan_does(
    device: CudaDevice, shape: tuple[int, int, int], rng: np.random.Generator
) -> None:
    m, n, k = shape
    region = product(Strided((m, k)), Strided((k, n), (1, k)), gd.float16, behind(vector(-1), residual()))
    run = Run(device, region, draw(region, rng))
    for candidate in proposed(device, region):
        plan = built(device, candidate)
        run.through(plan)
        error, kernels = run.captured(plan, launches=1)
        assert error <= LIMITS["float16"], candidate.name
        assert kernels >= 1, candidate.name


def test_the_fallback_works_in_a_capture_that_is_its_first_run(device: CudaDevice, rng: np.random.Generator) -> None:
    region = product(Strided((40, 72)), Strided((72, 56)), gd.bfloat16, TAILS["bias relu"])
    run = Run(device, region, draw(region, rng), shift=2)
    plan = first(device, region)
    with device:
        workspace = device.allocate(plan.workspace_bytes)
        graph = device.capture(lambda s: plan.enqueue(run.addresses, s, workspace.handle))
        graph.launch(device.stream)
        device.synchronize()
    assert run.error() <= LIMITS["bfloat16"]


def test_one_plan_in_many_threads(device: CudaDevice, rng: np.random.Generator) -> None:
    """Own streams, own biases, one plan and one handle; a thread that never touched CUDA before."""
    region = product(Strided((65, 264)), Strided((264, 136)), gd.float16, TAILS["bias relu"])
    plan = first(device, region)
    errors: list[float] = []
    problems: list[BaseException] = []

    def work(generator: np.random.Generator) -> None:
        try:
            with device:
                stream = device.new_stream()
                handle = int(stream.handle)
                workspace = device.allocate(plan.workspace_bytes)
                runs = [Run(device, region, draw(region, generator)) for _ in range(3)]
                device.synchronize()
                for _ in range(100):
                    for run in runs:
                        plan.enqueue(run.addresses, handle, workspace.handle)
                device.synchronize(handle)
                errors.extend(run.error() for run in runs)
        except BaseException as problem:  # a thread's failure must reach the test
            problems.append(problem)

    threads = [threading.Thread(target=work, args=(g,)) for g in rng.spawn(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert len(errors) == 12
    assert max(errors) <= LIMITS["float16"]


def test_a_product_in_place_of_its_residual(device: CudaDevice, rng: np.random.Generator) -> None:
    region = product(*CASES["rows"], gd.float32, residual())
    inputs = draw(region, rng)
    run = Run(device, region, inputs)
    plan = first(device, region)
    with device:
        run.result = run.sources[-1]
        workspace = device.allocate(plan.workspace_bytes)
        plan.enqueue(run.addresses, device.stream, workspace.handle)
        device.synchronize()
    assert run.error() <= LIMITS["float32"]


def test_gelu_in_the_erf_form_is_declined(device: CudaDevice) -> None:
    region = product(*CASES["rows"], gd.float16, lambda g, y, new: g.gelu(y))
    answer = CublasLtEngine().supports(region, device.target, Policy())
    assert isinstance(answer, Decline)
    assert answer.code is Code.OP
