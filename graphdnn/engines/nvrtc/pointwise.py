"""Regions of pointwise nodes: one kernel, several outputs, broadcasting, any strides, vectors where they fit."""

from __future__ import annotations

from dataclasses import dataclass

from graphdnn.answer import Decline
from graphdnn.engines.cost import Efficiency, roofline_us
from graphdnn.engines.nvrtc.emit import emit_node, literal, prelude, register, storage
from graphdnn.engines.nvrtc.indexing import Space, collapsed, offset_terms, ordered, split_index, vector_width
from graphdnn.engines.nvrtc.placement import Placement, operand_placement, place_results, placed_strides
from graphdnn.engines.nvrtc.recipe import Family, Kernel, Recipe, buffers
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.region import Region
from graphdnn.target import Target

BLOCK = 256
BYTES_IN_FLIGHT = 64
"""Bytes that a thread asks for before it computes; more of its loads in flight hide the latency of memory."""

STREAMING = Efficiency(bandwidth=0.9)
SCATTERED = Efficiency(bandwidth=0.2)
"""Where neighbours in the walk are not neighbours in memory for some operand."""


@dataclass(frozen=True)
class Access:
    """One operand in memory as the kernel walks it: parameter name, element type, strides along the space."""

    name: str
    value: Value
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Walk:
    """The whole plan of a pointwise kernel, before it is text."""

    space: Space
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    width: int
    repeat: int
    lines: tuple[str, ...]
    results: tuple[str, ...]
    guards: tuple[str, ...]


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


class Demand:
    """Emits, for one place of the index space, what the asked values need, each (value, placement) once."""

    def __init__(self, region: Region, rank: int) -> None:
        self.rank = rank
        self.producer = {n.result: n for n in region.nodes}
        self.lines: list[str] = []
        self.loads: dict[tuple[Value, tuple[int, ...]], str] = {}
        self.names: dict[tuple[Value, Placement], str] = {}

    def __call__(self, value: Value, placement: Placement) -> str:
        """The C++ expression of a value of the region at the current place."""
        if value.literal is not None:
            return literal(value.literal, value.type.dtype)
        known = self.names.get((value, placement))
        if known is not None:
            return known
        node = self.producer.get(value)
        if node is None:
            strides = placed_strides(value, placement, self.rank)
            name = self.loads.setdefault((value, strides), f"x{len(self.loads)}")
        else:
            operands = [self(v, operand_placement(node, i, placement)) for i, v in enumerate(node.operands)]
            name = f"v{len(self.lines)}"
            self.lines.append("\n".join(emit_node(node, operands, name)))
        self.names[value, placement] = name
        return name


def plan_walk(region: Region, target: Target) -> Walk:
    """Decides index space, vector width and loads of a region that `takes` accepted."""
    places = placements(region)
    assert not isinstance(places, Decline)
    shape = domain(region).result.type.shape
    demand = Demand(region, len(shape))
    results = tuple(demand(v, places[v]) for v in region.outputs)
    arguments = {v: b.index for v, b in buffers(region).items()}
    loads = [(f"p{arguments[v]}", v, s) for v, s in demand.loads]
    stores = [(f"p{arguments[v]}", v, placed_strides(v, places[v], len(shape))) for v in region.outputs]
    leader = len(loads) + max(range(len(stores)), key=lambda i: stores[i][1].type.size)
    # An output that broadcasts over the space is written at the first place along the axes that it lacks: to find
    # those after sorting and merging, each such axis is walked by an access of its own.
    masks = [tuple(0 if n == 1 or axis in places[v] else 1 for axis, n in enumerate(shape)) for v in region.outputs]
    strides = [s for *_, s in (*loads, *stores)]
    space = collapsed(ordered(Space(shape, (*strides, *masks)), leader))
    walked, masked = space.accesses[: len(strides)], space.accesses[len(strides) :]
    space = Space(space.extents, walked)
    accesses = [Access(name, v, s) for (name, v, _), s in zip((*loads, *stores), walked, strict=True)]
    width = vector_width(space, [a.value.type.dtype.itemsize for a in accesses], most=widest(accesses))
    if any(m[-1] for m in masked):
        width = 1
    return Walk(
        space,
        tuple(accesses[: len(loads)]),
        tuple(accesses[len(loads) :]),
        width,
        repetition(space, accesses[: len(loads)], width, target),
        tuple(demand.lines),
        results,
        tuple(" && ".join(f"i{axis} == 0" for axis, m in enumerate(mask) if m) for mask in masked),
    )


def widest(accesses: list[Access]) -> int:
    """Eight elements a thread, sixteen where all are bytes: wider ones only cost registers."""
    return 16 if all(a.value.type.dtype.itemsize == 1 for a in accesses) else 8


def repetition(space: Space, loads: list[Access], width: int, target: Target) -> int:
    """Groups that a thread takes: as many as keep BYTES_IN_FLIGHT on their way, while there is work for every core."""
    asked = sum(a.value.type.dtype.itemsize * (width if a.strides[-1] else 1) for a in loads)
    repeat = 1
    while (
        repeat < 4
        and 2 * repeat * asked <= BYTES_IN_FLIGHT
        and space.size // (width * 2 * repeat) >= target.sm_count * 2048
    ):
        repeat *= 2
    return repeat


def generate(region: Region, target: Target) -> Recipe:
    walk = plan_walk(region, target)
    groups = -(-walk.space.size // walk.width)
    grid = -(-groups // (BLOCK * walk.repeat))
    arguments = buffers(region)
    kernel = Kernel(
        "pointwise", source(region, walk, groups), tuple(arguments[v] for v in arguments), (grid, 1, 1), (BLOCK, 1, 1)
    )
    return Recipe(f"pointwise_x{walk.width}", (kernel,))


def estimate(region: Region, target: Target) -> float:
    walk = plan_walk(region, target)
    scattered = any(a.strides[-1] > 1 and a.value.type.size > 1 for a in (*walk.loads, *walk.stores))
    return roofline_us(region, target, efficiency=SCATTERED if scattered else STREAMING)


def source(region: Region, walk: Walk, groups: int) -> str:
    """The kernel's text.  A thread loads all its groups first, then computes and stores them."""
    index = "int" if walk.space.fits_int else "i64"
    count, width = len(region.inputs), walk.width
    names = [f"i{axis}" for axis in range(len(walk.space.extents))]
    extents = (*walk.space.extents[:-1], walk.space.extents[-1] // width if len(names) > 1 else groups)
    place = [
        *split_index("group", extents, [*names[:-1], "last"], index),
        f"const {index} {names[-1]} = last * {width};",
    ]
    parameters = [f"const {storage(v.type.dtype)}* __restrict__ p{i}" for i, v in enumerate(region.inputs)]
    parameters += [f"{storage(v.type.dtype)}* __restrict__ p{count + i}" for i, v in enumerate(region.outputs)]
    tail = walk.space.size % width
    return "\n".join(
        (
            prelude(),
            f'extern "C" __global__ void __launch_bounds__({BLOCK}) pointwise({", ".join(parameters)}) {{',
            f"const {index} first = ({index})blockIdx.x * {BLOCK * walk.repeat} + threadIdx.x;",
            wide_condition(walk),
            *(f"{held(a, width)} {x}[{walk.repeat}];" for x, a in loaded(walk)),
            f"#pragma unroll\nfor (int r = 0; r < {walk.repeat}; ++r) {{",
            f"const {index} group = first + r * {BLOCK};",
            f"if (group < {groups}) {{",
            *place,
            *(f"const bool whole = {f'group < {groups - 1}' if tail else 'true'};" for _ in range(width > 1)),
            *(load(a, x, names, width, tail) for x, a in loaded(walk)),
            "}\n}",
            f"#pragma unroll\nfor (int r = 0; r < {walk.repeat}; ++r) {{",
            f"const {index} group = first + r * {BLOCK};",
            f"if (group < {groups}) {{",
            *place,
            *compute(walk, names, tail, groups),
            "}\n}\n}\n",
        )
    )


def loaded(walk: Walk) -> list[tuple[str, Access]]:
    """Loads with the names of the variables that hold them."""
    return [(f"m{i}", a) for i, a in enumerate(walk.loads)]


def wide_condition(walk: Walk) -> str:
    """Whether the addresses allow vector moves: asked of the kernel's own arguments, the same for all threads."""
    if walk.width == 1:
        return ""
    moving = dict.fromkeys(
        (a.name, min(16, walk.width * a.value.type.dtype.itemsize))
        for a in (*walk.loads, *walk.stores)
        if a.strides[-1] == 1
    )
    return "const bool wide = " + " && ".join(f"aligned({size}, {name})" for name, size in moving) + ";"


def is_pack(access: Access, width: int) -> bool:
    return width > 1 and access.strides[-1] != 0


def held(access: Access, width: int) -> str:
    """C++ type of what a thread keeps of one load."""
    item = storage(access.value.type.dtype)
    return f"Pack<{item}, {width}>" if is_pack(access, width) else item


def load(access: Access, name: str, names: list[str], width: int, tail: int) -> str:
    """The statement that fills `name[r]`; beyond the end it reads nothing."""
    item, step = storage(access.value.type.dtype), access.strides[-1]
    at = f"{access.name} + ({offset_terms(access.strides, names)})"
    if not is_pack(access, width):
        return f"{name}[r] = *({at});"
    one_by_one = (
        f'_Pragma("unroll") for (int j = 0; j < {width}; ++j) {guard(tail, width)}{name}[r].at[j] = ({at})[j * {step}];'
    )
    if step != 1:
        return one_by_one
    return f"if (wide && whole) {name}[r] = load_pack<{item}, {width}>({at}, true); else {{ {one_by_one} }}"


def guard(tail: int, width: int) -> str:
    return f"if (whole || j < {tail}) " if tail and width > 1 else ""


def compute(walk: Walk, names: list[str], tail: int, groups: int) -> list[str]:
    """Statements from loaded groups to stored ones."""
    width = walk.width
    lines = [f"const bool whole = {f'group < {groups - 1}' if tail else 'true'};"] if width > 1 else []
    packs = [is_pack(a, width) for a in walk.stores]
    lines += [
        f"Pack<{storage(a.value.type.dtype)}, {width}> y{i};"
        for i, (a, pack) in enumerate(zip(walk.stores, packs, strict=True))
        if pack
    ]
    if width > 1:
        lines.append(f"#pragma unroll\nfor (int j = 0; j < {width}; ++j) {{")
    lines += [
        f"const {register(a.value.type.dtype)} x{i} = widen(m{i}[r]{'.at[j]' if is_pack(a, width) else ''});"
        for i, a in enumerate(walk.loads)
    ]
    lines += walk.lines
    after: list[str] = []
    for i, (a, result, only) in enumerate(zip(walk.stores, walk.results, walk.guards, strict=True)):
        item = storage(a.value.type.dtype)
        at = f"{a.name} + ({offset_terms(a.strides, names)})"
        when = f"if ({only}) " if only else ""
        if not packs[i]:
            # Not moving along the group: all its places hold the same element, written once by the first.
            lines.append(
                f"{when}store({at}, {result});" if width == 1 else f"if (j == 0) {{ {when}store({at}, {result}); }}"
            )
            continue
        lines.append(f"y{i}.at[j] = narrow<{item}>({result});")
        one_by_one = (
            f'_Pragma("unroll") for (int j = 0; j < {width}; ++j) {guard(tail, width)}'
            f"({at})[j * {a.strides[-1]}] = y{i}.at[j];"
        )
        wide = f"if (wide && whole) store_pack<{item}, {width}>({at}, y{i}, true); else {{ {one_by_one} }}"
        after.append(when + "{ " + (wide if a.strides[-1] == 1 else one_by_one) + " }")
    return [*lines, *(["}"] if width > 1 else []), *after]


FAMILY = Family("pointwise", (), takes, generate, estimate)
