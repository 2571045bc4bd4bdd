"""What becomes of one plan: ruled out by an option, built, run once on scratch memory, or why not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Self

import numpy as np

from graphdnn.answer import Code, Decline, Fix
from graphdnn.engines.contract import Candidate, Device, Engine, HostPlan, Plan, Policy, Prober, Support, aligned
from graphdnn.engines.reference import ReferencePlan
from graphdnn.errors import ContextLostError, ExecutionError, MomentaryError

RUN_ERRORS = (ExecutionError, RuntimeError, MemoryError)
"""What a plan that cannot run raises.  Engines make ExecutionErrors of what their libraries raise; a RuntimeError that
one lets through, as bindings raise it, ends that plan too, and neither the process nor the choice among the others."""

TRYING = "graphdnn.trying"
"""Audit event before a plan is built, and again before its first run: engine, plan, pattern of the region.  Whoever
watches a process that dies in one of them knows which."""


@dataclass(frozen=True)
class Limits:
    """What the options allow a plan.

    - `workspace` is workspace_limit: the most bytes of scratch of any plan.
    - `memory` is the most bytes of the arena, which holds intermediates and scratch, under memory_limit; `scratch` is
      what intermediates leave of it for a plan.
    - `arenas` are the arenas that were planned before and exceeded `memory`: for each the scratch that plans were
      allowed, and its bytes.
    - `disabled` are plans as "engine:name", or the beginning of the name up to an underscore: "cudnn:eng8".
    """

    workspace: int | None = None
    deterministic: bool = False
    memory: int | None = None
    scratch: int | None = None
    arenas: tuple[tuple[int | None, int], ...] = ()
    disabled: tuple[str, ...] = ()

    @staticmethod
    def of(policy: Policy) -> Limits:
        return Limits(policy.workspace_limit, policy.deterministic)

    @property
    def most_scratch(self) -> int | None:
        """Bytes of scratch that a plan may take; None without a limit."""
        return min((n for n in (self.workspace, self.scratch) if n is not None), default=None)

    @property
    def left(self) -> int | None:
        """Bytes that a plan may take of the memory for the arena."""
        return min((n for n in (self.memory, self.scratch) if n is not None), default=None)

    def forbids(self, workspace_bytes: int) -> bool:
        """Whether so much scratch is too much."""
        return self.most_scratch is not None and workspace_bytes > self.most_scratch

    def excludes(self, workspace_bytes: int, deterministic: bool) -> str:
        """Which option rules such a plan out, in words; empty where none does."""
        if self.workspace is not None and workspace_bytes > self.workspace:
            return f"needs {workspace_bytes} bytes of scratch; workspace_limit is {self.workspace}"
        if self.scratch is not None and workspace_bytes > self.scratch:
            return f"needs {workspace_bytes} bytes of scratch; memory_limit={self.memory} leaves {self.left}"
        if self.deterministic and not deterministic:
            return "gives other bits from run to run; deterministic=True is asked for"
        return ""

    def bars(self, candidate: Candidate) -> str:
        """Which option rules this plan out, in words; empty where none does."""
        name = self.disabling(candidate)
        if name is not None:
            return f'ruled out by disabled_plans=("{name}",)'
        return self.excludes(candidate.workspace_bytes, candidate.deterministic)

    def disabling(self, candidate: Candidate) -> str | None:
        """The entry of `disabled` that means this plan; whole parts of its name, so that eng8 is not eng80."""
        plan = f"{candidate.engine}:{candidate.name}"
        return next((d for d in self.disabled if plan == d or plan.startswith(f"{d}_")), None)

    def loosened(self, workspace_bytes: int, deterministic: bool) -> Fix:
        """The least change of the options that lets such a plan in."""
        if self.deterministic and not deterministic:
            return Fix("options", "deterministic", "True", "False")
        if self.workspace is not None and workspace_bytes > self.workspace:
            return Fix("options", "workspace_limit", str(self.workspace), str(workspace_bytes))
        enough = [arena for scratch, arena in self.arenas if scratch is None or workspace_bytes <= scratch]
        return Fix("options", "memory_limit", str(self.memory), str(min(enough, default=workspace_bytes)))


@dataclass(frozen=True)
class Tried:
    """A concrete plan and what became of it.

    `verdict` is "chosen", "slower" (timed, or never tried), "excluded", "failed" or "wrong".  A failure that
    `is_transient` says nothing of the plan: it counts for this compilation, and nobody may remember it.
    """

    candidate: Candidate
    verdict: str
    reason: str = ""
    measured_us: float | None = None
    is_transient: bool = False


@dataclass(frozen=True)
class Built:
    """A plan that was built, with the candidate as it turned out to be, and the kernels that one run launches."""

    candidate: Candidate
    plan: Plan
    kernels: int = 1


def within_limits(support: Support, engine: str, limits: Limits) -> Support | Decline:
    """The same "yes", or a decline where an option rules the plan out."""
    excluded = limits.excludes(support.workspace_bytes, support.deterministic)
    if not excluded:
        return support
    return Decline(Code.OPTION, f"{engine} {excluded}", limits.loosened(support.workspace_bytes, support.deterministic))


def announce(candidate: Candidate) -> None:
    """Raises the audit event TRYING."""
    sys.audit(TRYING, candidate.engine, candidate.name, candidate.region.pattern)


def built(
    engine: Engine,
    candidate: Candidate,
    device: Device,
    limits: Limits,
    prober: Prober | None = None,
    is_over: Callable[[], bool] | None = None,
) -> Built | Tried:
    """The plan made ready to run, or what kept it from that.  Plans of several threads may be built at once.

    Unknown plans are built and run where a fault does no harm first, until `is_over` comes true: a library may abort
    while it compiles, too, or hang.
    Raises ContextLostError where no plan runs on the device any more.
    """
    excluded = limits.bars(candidate)
    if excluded:
        return Tried(candidate, "excluded", excluded)
    if prober is not None and not candidate.is_known:
        refusal = prober.probe(candidate.region, candidate.engine, candidate.name, is_over)
        if refusal is not None:
            return failed(candidate, refusal)
    announce(candidate)
    try:
        with device:
            plan = engine.build(candidate, device)
    except (ExecutionError, MemoryError) as error:
        return failed(candidate, failure(error, "could not be built", candidate, device))
    except Exception as error:
        error.add_note(f"while {engine.name} built {candidate.name} for {candidate.region.pattern}")
        raise
    if isinstance(plan, Decline):
        return failed(candidate, plan)
    actual = as_built(candidate, plan)
    excluded = limits.bars(actual)
    return Tried(actual, "excluded", excluded) if excluded else Built(actual, plan)


def failure(error: Exception, what: str, candidate: Candidate, device: Device) -> Decline:
    """An error of a plan as a decline: `transient` where memory was lacking or a capture in the way, which says nothing
    of the plan.

    Raises ContextLostError, naming the plan, where no plan runs on the device any more: all that come after it would
    fail for this one's fault.
    """
    lost = error if isinstance(error, ContextLostError) else loss(device)
    if lost is not None:
        engine, name, pattern = candidate.engine, candidate.name, candidate.region.pattern
        of_plan = ContextLostError(f"plan {name} of {engine} for {pattern} {what}: {lost}")
        of_plan.plan = engine, name, pattern
        raise of_plan from error
    code = Code.TRANSIENT if isinstance(error, MomentaryError | MemoryError) else Code.RUN
    return Decline(code, f"{what}: {str(error) or type(error).__name__}")


def loss(device: Device) -> ContextLostError | None:
    """The error of a device whose context is lost, else None.

    Asked of the device itself, since libraries report a lost context by errors of their own, or not at all.
    """
    try:
        with device:
            device.synchronize()
    except ContextLostError as error:
        return error
    except ExecutionError:
        pass  # not the end of the device
    return None


def failed(candidate: Candidate, why: Decline) -> Tried:
    """The record of a plan that failed: transient where the reason says nothing of the plan."""
    if why.code is not Code.TRANSIENT:
        return Tried(candidate, "failed", str(why))
    return Tried(candidate, "failed", f"{why}; this failure is of the moment and not remembered", is_transient=True)


def as_built(candidate: Candidate, plan: Plan) -> Candidate:
    """The candidate with the scratch memory that its plan really asks for."""
    return candidate if isinstance(plan, HostPlan) else replace(candidate, workspace_bytes=plan.workspace_bytes)


class TrialMemory:
    """Device memory that plans run on for the first time, one after the other, in a context.

    One piece of it, as large as the largest plan so far needs: asking for memory anew for each tensor of each plan
    takes longer than the runs, and giving it back waits for the device.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._piece: Any = None
        self._nbytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def addresses(self, sizes: Sequence[int]) -> list[int]:
        """Addresses of pieces of these sizes, as aligned as memory of their own; what was left there is their content.

        Those given before are void.  Raises OutOfMemoryError where there is not enough memory.
        """
        *starts, nbytes = accumulate(map(aligned, sizes), initial=0)
        if self._piece is None or nbytes > self._nbytes:
            self._close()
            self._piece, self._nbytes = self.device.allocate(max(nbytes, 1)), nbytes
        return [self._piece.handle + start for start in starts]

    def _close(self) -> None:
        if self._piece is not None:
            self._piece.close()
            self._piece = None


def ran(one: Built, memory: TrialMemory) -> Built | Tried:
    """The same plan after its first run, or the failure.  Raises ContextLostError."""
    candidate = one.candidate
    announce(candidate)
    kernels = trial(one.plan, candidate, memory)
    return failed(candidate, kernels) if isinstance(kernels, Decline) else replace(one, kernels=kernels)


def trial(plan: Plan, candidate: Candidate, memory: TrialMemory) -> int | Decline:
    """Runs a plan once on scratch memory, so that lazy loading and first-run failures happen here.

    The memory is zero: lengths and indices in it must not lead outside.  Gives the kernels that one run launches, read
    off a capture of it.  Raises ContextLostError where no plan runs on the device after it.
    """
    region, device = candidate.region, memory.device
    if isinstance(plan, HostPlan):
        return host_trial(plan, candidate, device)
    sizes = [v.type.span_bytes for v in (*region.inputs, *region.outputs)]
    try:
        with device:
            *addresses, workspace = memory.addresses((*sizes, plan.workspace_bytes))
            if workspace > addresses[0]:
                device.fill(addresses[0], 0, workspace - addresses[0], device.stream)
            plan.enqueue(addresses, device.stream, workspace)
            device.synchronize()
            return device.capture(lambda stream: plan.enqueue(addresses, stream, workspace)).kernels
    except RUN_ERRORS as error:
        return failure(error, "failed on its first run", candidate, device)


def host_trial(plan: HostPlan, candidate: Candidate, device: Device) -> int | Decline:
    """The same of a plan in host memory, which counts as one kernel.

    The definition itself is spared: it loads nothing, no other plan stands behind it, and its run takes as long as the
    call that is to come.
    """
    if type(plan) is not ReferencePlan:
        try:
            plan.run([np.zeros(v.type.shape, v.type.dtype.numpy) for v in candidate.region.inputs])
        except RUN_ERRORS as error:
            return failure(error, "failed on its first run", candidate, device)
    return 1


def refusal_of(engine: str, tried: Sequence[Tried], limits: Limits) -> Decline:
    """Why none of an engine's plans is usable, from what became of each.

    Where an option rules one out the code is `OPTION`, whatever became of the others: without it there is a plan.
    """
    reasons = "; ".join(dict.fromkeys(f"{t.candidate.name}: {t.reason}" for t in tried)) or "it proposed none"
    excluded = [t.candidate for t in tried if t.verdict == "excluded"]
    code, fix = Code.BUILD, None
    if excluded:
        code, fix = Code.OPTION, enabling(excluded, limits)
    elif any(t.verdict == "wrong" for t in tried):
        code = Code.NUMBERS
    elif any(t.is_transient for t in tried):
        code = Code.TRANSIENT
    which = (
        f"{engine}'s only plan is not usable" if len(tried) == 1 else f"none of {engine}'s {len(tried)} plans is usable"
    )
    return Decline(code, f"{which}: {reasons}", fix)


def enabling(candidates: Sequence[Candidate], limits: Limits) -> Fix:
    """The least change of the options that lets one of these plans in, none of which the limits allow."""
    enabled = [c for c in candidates if limits.disabling(c) is None]
    if not enabled:
        name = limits.disabling(candidates[0])
        fewer = tuple(d for d in limits.disabled if d != name)
        return Fix("options", "disabled_plans", str(limits.disabled), str(fewer))
    steady = [c for c in enabled if c.deterministic or not limits.deterministic] or enabled
    least = min(steady, key=lambda c: c.workspace_bytes)
    return limits.loosened(least.workspace_bytes, least.deterministic)
