"""Row-wise regions: softmax, norms and reductions over any axes, with pointwise work before, between and behind.

One kernel a region as a rule; a kernel a phase where few long rows are shared between blocks.
"""

from __future__ import annotations

from graphdnn.answer import Code, Decline
from graphdnn.engines.cost import Efficiency, roofline_us
from graphdnn.engines.nvrtc.analysis import cached_for_last
from graphdnn.engines.nvrtc.hardware import WARP
from graphdnn.engines.nvrtc.recipe import RAMP_US, Family, Recipe
from graphdnn.engines.nvrtc.rows_layout import Layout, plan
from graphdnn.engines.nvrtc.rows_phases import phases
from graphdnn.engines.nvrtc.rows_program import Program, program
from graphdnn.engines.nvrtc.rows_source import recipe
from graphdnn.ir.ops.norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RmsNorm
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.ir.region import Region
from graphdnn.target import Target

ANCHORS = (Softmax, LayerNorm, RmsNorm, InstanceNorm, GroupNorm, BatchNorm, Reduce)

STREAMING = Efficiency(bandwidth=0.96)
ACROSS = Efficiency(bandwidth=0.7)
WAITING = Efficiency(bandwidth=0.85)
NARROW = Efficiency(bandwidth=0.5)
SCATTERED = Efficiency(bandwidth=0.15)
"""Fractions of the bandwidth that is there: with vectors of 8 bytes or more (softmax, layer and RMS norm were measured
at 0.95 to 0.98), where vectors lie across the rows (a mean over channels-last images at 0.6 to 0.7), where a warp reads
what all rows share behind its folds or a large block waits for itself (norms of 6304x768 and 8192x1024 halves and of
rows of 8192 and more at 0.72 to 0.9), with single elements, and where neighbouring threads read elements far apart."""

LARGE_BLOCK = 512
"""Threads of a block that waits for itself: few of them fit on a core."""

CACHED_REREAD = 0.4
"""What reading a row again costs against the first time; it comes from the L2 cache as a rule."""

MOST_TERMS = 400
"""Steps of a kernel, each a variable in its text, for which NVRTC takes longer and longer to find registers."""


def takes(region: Region) -> Decline | None:
    found = program(region)
    if isinstance(found, Decline):
        return found
    if len(found.terms) > MOST_TERMS:
        return Decline(Code.SIZE, f"{region.pattern} is {len(found.terms)} steps; a row kernel takes {MOST_TERMS}")
    return None


@cached_for_last
def planned(region: Region, target: Target) -> tuple[Program, Layout]:
    found = program(region)
    assert not isinstance(found, Decline)
    return found, plan(found, target)


def name(layout: Layout) -> str:
    """What the report calls the kernel: who folds a row, and how wide its vectors are."""
    if layout.across:
        return f"columns_{layout.lanes}x{layout.members}_x{layout.width}"
    return f"rows_{'warp' if layout.members <= WARP else 'block'}{layout.members}_x{layout.width}"


def generate(region: Region, target: Target) -> Recipe:
    found, layout = planned(region, target)
    return recipe(region, found, layout, name(layout))


def estimate(region: Region, target: Target) -> float:
    found, layout = planned(region, target)
    walks = sum(w.is_walk for w in phases(found, layout.kept > 0))
    again = 0 if layout.kept else int(CACHED_REREAD * max(walks - 1, 0) * region.read_bytes)
    itemsize = max((t.dtype.itemsize for t in found.loads if t.varies), default=4)
    reach = STREAMING if layout.width * itemsize >= 8 else NARROW
    if layout.across and reach is STREAMING:
        reach = ACROSS
    elif reach is STREAMING and waits(found, layout):
        reach = WAITING
    return RAMP_US + roofline_us(
        region,
        target,
        efficiency=reach if layout.coalesced else SCATTERED,
        kernels=1 if layout.splits == 1 else found.phases + 1,
        extra_bytes=again,
    )


def waits(program: Program, layout: Layout) -> bool:
    """Whether a row's warp loads what all rows share behind its folds, or its block is large."""
    shares = layout.members <= WARP and any(map(layout.is_shared, program.loads))
    return layout.members >= LARGE_BLOCK or (shares and not layout.at_once)


FAMILY = Family("rows", ANCHORS, takes, generate, estimate)
