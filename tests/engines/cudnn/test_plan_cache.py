"""What cuDNN's engine keeps between processes: plans and answers are asked for once, and nothing damaged is used."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, Device, Policy
from graphdnn.engines.cudnn import engine as module
from graphdnn.engines.cudnn import plans
from graphdnn.engines.cudnn.engine import CudnnEngine
from graphdnn.engines.cudnn.lower import Lowering
from graphdnn.engines.cudnn.plans import CudnnPlan, PlanName, Proposal
from graphdnn.engines.cudnn.serialization import decode_plan, decode_proposals, encode_plan, encode_proposals
from graphdnn.engines.serialization import pack
from graphdnn.errors import MomentaryError
from graphdnn.ir.region import Region
from graphdnn.ir.types import float32
from graphdnn.target import Target
from tests.engines.cudnn.regions import bias, convolution
from tests.engines.shelf import Shelf

ROOT = Path(__file__).parents[3]
BINDINGS = ((1, 0), (2, 1), (9, 2))
CONTENT = b"what cuDNN wrote down"


class Library:
    """Stands in for what needs a device: counts what is asked, built and read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[object] = []
        self.built: list[str] = []
        self.read: list[bytes] = []
        self.content = CONTENT
        self.fails = False
        self.rejects = False
        self.rejects_with = Code.BUILD
        self.gate: threading.Event | None = None
        monkeypatch.setattr(module, "proposals", self.proposals)
        monkeypatch.setattr(module, "proposal", self.proposal)
        monkeypatch.setattr(module, "lowered", lambda region, device: Lowering(self.graph(), BINDINGS))
        monkeypatch.setattr(module, "build", self.build)
        monkeypatch.setattr(module, "rebuild", self.rebuild)

    def graph(self) -> Any:
        return SimpleNamespace(_execute=lambda *given: None)

    def proposals(self, cudnn: object, make: object) -> list[Proposal]:
        self.asked.append("heuristics")
        return [Proposal(PlanName(e, ((24, 2),)), 64 * e, ("RUNTIME_COMPILATION",), e != 1) for e in (44, 0, 1)]

    def proposal(self, cudnn: object, make: object, name: PlanName) -> Proposal:
        self.asked.append(str(name))
        return Proposal(name, 5, (), True)

    def build(
        self, cudnn: object, lowering: Lowering, name: PlanName, ordinal: int, identity: Any
    ) -> CudnnPlan | Decline:
        self.built.append(str(name))
        if self.gate:
            assert self.gate.wait(10)
        if self.fails:
            return Decline(Code.BUILD, "needs 300 registers")
        return CudnnPlan(lowering, ordinal, 640, identity, self.content)

    def rebuild(
        self, cudnn: object, content: bytes, bindings: Any, workspace: int, ordinal: int, identity: Any
    ) -> CudnnPlan | Decline:
        self.read.append(content)
        if self.rejects:
            return Decline(self.rejects_with, "cuDNN on a saved plan: BAD_PARAM")
        return CudnnPlan(Lowering(self.graph(), bindings), ordinal, workspace, identity, content)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    return Library(monkeypatch)


@pytest.fixture
def region() -> Region:
    return convolution(finish=bias)


def memory(nbytes: int) -> Any:
    return SimpleNamespace(close=lambda: None)


def refused_memory(nbytes: int) -> Any:
    raise MomentaryError("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")


def machine(store: Shelf, **changes: Any) -> Any:
    return SimpleNamespace(
        target=replace(Target.named("h200"), **changes), stream=7, store=store, allocate=memory
    )  # fmt: skip


def first(region: Region, device: Any) -> Candidate:
    found = CudnnEngine().candidates(region, device, Policy())
    assert not isinstance(found, Decline)
    return found[0]


def built(region: Region, device: Any) -> CudnnPlan:
    plan = CudnnEngine().build(first(region, device), device)
    assert isinstance(plan, CudnnPlan)
    return plan


def test_a_second_process_asks_and_builds_nothing(library: Library, region: Region) -> None:
    device = machine(Shelf())
    plan = built(region, device)
    again = built(convolution(finish=bias), device)
    assert (library.asked, library.built, library.read) == (["heuristics"], ["eng44_k24=2"], [CONTENT])
    assert (again.bindings, again.workspace_bytes, again.content) == (plan.bindings, plan.workspace_bytes, CONTENT)
    assert device.store.kinds() == ["cudnn-plan", "cudnn-proposals"]


def test_what_is_kept_of_the_heuristics_is_what_they_said(library: Library, region: Region) -> None:
    device = machine(Shelf())
    asked, kept = (CudnnEngine().candidates(region, device, Policy()) for _ in range(2))
    assert asked == kept
    assert library.asked == ["heuristics"]


def test_a_plan_that_there_is_no_memory_to_read_stays(library: Library, region: Region) -> None:
    device = machine(Shelf())
    built(region, device)
    library.rejects, library.rejects_with = True, Code.TRANSIENT
    answer = CudnnEngine().build(first(region, device), device)
    assert isinstance(answer, Decline)
    assert answer.code is Code.TRANSIENT
    assert "cudnn-plan" in device.store.kinds()
    library.rejects = False
    built(region, device)
    assert library.built == ["eng44_k24=2"]


@pytest.mark.parametrize(
    "changes", [{"name": "h100"}, {"sm_count": 114}, {"compute_capability": (10, 0)}, {"versions": {"driver": "590.1"}}]
)
def test_another_machine_finds_nothing(library: Library, region: Region, changes: dict[str, Any]) -> None:
    store = Shelf()
    built(region, machine(store))
    built(region, machine(store, **changes))
    assert (len(library.asked), len(library.built), library.read) == (2, 2, [])


@pytest.mark.parametrize("attribute", ["backend_version", "__version__"])
def test_another_version_finds_nothing(
    library: Library, region: Region, attribute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cudnn

    device = machine(Shelf())
    content = CudnnEngine().save(first(region, device), built(region, device))
    monkeypatch.setattr(cudnn, attribute, "1.99" if attribute == "__version__" else lambda: 92800)
    again = CudnnEngine().restore(first(region, device), content, device)
    assert isinstance(again, Decline)
    assert again.code == Code.VERSION
    built(region, device)
    assert (len(library.built), library.read) == (2, [])


def test_another_region_or_layout_finds_nothing(library: Library) -> None:
    device = machine(Shelf())
    for region in (convolution(finish=bias), convolution((3, 24, 9, 8), finish=bias), convolution()):
        built(region, device)
    assert (len(library.asked), len(library.built)) == (3, 3)


def test_a_failed_build_leaves_no_entry(library: Library, region: Region) -> None:
    device = machine(Shelf())
    library.fails = True
    answer = CudnnEngine().build(first(region, device), device)
    assert isinstance(answer, Decline)
    assert device.store.kinds() == ["cudnn-proposals"]
    library.fails = False
    built(region, device)
    assert len(library.built) == 2


def test_what_cudnn_rejects_while_a_capture_is_in_the_way_stays_as_it_was(library: Library, region: Region) -> None:
    """A kernel that may not be loaded is to cuDNN a plan that it does not support."""
    device = machine(Shelf())
    built(region, device)
    before, candidate = dict(device.store.kept), first(region, device)
    device.allocate, library.rejects, library.rejects_with, library.fails = refused_memory, True, Code.PATTERN, True
    kept = CudnnEngine().build(candidate, device)
    device.store.kept.clear()
    fresh = CudnnEngine().build(candidate, device)
    for answer in (kept, fresh):
        assert isinstance(answer, Decline)
        assert answer.code is Code.TRANSIENT
        assert "at that moment CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" in answer.reason
    device.store.kept.update(before)
    device.allocate, library.rejects, library.fails = memory, False, False
    assert isinstance(CudnnEngine().build(candidate, device), CudnnPlan)
    assert device.store.kept == before


def test_a_plan_that_cannot_be_written_down_is_built_each_time(library: Library, region: Region) -> None:
    device = machine(Shelf())
    library.content = b""
    plan = built(region, device)
    assert "cudnn-plan" not in device.store.kinds()
    restored = CudnnEngine().restore(first(region, device), CudnnEngine().save(first(region, device), plan), device)
    assert isinstance(restored, CudnnPlan)
    assert (len(library.built), library.read) == (2, [])


def test_a_kept_plan_that_cudnn_rejects_is_dropped_and_built_anew(library: Library, region: Region) -> None:
    device = machine(Shelf())
    built(region, device)
    library.rejects = True
    with pytest.warns(RuntimeWarning, match=r"plan eng44_k24=2 of conv\+bias is dropped .* BAD_PARAM"):
        built(region, device)
    assert (len(library.built), device.store.calls["drop", "cudnn-plan"]) == (2, 1)
    assert device.store.kinds() == ["cudnn-plan", "cudnn-proposals"]
    library.rejects = False
    built(region, device)
    assert len(library.built) == 2


@pytest.mark.parametrize("kind", ["cudnn-plan", "cudnn-proposals"])
@pytest.mark.parametrize("content", [b"", b"[", b"[[1, 2]]", b'[["eng4", -1, [], true]]', b'{"a": 1}', b"\xff\xfe"])
def test_a_spoilt_entry_is_dropped_and_asked_for_anew(
    library: Library, region: Region, kind: str, content: bytes
) -> None:
    device = machine(Shelf())
    built(region, device)
    spoilt = next(k for k in device.store.kept if k[0] == kind)
    sound, device.store.kept[spoilt] = device.store.kept[spoilt], content
    with pytest.warns(RuntimeWarning, match="is dropped"):
        built(region, device)
    assert device.store.kept[spoilt] == sound
    assert library.read == ([] if kind == "cudnn-plan" else [CONTENT])


def test_threads_that_want_one_plan_build_it_once(library: Library, region: Region) -> None:
    device, engine = machine(Shelf()), CudnnEngine()
    candidate, library.gate = first(region, device), threading.Event()
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(engine.build, candidate, device) for _ in range(8)]
        threading.Timer(0.05, library.gate.set).start()
        assert all(isinstance(a.result(10), CudnnPlan) for a in answers)
    assert len(library.built) == 1


def test_threads_that_ask_of_many_regions(library: Library) -> None:
    device, engine = machine(Shelf()), CudnnEngine()
    regions = [convolution((3, 24, 9, 7 + i // 2), finish=bias) for i in range(16)]

    def work(region: Region) -> object:
        found = engine.candidates(region, device, Policy())
        assert not isinstance(found, Decline)
        return engine.build(found[0], device)

    with ThreadPoolExecutor(8) as pool:
        assert all(isinstance(p, CudnnPlan) for p in pool.map(work, regions))
    assert (len(library.asked), len(library.built)) == (8, 8)


def test_a_saved_plan_is_restored_without_a_recipe(library: Library, region: Region) -> None:
    device, engine = machine(Shelf()), CudnnEngine()
    plan = built(region, device)
    bare = Candidate("cudnn", convolution(finish=bias), "eng44_k24=2", 0, "")
    content = engine.save(bare, plan)
    again = engine.restore(bare, content, device)
    assert isinstance(again, CudnnPlan)
    assert (again.bindings, again.workspace_bytes, len(library.built)) == (BINDINGS, 640, 1)
    assert engine.save(bare, again) == content
    for other in (replace(bare, name="eng0"), replace(bare, region=convolution())):
        answer = engine.restore(other, content, device)
        assert isinstance(answer, Decline)
        assert answer.code == Code.VERSION


def test_damaged_bytes_never_reach_cudnn(library: Library, region: Region) -> None:
    device, engine = machine(Shelf()), CudnnEngine()
    candidate = first(region, device)
    content = engine.save(candidate, built(region, device))
    library.read.clear()
    spoilt = [content[:size] for size in range(len(content))] + [content + b"\0"]
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        spoilt.append(bytes(flipped))
    for one in spoilt:
        answer = engine.restore(candidate, one, device)
        assert isinstance(answer, Decline)
        assert answer.code in (Code.BUILD, Code.VERSION)
    assert (library.read, len(library.built)) == ([], 1)


@pytest.mark.parametrize(
    "parts",
    [
        (),
        (b"{}",),
        (b"{}", b""),
        (b'{"bindings": [[1, 0]], "workspace": 0}',),
        (b'{"bindings": [[1, 0]], "workspace": 0}', b"", b""),
        (b'{"bindings": [[1, 0]], "workspace": -1}', b"p"),
        (b'{"bindings": [[1, 0]], "workspace": true}', b"p"),
        (b'{"bindings": [[1, 0]], "workspace": 1.5}', b"p"),
        (b'{"bindings": [[1, 4]], "workspace": 0}', b"p"),
        (b'{"bindings": [[1, 0, 2]], "workspace": 0}', b"p"),
        (b'{"bindings": [["1", 0]], "workspace": 0}', b"p"),
        (b'{"bindings": {"1": 0}, "workspace": 0}', b"p"),
        (b'{"bindings": [[1, 0]], "workspace": 0, "more": 1}', b"p"),
        (b"[" * 100_000, b"p"),
        (b"\xff", b"p"),
    ],
)
def test_sound_bytes_that_describe_no_plan_are_refused(region: Region, parts: tuple[bytes, ...]) -> None:
    assert len(region.inputs) + len(region.outputs) == 4
    answer = decode_plan(pack({"a": "b"}, *parts), {"a": "b"}, region)
    assert isinstance(answer, Decline)
    assert answer.code == Code.BUILD


def test_plans_and_answers_are_read_as_written(region: Region) -> None:
    answers = [
        Proposal(PlanName.parse("eng4_k24=2"), 1 << 40, ("A", "B"), False),
        Proposal(PlanName(0, ()), 0, (), True),
    ]
    assert decode_proposals(encode_proposals(answers)) == answers
    plan = CudnnPlan(Lowering(SimpleNamespace(_execute=None), BINDINGS), 0, 12, {"x": "y"}, CONTENT)
    found = decode_plan(encode_plan(plan), {"x": "y"}, region)
    assert not isinstance(found, Decline)
    assert (found.bindings, found.workspace, found.content) == (BINDINGS, 12, CONTENT)


def test_a_name_is_looked_up_and_heuristics_are_not_asked(library: Library, region: Region) -> None:
    device = machine(Shelf())
    one = CudnnEngine().named(region, "eng7_k24=1", device, Policy())
    assert isinstance(one, Candidate)
    assert (one.name, one.workspace_bytes, library.asked) == ("eng7_k24=1", 5, ["eng7_k24=1"])
    known = CudnnEngine().candidates(region, device, Policy())
    assert not isinstance(known, Decline)
    library.asked.clear()
    assert CudnnEngine().named(region, known[2].name, device, Policy()) == known[2]
    assert library.asked == []


@pytest.mark.parametrize("name", ["", "eng", "eng4_k43=1", "algo66_tile128x128", "eng4\n"])
def test_a_name_that_is_none_is_declined(library: Library, region: Region, name: str) -> None:
    device = machine(Shelf())
    assert isinstance(CudnnEngine().named(region, name, device, Policy()), Decline)
    assert isinstance(CudnnEngine().build(Candidate("cudnn", region, name, 0, ""), device), Decline)
    assert (library.asked, library.built) == ([], [])


def test_a_name_does_not_lower_the_precision(library: Library) -> None:
    exact = convolution(dtype=float32, finish=bias)
    answer = CudnnEngine().named(exact, "eng51", machine(Shelf()), Policy())
    assert isinstance(answer, Decline)
    assert answer.code == Code.PRECISION
    assert CudnnEngine().named(exact, "eng51", machine(Shelf()), Policy(precision="tf32"))


class Graph:
    """Stands in for the frontend's graph object that a plan is read into."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.content = b""

    def deserialize(self, content: bytearray) -> None:
        if content == b"foreign":
            raise RuntimeError("CUDNN_STATUS_BAD_PARAM")
        self.content = bytes(content)

    def _execute(self, pointers: dict[int, int], workspace: int, handle: int) -> None:
        assert (pointers, workspace, handle) == ({1: 100, 2: 200, 9: 300}, 4096, 77)


OWN = 55


class Lent:
    """Handles, and a device that lends a stream: both write down what they are asked."""

    def __init__(self, ordinal: int = 3) -> None:
        self.events: list[object] = []
        self.target = SimpleNamespace(ordinal=ordinal)

    def on(self, ordinal: int, stream: int) -> int:
        assert ordinal == self.target.ordinal
        self.events.append(stream)
        return 77

    @contextmanager
    def capturing(self) -> Iterator[int]:
        yield OWN
        self.events.append("free")


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> Lent:
    made = Lent()
    monkeypatch.setattr(plans, "HANDLES", made)
    monkeypatch.setattr(plans, "begin_capture", lambda stream: made.events.append(("begin", stream)))
    monkeypatch.setattr(plans, "end_capture", lambda stream: made.events.append(("end", stream)) is None)
    return made


READ = [OWN, ("begin", OWN), ("end", OWN), "free"]


def test_reading_makes_no_operation_graph_and_captures_a_stream_that_is_lent(lent: Lent) -> None:
    """A frontend that finds its stream captured runs nothing; what it ran would be thrown away."""
    frontend = SimpleNamespace(pygraph=Graph)
    plan = plans.rebuild(frontend, CONTENT, BINDINGS, 640, cast("Device", lent), {})
    assert isinstance(plan, CudnnPlan)
    assert (lent.events, plan.content) == (READ, CONTENT)
    plan.enqueue([100, 200, 300], 7, 4096)
    assert lent.events == [*READ, 7]


def test_the_stream_is_given_back_by_a_plan_that_cannot_be_read(lent: Lent) -> None:
    answer = plans.rebuild(SimpleNamespace(pygraph=Graph), b"foreign", BINDINGS, 640, cast("Device", lent), {})
    assert isinstance(answer, Decline)
    assert "BAD_PARAM" in answer.reason
    assert lent.events == READ[:3]


@pytest.mark.parametrize(("broken", "is_read"), [(1, True), (plans.READINGS - 1, True), (plans.READINGS, False)])
def test_a_capture_that_another_thread_ended_is_begun_again(
    lent: Lent, broken: int, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Graph):
        def deserialize(self, content: bytearray) -> None:
            if ended[-1] < broken:
                raise RuntimeError("cudaErrorStreamCaptureInvalidated")
            super().deserialize(content)

    ended = [0]

    def end(stream: int) -> bool:
        ended.append(len(ended))
        return ended[-1] > broken

    monkeypatch.setattr(plans, "end_capture", end)
    answer = plans.rebuild(SimpleNamespace(pygraph=Broken), CONTENT, BINDINGS, 640, cast("Device", lent), {})
    assert isinstance(answer, CudnnPlan) is is_read
    assert len(ended) - 1 == min(broken + 1, plans.READINGS)


def test_the_real_library_writes_a_plan_down_without_a_device(tmp_path: Path) -> None:
    """A precompiled plan is built and written; reading it needs a handle, so that here it is dropped and built anew."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.engines.cudnn.offline_plan", str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    told = json.loads(made.stdout)
    assert told["workspace"] == told["proposed"]
    assert told["same"] == [True, True]
    assert "CUDNN_ATTR_EXECUTION_PLAN_HANDLE" in told["warning"]
    assert told["bytes"] > 1000
    assert told["entries"] == ["cudnn-plan", "cudnn-proposals"]
    assert told["workspaces"] == told["by name"] == told["at once"]
    assert len(told["workspaces"]) > 20
