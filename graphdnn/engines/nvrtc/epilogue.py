"""The pointwise graph behind a matmul or a convolution, run on groups of results that are still in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphdnn.answer import Code, Decline
from graphdnn.engines.nvrtc.analysis import cached_for_last
from graphdnn.engines.nvrtc.demand import Demand
from graphdnn.engines.nvrtc.emit import register
from graphdnn.engines.nvrtc.group import Access, Store, held, load_group, wide_condition, work_group
from graphdnn.engines.nvrtc.indexing import LARGEST_INT
from graphdnn.engines.nvrtc.places import Grid, Misplaced, Place, placed_results, strides_at
from graphdnn.engines.nvrtc.recipe import Anchored, anchored, parameter_names
from graphdnn.engines.nvrtc.rows_phases import LIGHT
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.region import Region

MOST_COPIES = 32
"""Sums of a thread for each of which dear functions are copied; for more they are called."""


@dataclass(frozen=True)
class Epilogue:
    """What is loaded, done and stored at each place of the anchor's result; `function` goes before the kernel."""

    loads: dict[str, Access]
    lines: tuple[str, ...]
    stores: tuple[Store, ...]
    function: str = ""

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


@cached_for_last
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
    places = placed(region, parts)
    return places if isinstance(places, Decline) else parts


def placed(region: Region, parts: Anchored) -> dict[Value, Place] | Decline:
    """Where the anchor's result and all behind it lies, in the space of that result."""
    return placed_in(parts.after, parts.anchor.result, region.outputs)


def placed_in(nodes: Sequence[Node], root: Value, outputs: Sequence[Value]) -> dict[Value, Place] | Decline:
    """Where the results of pointwise nodes lie in the space of `root`."""
    try:
        return placed_results(nodes, root, Grid.of(root.type.shape), outputs)
    except Misplaced as misplaced:
        if isinstance(misplaced.cause, Decline):
            return misplaced.cause
        raise


def epilogue_of(region: Region, parts: Anchored, result: str, sums: int, most: int = MOST_COPIES) -> Epilogue:
    """The epilogue, `result` being the C++ expression of the anchor's result as a register value.

    A thread has `sums` of them; for more than `most` of them dear functions are called, not copied.  Element `j` of a
    group stands in scope as `j`; the region is one that `anchor_with_epilogue` accepted.
    """
    places = placed(region, parts)
    assert not isinstance(places, Decline)
    shape = parts.anchor.result.type.shape
    apart = sums > most and any(n.op.label not in LIGHT for n in parts.after)
    demand = Demand(parts.after, shape, {parts.anchor.result: "total" if apart else result})
    results = [demand(value, places[value]) for value in region.outputs]
    parameter = parameter_names(region)
    loads = {name: Access(parameter[load.value], load.value, load.strides) for load, name in demand.loads.items()}
    lines, function = demand.lines, ""
    if apart:
        total = f"const {register(parts.anchor.result.type.dtype)} total"
        function = function_of(total, loads, lines, region.outputs, results)
        lines = [f"const Outcome outcome = epilogue({', '.join((result, *loads))});"]
        results = [f"outcome.r{i}" for i in range(len(results))]
    stores: list[Store] = []
    for value, expression in zip(region.outputs, results, strict=True):
        covered = {axis for run in places[value] for axis in run.axes}
        missing = [axis for axis, n in enumerate(shape) if n > 1 and axis not in covered]
        access = Access(parameter[value], value, strides_at(value.type.layout, places[value], shape))
        stores.append(Store(access, expression, " && ".join(f"at{axis} == 0" for axis in missing)))
    return Epilogue(loads, tuple(lines), tuple(stores), function)


def function_of(
    total: str, loads: dict[str, Access], lines: Sequence[str], outputs: Sequence[Value], results: Sequence[str]
) -> str:
    """The work on one element as a function that is called, not copied.

    With an erf copied for each of 64 sums a kernel takes twice as long to compile, with powers and sines ten times.
    """
    fields = " ".join(f"{register(v.type.dtype)} r{i};" for i, v in enumerate(outputs))
    given = [total, *(f"const {register(a.value.type.dtype)} {name}" for name, a in loads.items())]
    return "\n".join(
        (
            f"struct Outcome {{ {fields} }};",
            f"__device__ __noinline__ Outcome epilogue({', '.join(given)}) {{",
            *lines,
            f"return Outcome{{{', '.join(results)}}};",
            "}",
        )
    )
