"""The engine apart from the library: what it keeps, what it asks for once, how a plan is run."""

import builtins
from types import SimpleNamespace
from typing import Any

import cudnn
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Policy
from graphdnn.engines.cudnn import engine as module
from graphdnn.engines.cudnn import plans
from graphdnn.engines.cudnn.engine import CudnnEngine
from graphdnn.engines.cudnn.lower import Lowering
from graphdnn.engines.cudnn.plans import CudnnPlan, PlanName, Proposal
from graphdnn.errors import ExecutionError, OutOfMemoryError
from graphdnn.ir.region import Region
from graphdnn.runtime.cache import NullStore
from graphdnn.target import Target
from tests.engines.cudnn.regions import bias, convolution, product

DEVICE: Any = SimpleNamespace(target=Target.named("h200"), stream=7, store=NullStore())


def proposal(engine: int, deterministic: bool = True, workspace: int = 0) -> Proposal:
    return Proposal(PlanName(engine, ()), workspace, ("RUNTIME_COMPILATION",), deterministic)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Heuristics that always propose the same, and a list of who asked."""
    calls: list[object] = []

    def answer(cudnn: object, make: object) -> list[Proposal]:
        calls.append(make)
        return [proposal(51), proposal(44, workspace=512), proposal(0, deterministic=False), proposal(99)]

    monkeypatch.setattr(module, "proposals", answer)
    return calls


def test_float32_keeps_the_engines_of_the_table_only(asked: list[object]) -> None:
    region = convolution(dtype=gd.float32, finish=bias)
    kept = CudnnEngine().candidates(region, DEVICE, Policy())
    assert not isinstance(kept, Decline)
    assert [c.name for c in kept] == ["eng44", "eng0"]
    every = CudnnEngine().candidates(region, DEVICE, Policy(precision="tf32"))
    assert not isinstance(every, Decline)
    assert [c.name for c in every] == ["eng51", "eng44", "eng0", "eng99"]
    assert {c.precision for c in kept} == {"float32"}
    assert [c.precision for c in every] == ["tf32", "float32", "float32", "tf32"]


def test_float32_with_no_engine_of_the_table_is_refused_with_a_fix(
    asked: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "proposals", lambda cudnn, make: [proposal(51)])
    answer = CudnnEngine().candidates(convolution(dtype=gd.float32, finish=bias), DEVICE, Policy())
    assert isinstance(answer, Decline)
    assert answer.code is Code.PRECISION
    assert answer.fix is not None


def test_candidates_carry_what_is_known_before_building(asked: list[object]) -> None:
    found = CudnnEngine().candidates(convolution(finish=bias), DEVICE, Policy())
    assert not isinstance(found, Decline)
    by_name = {c.name: c for c in found}
    assert by_name["eng44"].workspace_bytes == 512
    assert not by_name["eng0"].deterministic
    assert any("no committed run" in note for note in by_name["eng99"].notes)
    assert not any("no committed run" in note for note in by_name["eng51"].notes)


def test_equal_regions_are_asked_for_once(asked: list[object]) -> None:
    engine = CudnnEngine()
    for region in (convolution(finish=bias), convolution(finish=bias), convolution((3, 24, 9, 8), finish=bias)):
        engine.candidates(region, DEVICE, Policy())
    assert len(asked) == 2


def test_what_the_rules_refuse_is_not_asked_for(asked: list[object]) -> None:
    assert isinstance(CudnnEngine().candidates(product(dtype=gd.float32), DEVICE, Policy()), Decline)
    assert not asked


@pytest.mark.parametrize("method", ["candidates", "build"])
def test_a_missing_library_names_its_package(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unloaded() -> int:
        raise RuntimeError("libcudnn.so.9 is not there")

    monkeypatch.setattr(cudnn, "backend_version", unloaded)
    region = convolution()
    one: Any = SimpleNamespace(region=region)
    engine = CudnnEngine()
    answer = engine.candidates(region, DEVICE, Policy()) if method == "candidates" else engine.build(one, DEVICE)
    assert isinstance(answer, Decline)
    assert answer.code is Code.SETUP
    assert answer.fix is not None
    assert answer.fix.after == "nvidia-cudnn-cu13"


def test_a_plan_gives_each_tensor_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[object, ...]] = []
    graph = SimpleNamespace(_execute=lambda *given: ran.append(given))
    monkeypatch.setattr(plans, "HANDLES", SimpleNamespace(on=lambda ordinal, stream: (ordinal, stream)))
    plan = CudnnPlan(Lowering(graph, ((1, 0), (2, 1), (5, 0), (9, 2))), 3, 256, {})
    plan.enqueue([100, 200, 300], 7, 4096)
    assert ran == [({1: 100, 2: 200, 5: 100, 9: 300}, 4096, (3, 7))]


def test_a_plan_that_lacks_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(*_: object) -> None:
        raise RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED")

    monkeypatch.setattr(plans, "HANDLES", SimpleNamespace(on=lambda ordinal, stream: 0))
    plan = CudnnPlan(Lowering(SimpleNamespace(_execute=hungry), ()), 3, 256, {"plan": "eng4_k24=2"})  # type: ignore[arg-type]
    with pytest.raises(OutOfMemoryError, match="eng4_k24=2"):
        plan.enqueue([], 7, 4096)


def test_a_thread_without_memory_for_its_handle_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread makes a handle of its own at its first call of any plan."""

    def hungry(ordinal: int, stream: int) -> int:
        raise RuntimeError("CUDNN_STATUS_ALLOC_FAILED")

    monkeypatch.setattr(plans, "HANDLES", SimpleNamespace(on=hungry))
    graph = SimpleNamespace(_execute=lambda *given: None)
    plan = CudnnPlan(Lowering(graph, ()), 3, 256, {"plan": "eng4_k24=2"})
    with pytest.raises(OutOfMemoryError, match="eng4_k24=2"):
        plan.enqueue([], 7, 4096)


@pytest.mark.parametrize("kind", ["RuntimeError", "ValueError", "cudnnGraphNotSupportedError"])
def test_a_plan_that_cudnn_refuses_to_run_is_an_error_of_ours(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object) -> None:
        raise getattr(cudnn, kind, getattr(builtins, kind, None))("CUDNN_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(plans, "HANDLES", SimpleNamespace(on=lambda ordinal, stream: 0))
    plan = CudnnPlan(Lowering(SimpleNamespace(_execute=refusing), ()), 3, 256, {"plan": "eng4_k24=2"})  # type: ignore[arg-type]
    with pytest.raises(ExecutionError, match="cuDNN on eng4_k24=2: CUDNN_STATUS_NOT_SUPPORTED"):
        plan.enqueue([], 7, 4096)


class Hungry:
    """An operation graph of two plans, the second of which has no memory to say what it needs."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __getattr__(self, name: str) -> Any:
        return lambda *_: []

    def get_execution_plan_count(self) -> int:
        return len(self.texts)

    def get_plan_name_at_index(self, index: int) -> str:
        return f"eng{index}"

    def build_plan_at_index(self, index: int) -> None:
        raise RuntimeError(self.texts[index])


@pytest.mark.parametrize("named", [False, True])
def test_a_plan_that_cannot_say_what_it_needs_is_not_taken_for_one_without_needs(named: bool) -> None:
    import cudnn

    says, hungry = "workspace violation. Requires 64", "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"

    def asked(*texts: str) -> Any:
        graph: Any = Hungry(list(texts))
        if named:
            return plans.proposal(cudnn, lambda: Lowering(graph, ()), PlanName(0, ()))
        return plans.proposals(cudnn, lambda: Lowering(graph, ()))

    texts = (hungry,) if named else (says, hungry)
    answer = asked(*texts)
    assert isinstance(answer, Decline)
    assert answer.code is Code.TRANSIENT
    good = asked(says) if named else asked(says, says)[1]
    assert good.workspace == 64


def attention(batch: int, queries: int, keys: int) -> Region:
    g = gd.GraphBuilder()
    q, k, v = (g.input(name, (batch, 16, n, 64), gd.float16) for name, n in (("q", queries), ("k", keys), ("v", keys)))
    graph = g.build({"y": g.attention(q, k, v)})
    return Region.of(graph, graph.nodes)


@pytest.mark.parametrize(
    ("region", "first"),
    [
        (attention(1, 128, 128), "eng8_k24=3"),
        (attention(8, 64, 64), "eng8_k24=3"),
        (attention(1, 128, 129), "eng9_k24=7"),  # more keys
        (attention(9, 64, 64), "eng9_k24=7"),  # 144 thread blocks on 132 processors
        (product(), "eng9_k24=7"),
    ],
)
def test_plans_that_win_for_few_keys_come_first_there(region: Region, first: str) -> None:
    found = [Proposal(PlanName.parse(name), 0, (), True) for name in ("eng9_k24=7", "eng8_k24=6", "eng8_k24=3", "eng0")]
    moved = module.in_order(region, found, Target.named("h200"))
    assert str(moved[0].name) == first
    assert [p for p in moved if p.name != moved[0].name] == [p for p in found if p.name != moved[0].name]
