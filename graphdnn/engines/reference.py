"""The numpy engine: runs any region by the ops' definitions.  It is the CPU target and the oracle."""

from __future__ import annotations

from collections.abc import Sequence

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Candidate, Device, Plan, Policy, Support
from graphdnn.engines.cost import roofline_us
from graphdnn.engines.serialization import identity_of, pack, unknown_plan, unpack
from graphdnn.ir.evaluate import apply, operand
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array
from graphdnn.target import Target


class ReferenceEngine:
    """Runs a region node by node; every intermediate is rounded to its type, as `evaluate` does."""

    name = "reference"

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        if target.kind != "cpu":
            return Decline(Code.ARCHITECTURE, f"the reference engine computes on the CPU, and the target is {target}")
        return Support(roofline_us(region, target), "as each node's type", kernels=1, notes=("numpy, node by node",))

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate]:
        return (Candidate(self.name, region, "numpy", 0, "as each node's type"),)

    def build(self, candidate: Candidate, device: Device) -> ReferencePlan:
        return ReferencePlan(candidate.region)

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        (only,) = self.candidates(region, device, policy)
        return only if name == only.name else unknown_plan(self.name, name, region)

    def save(self, candidate: Candidate, plan: Plan) -> bytes:
        return pack(identity_of(candidate, {}))

    def restore(self, candidate: Candidate, content: bytes, device: Device) -> ReferencePlan | Decline:
        read = unpack(content, identity_of(candidate, {}))
        return read if isinstance(read, Decline) else ReferencePlan(candidate.region)


class ReferencePlan:
    """A region bound to its order of evaluation."""

    def __init__(self, region: Region) -> None:
        self._region = region

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        values: dict[Value, Array] = dict(zip(self._region.inputs, inputs, strict=True))
        for node in self._region.nodes:
            results = apply(node.op, [operand(v, values, False) for v in node.operands], node.result_types)
            values.update(zip(node.results, results, strict=True))
        return [values[v] for v in self._region.outputs]
