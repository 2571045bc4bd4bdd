"""The nvrtc engine: finds the family of kernels that takes a region, prices it, compiles and loads it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from graphdnn.answer import Code, Decline
from graphdnn.engines.answers import remembered
from graphdnn.engines.arithmetic import arithmetic_words
from graphdnn.engines.contract import Candidate, Device, Plan, Policy, Support
from graphdnn.engines.environment import environment
from graphdnn.engines.nvrtc import conv, depthwise, matmul, movement, pointwise, pooling, rows, transposed
from graphdnn.engines.nvrtc.compile import compile_cubin, compiler_version, forget_cubin
from graphdnn.engines.nvrtc.launch import NvrtcPlan, load_plan
from graphdnn.engines.nvrtc.recipe import Family, Recipe
from graphdnn.engines.nvrtc.support import machine_declines, region_declines
from graphdnn.engines.serialization import damaged, identity_of, pack, unknown_plan, unpack
from graphdnn.ir.op import Op
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.region import Region
from graphdnn.target import Target

FAMILIES: tuple[Family, ...] = (
    depthwise.FAMILY,  # before conv, which takes everything
    conv.FAMILY,
    transposed.FAMILY,
    matmul.FAMILY,
    pooling.FAMILY,
    rows.FAMILY,
    pointwise.FAMILY,
    movement.FAMILY,
)
"""Most specific first: of several families that take a region, the first runs it."""


def family_of(region: Region) -> Family | Decline:
    """The first family that takes the region, or why the most specific one with its op does not."""
    ops = {type(n.op) for n in region.nodes if not isinstance(n.op, Elementwise)}
    refusals: list[Decline] = []
    for family in FAMILIES:
        if not ops <= set(family.anchors) or not (ops or family.alone):
            continue
        refusal = family.takes(region)
        if refusal is None:
            return family
        refusals.append(refusal)
    return refusals[0] if refusals else without_family(ops)


def without_family(ops: set[type[Op]]) -> Decline:
    known = {anchor for family in FAMILIES for anchor in family.anchors}
    unknown = sorted(op.kind for op in ops - known)
    if unknown:
        return Decline(Code.OP, f"there is no generated kernel for {', '.join(unknown)}")
    kinds = " and ".join(sorted(op.kind for op in ops))
    return Decline(Code.PATTERN, f"there is no generated kernel that does {kinds} at once")


def recipes(family: Family, region: Region, target: Target) -> tuple[Recipe, ...]:
    """All that a family would run a region with, best first by estimate."""
    return (family.generate(region, target), *family.others(region, target))


class NvrtcEngine:
    """Generates one kernel or a few for a region; the text depends on the region and the target alone."""

    name = "nvrtc"

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        for refusal in (machine_declines(target), region_declines(region)):
            if refusal is not None:
                return refusal
        if target.present and isinstance(setup := compiler_version(), Decline):
            return setup
        return self._answer(region, target, policy)

    @remembered
    def _answer(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        """By the families, on a machine that runs generated kernels."""
        family = family_of(region)
        if isinstance(family, Decline):
            return family
        recipe = family.generate(region, target)
        return Support(
            family.estimate(region, target),
            arithmetic_words(region),
            kernels=len(recipe.kernels),
            workspace_bytes=recipe.workspace_bytes,
            last_resort=family.last_resort(region, policy),
            notes=(recipe.name, *recipe.notes),
            in_place=recipe.in_place,
            in_place_us=recipe.in_place_us,
        )

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
        answer = self.supports(region, device.target, policy)
        if isinstance(answer, Decline):
            return answer
        family = family_of(region)
        if isinstance(family, Decline):
            return family
        return tuple(
            Candidate(
                self.name,
                region,
                recipe.name,
                recipe.workspace_bytes,
                answer.precision,
                notes=recipe.notes,
                recipe=recipe,
            )
            for recipe in recipes(family, region, device.target)
        )

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        """The one plan of a region, if that is its name."""
        found = self.candidates(region, device, policy)
        if isinstance(found, Decline):
            return found
        return next((c for c in found if c.name == name), unknown_plan(self.name, name, region))

    def build(self, candidate: Candidate, device: Device) -> NvrtcPlan | Decline:
        """The kernels, from the store or compiled, loaded into the device; kept ones that it refuses are made anew."""
        recipe, identity = candidate.recipe, self._identity(candidate, device)
        assert isinstance(recipe, Recipe)
        cubins = cubins_of(recipe, device)
        if isinstance(cubins, Decline):
            return cubins
        plan = load_plan(recipe, cubins, identity, device.target)
        if not isinstance(plan, Decline) or plan.code is Code.TRANSIENT:
            return plan
        for kernel in recipe.kernels:
            forget_cubin(kernel.source, device.target.arch, kernel.options, device.store)
        anew = cubins_of(recipe, device)
        if isinstance(anew, Decline) or anew == cubins:
            return plan  # what the compiler makes is not taken
        text = f"cached kernels of {candidate.region.pattern} are dropped and compiled anew: {plan.reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return load_plan(recipe, anew, identity, device.target)

    def save(self, candidate: Candidate, plan: Plan) -> bytes:
        """The cubins; launch shapes and arguments follow from the region."""
        assert isinstance(plan, NvrtcPlan)
        return pack(plan.identity, *plan.cubins)

    def restore(self, candidate: Candidate, content: bytes, device: Device) -> NvrtcPlan | Decline:
        """The cubins loaded again, without a compiler."""
        identity = self._identity(candidate, device)
        cubins = unpack(content, identity)
        if isinstance(cubins, Decline):
            return cubins
        family = family_of(candidate.region)
        if isinstance(family, Decline):
            return family
        found = (r for r in recipes(family, candidate.region, device.target) if r.name == candidate.name)
        recipe = next(found, None)
        if recipe is None:
            return unknown_plan(self.name, candidate.name, candidate.region)
        if len(cubins) != len(recipe.kernels):
            return damaged(f"it has {len(cubins)} kernels where {len(recipe.kernels)} are needed")
        return load_plan(recipe, cubins, identity, device.target)

    def _identity(self, candidate: Candidate, device: Device) -> dict[str, str]:
        return identity_of(candidate, environment(device.target, self.name))


def cubins_of(recipe: Recipe, device: Device) -> list[bytes] | Decline:
    """A cubin for each kernel, from the store or compiled."""
    cubins: list[bytes] = []
    for kernel in recipe.kernels:
        cubin = compile_cubin(kernel.source, device.target.arch, kernel.options, device.store)
        if isinstance(cubin, Decline):
            return cubin
        cubins.append(cubin)
    return cubins
