"""Kernels that move elements: copies of boxes, vectorized along what is dense, turned through shared memory if need be,
or in registers where pixels have few channels.

One kernel does all boxes of an op (up to MOST_JOBS); each block works on one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from graphdnn.answer import Code, Decline
from graphdnn.engines.nvrtc.copies import MOVES, Elements, Job, Start, jobs_of
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

MOST_JOBS = 16
"""Boxes of one kernel; each is its own piece of text."""

ROUNDED_UP = 2**22
"""As in indexing.py, and what blocks that go round and round count beyond the end: 1024 elements each of eight blocks
on up to 512 multiprocessors."""

WIDE_REACH, TURNED_REACH, PACKED_REACH, NARROW_REACH = 0.98, 0.75, 0.78, 0.45
"""Parts of the copy bandwidth: whole vectors; turned through shared memory (10.5 us were measured for 32 images of 64
channels, 6.0 at the pace of a copy); packed in registers (8.2 us for three channels, 4.5); element by element."""

UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}


@dataclass(frozen=True)
class Piece:
    """One job as part of a kernel: its way (a tile, a packing, or neither for a walk), vectors, blocks, index type."""

    job: Job
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


def pieces_of(region: Region, target: Target) -> tuple[Piece, ...]:
    size = element_size(region)
    return tuple(piece(job, size, target) for job in jobs_of(region, region.nodes[0]))


def piece(job: Job, size: int, target: Target) -> Piece:
    """Decides how one box is moved."""
    # A reshape that is counted walks two index spaces, and is too rare to bound the second one.
    index = "int" if job.reshaped is None and reach(job) <= LARGEST_INT else "i64"
    packing = packing_of(job, size)
    if packing is not None:
        groups = prod(groups_of(job, packing))
        repeat = repeats(groups, target)
        return Piece(job, None, 1, repeat, -(-groups // (BLOCK * repeat)), index, packing)
    tile = tile_of(job, size, target)
    if tile is not None:
        tiles = prod(tile_counts(job, tile))
        return Piece(job, tile, 1, 1, tiles, index)
    width = walk_width(job, size)
    groups = -(-job.size // width)
    repeat = repeats(groups, target)
    blocks = -(-groups // (BLOCK * repeat))
    if job.around is not None:
        # Where x is the result already, these blocks have nothing to do, so there are few of them and each goes on.
        blocks = min(blocks, resident_threads(target) // BLOCK)
    return Piece(job, None, width, repeat, blocks, index)


def repeats(groups: int, target: Target) -> int:
    """Groups that a thread loads before it stores them: several where the device is half full of threads even so."""
    return LOADS_IN_FLIGHT if 2 * groups >= LOADS_IN_FLIGHT * resident_threads(target) else 1


def reach(job: Job) -> int:
    """The largest offset or count that the piece computes, rounded up to whole blocks."""
    elements = [job.target, *([job.source] if job.source else []), *([job.lookup.indices] if job.lookup else [])]
    spans = [e.offset + sum((n - 1) * s for n, s in zip(job.extents, e.strides, strict=True)) for e in elements]
    if job.lookup is not None:
        spans.append(spans[1] + job.lookup.extent * job.lookup.step)
    if job.into is not None:
        spans.append(spans[0] + job.into.start.last * job.into.step)
    return max(*spans, job.size) + ROUNDED_UP


def walk_width(job: Job, size: int) -> int:
    """Elements a thread moves at once: neighbours in the result, all groups starting at multiples of the width."""
    if job.reshaped is not None or job.target.strides[-1] != 1 or (job.lookup and job.lookup.indices.strides[-1]):
        return 1
    if job.around is not None and job.around.axis == len(job.extents) - 1:
        return 1
    terms = [job.target.offset, *job.target.strides[:-1]]
    if len(job.extents) > 1:
        terms.append(job.extents[-1])
    if job.source is not None and job.source.strides[-1] == 1:
        terms += [job.source.offset, *job.source.strides[:-1]]
        terms += [job.lookup.step] if job.lookup else []
    if job.into is not None:
        terms.append(job.into.step)
    return common_width(VECTOR_BYTES // size, terms)


def generate(region: Region, target: Target) -> Recipe:
    pieces = pieces_of(region, target)
    size = element_size(region)
    kernels = [kernel(region, pieces[i : i + MOST_JOBS], size) for i in range(0, len(pieces), MOST_JOBS)]
    turned = any(p.tile for p in pieces)
    packed = any(p.packing for p in pieces)
    name = f"move_{'turned' if turned else 'packed' if packed else f'x{min(p.width for p in pieces)}'}"
    notes = ["turned through shared memory"] if turned else []
    if packed:
        notes.append("the few channels of a pixel are put side by side in registers")
    window = tuple(p for p in pieces if p.job.around is None)
    if len(window) < len(pieces):
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
    return microseconds(pieces_of(region, target), element_size(region), target)


def microseconds(pieces: Sequence[Piece], size: int, target: Target) -> float:
    """What kernels of these pieces take, launches included; `size` is the bytes of an element."""
    seconds = sum(moved_elements(p.job) * size / (target.bandwidth * piece_reach(p, size)) for p in pieces)
    return RAMP_US + -(-len(pieces) // MOST_JOBS) * target.launch_us + 1e6 * seconds


def moved_elements(job: Job) -> int:
    """Elements that are read and written."""
    if job.source is None:
        return job.size
    return job.size + (job.size if job.filled is None else job.size // job.extents[-1] * job.filled)


def piece_reach(p: Piece, size: int) -> float:
    """Part of the copy bandwidth that a piece reaches."""
    if p.packing is not None:
        return PACKED_REACH
    widths = (p.tile.width_in, p.tile.width_out) if p.tile else (p.width,)
    if min(widths) * size < WORD_BYTES:
        return NARROW_REACH
    return TURNED_REACH if p.tile else WIDE_REACH


def kernel(region: Region, pieces: Sequence[Piece], size: int) -> Kernel:
    used = sorted({n for p in pieces for n in parameters_of(p.job)})
    blocks = sum(p.blocks for p in pieces)
    text = partial(source, pieces, used, len(region.inputs), size)
    return Kernel("move", text, tuple(Buffer(n) for n in used), (blocks, 1, 1), (BLOCK, 1, 1))


def source(pieces: Sequence[Piece], used: Sequence[int], count: int, size: int) -> str:
    """The text of a kernel of some pieces, with the parameters `used`, of which the first `count` are read."""
    # No __restrict__: a written slice's operand and result may be one memory.
    declared = [f"{'const ' if n < count else ''}E* p{n}" for n in used]
    tiles = [p.tile.pitch * p.tile.extent_d for p in pieces if p.tile]
    lines = [f"__shared__ E tile[{max(tiles)}];"] if tiles else []
    first = 0
    for p in pieces:
        lines += [
            f"if (blockIdx.x < {first + p.blocks}u) {{",
            f"const {p.index} block = ({p.index})blockIdx.x - {first};",
            *text_of(p, size),
            "return;\n}",
        ]
        first += p.blocks
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


def text_of(p: Piece, size: int) -> list[str]:
    if p.packing is not None:
        return packed_text(p, p.packing, size)
    return turned_text(p, size) if p.tile else walked_text(p, size)


def parameters_of(job: Job) -> list[int]:
    starts = [w.start for w in (job.into, job.around) if w is not None and w.start.number is None]
    elements = [job.target, *([job.source] if job.source else []), *([job.lookup.indices] if job.lookup else [])]
    return [*(e.parameter for e in elements), *(s.parameter for s in starts)]


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


def turned_text(p: Piece, size: int) -> list[str]:
    """A tile a block."""
    job, tile, source = p.job, p.tile, p.job.source
    assert tile is not None
    assert source is not None
    names = [f"at{axis}" for axis in range(len(job.extents))]
    places = {tile.s: "s0", tile.d: "d0"}
    at = [places.get(axis, name) for axis, name in enumerate(names)]
    shape = (tile.extent_s, tile.extent_d, tile.pitch, tile.width_in, tile.width_out)
    flags = (str(flag).lower() for flag in (tile.flat_in, tile.flat_out))
    wide_in = f"aligned({tile.width_in * size}, p{source.parameter})"
    wide_out = f"aligned({tile.width_out * size}, p{job.target.parameter})"
    return [
        *split_index("block", tile_counts(job, tile), names, p.index),
        f"const {p.index} s0 = at{tile.s} * {tile.extent_s}, d0 = at{tile.d} * {tile.extent_d};",
        f"const E* in = {based(source)} + ({offset_terms(source.strides, at)});",
        f"E* out = {based(job.target)} + ({offset_terms(job.target.strides, at)});",
        f"const int columns = at_most({tile.extent_s}, {job.extents[tile.s]} - s0);",
        f"const int rows = at_most({tile.extent_d}, {job.extents[tile.d]} - d0);",
        f"turn_tile<E, {p.index}, {', '.join(map(str, shape))}, {', '.join(flags)}, {BLOCK}>(tile, in, out, "
        f"{source.strides[tile.d]}, {job.target.strides[tile.s]}, rows, columns, {wide_in}, {wide_out});",
    ]


def packed_text(p: Piece, packing: Packing, size: int) -> list[str]:
    """Groups of pixels, each thread taking `repeat` of them; all loads stand before the first store."""
    job, source, kind = p.job, p.job.source, p.index
    assert source is not None
    counts = groups_of(job, packing)
    total, row, pixels = prod(counts), len(counts) - 1, packing.pixels
    names = [f"at{axis}" for axis in range(len(counts))]
    extent = job.extents[-2] if len(job.extents) > 1 else 1
    at = [*names[:row], "s0"]
    from_steps, to_steps = (side.strides[:-1] or (0,) for side in (source, job.target))
    left = f"at_most({pixels}, {extent} - s0)" if extent % pixels else str(pixels)
    loop = f"#pragma unroll\nfor (int r = 0; r < {p.repeat}; ++r) {{\nconst {kind} wanted = base + r * {BLOCK};"
    where = [
        *split_index("group", counts, names, kind),
        f"const {kind} s0 = at{row} * {pixels};",
        f"const int count = {left};",
    ]
    shape = f"E, {pixels}, {packing.written}"
    return [
        f"const {kind} base = block * {BLOCK * p.repeat} + threadIdx.x;",
        f"const E* in = {based(source)};",
        f"E* out = {based(job.target)};",
        "const auto pack = [&](auto wide) {",
        "constexpr bool WIDE = decltype(wide)::value;",
        f"Pixels<{shape}> held[{p.repeat}];",
        loop,
        f"const {kind} group = wanted < {total} ? wanted : {total - 1};",
        *where,
        f"held[r] = gather_pixels<{shape}, {packing.read}, WIDE ? {packing.width_in} : 1>("
        f"in + ({offset_terms(from_steps, at)}), ({kind}){source.strides[-1]}, ({kind}){from_steps[-1]}, count, "
        f"(E){job.bits}ull);",
        "}",
        loop,
        f"if (wanted >= {total}) return;",
        f"const {kind} group = wanted;",
        *where,
        f"scatter_pixels<{shape}, WIDE ? {packing.width_out} : 1>("
        f"out + ({offset_terms(to_steps, at)}), held[r], count);",
        "}\n};",
        f"if (aligned({packing.width_in * size}, p{source.parameter}) && "
        f"aligned({packing.width_out * size}, p{job.target.parameter})) pack(Flag<true>{{}});",
        "else pack(Flag<false>{});",
    ]


def walked_text(p: Piece, size: int) -> list[str]:
    """Groups of neighbours in the result, each thread taking `repeat` of them; or all blocks going round and round."""
    job, kind = p.job, p.index
    groups = -(-job.size // p.width)
    around = job.around
    lines: list[str] = []
    if around is not None:
        assert job.source is not None
        lines += [
            f"if (p{job.source.parameter} == p{job.target.parameter}) return;",
            f"const i64 start = {start_text(around.start)};",
        ]
    offset = f" + {start_text(job.into.start)} * {job.into.step}" if job.into is not None else ""
    lines.append(f"E* out = {based(job.target, offset)};")
    if job.source is not None:
        lines.append(f"const E* in = {based(job.source)};")
    if p.width > 1:
        moving = [job.target, *([job.source] if job.source and job.source.strides[-1] == 1 else [])]
        addresses = ", ".join(f"p{side.parameter}" for side in moving)
        lines.append(f"const bool wide = aligned({p.width * size}, {addresses});")
    loop, group = f"for (int r = 0; r < {p.repeat}; ++r) {{", f"const {kind} group = base + r * {BLOCK};"
    span = BLOCK * p.repeat
    first = f"{kind} base = block * {span} + threadIdx.x"
    rounds = f"for ({first}; base < {groups}; base += {p.blocks * span}) {{" if around else f"{{ const {first};"
    return [
        *lines,
        rounds,
        f"Pack<E, {p.width}> held[{p.repeat}];",
        f"#pragma unroll\n{loop}",
        group,
        f"if (group < {groups}) {{",
        *indices(p, groups),
        *skipped(p),
        *loaded(p),
        "}\n}",
        f"#pragma unroll\n{loop}",
        group,
        f"if (group < {groups}) {{",
        *indices(p, groups),
        *skipped(p),
        *stored(p),
        "}\n}\n}",
    ]


def indices(p: Piece, groups: int) -> list[str]:
    """Index variables of a group's first element, and how much of the group there is."""
    job, kind = p.job, p.index
    names = [f"at{axis}" for axis in range(len(job.extents))]
    last = names[-1]
    extents = (*job.extents[:-1], job.extents[-1] // p.width if len(names) > 1 else groups)
    lines = split_index("group", extents, [*names[:-1], f"{last}_g"], kind)
    lines.append(f"const {kind} {last} = {last}_g * {p.width};")
    if p.width > 1 and len(names) == 1 and job.size % p.width:
        lines.append(f"const int count = at_most({p.width}, {job.size} - {last});")
    elif p.width > 1:
        lines.append(f"const int count = {p.width};")
    return lines


def skipped(p: Piece) -> list[str]:
    """What the window covers is left alone."""
    around = p.job.around
    if around is None:
        return []
    return [f"if (at{around.axis} >= start && at{around.axis} < start + {around.extent}) continue;"]


def loaded(p: Piece) -> list[str]:
    """Fills `held[r]`."""
    job, width, kind = p.job, p.width, p.index
    names = [f"at{axis}" for axis in range(len(job.extents))]
    if job.counts:
        each = f"held[r].at[j] = (E)({names[-1]} + j);"
        return [f'_Pragma("unroll") for (int j = 0; j < {width}; ++j) {each}']
    if job.source is None:
        return [f"held[r] = splat<E, {width}>((E){job.bits}ull);"]
    if job.reshaped is not None:
        rest = [f"flat{axis}" for axis in range(len(job.reshaped))]
        # `group` runs through the result in its row-major order, which is the source's too
        return [
            *split_index("group", job.reshaped, rest, kind),
            f"held[r].at[0] = in[{offset_terms(job.source.strides, rest)}];",
        ]
    lines = []
    at = offset_terms(job.source.strides, names)
    if job.lookup is not None:
        indices = job.lookup.indices
        index = f"{as_type(job.lookup.dtype, indices.parameter)}[{offset_terms(indices.strides, names)}]"
        lines.append(f"const {kind} row = ({kind})held_inside({index}, {job.lookup.extent});")
        at = f"{at} + row * {job.lookup.step}"
    step = job.source.strides[-1]
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


def stored(p: Piece) -> list[str]:
    """Writes `held[r]`."""
    job, width = p.job, p.width
    at = offset_terms(job.target.strides, [f"at{axis}" for axis in range(len(job.extents))])
    if width == 1:
        return [f"out[{at}] = held[r].at[0];"]
    single = f'_Pragma("unroll") for (int j = 0; j < {width}; ++j) if (j < count) out[{at} + j] = held[r].at[j];'
    return [f"if (wide && count == {width}) store_pack<E, {width}>(out + ({at}), held[r], true); else {{ {single} }}"]


FAMILY = Family("movement", MOVES, takes, generate, estimate)
