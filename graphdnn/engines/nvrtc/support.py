"""What the generated kernels need of a machine and of a region, as rules with the reason in the user's words."""

from __future__ import annotations

from graphdnn.answer import Code, Decline
from graphdnn.ir.region import Region
from graphdnn.target import Target

LEAST_CAPABILITY = (8, 0)
"""bfloat16 conversions are instructions from here on."""

MOST_ADDRESSES = 500
"""A kernel's parameters hold 4096 bytes, 8 an address."""


def machine_declines(target: Target) -> Decline | None:
    """Why this machine cannot run generated kernels, compiler aside."""
    if target.kind != "cuda":
        return Decline(Code.ARCHITECTURE, f"generated kernels run on CUDA devices, and the target is {target}")
    if target.compute_capability < LEAST_CAPABILITY:
        need = ".".join(map(str, LEAST_CAPABILITY))
        found = ".".join(map(str, target.compute_capability))
        return Decline(Code.ARCHITECTURE, f"generated kernels need compute capability {need}, and {target} has {found}")
    return None


def region_declines(region: Region) -> Decline | None:
    """Why no generated kernel can run this region, whatever its operations."""
    count = len(region.inputs) + len(region.outputs)
    if count > MOST_ADDRESSES:
        return Decline(
            Code.SIZE, f"{region.pattern} reads and writes {count} tensors; a generated kernel takes {MOST_ADDRESSES}"
        )
    return None
