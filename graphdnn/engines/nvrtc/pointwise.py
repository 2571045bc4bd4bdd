"""Regions of pointwise nodes: one kernel, several outputs, broadcasting, any strides, vectors where they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphdnn.answer import Decline
from graphdnn.engines.cost import Efficiency, roofline_us
from graphdnn.engines.nvrtc.emit import prelude
from graphdnn.engines.nvrtc.group import Access, Demand, Store, held, load_group, wide_condition, work_group
from graphdnn.engines.nvrtc.indexing import Space, collapsed, ordered, split_index, vector_width
from graphdnn.engines.nvrtc.placement import Placement, place_results, placed_strides
from graphdnn.engines.nvrtc.recipe import Family, Kernel, Pairs, Recipe, all_buffers, buffers, parameters
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.region import Region
from graphdnn.target import Target

BLOCK = 256
BYTES_IN_FLIGHT = 64
"""Bytes that a thread asks for before it computes; more of its loads in flight hide the latency of memory."""
MOST_REPEAT = 4
THREADS_PER_CORE = 2048
"""Threads that a multiprocessor holds at once."""

STREAMING = Efficiency(bandwidth=0.9)
SCATTERED = Efficiency(bandwidth=0.2)
"""Where neighbours in the walk are not neighbours in memory for some operand."""


@dataclass(frozen=True)
class Walk:
    """The whole plan of a pointwise kernel, before it is text.  `loads` are by the variable that reads each."""

    space: Space
    loads: dict[str, Access]
    stores: tuple[Store, ...]
    lines: tuple[str, ...]
    width: int
    repeat: int


def domain(region: Region) -> Node:
    """The node whose result is the index space: the largest, of those the one of highest rank, of those the last."""
    return max(region.nodes, key=lambda n: (n.result.type.size, n.result.type.rank, region.graph.position[n]))


def placements(region: Region) -> dict[Value, Placement] | Decline:
    main = domain(region)
    shape = main.result.type.shape
    root = tuple(None if n == 1 else axis for axis, n in enumerate(shape))
    return place_results(region.nodes, {main.result: root}, shape)


def takes(region: Region) -> Decline | None:
    found = placements(region)
    return found if isinstance(found, Decline) else None


def plan_walk(region: Region, target: Target) -> Walk:
    """Decides index space, vector width and loads of a region that `takes` accepted."""
    places = placements(region)
    assert not isinstance(places, Decline)
    shape = domain(region).result.type.shape
    demand = Demand(region.nodes, len(shape))
    results = [demand(v, places[v]) for v in region.outputs]
    values = [*(v for v, _ in demand.loads), *region.outputs]
    strides = [*(s for _, s in demand.loads), *(placed_strides(v, places[v], len(shape)) for v in region.outputs)]
    leader = len(demand.loads) + max(range(len(results)), key=lambda i: region.outputs[i].type.size)
    # An output that broadcasts over the space is written at the first place along the axes that it lacks: to find
    # those after sorting and merging, they are walked by an access of their own.
    lacks = [tuple(int(n > 1 and axis not in places[v]) for axis, n in enumerate(shape)) for v in region.outputs]
    sorted_space = ordered(Space(shape, (*strides, *lacks)), leader)
    masks = [merging(mask, sorted_space.extents) for mask in sorted_space.accesses[len(strides) :]]
    space = collapsed(Space(sorted_space.extents, (*sorted_space.accesses[: len(strides)], *masks)))
    walked, masked = space.accesses[: len(strides)], space.accesses[len(strides) :]
    parameter = {v: f"p{b.index}" for v, b in buffers(region).items()}
    accesses = [Access(parameter[v], v, s) for v, s in zip(values, walked, strict=True)]
    space = Space(space.extents, walked)
    width = vector_width(space, [v.type.dtype.itemsize for v in values], most=widest(values))
    only = [" && ".join(f"i{axis} == 0" for axis, m in enumerate(mask) if m) for mask in masked]
    loads = dict(zip(demand.loads.values(), accesses, strict=False))
    stores = tuple(map(Store, accesses[len(loads) :], results, only))
    return Walk(space, loads, stores, tuple(demand.lines), width, repetition(space, loads, width, target))


def merging(mask: Sequence[int], extents: Sequence[int]) -> tuple[int, ...]:
    """Strides, where the mask is set, that let such axes merge with one another and with no others."""
    step, strides = 1, [0] * len(mask)
    for axis in reversed(range(len(mask))):
        if mask[axis]:
            strides[axis] = step
            step *= extents[axis]
    return tuple(strides)


def widest(values: Sequence[Value]) -> int:
    """Eight elements a thread, sixteen where all are bytes: wider ones only cost registers."""
    return 16 if all(v.type.dtype.itemsize == 1 for v in values) else 8


def repetition(space: Space, loads: Mapping[str, Access], width: int, target: Target) -> int:
    """Groups that a thread takes: as many as keep BYTES_IN_FLIGHT on their way, while there is work for every core."""
    asked = sum(a.value.type.dtype.itemsize * (width if a.strides[-1] else 1) for a in loads.values())
    repeat = 1
    while (
        repeat < MOST_REPEAT
        and 2 * repeat * asked <= BYTES_IN_FLIGHT
        and space.size // (width * 2 * repeat) >= target.sm_count * THREADS_PER_CORE
    ):
        repeat *= 2
    return repeat


def generate(region: Region, target: Target) -> Recipe:
    walk = plan_walk(region, target)
    groups = -(-walk.space.size // walk.width)
    grid = -(-groups // (BLOCK * walk.repeat))
    kernel = Kernel("pointwise", source(region, walk, groups), all_buffers(region), (grid, 1, 1), (BLOCK, 1, 1))
    return Recipe(f"pointwise_x{walk.width}", (kernel,), in_place=in_place(region, walk))


def in_place(region: Region, walk: Walk) -> Pairs:
    """Inputs that lie as an output does, element for element, whatever reads them: each place loads, then stores.

    Not where the output is smaller than the space: others than the place that stores would still read.  Of one type
    only, since memory that is read and written as different types may be taken for different memory.
    """
    pairs: list[tuple[int, int]] = []
    for i, value in enumerate(region.inputs):
        ways = {a.strides for a in walk.loads.values() if a.value is value}
        pairs += (
            (i, o)
            for o, store in enumerate(walk.stores)
            if ways == {store.access.strides} and not store.only and value.type.dtype == store.access.value.type.dtype
        )
    return tuple(pairs)


def estimate(region: Region, target: Target) -> float:
    walk = plan_walk(region, target)
    accesses = (*walk.loads.values(), *(s.access for s in walk.stores))
    scattered = any(a.strides[-1] > 1 and a.value.type.size > 1 for a in accesses)
    return roofline_us(region, target, efficiency=SCATTERED if scattered else STREAMING)


def source(region: Region, walk: Walk, groups: int) -> str:
    """The kernel's text.  A thread loads all its groups first, then computes and stores them."""
    index = "int" if walk.space.fits_int else "i64"
    width, extents = walk.width, walk.space.extents
    axis = len(extents) - 1
    names = [f"i{a}" for a in range(len(extents))]
    steps = (*extents[:-1], extents[-1] // width if axis else groups)
    tail = walk.space.size % width
    place = [
        *split_index("group", steps, [*names[:-1], "last"], index),
        f"const {index} {names[-1]} = last * {width};",
        f"const bool whole = {f'group < {groups - 1}' if tail else 'true'};",
        f"const int count = {tail or width};",
    ]
    loop = [
        f"#pragma unroll\nfor (int r = 0; r < {walk.repeat}; ++r) {{",
        f"const {index} group = first + r * {BLOCK};",
        f"if (group < {groups}) {{",
        *place,
    ]
    kept = {name: f"{name}_m" for name in walk.loads}
    accesses = [*walk.loads.values(), *(s.access for s in walk.stores)]
    return "\n".join(
        (
            prelude(),
            f'extern "C" __global__ void __launch_bounds__({BLOCK}) pointwise('
            f"{parameters(region, in_place(region, walk))}) {{",
            f"const {index} first = ({index})blockIdx.x * {BLOCK * walk.repeat} + threadIdx.x;",
            wide_condition(accesses, axis, width),
            *(f"{held(a, axis, width)} {kept[name]}[{walk.repeat}];" for name, a in walk.loads.items()),
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


FAMILY = Family("pointwise", (), takes, generate, estimate)
