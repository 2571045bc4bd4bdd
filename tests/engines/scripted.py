"""Engines whose plans do what a test says, on a clock that only they move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, Device, DevicePlan, HostPlan, Policy, Support
from graphdnn.engines.reference import ReferencePlan
from graphdnn.errors import ExecutionError
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array
from graphdnn.target import Target


class Clock:
    """Seconds, moved by whoever takes time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Act:
    """How a plan behaves: microseconds of a run, a factor on its numbers, and what goes wrong."""

    us: float = 10.0
    factor: float = 1.0
    fails: str = ""  # "build", "run", "library" (an error of its own), "later" (at its third run)
    workspace: int = 0
    deterministic: bool = True
    noise: float = 0.0
    is_known: bool = True
    times: Callable[[Region], float] | None = None  # microseconds by region, instead of `us`


@dataclass
class ScriptedPlan:
    """Computes a region by its definition, and then does as it was told.

    A first run on zeros, as every plan has one, takes no time: the clock tells of timing and of calls.
    """

    region: Region
    act: Act
    clock: Clock
    workspace_bytes: int
    runs: int = 0
    has_run: bool = False

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        is_first, self.has_run = not self.has_run and not any(np.any(a) for a in inputs), True
        self.runs += not is_first
        if self.act.fails == "run" or (self.act.fails == "later" and self.runs > 2):
            raise ExecutionError("the device reports an illegal memory access")
        if self.act.fails == "library":
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
        us = self.act.times(self.region) if self.act.times else self.act.us
        self.clock.now += 0.0 if is_first else 1e-6 * us
        scale = self.act.factor + self.act.noise * self.runs
        return [np.asarray(a * scale).astype(a.dtype) for a in ReferencePlan(self.region).run(inputs)]


@dataclass
class Scripted:
    """Takes every region whose pattern is in `takes` (every one if None) with the plans of `acts`."""

    name: str
    acts: Mapping[str, Act]
    clock: Clock
    estimated_us: float = 10.0
    takes: tuple[str, ...] | None = None
    built: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    refuses: Decline | None = None
    untimed_us: float | None = None

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        if self.takes is not None and region.pattern not in self.takes:
            return Decline(Code.PATTERN, f"{self.name} does not take {region.pattern}")
        least = min((a.workspace for a in self.acts.values()), default=0)
        return Support(self.estimated_us, "as each node's type", workspace_bytes=least, untimed_us=self.untimed_us)

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
        self.asked.append(region.pattern)
        if self.refuses is not None:
            return self.refuses
        return [self._candidate(region, name) for name in self.acts]

    def _candidate(self, region: Region, name: str) -> Candidate:
        act = self.acts[name]
        return Candidate(
            self.name, region, name, act.workspace, "as each node's type", act.deterministic, is_known=act.is_known
        )

    def build(self, candidate: Candidate, device: Device) -> DevicePlan | HostPlan | Decline:
        self.built.append(candidate.name)
        act = self.acts[candidate.name]
        if act.fails == "build":
            return Decline(Code.BUILD, f"{candidate.name} needs 300 registers")
        return ScriptedPlan(candidate.region, act, self.clock, act.workspace)

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        if name not in self.acts:
            return Decline(Code.BUILD, f"{self.name} has no plan {name}")
        return self._candidate(region, name)

    def save(self, candidate: Candidate, plan: DevicePlan | HostPlan) -> bytes:
        return b""

    def restore(self, candidate: Candidate, content: bytes, device: Device) -> DevicePlan | HostPlan | Decline:
        return self.build(candidate, device)
