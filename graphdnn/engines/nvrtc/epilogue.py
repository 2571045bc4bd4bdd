"""The pointwise graph behind a matmul or a convolution, run on groups of results that are still in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphdnn.answer import Code, Decline
from graphdnn.engines.nvrtc.group import Access, Demand, Store, held, load_group, wide_condition, work_group
from graphdnn.engines.nvrtc.indexing import LARGEST_INT
from graphdnn.engines.nvrtc.placement import Placement, place_results, placed_strides
from graphdnn.engines.nvrtc.recipe import Anchored, anchored, buffers
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region


@dataclass(frozen=True)
class Epilogue:
    """What is loaded, done and stored at each place of the anchor's result."""

    loads: dict[str, Access]
    lines: tuple[str, ...]
    stores: tuple[Store, ...]

    @property
    def accesses(self) -> tuple[Access, ...]:
        return (*self.loads.values(), *(s.access for s in self.stores))

    @property
    def fits_int(self) -> bool:
        """Whether every offset fits a 32-bit integer."""
        return all(a.value.type.extent <= LARGEST_INT for a in self.accesses)

    def condition(self, axis: int, width: int) -> str:
        """The statement that declares `wide`, to stand once at the kernel's start; none where there are no groups."""
        return wide_condition(self.accesses, axis, width)

    def text(self, names: Sequence[str], axis: int, width: int) -> list[str]:
        """Statements for one group along `axis`; `names` are the index variables, one an axis of the result."""
        kept = {name: f"{name}_m" for name in self.loads}
        return [
            *(f"{held(a, axis, width)} {kept[name]};" for name, a in self.loads.items()),
            *(load_group(a, kept[name], names, axis, width) for name, a in self.loads.items()),
            *work_group(self.loads, kept, self.lines, self.stores, names, axis, width),
        ]


def anchor_with_epilogue(region: Region) -> Anchored | Decline:
    """The region as an anchor with only an epilogue, all of it within the index space of the anchor's result."""
    parts = anchored(region)
    if isinstance(parts, Decline):
        return parts
    feeding = [n for n in parts.before if n.result in parts.anchor.operands]
    if feeding:
        return Decline(
            Code.PATTERN,
            f"{feeding[0]} stands before {parts.anchor}; the generated {parts.anchor.op.label} "
            "reads its operands from memory as they are",
        )
    places = placed(parts)
    return places if isinstance(places, Decline) else parts


def placed(parts: Anchored) -> dict[Value, Placement] | Decline:
    result = parts.anchor.result
    shape = result.type.shape
    root = tuple(None if n == 1 else axis for axis, n in enumerate(shape))
    return place_results(parts.after, {result: root}, shape)


def epilogue_of(region: Region, parts: Anchored, result: str) -> Epilogue:
    """The epilogue, `result` being the C++ expression of the anchor's result as a register value.

    Element `j` of a group stands in scope as `j`; the region is one that `anchor_with_epilogue` accepted.
    """
    places = placed(parts)
    assert not isinstance(places, Decline)
    shape = parts.anchor.result.type.shape
    demand = Demand(parts.after, len(shape), {parts.anchor.result: result})
    parameter = {v: f"p{b.index}" for v, b in buffers(region).items()}
    stores: list[Store] = []
    for value in region.outputs:
        missing = [axis for axis, n in enumerate(shape) if n > 1 and axis not in places[value]]
        access = Access(parameter[value], value, placed_strides(value, places[value], len(shape)))
        stores.append(Store(access, demand(value, places[value]), " && ".join(f"i{axis} == 0" for axis in missing)))
    loads = {name: Access(parameter[v], v, strides) for (v, strides), name in demand.loads.items()}
    return Epilogue(loads, tuple(demand.lines), tuple(stores))
