"""Engines whose generated kernels fault on the device, as a faulty library's do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphdnn.answer import Decline
from graphdnn.engines.contract import Candidate, Device, Policy
from graphdnn.engines.nvrtc.engine import NvrtcEngine
from graphdnn.engines.nvrtc.launch import NvrtcPlan
from graphdnn.engines.nvrtc.recipe import Buffer, Kernel, Recipe
from graphdnn.ir.region import Region

PLACE = "tests.gpu.faulting:FaultingEngine"
PLACE_OF_NVRTC = "tests.gpu.faulting:FaultsOnData"

BODIES = {
    "writes to nowhere": "*(volatile int*)16 = 1;",
    "traps": 'asm volatile("trap;");',
    "is off by two bytes": "*(volatile int*)((char*)x + 2) = 1;",
    "never ends": "for (long long begun = clock64(); clock64() - begun < 60000000000LL;) {}",
    "writes to nowhere on data": "if (((volatile int*)x)[0] != 0) *(volatile int*)16 = 1;",
    "is good": "",
}
"""What a plan does to `x`, its first input, before its own work; what never ends does so after half a minute."""


def spoilt(candidate: Candidate, body: str) -> Candidate:
    """The same candidate with one more kernel before the others."""
    recipe = candidate.recipe
    assert isinstance(recipe, Recipe)
    source = f'extern "C" __global__ void fault(volatile void* x) {{ {body} }}'
    fault = Kernel("fault", lambda: source, (Buffer(0),), (1, 1, 1), (1, 1, 1))
    return replace(candidate, recipe=replace(recipe, kernels=(fault, *recipe.kernels)))


class FaultingEngine(NvrtcEngine):
    """A plan for each entry of BODIES, by its name."""

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        found = self.candidates(region, device, policy)
        return found if isinstance(found, Decline) else replace(spoilt(found[0], BODIES[name]), name=name)


class FaultsAmongOthers(NvrtcEngine):
    """Three plans of a region, the second of which writes to nowhere."""

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
        found = super().candidates(region, device, policy)
        if isinstance(found, Decline):
            return found
        good, bad = found[0], spoilt(found[0], BODIES["writes to nowhere"])
        return tuple(replace(one, name=name) for one, name in ((good, "first"), (bad, "faulty"), (good, "last")))


class FaultsOnData(NvrtcEngine):
    """The generated kernels, of which those with a tanh fault unless all that they read is zero."""

    def build(self, candidate: Candidate, device: Device) -> NvrtcPlan | Decline:
        if "tanh" in candidate.region.pattern:
            candidate = spoilt(candidate, BODIES["writes to nowhere on data"])
        return super().build(candidate, device)
