"""Regions of pointwise nodes with movement among them: one kernel, several outputs, any strides, vectors if they fit.

Movement costs no pass of its own: a slice or a transpose is where a load stands, a concat which of several is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from graphdnn.answer import Code, Decline
from graphdnn.engines.cost import Efficiency, roofline_us
from graphdnn.engines.nvrtc.analysis import cached_for_last
from graphdnn.engines.nvrtc.demand import Bound, Demand, Located
from graphdnn.engines.nvrtc.emit import opening, prelude
from graphdnn.engines.nvrtc.group import Access, Store, held, load_group, wide_condition, work_group
from graphdnn.engines.nvrtc.hardware import (
    BLOCK,
    BYTES_IN_FLIGHT,
    LOADS_IN_FLIGHT,
    PLAIN_SHARE,
    WORD_BYTES,
    resident_threads,
)
from graphdnn.engines.nvrtc.indexing import (
    LARGEST_INT,
    Space,
    collapsed,
    common_width,
    offset_terms,
    ordered,
    split_index,
    vector_width,
)
from graphdnn.engines.nvrtc.places import MOVES, Cut, Grid, Misplaced, placed_results
from graphdnn.engines.nvrtc.recipe import RAMP_US, Family, Kernel, Pairs, Recipe, buffers, parameter_names, parameters
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.region import Region
from graphdnn.target import Target

CACHE_SIZE = 256
"""Shapes with layouts whose walk is cached."""

STREAMING = Efficiency(bandwidth=0.98)
"""Vectors: 48.1 us were measured for a sum and relu of 64 MiB, 46.8 at the pace of a copy."""

NARROW = Efficiency(bandwidth=0.6)
"""Less than a word to a load, as where no vector fits between the bounds of a concat."""

SCATTERED = Efficiency(bandwidth=0.2)
"""Where neighbours in the walk are not neighbours in memory for some operand."""


@dataclass(frozen=True)
class PointwiseWork:
    """What a region has to compute, before it is decided how it is walked: the space, the work, and for each output
    where it goes, along which axes, and its expression."""

    grid: Grid
    demand: Demand
    targets: tuple[Located, ...]
    covered: tuple[frozenset[int], ...]
    results: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Walk:
    """The whole plan of a pointwise kernel, before it is text.

    `loads` are by the variable that reads each, `bounds` the conditions on the place by the variable that holds each.
    """

    space: Space
    loads: dict[str, Access]
    stores: tuple[Store, ...]
    bounds: dict[str, Bound]
    lines: tuple[str, ...]
    flops: float
    width: int
    repeat: int


def domain(region: Region) -> Value:
    """The output that is the index space: the largest, of those the one of highest rank, of those the last."""
    position, producer = region.graph.position, region.graph.producer
    return max(region.outputs, key=lambda v: (v.type.size, v.type.rank, position[producer[v]]))


@cached_for_last
def pointwise_work(region: Region) -> PointwiseWork | Decline:
    """The work of a region, or why one walk cannot do it.

    An axis of the space is split where a reshape inside needs it; each split makes axes smaller, so this ends.
    """
    main = domain(region)
    grid = Grid.of(main.type.shape)
    while True:
        try:
            places = placed_results(region.nodes, main, grid, region.outputs)
            demand = Demand(region.nodes, grid.extents)
            results = tuple(demand(v, places[v]) for v in region.outputs)
            targets = tuple(demand.located(v, places[v]) for v in region.outputs)
            covered = tuple(frozenset(axis for run in places[v] for axis in run.axes) for v in region.outputs)
            return PointwiseWork(grid, demand, targets, covered, results)
        except Misplaced as misplaced:
            if not isinstance(misplaced.cause, Cut):
                return misplaced.cause
            grid = grid.cut(misplaced.cause)


def takes(region: Region) -> Decline | None:
    if not any(isinstance(n.op, Elementwise) for n in region.nodes) and len(region.nodes) == 1:
        return Decline(Code.PATTERN, f"{region.nodes[0]} moves elements and nothing is computed with them")
    if region.common_form is not None:
        return None
    found = pointwise_work(region)
    return found if isinstance(found, Decline) else None


@cached_for_last
def plan_walk(region: Region, target: Target) -> Walk:
    """Decides index space, vector width and loads of a region that `takes` accepted."""
    found = pointwise_work(region)
    assert not isinstance(found, Decline)
    demand, extents = found.demand, found.grid.extents
    located = [*demand.loads, *found.targets]
    values, strides = [a.value for a in located], [a.strides for a in located]
    leader = len(demand.loads) + max(range(len(found.results)), key=lambda i: region.outputs[i].type.size)
    # An output that broadcasts over the space is written at the first place along the axes that it lacks: to find
    # those after sorting and merging, they are walked by an access of their own.  So is what a bound looks at.
    lacks = [tuple(int(n > 1 and axis not in axes) for axis, n in enumerate(extents)) for axes in found.covered]
    looks = [bound.strides for bound in demand.bounds]
    sorted_space = ordered(Space(extents, (*strides, *lacks, *looks)), leader)
    first, last = len(strides), len(strides) + len(lacks)
    masks = [merging(mask, sorted_space.extents) for mask in sorted_space.accesses[first:last]]
    space = collapsed(
        Space(sorted_space.extents, (*sorted_space.accesses[:first], *masks, *sorted_space.accesses[last:]))
    )
    walked, masked = space.accesses[:first], space.accesses[first:last]
    bounds = {
        name: Bound(moved, bound.low, bound.high)
        for (bound, name), moved in zip(demand.bounds.items(), space.accesses[last:], strict=True)
    }
    parameter = parameter_names(region)
    accesses = [
        Access(parameter[a.value], a.value, moved, a.offset, " && ".join(a.bounds))
        for a, moved in zip(located, walked, strict=True)
    ]
    loads = dict(zip(demand.loads.values(), accesses, strict=False))
    firsts = [[f"at{axis} == 0" for axis, m in enumerate(mask) if m] for mask in masked]
    stores = tuple(
        Store(access, result, " && ".join((*only, *([access.when] if access.when else []))))
        for access, result, only in zip(accesses[len(loads) :], found.results, firsts, strict=True)
    )
    space = Space(space.extents, walked)
    width = vector_width(space, [v.type.dtype.itemsize for v in values])
    width = within_bounds(width, bounds.values())
    return Walk(
        space=space,
        loads=loads,
        stores=stores,
        bounds=bounds,
        lines=tuple(demand.lines),
        flops=demand.flops,
        width=width,
        repeat=repetition(space, loads, width, target),
    )


@cached_for_last
def outline(region: Region, target: Target) -> Walk:
    """The walk of a region that `takes` accepted, as far as price and memory depend on it.

    Where all tensors lie alike it follows from one of them, and no line of the kernel is thought of: regions are priced
    a hundred times as often as they are built, and nodes stand in dozens of them.
    """
    if region.common_form is None:
        return plan_walk(region, target)
    extents, strides = one_walk(*region.common_form)
    inputs, outputs = region.inputs, region.outputs
    accesses = [Access(f"p{i}", v, strides) for i, v in enumerate((*inputs, *outputs))]
    loads = {a.name: a for a in accesses[: len(inputs)]}
    stores = tuple([Store(a, "") for a in accesses[len(inputs) :]])
    values = (*inputs, *outputs)
    space = Space(extents, (strides,) * len(values))
    width = vector_width(space, [v.type.dtype.itemsize for v in values])
    flops = sum([n.flops / n.result.type.size for n in region.nodes])
    return Walk(
        space=space,
        loads=loads,
        stores=stores,
        bounds={},
        lines=(),
        flops=flops,
        width=width,
        repeat=repetition(space, loads, width, target),
    )


@lru_cache(CACHE_SIZE)
def one_walk(shape: tuple[int, ...], layout: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides of a walk through tensors that all lie alike."""
    space = Space(shape, (tuple(s if n > 1 else 0 for n, s in zip(shape, layout, strict=True)),))
    space = collapsed(ordered(space, 0))
    return space.extents, space.accesses[0]


def within_bounds(width: int, bounds: Collection[Bound]) -> int:
    """The largest width, up to the given one, of which no group lies on both sides of a bound."""
    if any(bound.strides[-1] > 1 for bound in bounds):
        return 1
    met = [bound for bound in bounds if bound.strides[-1] == 1]
    return common_width(width, (n for b in met for n in (*b.strides[:-1], b.low or 0, b.high or 0)))


def merging(mask: Sequence[int], extents: Sequence[int]) -> tuple[int, ...]:
    """Strides, where the mask is set, that let such axes merge with one another and with no others."""
    step, strides = 1, [0] * len(mask)
    for axis in reversed(range(len(mask))):
        if mask[axis]:
            strides[axis] = step
            step *= extents[axis]
    return tuple(strides)


def repetition(space: Space, loads: Mapping[str, Access], width: int, target: Target) -> int:
    """Groups that a thread takes: as many as keep BYTES_IN_FLIGHT on their way, while threads still fill the device."""
    asked = sum(a.value.type.dtype.itemsize * (width if a.strides[-1] else 1) for a in loads.values())
    repeat = 1
    while (
        repeat < LOADS_IN_FLIGHT
        and 2 * repeat * asked <= BYTES_IN_FLIGHT
        and space.size // (width * 2 * repeat) >= resident_threads(target)
    ):
        repeat *= 2
    return repeat


def generate(region: Region, target: Target) -> Recipe:
    walk = outline(region, target)
    grid = -(-groups(walk) // (BLOCK * walk.repeat))
    kernel = Kernel("pointwise", partial(source, region, target), buffers(region), (grid, 1, 1), (BLOCK, 1, 1))
    return Recipe(f"pointwise_x{walk.width}", (kernel,), in_place=in_place(region, walk))


def groups(walk: Walk) -> int:
    """Groups of a walk, the last of which may be part of one."""
    return -(-walk.space.size // walk.width)


def in_place(region: Region, walk: Walk) -> Pairs:
    """Inputs that lie as an output does, element for element, whatever reads them: each place loads, then stores.

    Not where the output is smaller than the space, or an input read elsewhere than it is written: others than the place
    that stores would still read.  Of one type only, since memory that is read and written as different types may be
    taken for different memory.
    """
    ways: dict[Value, set[tuple[object, ...]]] = {v: set() for v in region.inputs}
    for load in walk.loads.values():
        ways[load.value].add((load.value.type.dtype, load.strides, load.offset, load.when))
    stored: dict[tuple[object, ...], list[int]] = {}
    for o, store in enumerate(walk.stores):
        if not store.only:
            access = store.access
            stored.setdefault((access.value.type.dtype, access.strides, 0, ""), []).append(o)
    alike = [stored.get(next(iter(ways[v])), ()) if len(ways[v]) == 1 else () for v in region.inputs]
    return tuple([(i, o) for i, outputs in enumerate(alike) for o in outputs])


def estimate(region: Region, target: Target) -> float:
    """Time of the bytes, or of the work where it is more: each operand of a concat is computed at every place."""
    walk = outline(region, target)
    work = walk.flops * walk.space.size / (target.rate("float32") * PLAIN_SHARE)
    memory = roofline_us(region, target, efficiency=pace(walk))
    return RAMP_US + max(memory, target.launch_us + 1e6 * work)


def pace(walk: Walk) -> Efficiency:
    """How fast a walk goes through memory."""
    accesses = (*walk.loads.values(), *(s.access for s in walk.stores))
    moving = [a for a in accesses if a.strides[-1] and a.value.type.size > 1]
    if any(a.strides[-1] > 1 for a in moving):
        return SCATTERED
    narrow = all(walk.width * a.value.type.dtype.itemsize < WORD_BYTES for a in moving)
    return NARROW if narrow and moving else STREAMING


def source(region: Region, target: Target) -> str:
    """The kernel's text.  A thread loads all its groups first, then computes and stores them."""
    walk = plan_walk(region, target)
    count = groups(walk)
    accesses = [*walk.loads.values(), *(s.access for s in walk.stores)]
    fits = walk.space.fits_int and all(abs(a.offset) + a.value.type.extent <= LARGEST_INT for a in accesses if a.offset)
    index = "int" if fits else "i64"
    width, extents = walk.width, walk.space.extents
    axis = len(extents) - 1
    names = [f"at{a}" for a in range(len(extents))]
    steps = (*extents[:-1], extents[-1] // width if axis else count)
    tail = walk.space.size % width
    place = [
        *split_index("group", steps, [*names[:-1], "last"], index),
        f"const {index} {names[-1]} = last * {width};",
        f"const bool whole = {f'group < {count - 1}' if tail else 'true'};",
        f"const int count = {tail or width};",
        *(f"const bool {name} = {condition(bound, names)};" for name, bound in walk.bounds.items()),
    ]
    loop = [
        f"#pragma unroll\nfor (int r = 0; r < {walk.repeat}; ++r) {{",
        f"const {index} group = first + r * {BLOCK};",
        f"if (group < {count}) {{",
        *place,
    ]
    kept = {name: f"{name}_m" for name in walk.loads}
    return "\n".join(
        (
            prelude(),
            opening(BLOCK, "pointwise", parameters(region, in_place(region, walk))),
            f"const {index} first = ({index})blockIdx.x * {BLOCK * walk.repeat} + threadIdx.x;",
            wide_condition(accesses, axis, width),
            *(
                f"{held(a, axis, width)} {kept[name]}[{walk.repeat}]{' = {}' if a.when else ''};"
                for name, a in walk.loads.items()
            ),
            *loop,
            *(load_group(a, f"{kept[name]}[r]", names, axis, width) for name, a in walk.loads.items()),
            "}\n}",
            *loop,
            *work_group(
                walk.loads, {n: f"{k}[r]" for n, k in kept.items()}, walk.lines, walk.stores, names, axis, width
            ),
            "}\n}\n}\n",
        )
    )


def condition(bound: Bound, names: Sequence[str]) -> str:
    """The C++ expression of a bound."""
    at = offset_terms(bound.strides, names)
    ends = [f"{at} >= {bound.low}"] if bound.low is not None else []
    ends += [f"{at} < {bound.high}"] if bound.high is not None else []
    return " && ".join(ends)


FAMILY = Family("pointwise", tuple(MOVES), takes, generate, estimate, alone=True)
