"""Plans on a stand-in for the library that computes in numpy from the descriptors that it was given."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from nvmath.bindings import cublasLt

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, Policy, Support
from graphdnn.engines.cublaslt import engine as engine_module
from graphdnn.engines.cublaslt import library as library_module
from graphdnn.engines.cublaslt.engine import CublasLtEngine
from graphdnn.engines.cublaslt.library import REDUCTIONS
from graphdnn.engines.cublaslt.plan import CublasLtPlan
from graphdnn.errors import ExecutionError, OutOfMemoryError
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array
from graphdnn.runtime.device import HostDevice
from tests.engines.cublaslt.fake import ACC_16F, ACC_32F, FMA, HMMA, IN_16F, IN_32F, IN_TF32, Fake, Listed
from tests.engines.cublaslt.product import (
    TAILS,
    Strided,
    Tail,
    draw,
    expected,
    memory_of,
    nothing,
    packed,
    product,
    scale_of,
    tail_for,
    vector,
)

STOCK = [
    Listed(66),
    Listed(67, split_k=4, reduction=2, workspace=1 << 20),
    Listed(68, split_k=3, reduction=1, workspace=512),
    Listed(69, split_k=2, reduction=4, workspace=512),
    Listed(70, flags=HMMA | ACC_16F | IN_16F),
    Listed(71, flags=HMMA | ACC_32F | IN_TF32),
    Listed(72, flags=FMA | ACC_32F | IN_32F, alignment=1),
]


class H200(HostDevice):
    """Host memory that calls itself an H200."""

    def __init__(self) -> None:
        super().__init__()
        self.target = gd.Target.named("h200")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(list(STOCK))
    library = made.library()
    monkeypatch.setattr(engine_module, "open_library", lambda: library)
    return made


def candidates_of(region: Region, **options: object) -> list[Candidate]:
    found = CublasLtEngine().candidates(region, H200(), Policy(**options))  # type: ignore[arg-type]
    assert not isinstance(found, Decline), str(found)
    return list(found)


def built(region: Region, **options: object) -> CublasLtPlan:
    plan = CublasLtEngine().build(candidates_of(region, **options)[0], H200())
    assert isinstance(plan, CublasLtPlan)
    return plan


def aligned(flat: Array, offset: int = 0) -> Array:
    """A copy of flat memory that starts `offset` bytes behind a multiple of 256."""
    raw = np.zeros(flat.nbytes + 512, np.uint8)
    start = -raw.ctypes.data % 256 + offset
    copy: Array = raw[start : start + flat.nbytes].view(flat.dtype)
    copy[...] = flat
    return copy


def run(region: Region, plan: CublasLtPlan, rng: np.random.Generator, offset: int = 0) -> float:
    """Error of one run against the definition, relative to the scale."""
    inputs = draw(region, rng)
    memory = [aligned(m, offset) for m in memory_of(region, inputs)]
    plan.enqueue([m.ctypes.data for m in memory], 0, 0)
    right = expected(region, inputs)
    found = region.outputs[0].type.strided(memory[-1]).astype(np.float64)
    return float(np.abs(found - right).max() / scale_of(region, inputs, right))


CASES: dict[str, tuple[Strided, Strided]] = {
    "one": (Strided((7, 24)), Strided((24, 5))),
    "weights by columns": (Strided((7, 24)), Strided((24, 5), (1, 25))),
    "batched": (Strided((3, 7, 24)), Strided((3, 24, 5))),
    "shared left": (Strided((7, 24)), Strided((3, 24, 5))),
    "shared right": (Strided((2, 3, 7, 24)), Strided((24, 5))),
    "left by columns": (Strided((7, 24), (1, 9)), Strided((24, 5))),
    "one row": (Strided((1, 24)), Strided((24, 5))),
    "several calls": (packed(2, 3, 7, 24), packed(2, 3, 5, 24, by_columns=True)),
}


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("case", CASES)
def test_descriptors_say_what_the_region_means(fake: Fake, case: str, tail: str, rng: np.random.Generator) -> None:
    region = product(*CASES[case], gd.float16, TAILS[tail])
    plan = built(region)
    assert run(region, plan, rng) <= 2e-3
    assert run(region, plan, rng) <= 2e-3, "a second run, at other addresses"


@pytest.mark.parametrize("dtype", [gd.bfloat16, gd.float32, gd.float64], ids=str)
def test_types(fake: Fake, dtype: gd.DType, rng: np.random.Generator) -> None:
    region = product(*CASES["batched"], dtype, tail_for(dtype, "bias residual gelu"))
    assert run(region, built(region), rng) <= {"bfloat16": 1.6e-2, "float32": 1e-5, "float64": 1e-12}[dtype.name]


def test_whole_numbers(fake: Fake, rng: np.random.Generator) -> None:
    region = product(Strided((8, 16)), Strided((16, 4), (1, 16)), gd.int8)
    assert run(region, built(region), rng) == 0


def test_a_bias_for_each_batch_entry(fake: Fake, rng: np.random.Generator) -> None:
    region = product(*CASES["batched"], gd.float16, lambda g, y, new: g.add(y, new("bias", (3, 1, 5))))
    assert run(region, built(region), rng) <= 2e-3


def test_the_bias_is_written_only_when_its_address_changes(fake: Fake, rng: np.random.Generator) -> None:
    region = product(*CASES["one"], gd.float16, vector(-1))
    plan = built(region)
    memory = [aligned(m) for m in memory_of(region, draw(region, rng))]
    addresses = [m.ctypes.data for m in memory]
    plan.enqueue(addresses, 0, 0)
    before = fake.bias_writes
    plan.enqueue(addresses, 0, 0)
    assert fake.bias_writes == before
    other = aligned(memory[2])
    plan.enqueue([*addresses[:2], other.ctypes.data, addresses[3]], 0, 0)
    assert fake.bias_writes == before + 1


def heads(depth: int = 8, dtype: gd.DType = gd.float16, gap: int = 0, tail: Tail = nothing) -> Region:
    """Scores of three sequences of four heads, which take a call each sequence."""
    keys = packed(3, 4, 6, depth, by_columns=True, gap=gap)
    return product(packed(3, 4, 7, depth, gap=gap), keys, dtype, tail)


def test_calls_share_algorithm_descriptors_and_scratch(fake: Fake, rng: np.random.Generator) -> None:
    fake.listed[0] = Listed(65, split_k=2, reduction=2, workspace=512)
    region = heads(tail=TAILS["residual"])
    plan = built(region)
    described = set(fake.live)
    assert run(region, plan, rng) <= 2e-3
    assert [x.id for x in fake.calls] == [65] * 3
    assert len(set(fake.operations)) == 1
    assert set(fake.live) - described <= set(fake.operations), "a run makes no descriptor but a thread's own"
    assert plan.workspace_bytes == 512


def test_each_call_has_its_own_bias(fake: Fake, rng: np.random.Generator) -> None:
    region = heads(tail=lambda g, y, new: g.relu(g.add(y, new("bias", (3, 1, 1, 6), gd.float16))))
    plan = built(region)
    assert run(region, plan, rng) <= 2e-3
    before = fake.bias_writes
    assert run(region, plan, rng) <= 2e-3
    assert fake.bias_writes == before + 3
    shared = heads(tail=lambda g, y, new: g.add(y, new("bias", (6,), gd.float16)))
    plan = built(shared)
    assert run(shared, plan, rng) <= 2e-3
    before = fake.bias_writes
    assert run(shared, plan, rng) <= 2e-3
    assert fake.bias_writes <= before + 1


@pytest.mark.parametrize(("gap", "alignment"), [(0, 16), (2, 4), (1, 2)])
def test_algorithms_are_asked_for_what_all_calls_are_aligned_to(
    fake: Fake, gap: int, alignment: int, rng: np.random.Generator
) -> None:
    fake.listed.insert(0, Listed(80, alignment=4))
    region = heads(gap=gap)
    plan = built(region)
    asked = {p[f"MIN_ALIGNMENT_{x}_BYTES"] for p in fake.preferences[:1] for x in "ABCD"}
    assert asked == {alignment}
    assert run(region, plan, rng) <= 2e-3
    first = 80 if alignment >= 4 else 72
    assert [x.id for x in fake.calls] == [first] * 3
    assert run(region, plan, rng, offset=alignment) <= 2e-3
    assert [x.id for x in fake.calls[3:]] == [first] * 3, "no more is asked of addresses than of starts"
    assert run(region, plan, rng, offset=2) <= 2e-3
    assert [x.id for x in fake.calls[6:]] == [72] * 3


def test_the_report_says_how_many_calls_a_plan_makes(fake: Fake) -> None:
    assert {c.notes[1:] for c in candidates_of(heads())} == {("3 calls",)}
    assert {c.notes[1:] for c in candidates_of(product(*CASES["batched"]))} == {()}


def test_a_call_that_is_refused_ends_the_run(fake: Fake, rng: np.random.Generator) -> None:
    region = heads()
    plan = built(region)
    fake.listed[0] = replace(STOCK[0], workspace=1)
    with pytest.raises(ExecutionError, match="workspace too small"):
        run(region, plan, rng)
    assert not fake.calls


def test_threads_do_not_share_a_bias(fake: Fake, rng: np.random.Generator) -> None:
    region = product(*CASES["one"], gd.float16, vector(-1))
    plan = built(region)
    errors: list[float] = []
    generators = rng.spawn(3)

    def work(own: np.random.Generator) -> None:
        errors.extend(run(region, plan, own) for _ in range(5))

    threads = [threading.Thread(target=work, args=(g,)) for g in generators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 15
    assert max(errors) <= 2e-3
    assert len(set(fake.operations)) == 3


@pytest.mark.parametrize("offset", [2, 8, 16])
def test_addresses_off_a_vector_take_the_fallback(fake: Fake, offset: int, rng: np.random.Generator) -> None:
    region = product(*CASES["one"], gd.float16, TAILS["bias residual gelu"])
    plan = built(region)
    assert run(region, plan, rng, offset) <= 2e-3
    assert fake.calls[-1].id == (66 if offset == 16 else 72)
    assert run(region, plan, rng) <= 2e-3
    assert fake.calls[-1].id == 66


def test_one_address_off_a_vector_is_enough(fake: Fake, rng: np.random.Generator) -> None:
    region = product(*CASES["one"], gd.float16, TAILS["bias residual gelu"])
    plan = built(region)
    memory = [aligned(m) for m in memory_of(region, draw(region, rng))]
    for index, flat in enumerate(memory):
        moved = aligned(flat, 2)
        addresses = [m.ctypes.data for m in memory]
        addresses[index] = moved.ctypes.data
        plan.enqueue(addresses, 0, 0)
        assert fake.calls[-1].id == 72, index


def test_without_a_fallback_a_misaligned_address_is_an_error(fake: Fake, rng: np.random.Generator) -> None:
    fake.listed.pop()
    region = product(*CASES["one"], gd.float16)
    plan = built(region)
    with pytest.raises(ExecutionError, match="16 bytes of alignment"):
        run(region, plan, rng, offset=2)


def test_ieee_float32_leaves_tf32_out(fake: Fake) -> None:
    region = product(*CASES["one"], gd.float32)
    names = {p: [c.name.split("_")[0] for c in candidates_of(region, precision=p)] for p in ("ieee", "tf32", "reduced")}
    assert names["ieee"] == ["algo72"]
    assert names["tf32"] == ["algo66", "algo67", "algo71", "algo72"]
    assert names["reduced"] == [f"algo{x.id}" for x in STOCK]
    assert [candidates_of(region, precision=p)[0].precision for p in names] == ["float32", "tf32", "tf32"]


def test_halves_accumulate_in_float32(fake: Fake) -> None:
    region = product(*CASES["one"], gd.float16)
    assert "algo70" not in [c.name.split("_")[0] for c in candidates_of(region)]
    assert {c.precision for c in candidates_of(region)} == {"float16 in, float32 accumulate"}


def test_what_accumulates_in_less_says_so(fake: Fake) -> None:
    """Sums in half precision, and parts of split ones that are added in the output's type."""
    plain, added = "float16 in, float32 accumulate", "float16 in, float32 accumulate, parts added in float16"
    found = candidates_of(product(*CASES["one"], gd.float16), precision="reduced")
    assert {c.name.split("_")[0]: c.precision for c in found} == {
        "algo66": plain, "algo67": plain, "algo68": added, "algo69": added,
        "algo70": "float16 in, float16 accumulate", "algo71": plain, "algo72": plain,
    }  # fmt: skip


@pytest.mark.parametrize(("precision", "number"), [("ieee", 68), ("tf32", 77)])
def test_compute_type(fake: Fake, precision: str, number: int) -> None:
    plan = built(product(*CASES["one"], gd.float32), precision=precision)
    operations = [x for x in fake.live.values() if "compute" in x]
    assert plan.name
    assert {x["compute"] for x in operations} == {number}


def test_order_of_additions(fake: Fake) -> None:
    region = product(*CASES["one"], gd.float16)
    flags = {c.name.split("_")[0]: c.deterministic for c in candidates_of(region, precision="reduced")}
    assert flags == {f"algo{x.id}": x.id != 68 for x in STOCK}
    asked = candidates_of(region, precision="reduced", deterministic=True)
    assert {c.name.split("_")[0]: c.deterministic for c in asked} == flags  # the report says what the option rules out
    reductions = [p["REDUCTION_SCHEME_MASK"] for p in fake.preferences[-2:]]
    assert reductions[0] & REDUCTIONS["INPLACE"]
    assert not reductions[1] & REDUCTIONS["INPLACE"]


@pytest.mark.parametrize(("limit", "offered"), [(None, 32 << 20), (0, 0), (512, 512), (1 << 30, 32 << 20)])
def test_workspace_offered(fake: Fake, limit: int | None, offered: int) -> None:
    found = candidates_of(product(*CASES["one"], gd.float16), workspace_limit=limit)
    assert fake.preferences[0]["MAX_WORKSPACE_BYTES"] == 32 << 20
    assert fake.preferences[-1]["MAX_WORKSPACE_BYTES"] == offered
    assert any(c.workspace_bytes <= offered for c in found)
    assert len({c.name for c in found}) == len(found)


def test_an_algorithm_without_scratch_is_always_among_them(fake: Fake) -> None:
    """The library's best may all want scratch, and of what the whole graph may take none may be left."""
    fake.listed[:] = [Listed(100 + i, split_k=2, reduction=2, workspace=512) for i in range(20)] + [Listed(66)]
    found = candidates_of(product(*CASES["one"], gd.float16))
    assert [c.workspace_bytes for c in found] == [512] * 16 + [0]
    fake.listed[:] = fake.listed[:20]
    assert [c.workspace_bytes for c in candidates_of(product(*CASES["one"], gd.float16))] == [512] * 16
    fake.preferences.clear()
    fake.listed[:] = list(STOCK)
    candidates_of(product(*CASES["one"], gd.float16))
    assert len(fake.preferences) == 1


def test_what_a_limit_costs_is_said(fake: Fake) -> None:
    """Case A6: the plans that the limit excludes are in the report, with their bytes and the time without it."""
    region = product(Strided((64, 8192)), Strided((8192, 512)), gd.float16)
    free, none = (
        CublasLtEngine().supports(region, H200().target, Policy(workspace_limit=limit)) for limit in (None, 0)
    )
    assert isinstance(free, Support)
    assert isinstance(none, Support)
    assert free.workspace_bytes > 0
    assert none.estimated_us > free.estimated_us
    g = gd.GraphBuilder()
    a, b = g.input("a", (64, 8192), gd.float16), g.input("b", (8192, 512), gd.float16)
    options = gd.CompileOptions(workspace_limit=0)
    report = gd.compile(g.build({"y": g.matmul(a, b)}), target=gd.Target.named("h200"), options=options).report
    (said,) = {c.ruled_out for c in report.candidates if c.engine == "cublaslt" and c.verdict in ("chosen", "slower")}
    assert said == (
        f"workspace_limit=0 rules out {free.workspace_bytes} bytes of scratch, with which cublaslt is estimated at "
        f"{free.estimated_us:.1f} us"
    )


def test_the_library_s_no_is_a_decline_with_its_words(fake: Fake) -> None:
    fake.refuse = "CUBLAS_STATUS_NOT_SUPPORTED"
    found = CublasLtEngine().candidates(product(*CASES["one"]), H200(), Policy())
    assert isinstance(found, Decline)
    assert (found.code, "CUBLAS_STATUS_NOT_SUPPORTED" in found.reason) == (Code.BUILD, True)


def test_a_refused_call_is_an_execution_error(fake: Fake, rng: np.random.Generator) -> None:
    region = product(*CASES["one"], gd.float16)
    plan = built(region)
    fake.listed[0] = replace(STOCK[0], workspace=1)
    with pytest.raises(ExecutionError, match="workspace too small"):
        run(region, plan, rng)


class StarvingError(Exception):
    """The library's error for a lack of memory, as its bindings raise it."""

    status = 3


@pytest.fixture
def starve(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Has a call of the library lack memory from then on."""

    def fail(*_: object) -> None:
        raise StarvingError("CUBLAS_STATUS_ALLOC_FAILED")

    fake.cuBLASLtError = StarvingError
    library = fake.library()
    monkeypatch.setattr(engine_module, "open_library", lambda: library)
    return lambda name: monkeypatch.setattr(fake, name, fail, raising=False)


def test_a_lack_of_memory_is_of_the_moment(starve: Callable[[str], None], rng: np.random.Generator) -> None:
    region = product(*CASES["one"])
    (candidate, *_), plan = candidates_of(region), built(region)
    starve("matmul")
    with pytest.raises(OutOfMemoryError):
        run(region, CublasLtEngine().build(candidate, H200()), rng)  # type: ignore[arg-type]
    assert isinstance(plan, CublasLtPlan)
    starve("matmul_algo_get_heuristic")
    answers = CublasLtEngine().candidates(region, H200(), Policy()), CublasLtEngine().build(candidate, H200())
    for answer in answers:
        assert isinstance(answer, Decline)
        assert answer.code is Code.TRANSIENT


def test_a_thread_without_memory_for_its_descriptors_is_told_so(
    starve: Callable[[str], None], rng: np.random.Generator
) -> None:
    """A thread makes descriptors of its own at its first call of a plan."""
    region = product(*CASES["one"])
    plan = built(region)
    starve("matmul_desc_create")
    errors: list[Exception] = []

    def call() -> None:
        try:
            run(region, plan, rng)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert [type(e) for e in errors] == [OutOfMemoryError]


def test_descriptors_go_with_their_plan(fake: Fake, rng: np.random.Generator) -> None:
    region = product(*CASES["one"], gd.float16, vector(-1))
    plan = built(region)
    run(region, plan, rng)
    assert fake.live
    del plan
    gc.collect()
    assert not fake.live


def test_names_tell_algorithms_apart(fake: Fake) -> None:
    found = candidates_of(product(*CASES["one"], gd.float16))
    assert found[0].name == "algo66_tile128x128_stages64xAUTO_splitk1_swizzle0"
    assert len({c.name for c in found}) == len(found)


def test_how_split_sums_are_added_tells_algorithms_apart(fake: Fake) -> None:
    """They give other bits, and one of them not always the same."""
    fake.listed[:] = [Listed(7, split_k=3, reduction=r, workspace=512) for r in (1, 2, 4)]
    found = candidates_of(product(*CASES["one"], gd.float16), precision="reduced")
    stem = "algo7_tile128x128_stages64xAUTO_splitk3_swizzle0"
    assert [c.name for c in found] == [f"{stem}_sum{word}" for word in ("INPLACE", "COMPUTETYPE", "OUTPUTTYPE")]
    assert [c.deterministic for c in found] == [False, True, True]


def test_a_missing_module_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvmath", None)
    monkeypatch.setitem(sys.modules, "nvmath.bindings", None)
    found = library_module.opened.__wrapped__()
    assert isinstance(found, Decline)
    assert (found.code, "nvmath-python" in found.reason) == (Code.SETUP, True)
    present = replace(gd.Target.named("h200"), present=True)
    answer = CublasLtEngine().supports(product(*CASES["one"]), present, Policy())
    assert isinstance(answer, Decline)
    assert (answer.code, answer.fix is not None and answer.fix.after) == (Code.SETUP, "nvmath-python")


def test_a_missing_library_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> int:
        raise RuntimeError("libcublasLt.so.13 was not found")

    monkeypatch.setattr(cublasLt, "get_version", absent)
    found = library_module.opened.__wrapped__()
    assert isinstance(found, Decline)
    assert (found.code, "nvidia-cublas" in found.reason) == (Code.SETUP, True)
    assert "libcublasLt.so.13" in found.reason


def test_every_type_has_the_library_s_number() -> None:
    from nvmath._utils import CudaDataType

    words = {"float": "F", "int": "I"}
    for dtype, number in library_module.DATA_TYPES.items():
        letters = "BF" if dtype == gd.bfloat16 else words[dtype.kind]
        assert CudaDataType[f"CUDA_R_{dtype.bits}{letters}"] == number
