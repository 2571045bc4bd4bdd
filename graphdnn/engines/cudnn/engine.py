"""The cuDNN engine: answers by rules without a device; on one, proposes plans, builds them and makes them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from graphdnn.answer import Code, Decline, Fix
from graphdnn.engines.answers import remembered
from graphdnn.engines.arithmetic import TF32
from graphdnn.engines.contract import Candidate, Device, Plan, Policy, Support, forget
from graphdnn.engines.cudnn.anatomy import Anatomy
from graphdnn.engines.cudnn.errors import attempt, library
from graphdnn.engines.cudnn.estimate import attention_blocks, engine_class, estimate, precision_of
from graphdnn.engines.cudnn.handles import HANDLES
from graphdnn.engines.cudnn.limits import ieee_float32, joins_beside
from graphdnn.engines.cudnn.lower import Lowering, lower
from graphdnn.engines.cudnn.plans import CudnnPlan, PlanName, Proposal, build, proposal, proposals, rebuild
from graphdnn.engines.cudnn.serialization import (
    PLANS,
    PROPOSALS,
    decode_plan,
    decode_proposals,
    encode_plan,
    encode_proposals,
    environment_here,
    proposals_key,
)
from graphdnn.engines.cudnn.support import objection
from graphdnn.engines.cudnn.tables import (
    CUTTING,
    IEEE,
    MISPLACING,
    SHORT_ATTENTION,
    SHORT_KEYS,
    WRONG,
    float32_precision,
    is_known,
    is_steady,
)
from graphdnn.engines.serialization import Identity, identity_of, key_text, unknown_plan
from graphdnn.errors import MomentaryError
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.region import Region
from graphdnn.once import Once
from graphdnn.target import Target

T = TypeVar("T")


@dataclass
class CudnnEngine:
    """One region as one cuDNN operation graph.

    Plans of regions with equal keys are asked for once, and once built, both the answer and the plans are kept in the
    device's store.  Safe to call from several threads, as long as the device is current in each.
    """

    name: str = "cudnn"
    _proposed: dict[str, list[Proposal]] = field(default_factory=dict)
    _once: Once = field(default_factory=Once)

    @remembered
    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        """By the rules of support.py; nothing of cuDNN is loaded."""
        anatomy = Anatomy(region)
        problem = objection(anatomy, target, policy)
        return estimate(anatomy, target, policy) if problem is None else problem

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
        """The plans of cuDNN's heuristics, then of its fallback list, best first but for what `in_order` moves."""
        problem = self._problem(region, device, policy)
        if problem is not None:
            return problem
        found = self._proposals(region, device)
        if isinstance(found, Decline):
            return found
        return trusted(Anatomy(region), in_order(region, found, device.target), device.target, policy)

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        """The plan of this name where it computes the region rightly and as exactly as asked.

        What heuristics said of it earlier is taken from the store; else an operation graph is asked, they are not.
        """
        problem = self._problem(region, device, policy)
        if problem is not None:
            return problem
        wanted = parsed(name, region)
        if isinstance(wanted, Decline):
            return wanted
        import cudnn

        known = self._remembered(proposals_key(cudnn, region, device.target), device) or []
        one: Proposal | Decline | None = next((p for p in known if p.name == wanted), None)
        if one is None:
            one = transient_if_device_is_busy(proposal(cudnn, lambda: lowered(region, device), wanted), device)
        if isinstance(one, Decline):
            return one
        found = trusted(Anatomy(region), [one], device.target, policy)
        return found if isinstance(found, Decline) else found[0]

    def build(self, candidate: Candidate, device: Device) -> CudnnPlan | Decline:
        """The plan from the store, else compiled, where it is not precompiled, and put there."""
        problem = library()
        if problem is not None:
            return problem
        identity = self._identity(candidate, device)
        return self._once(
            (PLANS, key_text(identity), device.target.ordinal), lambda: self._built(candidate, identity, device)
        )

    def save(self, candidate: Candidate, plan: Plan) -> bytes:
        """The plan as cuDNN writes it down, and how its tensors are bound."""
        assert isinstance(plan, CudnnPlan)
        return encode_plan(plan)

    def restore(self, candidate: Candidate, content: bytes, device: Device) -> CudnnPlan | Decline:
        """The plan read back; the few that cuDNN does not write down are compiled by their name."""
        problem = library()
        if problem is not None:
            return problem
        return self._read(candidate, content, self._identity(candidate, device), device)

    def _problem(self, region: Region, device: Device, policy: Policy) -> Decline | None:
        problem = library()
        answer = self.supports(region, device.target, policy) if problem is None else problem
        return answer if isinstance(answer, Decline) else None

    def _identity(self, candidate: Candidate, device: Device) -> dict[str, str]:
        import cudnn

        return identity_of(candidate, environment_here(cudnn, device.target))

    def _built(self, candidate: Candidate, identity: Identity, device: Device) -> CudnnPlan | Decline:
        key = key_text(identity)
        kept = device.store.get(PLANS, key)
        if kept is not None:
            plan = self._read(candidate, kept, identity, device)
            if not isinstance(plan, Decline) or plan.code is Code.TRANSIENT:
                return plan
            forget(device.store, PLANS, key, f"plan {candidate.name} of {candidate.region.pattern}", plan.reason)
        plan = compiled(candidate, identity, device)
        if not isinstance(plan, Decline) and plan.content:
            device.store.put(PLANS, key, encode_plan(plan))
        return plan

    def _read(self, candidate: Candidate, content: bytes, identity: Identity, device: Device) -> CudnnPlan | Decline:
        import cudnn

        found = decode_plan(content, identity, candidate.region)
        if isinstance(found, Decline):
            return found
        if not found.content:
            return compiled(candidate, identity, device)
        return transient_if_device_is_busy(
            rebuild(cudnn, found.content, found.bindings, found.workspace, device, identity), device
        )

    def _proposals(self, region: Region, device: Device) -> list[Proposal] | Decline:
        import cudnn

        key = proposals_key(cudnn, region, device.target)
        return self._once((PROPOSALS, key), lambda: self._asked(region, key, device))

    def _asked(self, region: Region, key: str, device: Device) -> list[Proposal] | Decline:
        import cudnn

        known = self._remembered(key, device)
        if known is not None:
            return known
        found = transient_if_device_is_busy(proposals(cudnn, lambda: lowered(region, device)), device)
        if not isinstance(found, Decline):
            self._proposed[key] = found
            device.store.put(PROPOSALS, key, encode_proposals(found))
        return found

    def _remembered(self, key: str, device: Device) -> list[Proposal] | None:
        """What heuristics answered earlier, in this process or another."""
        if key in self._proposed:
            return self._proposed[key]
        kept = device.store.get(PROPOSALS, key)
        if kept is None:
            return None
        found = decode_proposals(kept)
        if found is None:
            forget(device.store, PROPOSALS, key, "answer of cuDNN's heuristics", "it is no list of plans")
            return None
        self._proposed[key] = found
        return found


def transient_if_device_is_busy(answer: T | Decline, device: Device) -> T | Decline:
    """The same answer, except that a refusal becomes `transient` where the device cannot even allocate a byte now.

    cuDNN reports a plan as not supported where its kernel cannot be loaded because a capture forbids it or memory is
    short, which says nothing of the plan.
    """
    if not isinstance(answer, Decline) or answer.code is Code.TRANSIENT:
        return answer
    try:
        device.allocate(1).close()
    except MomentaryError as error:
        return Decline(Code.TRANSIENT, f"{answer.reason}; at that moment {error}")
    return answer


def parsed(name: str, region: Region) -> PlanName | Decline:
    """A plan's name, where it is one that can be asked for."""
    try:
        found = PlanName.parse(name)
    except ValueError:
        return unknown_plan("cudnn", name, region)
    return found if found.is_settable else unknown_plan("cudnn", name, region)


def compiled(candidate: Candidate, identity: Identity, device: Device) -> CudnnPlan | Decline:
    """The candidate's plan, compiled from an operation graph."""
    import cudnn

    name = parsed(candidate.name, candidate.region)
    if isinstance(name, Decline):
        return name
    lowering = lowered(candidate.region, device)
    if isinstance(lowering, Decline):
        return lowering
    return transient_if_device_is_busy(build(cudnn, lowering, name, device.target.ordinal, identity), device)


def in_order(region: Region, found: Sequence[Proposal], target: Target) -> list[Proposal]:
    """The proposals with those first that were measured to win where cuDNN puts others first."""
    short = all(
        isinstance(n.op, Attention)
        and n.operands[1].type.shape[2] <= SHORT_KEYS
        and attention_blocks(n) <= target.sm_count
        for n in region.nodes
    )
    return sorted(found, key=lambda p: not (short and str(p.name) in SHORT_ATTENTION))


def trusted(
    anatomy: Anatomy, found: Sequence[Proposal], target: Target, policy: Policy
) -> tuple[Candidate, ...] | Decline:
    """Those of the plans that compute the region rightly and as exactly as asked; a decline where none does."""
    kind = engine_class(anatomy)
    labels = frozenset(node.op.label for node in anatomy.region.nodes)
    beside = any(joins_beside(anatomy, n) for n in anatomy.after)
    in_float32 = any(a.operands[0].type.dtype.name == "float32" for a in anatomy.anchors)

    def is_right(name: PlanName) -> bool:
        engine = kind, name.engine
        cuts = in_float32 and not CUTTING.get(engine, frozenset()).isdisjoint(name.knobs)
        misplaces = beside and engine in MISPLACING
        return not cuts and not misplaces and labels.isdisjoint(WRONG.get(engine, frozenset()))

    right = [p for p in found if is_right(p.name)]
    if not right:
        return Decline(
            Code.ATTRIBUTE, f"every plan that cuDNN proposes for {anatomy.region.pattern} computes it wrongly"
        )
    exact = IEEE.get(kind) if any(ieee_float32(a, policy) for a in anatomy.anchors) else None
    kept = [p for p in right if exact is None or p.name.engine in exact]
    if not kept:
        names = ", ".join(dict.fromkeys(f"eng{p.name.engine}" for p in found))
        return Decline(
            Code.PRECISION,
            f"cuDNN proposes {names} for {anatomy.region.pattern}, none of which is known to keep float32",
            Fix("options", "precision", "ieee", "tf32"),
        )
    return as_candidates(anatomy, kept, target, policy)


def lowered(region: Region, device: Device) -> Lowering | Decline:
    """The region's operation graph on a device."""
    frame = Anatomy(region).frame
    if isinstance(frame, Decline):
        return frame
    handle = attempt(lambda: HANDLES.on(device.target.ordinal, device.stream), "a handle")
    return handle if isinstance(handle, Decline) else lower(region, frame, handle=handle)


def as_candidates(anatomy: Anatomy, found: Sequence[Proposal], target: Target, policy: Policy) -> tuple[Candidate, ...]:
    """Proposals as the compiler sees them: what cuDNN tells of them, and what was measured of their engines."""
    kind, words = engine_class(anatomy), precision_of(anatomy, policy)
    return tuple(candidate(anatomy.region, p, kind, words, target) for p in found)


def candidate(region: Region, proposal: Proposal, kind: str, words: str, target: Target) -> Candidate:
    """One proposal; `kind` is the region's class of engines, `words` what its arithmetic is."""
    number = proposal.name.engine
    known = is_known(target, kind, number)
    return Candidate(
        engine="cudnn",
        region=region,
        name=str(proposal.name),
        workspace_bytes=proposal.workspace,
        precision=float32_precision(kind, number) if words == TF32 else words,
        deterministic=proposal.deterministic and is_steady(kind, number),
        notes=proposal.notes if known else (*proposal.notes, "no committed run of this engine stands behind it here"),
        is_known=known,
    )
