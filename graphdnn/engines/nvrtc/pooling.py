"""Pooling in two or three dimensions, with pointwise work before and behind it.

A thread takes one window, or one of each of a few neighbouring channels where channels are innermost; work before is
done again for each window that an element is in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from graphdnn.answer import Code, Decline
from graphdnn.engines.cost import Efficiency, roofline_us
from graphdnn.engines.nvrtc.demand import Demand
from graphdnn.engines.nvrtc.emit import BOUNDS, literal, opening, prelude, register, template
from graphdnn.engines.nvrtc.epilogue import epilogue_of, placed, placed_in
from graphdnn.engines.nvrtc.group import Access, held, load_group, wide_condition
from graphdnn.engines.nvrtc.hardware import BLOCK, PLAIN_SHARE, VECTOR_BYTES
from graphdnn.engines.nvrtc.indexing import LARGEST_INT, MOST_ELEMENTS, common_width, split_index
from graphdnn.engines.nvrtc.places import Place
from graphdnn.engines.nvrtc.recipe import (
    RAMP_US,
    Anchored,
    Family,
    Kernel,
    Recipe,
    anchored,
    buffers,
    parameter_names,
    parameters,
)
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.pool import AvgPool, MaxPool, Pool
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, TensorType
from graphdnn.target import Target

UNROLLED_TAPS = 32
"""Taps of a window up to which its loops are unrolled, as of 5x5 and 3x3x3; for more the text would grow for nothing,
since each tap waits for memory."""

OPERATIONS = 8
"""Operations that a pointwise node before a pooling counts as: between an addition and a sigmoid."""

VECTORS = Efficiency(bandwidth=0.9)
SINGLE = Efficiency(bandwidth=0.45)
"""Fractions of the bandwidth: with several channels a thread (19.0 us were measured for ResNet's max pooling of 32
images, 14.9 at the pace of a copy), and with one element of each window."""


def parts_of(region: Region) -> tuple[Anchored, Pool] | Decline:
    """The region as work before, the pooling, and work behind in the space of its result."""
    parts = anchored(region)
    if isinstance(parts, Decline):
        return parts
    inside = {n.result for n in parts.before}
    shared = [v for v in inside if v in region.outputs or any(v in n.operands for n in parts.after)]
    if shared:
        return Decline(
            Code.ESCAPE, f"{shared[0]} is needed beside {parts.anchor}; the pooling kernel has it only window by window"
        )
    places = before_places(parts)
    places = placed(region, parts) if not isinstance(places, Decline) else places
    assert isinstance(parts.anchor.op, Pool)
    return places if isinstance(places, Decline) else (parts, parts.anchor.op)


def before_places(parts: Anchored) -> dict[Value, Place] | Decline:
    """Where the work before lies in the space of the pooling's operand."""
    x = parts.anchor.operands[0]
    return placed_in(parts.before, x, (x,))


def takes(region: Region) -> Decline | None:
    parts = parts_of(region)
    return parts if isinstance(parts, Decline) else None


def taken(region: Region) -> tuple[Anchored, Pool]:
    parts = parts_of(region)
    assert not isinstance(parts, Decline)
    return parts


@dataclass(frozen=True)
class Prologue:
    """What stands for one element of the pooling's operand: loads by name, statements, and the expression."""

    loads: dict[str, Access]
    lines: tuple[str, ...]
    result: str


def prologue_of(region: Region, parts: Anchored) -> Prologue:
    x = parts.anchor.operands[0]
    places = before_places(parts)
    assert not isinstance(places, Decline)
    demand = Demand(parts.before, x.type.shape)
    result = demand(x, places[x])
    parameter = parameter_names(region)
    loads = {name: Access(parameter[load.value], load.value, load.strides) for load, name in demand.loads.items()}
    return Prologue(loads, tuple(demand.lines), result)


def vector(x: TensorType, y: TensorType) -> tuple[int, int]:
    """The axis that a thread's group lies along, and its width: several channels, or a single element."""
    if x.layout[1] != 1 or y.layout[1] != 1 or x.shape[1] == 1:
        return x.rank - 1, 1
    others = [s for t in (x, y) for a, s in enumerate(t.layout) if a != 1 and t.shape[a] > 1]
    return 1, common_width(min(MOST_ELEMENTS, VECTOR_BYTES // x.dtype.itemsize), (x.shape[1], *others))


def walk_order(y: TensorType) -> list[int]:
    """The result's axes, outermost first, so that neighbouring threads write neighbouring elements."""
    return sorted(range(y.rank), key=lambda a: (y.layout[a], -a), reverse=True)


def generate(region: Region, target: Target) -> Recipe:
    parts, op = taken(region)
    x, y = parts.anchor.operands[0].type, parts.anchor.result.type
    axis, width = vector(x, y)
    grid = -(-y.size // (width * BLOCK))
    kernel = Kernel(
        "pool", partial(source, region, parts, op, axis, width), buffers(region), (grid, 1, 1), (BLOCK, 1, 1)
    )
    return Recipe(f"{op.kind}_x{width}", (kernel,))


def estimate(region: Region, target: Target) -> float:
    parts, op = taken(region)
    _, width = vector(parts.anchor.operands[0].type, parts.anchor.result.type)
    # Work before is done once for each place of each window, but counted once for each element.
    again = OPERATIONS * len(parts.before) * parts.anchor.result.type.size * prod(op.kernel)
    arithmetic = 1e6 * again / (PLAIN_SHARE * target.rate("float32"))
    return RAMP_US + arithmetic + roofline_us(region, target, efficiency=VECTORS if width > 1 else SINGLE)


def source(region: Region, parts: Anchored, op: Pool, axis: int, width: int) -> str:
    epilogue = epilogue_of(region, parts, f"pooled[{'j' if width > 1 else '0'}]", width)
    x, y = parts.anchor.operands[0].type, parts.anchor.result.type
    reach = [a.value.type.extent for a in prologue_of(region, parts).loads.values()]
    fits = epilogue.fits_int and max(*reach, x.size, y.size + BLOCK * width) <= LARGEST_INT
    index = "int" if fits else "i64"
    names = [f"at{a}" for a in range(y.rank)]
    order = walk_order(y)
    walked = [f"at{a}" if a != axis or width == 1 else "vector_index" for a in order]
    extents = [y.shape[a] // (width if a == axis else 1) for a in order]
    groups = y.size // width
    return "\n".join(
        (
            prelude() + template("rows.cu"),
            opening(BLOCK, "pool", parameters(region)),
            f"const {index} group = ({index})blockIdx.x * {BLOCK} + threadIdx.x;",
            f"if (group >= {groups}) return;",
            *split_index("group", extents, walked, index),
            *([f"const {index} at{axis} = vector_index * {width};"] if width > 1 else []),
            *([f"const bool whole = true; const int count = {width};"] if width > 1 else []),
            epilogue.condition(axis, width),
            *window(region, parts, op, names, index, (axis, width)),
            *epilogue.text(names, axis, width),
            "}\n",
        )
    )


def neutral(op: Pool, dtype: DType) -> str:
    """What a window begins with: nothing, or what loses against every element."""
    if isinstance(op, AvgPool):
        return literal(0, dtype)
    return literal(-math.inf, dtype) if dtype.is_float else literal(BOUNDS[dtype.name][0], dtype)


def window(
    region: Region, parts: Anchored, op: Pool, names: Sequence[str], index: str, group: tuple[int, int]
) -> list[str]:
    """Statements that fill `pooled`, one entry for each element of the thread's group."""
    axis, width = group
    prologue = prologue_of(region, parts)
    x = parts.anchor.operands[0].type
    kind = "Sum" if isinstance(op, AvgPool) else "Largest"
    unroll = "#pragma unroll" if prod(op.kernel) <= UNROLLED_TAPS else "#pragma unroll 1"
    at = [names[0], names[1], *(f"h{s}" for s in range(x.rank - 2))]
    lines = [
        f"{register(x.dtype)} pooled[{width}];",
        *fill(width, f"pooled[j] = {neutral(op, x.dtype)};"),
        wide_condition(list(prologue.loads.values()), axis, width, "wide_before"),
    ]
    for s, (k, stride, (lo, _), step) in enumerate(zip(op.kernel, op.stride, op.padding, op.steps, strict=True)):
        lines += [
            f"{unroll}\nfor (int r{s} = 0; r{s} < {k}; ++r{s}) {{",
            f"const {index} h{s} = {names[2 + s]} * {stride} + r{s} * {step} - {lo};",
            f"if (h{s} >= 0 && h{s} < {x.shape[2 + s]}) {{",
        ]
    if width > 1:
        lines.append("const bool wide = wide_before;")
    for name, access in prologue.loads.items():
        lines += [f"{held(access, axis, width)} {name}_m;", load_group(access, f"{name}_m", at, axis, width)]
    lines.append(f"#pragma unroll\nfor (int j = 0; j < {width}; ++j) {{")
    for name, access in prologue.loads.items():
        place = ".at[j]" if access.is_held_whole(axis, width) else ""
        lines.append(f"const {register(access.value.type.dtype)} {name} = widen({name}_m{place});")
    lines += [*prologue.lines, f"pooled[j] = {kind}::of(pooled[j], {prologue.result});", "}"]
    lines += ["}\n}"] * len(op.kernel)
    return [*lines, *mean(op, x, names, index, width)] if isinstance(op, AvgPool) else lines


def mean(op: AvgPool, x: TensorType, names: Sequence[str], index: str, width: int) -> list[str]:
    """Statements that divide the sums by how many places each window counts."""
    real = register(x.dtype)
    lines = ["int places = 1;"]
    for s, (n, k, stride, (lo, hi)) in enumerate(zip(x.shape[2:], op.kernel, op.stride, op.padding, strict=True)):
        first, last = (-lo, n + hi) if op.count_include_pad else (0, n)
        lines += [
            f"const {index} from{s} = {names[2 + s]} * {stride} - {lo};",
            f"places *= (int)((from{s} + {k} < {last} ? from{s} + {k} : {last}) - "
            f"(from{s} > {first} ? from{s} : {first}));",
        ]
    lines.append(f"const {real} share = ({real})1 / ({real})places;")
    return [*lines, *fill(width, "pooled[j] *= share;")]


def fill(width: int, statement: str) -> list[str]:
    return [f"#pragma unroll\nfor (int j = 0; j < {width}; ++j) {statement}"]


FAMILY = Family("pooling", (MaxPool, AvgPool), takes, generate, estimate)
