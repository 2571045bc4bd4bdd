"""The cuDNN engine: answers by rules without a device, proposes and builds plans on one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphdnn.answer import Code, Decline, Fix
from graphdnn.engines.contract import Candidate, Device, DevicePlan, HostPlan, Policy, Support
from graphdnn.engines.cudnn.anatomy import Anatomy
from graphdnn.engines.cudnn.errors import library
from graphdnn.engines.cudnn.estimate import engine_class, estimate, precision_of
from graphdnn.engines.cudnn.handles import HANDLES
from graphdnn.engines.cudnn.limits import ieee_float32
from graphdnn.engines.cudnn.lower import Lowering, lower
from graphdnn.engines.cudnn.plans import CudnnPlan, PlanName, Proposal, build, proposals
from graphdnn.engines.cudnn.support import objection
from graphdnn.engines.cudnn.tables import IEEE, WRONG, is_known
from graphdnn.engines.saved import identity, pack, unnamed, unpack
from graphdnn.ir.region import Region
from graphdnn.target import Target


@dataclass
class CudnnEngine:
    """One region as one cuDNN operation graph.  Plans of regions with equal keys are asked for once."""

    name: str = "cudnn"
    _proposed: dict[tuple[str, Target], list[Proposal]] = field(default_factory=dict)

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        """By the rules of support.py; nothing of cuDNN is loaded."""
        problem = objection(region, target, policy)
        return estimate(Anatomy(region), target, policy) if problem is None else problem

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
        """The plans of cuDNN's heuristics, then of its fallback list, best first."""
        problem = library()
        if problem is None:
            problem = objection(region, device.target, policy)
        if problem is not None:
            return problem
        found = self._proposals(region, device)
        if isinstance(found, Decline):
            return found
        anatomy = Anatomy(region)
        right = [p for p in found if is_right(anatomy, p.name.engine)]
        if not right:
            return Decline(Code.ATTRIBUTE, f"every engine that cuDNN proposes for {region.pattern} computes it wrongly")
        kept = [p for p in right if is_true_to(policy, anatomy, p.name.engine)]
        if not kept:
            names = ", ".join(dict.fromkeys(f"eng{p.name.engine}" for p in found))
            return Decline(
                Code.PRECISION,
                f"cuDNN proposes {names} for {region.pattern}, none of which is known to keep float32",
                Fix("options", "precision", "ieee", "tf32"),
            )
        return tuple(candidate(anatomy, p, device.target, policy) for p in kept)

    def build(self, candidate: Candidate, device: Device) -> CudnnPlan | Decline:
        """Compiles the plan, where it is not precompiled."""
        problem = library()
        if problem is not None:
            return problem
        import cudnn

        lowering = lowered(candidate.region, device)
        if isinstance(lowering, Decline):
            return lowering
        name = candidate.recipe
        assert isinstance(name, PlanName)
        return build(cudnn, lowering, name, device.target.ordinal)

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        found = self.candidates(region, device, policy)
        if isinstance(found, Decline):
            return found
        return next((c for c in found if c.name == name), unnamed(self.name, name, region))

    def save(self, candidate: Candidate, plan: DevicePlan | HostPlan) -> bytes:
        return pack(identity(candidate, {}))

    def restore(self, candidate: Candidate, content: bytes, device: Device) -> CudnnPlan | Decline:
        read = unpack(content, identity(candidate, {}))
        if isinstance(read, Decline):
            return read
        again = self.named(candidate.region, candidate.name, device, Policy())
        return again if isinstance(again, Decline) else self.build(again, device)

    def _proposals(self, region: Region, device: Device) -> list[Proposal] | Decline:
        key = (region.key, device.target)
        if key not in self._proposed:
            import cudnn

            found = proposals(cudnn, lambda: lowered(region, device))
            if isinstance(found, Decline):
                return found
            self._proposed[key] = found
        return self._proposed[key]


def lowered(region: Region, device: Device) -> Lowering | Decline:
    """The region's operation graph on a device."""
    frame = Anatomy(region).frame
    if isinstance(frame, Decline):
        return frame
    return lower(region, frame, handle=HANDLES.on(device.target.ordinal, device.stream))


def is_right(anatomy: Anatomy, engine: int) -> bool:
    """Whether no function of the region is one that this engine is known to get wrong."""
    wrong = WRONG.get((engine_class(anatomy), engine), frozenset())
    return not any(node.op.label in wrong for node in anatomy.region.nodes)


def is_true_to(policy: Policy, anatomy: Anatomy, engine: int) -> bool:
    """Whether an engine computes in the precision that is asked for."""
    matrix = [a for a in anatomy.anchors if ieee_float32(a, policy)]
    return not matrix or engine_class(anatomy) not in IEEE or engine in IEEE[engine_class(anatomy)]


def candidate(anatomy: Anatomy, proposal: Proposal, target: Target, policy: Policy) -> Candidate:
    """A proposal as the compiler sees it."""
    notes = proposal.notes
    if not is_known(target, engine_class(anatomy), proposal.name.engine):
        notes = (*notes, "no committed run of this engine stands behind it here")
    return Candidate(
        engine="cudnn",
        region=anatomy.region,
        name=str(proposal.name),
        workspace_bytes=proposal.workspace,
        precision=precision_of(anatomy, policy),
        deterministic=proposal.deterministic,
        notes=notes,
        recipe=proposal.name,
    )
