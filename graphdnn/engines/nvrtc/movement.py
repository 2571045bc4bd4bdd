"""Kernels that move elements: copies of boxes, vectorized along what is dense, turned through shared memory if need be,
or in registers where pixels have few channels.

One kernel does all boxes of an op (up to MOST_BOXES); each block works on one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from graphdnn.answer import Code, Decline
from graphdnn.engines.nvrtc.copies import MOVES, BoxCopy, Elements, Start, box_copies
from graphdnn.engines.nvrtc.emit import opening, template
from graphdnn.engines.nvrtc.hardware import BLOCK, LOADS_IN_FLIGHT, VECTOR_BYTES, WORD_BYTES, resident_threads
from graphdnn.engines.nvrtc.indexing import LARGEST_INT, common_width, offset_terms, split_index
from graphdnn.engines.nvrtc.packing import Packing, groups_of, packing_of
from graphdnn.engines.nvrtc.recipe import RAMP_US, Buffer, Family, Kernel, Pairs, Recipe
from graphdnn.engines.nvrtc.turning import Tile, tile_counts, tile_of
from graphdnn.ir.ops.movement import WriteSlice
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, normalized_strides
from graphdnn.target import Target

MOST_BOXES = 16
"""Boxes of one kernel; each has its own part of the text."""

ROUNDED_UP = 2**22
"""As in indexing.py, and what blocks that go round and round count beyond the end: 1024 elements each of eight blocks
on up to 512 multiprocessors."""

WIDE_REACH, TURNED_REACH, PACKED_REACH, NARROW_REACH = 0.98, 0.75, 0.78, 0.45
"""Parts of the copy bandwidth: whole vectors; turned through shared memory (10.5 us were measured for 32 images of 64
channels, 6.0 at the pace of a copy); packed in registers (8.2 us for three channels, 4.5); element by element."""

UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
"""C++ types that elements are moved as, by their bytes: their numbers are never looked at."""


@dataclass(frozen=True)
class CopySchedule:
    """How one box is copied: through a `tile`, in a `packing`, or by a walk in vectors of `width` elements where it has
    neither; by `blocks` blocks, whose threads take `repeat` groups each, and with what type of `index`."""

    copy: BoxCopy
    tile: Tile | None
    width: int
    repeat: int
    blocks: int
    index: str
    packing: Packing | None = None


def takes(region: Region) -> Decline | None:
    if len(region.nodes) == 1:
        return None
    return Decline(Code.PATTERN, f"{region.pattern}: a generated kernel that moves elements does nothing else")


def element_size(region: Region) -> int:
    return region.nodes[0].result.type.dtype.itemsize


def schedules_of(region: Region, target: Target) -> tuple[CopySchedule, ...]:
    size = element_size(region)
    return tuple(schedule_of(copy, size, target) for copy in box_copies(region, region.nodes[0]))


def schedule_of(copy: BoxCopy, size: int, target: Target) -> CopySchedule:
    """Decides how one box is moved."""
    # A reshape that is counted walks two index spaces, and is too rare to bound the second one.
    index = "int" if copy.reshaped is None and largest_offset(copy) <= LARGEST_INT else "i64"
    packing = packing_of(copy, size)
    if packing is not None:
        groups = prod(groups_of(copy, packing))
        repeat = repeats(groups, target)
        return CopySchedule(copy, None, 1, repeat, -(-groups // (BLOCK * repeat)), index, packing)
    tile = tile_of(copy, size, target)
    if tile is not None:
        tiles = prod(tile_counts(copy, tile))
        return CopySchedule(copy, tile, 1, 1, tiles, index)
    width = walk_width(copy, size)
    groups = -(-copy.size // width)
    repeat = repeats(groups, target)
    blocks = -(-groups // (BLOCK * repeat))
    if copy.around is not None:
        # Where x is the result already, these blocks have nothing to do, so there are few of them and each goes on.
        blocks = min(blocks, resident_threads(target) // BLOCK)
    return CopySchedule(copy, None, width, repeat, blocks, index)


def repeats(groups: int, target: Target) -> int:
    """Groups that a thread loads before it stores them: several where the device is half full of threads even so."""
    return LOADS_IN_FLIGHT if 2 * groups >= LOADS_IN_FLIGHT * resident_threads(target) else 1


def largest_offset(copy: BoxCopy) -> int:
    """The largest offset or count that a kernel computes for a box, rounded up to whole blocks."""
    spans = [e.offset + sum((n - 1) * s for n, s in zip(copy.extents, e.strides, strict=True)) for e in copy.accesses]
    if copy.lookup is not None:
        spans.append(spans[1] + copy.lookup.extent * copy.lookup.step)
    if copy.into is not None:
        spans.append(spans[0] + copy.into.start.last * copy.into.step)
    return max(*spans, copy.size) + ROUNDED_UP


def walk_width(copy: BoxCopy, size: int) -> int:
    """Elements a thread moves at once: neighbours in the result, all groups starting at multiples of the width."""
    if copy.reshaped is not None or copy.target.strides[-1] != 1 or (copy.lookup and copy.lookup.indices.strides[-1]):
        return 1
    if copy.around is not None and copy.around.axis == len(copy.extents) - 1:
        return 1
    terms = [copy.target.offset, *copy.target.strides[:-1]]
    if len(copy.extents) > 1:
        terms.append(copy.extents[-1])
    if copy.source is not None and copy.source.strides[-1] == 1:
        terms += [copy.source.offset, *copy.source.strides[:-1]]
        terms += [copy.lookup.step] if copy.lookup else []
    if copy.into is not None:
        terms.append(copy.into.step)
    return common_width(VECTOR_BYTES // size, terms)


def generate(region: Region, target: Target) -> Recipe:
    schedules = schedules_of(region, target)
    size = element_size(region)
    kernels = [kernel(region, schedules[i : i + MOST_BOXES], size) for i in range(0, len(schedules), MOST_BOXES)]
    turned = any(s.tile for s in schedules)
    packed = any(s.packing for s in schedules)
    name = f"move_{'turned' if turned else 'packed' if packed else f'x{min(s.width for s in schedules)}'}"
    notes = ["turned through shared memory"] if turned else []
    if packed:
        notes.append("the few channels of a pixel are put side by side in registers")
    window = tuple(s for s in schedules if s.copy.around is None)
    if len(window) < len(schedules):
        notes.append("only the window is written where the result has the operand's address")
    pairs = in_place(region)
    return Recipe(
        name,
        tuple(kernels),
        notes=tuple(notes),
        in_place=pairs,
        in_place_us=microseconds(window, size, target) if pairs else None,
    )


def in_place(region: Region) -> Pairs:
    """A written slice's operand, where the result lies as it does: all but the window then stays as it is."""
    node = region.nodes[0]
    if not isinstance(node.op, WriteSlice):
        return ()
    x, y = node.operands[0].type, node.result.type
    alike = normalized_strides(x.shape, x.layout) == normalized_strides(y.shape, y.layout)
    return ((region.inputs.index(node.operands[0]), 0),) if alike and node.operands[0] is not node.operands[1] else ()


def estimate(region: Region, target: Target) -> float:
    return microseconds(schedules_of(region, target), element_size(region), target)


def microseconds(schedules: Sequence[CopySchedule], size: int, target: Target) -> float:
    """What kernels of these copies take, launches included; `size` is the bytes of an element."""
    seconds = sum(moved_elements(s.copy) * size / (target.bandwidth * bandwidth_share(s, size)) for s in schedules)
    return RAMP_US + -(-len(schedules) // MOST_BOXES) * target.launch_us + 1e6 * seconds


def moved_elements(copy: BoxCopy) -> int:
    """Elements that are read and written."""
    if copy.source is None:
        return copy.size
    return copy.size + (copy.size if copy.filled is None else copy.size // copy.extents[-1] * copy.filled)


def bandwidth_share(schedule: CopySchedule, size: int) -> float:
    """Part of the copy bandwidth that a box is moved at."""
    if schedule.packing is not None:
        return PACKED_REACH
    widths = (schedule.tile.width_in, schedule.tile.width_out) if schedule.tile else (schedule.width,)
    if min(widths) * size < WORD_BYTES:
        return NARROW_REACH
    return TURNED_REACH if schedule.tile else WIDE_REACH


def kernel(region: Region, schedules: Sequence[CopySchedule], size: int) -> Kernel:
    used = sorted({n for s in schedules for n in parameters_of(s.copy)})
    blocks = sum(s.blocks for s in schedules)
    text = partial(source, schedules, used, len(region.inputs), size)
    return Kernel("move", text, tuple(Buffer(n) for n in used), (blocks, 1, 1), (BLOCK, 1, 1))


def source(schedules: Sequence[CopySchedule], used: Sequence[int], count: int, size: int) -> str:
    """The text of a kernel that copies some boxes, with the parameters `used`, of which the first `count` are read."""
    # No __restrict__: a written slice's operand and result may be one memory.
    declared = [f"{'const ' if n < count else ''}E* p{n}" for n in used]
    tiles = [s.tile.pitch * s.tile.extent_d for s in schedules if s.tile]
    lines = [f"__shared__ E tile[{max(tiles)}];"] if tiles else []
    first = 0
    for schedule in schedules:
        lines += [
            f"if (blockIdx.x < {first + schedule.blocks}u) {{",
            f"const {schedule.index} block = ({schedule.index})blockIdx.x - {first};",
            *text_of(schedule, size),
            "return;\n}",
        ]
        first += schedule.blocks
    return "\n".join(
        (
            template("prelude.cu"),
            template("movement.cu"),
            f"typedef {UNSIGNED[size]} E;",
            opening(BLOCK, "move", ", ".join(declared)),
            *lines,
            "}\n",
        )
    )


def text_of(schedule: CopySchedule, size: int) -> list[str]:
    if schedule.packing is not None:
        return packed_text(schedule, schedule.packing, size)
    return turned_text(schedule, size) if schedule.tile else walked_text(schedule, size)


def parameters_of(copy: BoxCopy) -> list[int]:
    """Numbers of the parameters that a copy reads or writes, windows' starts included."""
    starts = [w.start for w in (copy.into, copy.around) if w is not None and w.start.number is None]
    return [*(e.parameter for e in copy.accesses), *(s.parameter for s in starts)]


def start_text(start: Start) -> str:
    """The C++ expression of where a window begins."""
    if start.number is not None:
        return f"{min(max(start.number, 0), start.last)}ll"
    return f"held_start({as_type(start.dtype, start.parameter)}[0], {start.last})"


def as_type(dtype: DType, parameter: int) -> str:
    """The C++ expression of a parameter whose elements are numbers; one tensor may be moved and be an index too."""
    return f"((const {dtype.text}*)p{parameter})"


def based(elements: Elements, offset: str = "") -> str:
    """The C++ expression of the address of the first of these elements."""
    return f"p{elements.parameter} + {elements.offset}{offset}"


def turned_text(schedule: CopySchedule, size: int) -> list[str]:
    """A tile a block."""
    copy, tile, source = schedule.copy, schedule.tile, schedule.copy.source
    assert tile is not None
    assert source is not None
    names = [f"at{axis}" for axis in range(len(copy.extents))]
    places = {tile.s: "s0", tile.d: "d0"}
    at = [places.get(axis, name) for axis, name in enumerate(names)]
    shape = (tile.extent_s, tile.extent_d, tile.pitch, tile.width_in, tile.width_out)
    flags = (str(flag).lower() for flag in (tile.flat_in, tile.flat_out))
    wide_in = f"aligned({tile.width_in * size}, p{source.parameter})"
    wide_out = f"aligned({tile.width_out * size}, p{copy.target.parameter})"
    return [
        *split_index("block", tile_counts(copy, tile), names, schedule.index),
        f"const {schedule.index} s0 = at{tile.s} * {tile.extent_s}, d0 = at{tile.d} * {tile.extent_d};",
        f"const E* in = {based(source)} + ({offset_terms(source.strides, at)});",
        f"E* out = {based(copy.target)} + ({offset_terms(copy.target.strides, at)});",
        f"const int columns = at_most({tile.extent_s}, {copy.extents[tile.s]} - s0);",
        f"const int rows = at_most({tile.extent_d}, {copy.extents[tile.d]} - d0);",
        f"turn_tile<E, {schedule.index}, {', '.join(map(str, shape))}, {', '.join(flags)}, {BLOCK}>(tile, in, out, "
        f"{source.strides[tile.d]}, {copy.target.strides[tile.s]}, rows, columns, {wide_in}, {wide_out});",
    ]


def packed_text(schedule: CopySchedule, packing: Packing, size: int) -> list[str]:
    """Groups of pixels, each thread taking `repeat` of them; all loads stand before the first store."""
    copy, source, kind = schedule.copy, schedule.copy.source, schedule.index
    assert source is not None
    counts = groups_of(copy, packing)
    total, row, pixels = prod(counts), len(counts) - 1, packing.pixels
    names = [f"at{axis}" for axis in range(len(counts))]
    extent = copy.extents[-2] if len(copy.extents) > 1 else 1
    at = [*names[:row], "s0"]
    from_steps, to_steps = (side.strides[:-1] or (0,) for side in (source, copy.target))
    left = f"at_most({pixels}, {extent} - s0)" if extent % pixels else str(pixels)
    loop = f"#pragma unroll\nfor (int r = 0; r < {schedule.repeat}; ++r) {{\nconst {kind} wanted = base + r * {BLOCK};"
    where = [
        *split_index("group", counts, names, kind),
        f"const {kind} s0 = at{row} * {pixels};",
        f"const int count = {left};",
    ]
    shape = f"E, {pixels}, {packing.written}"
    return [
        f"const {kind} base = block * {BLOCK * schedule.repeat} + threadIdx.x;",
        f"const E* in = {based(source)};",
        f"E* out = {based(copy.target)};",
        "const auto pack = [&](auto wide) {",
        "constexpr bool WIDE = decltype(wide)::value;",
        f"Pixels<{shape}> held[{schedule.repeat}];",
        loop,
        f"const {kind} group = wanted < {total} ? wanted : {total - 1};",
        *where,
        f"held[r] = gather_pixels<{shape}, {packing.read}, WIDE ? {packing.width_in} : 1>("
        f"in + ({offset_terms(from_steps, at)}), ({kind}){source.strides[-1]}, ({kind}){from_steps[-1]}, count, "
        f"(E){copy.bits}ull);",
        "}",
        loop,
        f"if (wanted >= {total}) return;",
        f"const {kind} group = wanted;",
        *where,
        f"scatter_pixels<{shape}, WIDE ? {packing.width_out} : 1>("
        f"out + ({offset_terms(to_steps, at)}), held[r], count);",
        "}\n};",
        f"if (aligned({packing.width_in * size}, p{source.parameter}) && "
        f"aligned({packing.width_out * size}, p{copy.target.parameter})) pack(Flag<true>{{}});",
        "else pack(Flag<false>{});",
    ]


def walked_text(schedule: CopySchedule, size: int) -> list[str]:
    """Groups of neighbours in the result, each thread taking `repeat` of them; or all blocks going round and round."""
    copy, kind = schedule.copy, schedule.index
    groups = -(-copy.size // schedule.width)
    around = copy.around
    lines: list[str] = []
    if around is not None:
        assert copy.source is not None
        lines += [
            f"if (p{copy.source.parameter} == p{copy.target.parameter}) return;",
            f"const i64 start = {start_text(around.start)};",
        ]
    offset = f" + {start_text(copy.into.start)} * {copy.into.step}" if copy.into is not None else ""
    lines.append(f"E* out = {based(copy.target, offset)};")
    if copy.source is not None:
        lines.append(f"const E* in = {based(copy.source)};")
    if schedule.width > 1:
        moving = [copy.target, *([copy.source] if copy.source and copy.source.strides[-1] == 1 else [])]
        addresses = ", ".join(f"p{side.parameter}" for side in moving)
        lines.append(f"const bool wide = aligned({schedule.width * size}, {addresses});")
    loop, group = f"for (int r = 0; r < {schedule.repeat}; ++r) {{", f"const {kind} group = base + r * {BLOCK};"
    span = BLOCK * schedule.repeat
    first = f"{kind} base = block * {span} + threadIdx.x"
    rounds = f"for ({first}; base < {groups}; base += {schedule.blocks * span}) {{" if around else f"{{ const {first};"
    return [
        *lines,
        rounds,
        f"Pack<E, {schedule.width}> held[{schedule.repeat}];",
        f"#pragma unroll\n{loop}",
        group,
        f"if (group < {groups}) {{",
        *indices(schedule, groups),
        *skipped(schedule),
        *loaded(schedule),
        "}\n}",
        f"#pragma unroll\n{loop}",
        group,
        f"if (group < {groups}) {{",
        *indices(schedule, groups),
        *skipped(schedule),
        *stored(schedule),
        "}\n}\n}",
    ]


def indices(schedule: CopySchedule, groups: int) -> list[str]:
    """Index variables of a group's first element, and how much of the group there is."""
    copy, kind = schedule.copy, schedule.index
    names = [f"at{axis}" for axis in range(len(copy.extents))]
    last = names[-1]
    extents = (*copy.extents[:-1], copy.extents[-1] // schedule.width if len(names) > 1 else groups)
    lines = split_index("group", extents, [*names[:-1], f"{last}_g"], kind)
    lines.append(f"const {kind} {last} = {last}_g * {schedule.width};")
    if schedule.width > 1 and len(names) == 1 and copy.size % schedule.width:
        lines.append(f"const int count = at_most({schedule.width}, {copy.size} - {last});")
    elif schedule.width > 1:
        lines.append(f"const int count = {schedule.width};")
    return lines


def skipped(schedule: CopySchedule) -> list[str]:
    """What the window covers is left alone."""
    around = schedule.copy.around
    if around is None:
        return []
    return [f"if (at{around.axis} >= start && at{around.axis} < start + {around.extent}) continue;"]


def loaded(schedule: CopySchedule) -> list[str]:
    """Fills `held[r]`."""
    copy, width, kind = schedule.copy, schedule.width, schedule.index
    names = [f"at{axis}" for axis in range(len(copy.extents))]
    if copy.counts:
        each = f"held[r].at[j] = (E)({names[-1]} + j);"
        return [f'_Pragma("unroll") for (int j = 0; j < {width}; ++j) {each}']
    if copy.source is None:
        return [f"held[r] = splat<E, {width}>((E){copy.bits}ull);"]
    if copy.reshaped is not None:
        rest = [f"flat{axis}" for axis in range(len(copy.reshaped))]
        # `group` runs through the result in its row-major order, which is the source's too
        return [
            *split_index("group", copy.reshaped, rest, kind),
            f"held[r].at[0] = in[{offset_terms(copy.source.strides, rest)}];",
        ]
    lines = []
    at = offset_terms(copy.source.strides, names)
    if copy.lookup is not None:
        indices = copy.lookup.indices
        index = f"{as_type(copy.lookup.dtype, indices.parameter)}[{offset_terms(indices.strides, names)}]"
        lines.append(f"const {kind} row = ({kind})held_inside({index}, {copy.lookup.extent});")
        at = f"{at} + row * {copy.lookup.step}"
    step = copy.source.strides[-1]
    if width == 1:
        return [*lines, f"held[r].at[0] = in[{at}];"]
    if step == 0:
        return [*lines, f"held[r] = splat<E, {width}>(in[{at}]);"]
    single = (
        f'_Pragma("unroll") for (int j = 0; j < {width}; ++j) if (j < count) held[r].at[j] = in[{at} + j * {step}];'
    )
    if step != 1:
        return [*lines, single]
    whole = f"if (wide && count == {width}) held[r] = load_pack<E, {width}>(in + ({at}), true);"
    return [*lines, f"{whole} else {{ {single} }}"]


def stored(schedule: CopySchedule) -> list[str]:
    """Writes `held[r]`."""
    copy, width = schedule.copy, schedule.width
    at = offset_terms(copy.target.strides, [f"at{axis}" for axis in range(len(copy.extents))])
    if width == 1:
        return [f"out[{at}] = held[r].at[0];"]
    single = f'_Pragma("unroll") for (int j = 0; j < {width}; ++j) if (j < count) out[{at} + j] = held[r].at[j];'
    return [f"if (wide && count == {width}) store_pack<E, {width}>(out + ({at}), held[r], true); else {{ {single} }}"]


FAMILY = Family("movement", MOVES, takes, generate, estimate)
