"""An engine whose plans go wrong in the ways that real ones do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, Device, DevicePlan, HostPlan, Policy, Support
from graphdnn.engines.reference import ReferencePlan
from graphdnn.engines.serialization import identity_of, pack, unknown_plan, unpack
from graphdnn.errors import ExecutionError
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array
from graphdnn.target import Target


@dataclass(frozen=True)
class Faulting:
    """A plan that builds and dies on its first run."""

    workspace_bytes: int = 512

    def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
        raise ExecutionError("the device reports an illegal memory access")


class HostFaulting(ReferencePlan):
    """A plan in host memory that builds and dies on its first run."""

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        raise RuntimeError("the library ran out of threads")


class FakeEngine:
    """Takes every region at no cost with the plans that `PLANS` names: "declines", "build", "run" or "host run" (dies
    on the device or in host memory) or "good"."""

    name = "fake"
    PLANS: ClassVar[tuple[str, ...]] = ("good",)
    BUILT: ClassVar[list[str]] = []

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        if self.PLANS == ("declines",):
            return Decline(Code.PATTERN, f"fake does not take {region.pattern}")
        return Support(0.0, "as each node's type")

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
        return [
            Candidate(self.name, region, f"plan{i}", 0, "as each node's type", recipe=kind)
            for i, kind in enumerate(self.PLANS)
        ]

    def build(self, candidate: Candidate, device: Device) -> DevicePlan | HostPlan | Decline:
        self.BUILT.append(candidate.name)
        if candidate.recipe == "build":
            return Decline(Code.BUILD, f"{candidate.name} needs 300 registers")
        if candidate.recipe == "host run":
            return HostFaulting(candidate.region)
        return Faulting() if candidate.recipe == "run" else ReferencePlan(candidate.region)

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        found = self.candidates(region, device, policy)
        if isinstance(found, Decline):
            return found
        return next((c for c in found if c.name == name), unknown_plan(self.name, name, region))

    def save(self, candidate: Candidate, plan: DevicePlan | HostPlan) -> bytes:
        return pack(identity_of(candidate, {}), str(candidate.recipe).encode())

    def restore(self, candidate: Candidate, content: bytes, device: Device) -> DevicePlan | HostPlan | Decline:
        read = unpack(content, identity_of(candidate, {}))
        if isinstance(read, Decline):
            return read
        return Faulting() if read == [b"run"] else ReferencePlan(candidate.region)
