"""Trying a plan in a child process first, so that one that faults takes the child's device context with it, not ours.

The verdict is remembered in the device's store; what only says something of the moment (no memory, no child) is not.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pkgutil import resolve_name
from typing import Any

import numpy as np

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Device, DevicePlan, Engine, HostPlan, Policy, forget
from graphdnn.errors import GraphError, OutOfMemoryError
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import ALIGNMENT, Region
from graphdnn.runtime.child import Child, Ended, Parent

PROBE_SECONDS = 60.0
"""How long building and running one plan may take; building at run time takes up to a second."""

WORK = "graphdnn.runtime.probe:work"
"""What a child does that is asked such questions."""

KIND = "probe"
"""Kind of the store's entries."""

GIVEN_UP = Ended("it was given up when timing ended", by_chance=True)

Message = dict[str, Any]


class ChildProber:
    """Tries plans in one child process, started at the first question, and anew after it died.

    `engines` says where each engine lives, as "module:attribute", since that is how the child finds it.  A verdict
    holds while `environment` (the device, the versions of its libraries and of graphdnn) stays the same.  Where one
    plan of a library's numbered engine passed, those that differ from it in knobs alone pass for the same region.
    """

    def __init__(
        self,
        engines: Mapping[str, str],
        device: Device,
        policy: Policy,
        environment: Mapping[str, str],
        seconds: float = PROBE_SECONDS,
    ) -> None:
        self._engines = engines
        self._device = device
        self._policy = policy
        self._environment = environment
        self._seconds = seconds
        self._child: Child | None = None
        self._unstartable: Ended | None = None
        self._sent: Graph | None = None
        self._passed: set[tuple[str, str, str]] = set()
        self._lock = threading.Lock()

    def probe(
        self, region: Region, engine: str, plan: str, is_over: Callable[[], bool] | None = None
    ) -> Decline | None:
        """Why this plan of the engine is not to be run here, or None where it ran to its end in the child.

        Once `is_over` comes true nobody waits for the child any more.
        """
        key = self._key(region, engine, plan)
        content = self._device.store.get(KIND, key)
        known = recalled(content) if content is not None else None
        if known is not None:
            return decline_of(known, engine, plan)
        if content is not None:
            forget(self._device.store, KIND, key, f"trial of {engine}:{plan}", "it does not say how it ended")
        kin = (engine, region.key, plan.split("_")[0])
        with self._lock:
            if kin in self._passed:
                return None
            answer = self._ask(region, engine, plan, is_over)
            if isinstance(answer, dict) and answer["verdict"] == "passed":
                self._passed.add(kin)
        if isinstance(answer, Ended):
            answer = {"verdict": "unable" if answer.by_chance else "failed", "reason": answer.how}
        if answer["verdict"] in ("passed", "failed"):
            self._device.store.put(KIND, key, json.dumps(answer).encode())
        return decline_of(answer, engine, plan)

    def close(self) -> None:
        """Ends the child, if there is one; a later question starts another."""
        if self._child is not None:
            self._child.close()
        self._child = self._sent = None

    def __enter__(self) -> ChildProber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _key(self, region: Region, engine: str, plan: str) -> str:
        parts = (self._engines[engine], plan, region.key, self._policy.precision, dict(self._environment))
        return json.dumps(parts, sort_keys=True)

    def _ask(self, region: Region, engine: str, plan: str, is_over: Callable[[], bool] | None) -> Message | Ended:
        if is_over is not None and is_over():
            return GIVEN_UP
        if self._unstartable is not None:
            return self._unstartable
        if self._child is None:
            started = Child.start(WORK)
            if isinstance(started, Ended):
                self._unstartable = started
                return started
            self._child = started
        question = asked(region, self._engines[engine], plan, self._policy, self._device, self._sent)
        answer = self._child.ask(question, self._seconds, is_over)
        if isinstance(answer, Ended) or answer["verdict"] == "failed":
            self.close()
        else:
            self._sent = region.graph
        return GIVEN_UP if isinstance(answer, Ended) and is_over is not None and is_over() else answer


def asked(
    region: Region, engine: str, plan: str, policy: Policy, device: Device, sent: Graph | None, *, runs: bool = True
) -> Message:
    """The question to a child that was `sent` a graph before: does the plan of the engine at this place build, and run
    where it `runs`?"""
    target, store = device.target, device.store
    return {
        "graph": None if region.graph is sent else region.graph.to_json(),
        "nodes": [n.name for n in region.nodes],
        "key": region.key,
        "engine": engine,
        "plan": plan,
        "policy": asdict(policy),
        "device": [target.kind, target.ordinal, str(getattr(store, "directory", ""))],
        "runs": runs,
    }


def recalled(content: bytes) -> Message | None:
    """An earlier answer of a child; None where the bytes are none."""
    try:
        match json.loads(content):
            case {"verdict": "passed"} as answer:
                return answer
            case {"verdict": "failed", "reason": str() as reason} as answer:
                return {**answer, "reason": f"{reason} (tried earlier; `graphdnn cache clear` forgets it)"}
    except (ValueError, RecursionError):
        pass
    return None


def decline_of(answer: Message, engine: str, plan: str) -> Decline | None:
    """The answer of the child in the compiler's terms."""
    verdict, reason = answer["verdict"], answer.get("reason", "")
    if verdict == "passed":
        return None
    if verdict == "declined":
        return Decline.of_row(answer["decline"])
    if verdict == "failed":
        return Decline(Code.RUN, f"plan {plan} of {engine} failed in a child process: {reason}")
    return Decline(
        Code.TRANSIENT,
        f"plan {plan} of {engine} has no committed run behind it, and could not be tried in a child process: {reason}",
    )


def work(parent: Parent) -> None:
    """The child's side: answers questions until a plan fails, since a device may be of no use after that."""
    graph: Graph | None = None
    while (question := parent.receive()) is not None:
        try:
            graph = Graph.from_json(question["graph"]) if question["graph"] is not None else graph
            answer = tried(region_of(graph, question), question)
        except Exception as error:  # no device or no engine here, whatever says so: the plan is not to blame
            answer = {"verdict": "unable", "reason": str(error)}
        parent.send(answer)
        if answer["verdict"] == "failed":
            return


def region_of(graph: Graph | None, question: Message) -> Region:
    """The region that is asked about.  Raises GraphError where it is not the parent's."""
    assert graph is not None
    names = set(question["nodes"])
    region = Region.of(graph, [n for n in graph.nodes if n.name in names])
    if region.key != question["key"]:
        raise GraphError(f"graph {graph.name}: {region.pattern} is not what it was before it was written down")
    return region


def tried(region: Region, question: Message) -> Message:
    """The verdict on the plan that is asked about.

    Raises whatever says that there is no device or no engine here.
    """
    device, engine = opened(*question["device"]), loaded(question["engine"])
    try:
        return ran(region, question, engine, device)
    except (OutOfMemoryError, MemoryError) as error:
        return {"verdict": "unable", "reason": f"there was not enough memory ({error})"}
    except Exception as error:
        return {"verdict": "failed", "reason": f"{type(error).__name__}: {error}"}


def ran(region: Region, question: Message, engine: Engine, device: Device) -> Message:
    """Builds the plan, and runs it where that is asked for; whatever it raises is the plan's fault, but for a lack of
    memory."""
    with device:
        candidate = engine.named(region, question["plan"], device, Policy(**question["policy"]))
        plan = candidate if isinstance(candidate, Decline) else engine.build(candidate, device)
        if isinstance(plan, Decline):
            return {"verdict": "declined", "decline": plan.row}
        if not question["runs"]:
            return {"verdict": "built"}
        if isinstance(plan, HostPlan):
            plan.run([np.zeros(v.type.shape, v.type.dtype.numpy) for v in region.inputs])
            return {"verdict": "passed"}
        run_once(region, plan, device, scratch(region, plan, device))
        return {"verdict": "passed"}


@functools.cache
def opened(kind: str, ordinal: int, cache_dir: str) -> Device:
    """The device that the parent works on, caching where it does."""
    from graphdnn.runtime.device import device_for

    return device_for(kind, ordinal, cache_dir)


@functools.cache
def loaded(place: str) -> Engine:
    """The engine at a place such as "graphdnn.engines.cudnn.engine:CudnnEngine", made once in this process."""
    engine: Engine = resolve_name(place)()
    return engine


def scratch(region: Region, plan: DevicePlan, device: Device) -> list[Any]:
    """Memory for each tensor, with room to lie off its start, and the plan's own."""
    sizes = [v.type.span_bytes + ALIGNMENT for v in (*region.inputs, *region.outputs)]
    return [device.allocate(n) for n in (*sizes, max(plan.workspace_bytes, 1))]


def run_once(region: Region, plan: DevicePlan, device: Device, buffers: Sequence[Any]) -> None:
    """Runs a plan on zeros, each tensor aligned no better than the region promises, and waits for it.

    Zeros, since lengths and indices in the memory must not lead outside.
    """
    shifts = [*region.alignments, *(ALIGNMENT for _ in region.outputs), 0]
    *addresses, workspace = [b.handle + shift for b, shift in zip(buffers, shifts, strict=True)]
    for buffer, value in zip(buffers[:-1], (*region.inputs, *region.outputs), strict=True):
        device.fill(buffer.handle, 0, value.type.span_bytes + ALIGNMENT, device.stream)
    plan.enqueue(addresses, device.stream, workspace)
    device.synchronize()
