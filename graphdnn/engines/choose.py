"""Which engine and which plan run a region.  The only place where engines are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from graphdnn.answer import Code, Decline, Fix
from graphdnn.engines.contract import Candidate, Device, DevicePlan, Engine, HostPlan, Policy, Support
from graphdnn.errors import ExecutionError
from graphdnn.ir.region import Region
from graphdnn.target import Target

Plan = DevicePlan | HostPlan


@dataclass(frozen=True)
class Tried:
    """A concrete plan and what became of it; `verdict` is "chosen", "slower" (never tried), "excluded" or "failed"."""

    candidate: Candidate
    verdict: str
    reason: str = ""


@dataclass(frozen=True)
class Chosen:
    """The plan that will run a region, the kernels that one run of it launches, and what was tried on the way to it."""

    engine: str
    candidate: Candidate
    plan: Plan
    kernels: int
    tried: tuple[Tried, ...]


@dataclass
class Desk:
    """Asks every engine once about every region and remembers the answers and the plans, by structure."""

    engines: Sequence[Engine]
    target: Target
    policy: Policy
    _answers: dict[str, dict[str, Support | Decline]] = field(default_factory=dict)
    _plans: dict[tuple[str, str], Chosen | Refused] = field(default_factory=dict)

    def answers(self, region: Region) -> dict[str, Support | Decline]:
        """Each engine's answer, in the engines' order."""
        key = region.key
        if key not in self._answers:
            self._answers[key] = {e.name: self._ask(e, region) for e in self.engines}
        return self._answers[key]

    def cheapest(self, region: Region) -> float | None:
        """Least estimate among the engines that take the region; None where none does."""
        costs = [a.estimated_us for a in self.answers(region).values() if isinstance(a, Support)]
        return min(costs, default=None)

    def tried(self, engine_name: str, region: Region) -> tuple[Tried, ...]:
        """The concrete plans of an engine for a region and what became of them; none where none was asked for."""
        found = self._plans.get((engine_name, region.key))
        return found.tried if found else ()

    def _ask(self, engine: Engine, region: Region) -> Support | Decline:
        answer = engine.supports(region, self.target, self.policy)
        return answer if isinstance(answer, Decline) else within_limits(answer, engine.name, self.policy)

    def overrule(self, region: Region, answers: dict[str, Support | Decline]) -> None:
        """What the engines' plans turned out to be, in place of what the engines said of this region."""
        self._answers[region.key] = dict(answers)

    def plan(self, engine_name: str, region: Region, device: Device) -> Chosen | Refused:
        """The engine's first plan that builds and runs; equal regions share one."""
        key = (engine_name, region.key)
        if key not in self._plans:
            engine = next(e for e in self.engines if e.name == engine_name)
            self._plans[key] = first_good(engine, region, device, self.policy)
        found = self._plans[key]
        if isinstance(found, Refused):
            self._answers[region.key][engine_name] = found.decline
        return found


@dataclass(frozen=True)
class Refused:
    """No plan of an engine worked, and why."""

    decline: Decline
    tried: tuple[Tried, ...] = ()


def within_limits(support: Support, engine: str, policy: Policy) -> Support | Decline:
    """The same "yes", or a decline where an option rules the plan out."""
    limit = policy.workspace_limit
    if limit is not None and support.workspace_bytes > limit:
        return Decline(
            Code.OPTION,
            f"{engine} needs {support.workspace_bytes} bytes of scratch here, and workspace_limit is {limit}",
            Fix("options", "workspace_limit", str(limit), str(support.workspace_bytes)),
        )
    if policy.deterministic and not support.deterministic:
        return Decline(
            Code.OPTION,
            f"{engine} gives other bits from run to run here, and deterministic=True is asked for",
            Fix("options", "deterministic", "True", "False"),
        )
    return support


def first_good(engine: Engine, region: Region, device: Device, policy: Policy) -> Chosen | Refused:
    """Goes through an engine's candidates in its own order until one builds and survives a run on scratch data."""
    candidates = engine.candidates(region, device, policy)
    if isinstance(candidates, Decline):
        return Refused(candidates)
    tried: list[Tried] = []
    rest = list(candidates)
    while rest:
        candidate = rest.pop(0)
        excluded = excluded_by(candidate, policy)
        if excluded:
            tried.append(Tried(candidate, "excluded", excluded))
            continue
        plan = engine.build(candidate, device)
        actual = candidate if isinstance(plan, Decline | HostPlan) else as_built(candidate, plan)
        excluded = excluded_by(actual, policy)
        if excluded:
            tried.append(Tried(actual, "excluded", excluded))
            continue
        kernels = plan if isinstance(plan, Decline) else trial(plan, candidate, device)
        if isinstance(plan, Decline) or isinstance(kernels, Decline):
            tried.append(Tried(candidate, "failed", str(kernels)))
            continue
        tried.append(Tried(actual, "chosen"))
        tried.extend(Tried(c, "slower", "its engine ranks it lower; not timed") for c in rest)
        return Chosen(engine.name, actual, plan, kernels, tuple(tried))
    reasons = "; ".join(dict.fromkeys(f"{t.candidate.name}: {t.reason}" for t in tried)) or "it proposed none"
    excluded_all = bool(tried) and all(t.verdict == "excluded" for t in tried)
    code, fix = (Code.OPTION, loosened(tried, policy)) if excluded_all else (Code.BUILD, None)
    return Refused(Decline(code, f"none of {engine.name}'s {len(tried)} plans is usable: {reasons}", fix), tuple(tried))


def as_built(candidate: Candidate, plan: DevicePlan) -> Candidate:
    """The candidate with the scratch memory that its plan really asks for."""
    return replace(candidate, workspace_bytes=plan.workspace_bytes)


def loosened(excluded: Sequence[Tried], policy: Policy) -> Fix:
    """The least change of the options that lets one of these plans in."""
    steady = [t.candidate for t in excluded if t.candidate.deterministic or not policy.deterministic]
    if not steady:
        return Fix("options", "deterministic", "True", "False")
    least = min(c.workspace_bytes for c in steady)
    return Fix("options", "workspace_limit", str(policy.workspace_limit), str(least))


def excluded_by(candidate: Candidate, policy: Policy) -> str:
    """Which option rules a plan out, in words; empty where none does."""
    limit = policy.workspace_limit
    if limit is not None and candidate.workspace_bytes > limit:
        return f"needs {candidate.workspace_bytes} bytes of scratch; workspace_limit is {limit}"
    if policy.deterministic and not candidate.deterministic:
        return "gives other bits from run to run; deterministic=True is asked for"
    return ""


def trial(plan: Plan, candidate: Candidate, device: Device) -> int | Decline:
    """Runs a device plan once on scratch memory, so that lazy loading and first-run failures happen here.

    The memory is zero: lengths and indices in it must not lead outside.  Gives the kernels that one run launches, read
    off a capture of it.
    """
    if isinstance(plan, HostPlan):
        return 1
    region = candidate.region
    sizes = [v.type.span_bytes for v in (*region.inputs, *region.outputs)] + [max(plan.workspace_bytes, 1)]
    buffers = [device.allocate(n) for n in sizes]
    *addresses, workspace = [b.handle for b in buffers]
    try:
        for address, size in zip(addresses, sizes[:-1], strict=True):
            device.fill(address, 0, size, device.stream)
        plan.enqueue(addresses, device.stream, workspace)
        device.synchronize()
        return device.capture(lambda stream: plan.enqueue(addresses, stream, workspace)).kernels
    except ExecutionError as error:
        return Decline(Code.RUN, f"failed on its first run: {error}")
    finally:
        for buffer in buffers:
            buffer.close()
