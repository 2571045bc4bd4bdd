"""Concrete plans: what a plan is called, what is known of it before it is built, and how it is run."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Device
from graphdnn.engines.cudnn.errors import attempt, failure, frontend_errors, needed_workspace
from graphdnn.engines.cudnn.frames import CACHE_SIZE
from graphdnn.engines.cudnn.handles import HANDLES
from graphdnn.engines.cudnn.lower import Lowering
from graphdnn.engines.serialization import Identity
from graphdnn.relaxed import let_go
from graphdnn.spelling import quoted

KNOBS: dict[int, str] = {
    1: "SWIZZLE",
    2: "TILE_SIZE",
    4: "EDGE",
    11: "MULTIPLY",
    12: "SPLIT_K_BUF",
    13: "TILEK",
    14: "STAGES",
    15: "REDUCTION_MODE",
    17: "SPLIT_K_SLC",
    18: "IDX_MODE",
    23: "SPECFILT",
    24: "KERNEL_CFG",
    25: "WORKSPACE",
    27: "TILE_CGA_M",
    28: "TILE_CGA_N",
    29: "BLOCK_SIZE",
    30: "OCCUPANCY",
    31: "ARRAY_SIZE_PER_THREAD",
    33: "SPLIT_COLS",
    34: "TILE_ROWS",
    35: "TILE_COLS",
    36: "LOAD_SIZE",
    37: "CTA_COUNT",
    38: "STREAM_K",
    39: "SPLIT_P_SLC",
    40: "TILE_M",
    41: "TILE_N",
    42: "WARP_SPEC_CFG",
}
"""The frontend's knob by cuDNN's number of it, as plan names have it."""

READINGS = 5
"""How often a plan is read before captures that others end count as a failure."""

Bindings = tuple[tuple[int, int], ...]
"""Which address goes to which tensor, as `Lowering` has it."""


@dataclass(frozen=True)
class PlanName:
    """What identifies a plan among those of one operation graph: an engine's number and its knobs."""

    engine: int
    knobs: tuple[tuple[int, int], ...]

    @staticmethod
    @lru_cache(CACHE_SIZE)
    def parse(text: str) -> PlanName:
        """From a name such as eng4_k24=2.  Raises ValueError for any other form."""
        head, *rest = text.split("_")
        found = re.fullmatch(r"eng(\d+)", head)
        pairs = [re.fullmatch(r"k(\d+)=(-?\d+)", part) for part in rest]
        if found is None or None in pairs:
            raise ValueError(f"plan name {quoted(text)}; a form such as eng4_k24=2 is needed")
        return PlanName(int(found.group(1)), tuple((int(p.group(1)), int(p.group(2))) for p in pairs if p))

    @property
    def is_settable(self) -> bool:
        """Whether the frontend has a name for every knob, so that the plan can be asked for."""
        return all(k in KNOBS for k, _ in self.knobs)

    def __str__(self) -> str:
        return "_".join((f"eng{self.engine}", *(f"k{k}={v}" for k, v in self.knobs)))


@dataclass(frozen=True)
class Proposal:
    """A plan that heuristics propose, with what is known before it is built."""

    name: PlanName
    workspace: int
    notes: tuple[str, ...]
    deterministic: bool


Make = Callable[[], Lowering | Decline]
"""Gives a fresh operation graph: asking one about its plans uses it up."""


def proposals(cudnn: Any, make: Make) -> list[Proposal] | Decline:
    """The plans that the heuristics propose, then those of the fallback list, best first, each once."""
    lowering = make()
    if isinstance(lowering, Decline):
        return lowering
    modes = [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]
    asked = attempt(lambda: lowering.graph.create_execution_plans(modes), "the heuristics")
    return asked if isinstance(asked, Decline) else described(cudnn, make, lowering.graph)


def proposal(cudnn: Any, make: Make, name: PlanName) -> Proposal | Decline:
    """The plan of this name as a proposal, without asking the heuristics."""
    lowering = make()
    if isinstance(lowering, Decline):
        return lowering
    asked = attempt(lambda: lowering.graph.create_execution_plan(name.engine, knobs_of(cudnn, name)), str(name))
    if isinstance(asked, Decline):
        return asked
    found = described(cudnn, make, lowering.graph)
    return found if isinstance(found, Decline) else replace(found[0], name=name)


def described(cudnn: Any, make: Make, graph: Any) -> list[Proposal] | Decline:
    """The plans of an operation graph that can be asked for again by name, with workspace and determinism.

    The frontend tells neither before a plan is built, and building may compile for a second.  So both are read off a
    refusal: under a workspace limit of -1 bytes and with nondeterministic plans deselected every plan refuses to build,
    and its message states the workspace that it requires, or that it was deselected.  The workspace of deselected ones
    is asked of a second graph.  Declines with `transient` where there was no memory to find out.
    """
    graph.deselect_numeric_notes([cudnn.numerical_note.NONDETERMINISTIC])
    graph.deselect_workspace_greater_than(-1)
    found: dict[PlanName, Proposal] = {}
    deselected: list[PlanName] = []
    for index in range(graph.get_execution_plan_count()):
        name = PlanName.parse(graph.get_plan_name_at_index(index))
        if name in found or not name.is_settable:
            continue
        refusal = refused(graph, index)
        if isinstance(refusal, Decline):
            return refusal
        notes = tuple(n.name for n in graph.get_behavior_notes_for_plan_at_index(index))
        need = needed_workspace(refusal)
        if need is None:
            deselected.append(name)
        found[name] = Proposal(name, need or 0, notes, "Deselecting" not in refusal)
    needs = workspaces(cudnn, make, deselected)
    if isinstance(needs, Decline):
        return needs
    for name, need in needs.items():
        found[name] = replace(found[name], workspace=need)
    return list(found.values())


def refused(graph: Any, index: int) -> str | Decline:
    """The message with which a plan refuses to build, empty where it builds; declines for a lack of memory."""
    answer = attempt(lambda: graph.build_plan_at_index(index), f"plan {index}")
    if not isinstance(answer, Decline):
        return ""
    return answer if answer.code is Code.TRANSIENT else answer.reason


def workspaces(cudnn: Any, make: Make, names: Sequence[PlanName]) -> dict[PlanName, int] | Decline:
    """Bytes of scratch of plans by name, read off refusals as in `described`, but with no plan deselected.

    One operation graph serves all; plans that do not state what they require are left out.
    """
    lowering = make() if names else None
    if not isinstance(lowering, Lowering):
        return {}
    graph = lowering.graph
    kept = []
    for name in names:
        before = graph.get_execution_plan_count()
        attempt(partial(graph.create_execution_plan, name.engine, knobs_of(cudnn, name)), str(name))
        kept += [name] * (graph.get_execution_plan_count() - before)
    graph.deselect_workspace_greater_than(-1)
    needs: dict[PlanName, int] = {}
    for index, name in enumerate(kept):
        refusal = refused(graph, index)
        if isinstance(refusal, Decline):
            return refusal
        need = needed_workspace(refusal)
        if need is not None:
            needs[name] = need
    return needs


def knobs_of(cudnn: Any, name: PlanName) -> dict[Any, int]:
    """The knobs as the frontend takes them."""
    return {getattr(cudnn.knob_type, KNOBS[k]): v for k, v in name.knobs}


class CudnnPlan:
    """A built plan, executed by tensor ids and addresses.

    `identity` says what it is a plan of (region, plan, device, versions), `content` the plan as cuDNN serializes it,
    empty where it cannot.  The frontend's object that holds the plan is destroyed with the thread's capture mode
    relaxed, since the driver calls in its destructor would otherwise end a capture that the caller has running.
    """

    def __init__(
        self, lowering: Lowering, ordinal: int, workspace_bytes: int, identity: Identity, content: bytes = b""
    ) -> None:
        self.workspace_bytes = workspace_bytes
        self.bindings = lowering.bindings
        self.identity = identity
        self.content = content
        self._held: list[Any] = [lowering.graph._execute]
        self._ordinal = ordinal
        weakref.finalize(self, let_go, self._held).atexit = False

    def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
        """Puts the plan on `stream`, with this thread's handle.  Raises ExecutionError where cuDNN refuses it."""
        pointers = {uid: addresses[index] for uid, index in self.bindings}
        try:
            self._held[0](pointers, workspace, HANDLES.on(self._ordinal, stream))
        except frontend_errors() as error:
            raise failure(error, self.identity["plan"]) from None


def build(cudnn: Any, lowering: Lowering, name: PlanName, ordinal: int, identity: Identity) -> CudnnPlan | Decline:
    """The plan of that name, ready to run."""

    def work() -> CudnnPlan:
        lowering.graph.create_execution_plan(name.engine, knobs_of(cudnn, name))
        lowering.graph.build_plan_at_index(0)
        workspace = max(0, lowering.graph.get_workspace_size_plan_at_index(0))
        written = attempt(lambda: bytes(lowering.graph.serialize()), str(name))
        return CudnnPlan(lowering, ordinal, workspace, identity, b"" if isinstance(written, Decline) else written)

    return attempt(work, str(name))


def rebuild(
    cudnn: Any, content: bytes, bindings: Bindings, workspace: int, device: Device, identity: Identity
) -> CudnnPlan | Decline:
    """A plan from what cuDNN serialized; no operation graph is made and nothing is compiled.

    The frontend's `deserialize` runs the plan once, in a capture of its own on the handle's stream: it allocates
    memory, waits for the device, and leaves the stream captured should it fail.  It does none of that on a stream that
    is being captured already, so it is called within a capture of ours, which is thrown away.  Where another thread
    ended that capture, by a wait for the whole device, the plan is read again, READINGS times at most.
    """
    ordinal = device.target.ordinal
    is_whole = True

    def work() -> CudnnPlan:
        nonlocal is_whole
        with device.capturing() as stream:
            handle = HANDLES.on(ordinal, stream)
            begin_capture(stream)
            try:
                graph = cudnn.pygraph(handle=handle)
                graph.deserialize(bytearray(content))
            finally:
                is_whole = end_capture(stream)
        return CudnnPlan(Lowering(graph, bindings), ordinal, workspace, identity, content)

    answer = attempt(work, "a saved plan")
    readings = 1
    while isinstance(answer, Decline) and not is_whole and readings < READINGS:
        answer = attempt(work, "a saved plan")
        readings += 1
    return answer


def begin_capture(stream: int) -> None:
    """Begins a capture in relaxed mode, in which this thread may still load kernels.  Raises RuntimeError."""
    from cuda.bindings import driver

    (status,) = driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    if status:
        raise RuntimeError(f"the driver captures no stream ({status.name})")


def end_capture(stream: int) -> bool:
    """Ends a capture and destroys the graph; False where something had ended the capture before."""
    from cuda.bindings import driver

    status, graph = driver.cuStreamEndCapture(stream)
    if not status:
        driver.cuGraphDestroy(graph)
    return not status
