"""Depthwise convolution in channels-last layout: one filter a channel, near the memory's or the arithmetic's limit.

Libraries run it at a small part of either, so it is a family of its own and no last resort.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from graphdnn.answer import Code, Decline
from graphdnn.engines.nvrtc.conv import conv_op, window_constants
from graphdnn.engines.nvrtc.emit import opening, prelude, storage, template
from graphdnn.engines.nvrtc.epilogue import anchor_with_epilogue, epilogue_of
from graphdnn.engines.nvrtc.hardware import BLOCK, REGISTERS_A_CORE, THREADS_A_CORE, WARP, WORD_BYTES
from graphdnn.engines.nvrtc.indexing import LARGEST_INT
from graphdnn.engines.nvrtc.recipe import Anchored, Family, Kernel, Recipe, buffers, parameter_names, parameters
from graphdnn.engines.nvrtc.tiling import accumulator
from graphdnn.engines.nvrtc.window import declared
from graphdnn.ir.ops.linear import Conv
from graphdnn.ir.region import Region
from graphdnn.target import Target

SHARED_BYTES = 40 * 1024
"""What the filters of a block's channels may take: five such blocks fit the 228 KiB of a multiprocessor of an H200."""

OTHER_REGISTERS = 28
"""What a thread needs beside sums, inputs and filters: addresses and counters."""

MOST_REGISTERS = 200
"""Registers of a thread by this count, of the 255 that there are: the epilogue takes some too."""

MOST_SUMS = 64
"""More results a thread compile slowly with an epilogue behind each."""

CHANNELS, MOST_ROWS, MOST_COLUMNS = (4, 2, 1), 7, 8
"""Neighbouring results of a thread along each axis: channels as vectors have them, rows and columns up to about the
extent of the smallest images of networks, 7 x 7."""

OTHERS = 3
"""Further divisions of the work that are offered for timing, of any number of channels."""

MULTIPLY_SLOTS = 0.32
"""Issue slots of a lane for each multiply-add.

The estimate of a kernel is the sum that this constant and the six below make up.  They were fitted to 180 timings of 36
regions with filters of 3, 5 and 7 and strides of 1 and 2: half of the timings are within 6 % of the estimate, all
within 31 %, and the division that it ranks first takes 1.02 times as long as the best one that was timed, 1.07 times at
most."""

SHARED_SLOTS = 0.78
"""Issue slots for each byte of filters that is read from shared memory."""

FETCH_SLOTS = 1.3
"""Issue slots for each instruction that fetches or widens an element of the input."""

RESULT_SLOTS = 12.2
"""Issue slots for each result."""

ROW_US = 0.18
"""Microseconds that a thread waits for each row of the input."""

MOVED = 0.7
"""Part of the time of copying the region's bytes that adds to the sum."""

FIXED_US = 0.4
"""Microseconds of any kernel besides the gap before it."""


@dataclass(frozen=True, kw_only=True)
class Strips:
    """How the work is divided among threads, and what that costs.

    A thread computes `rows` x `columns` neighbouring results for each of `channels` neighbouring channels; `lanes`
    threads of a block stand side by side along the channels.  There are `blocks` blocks of `threads` threads.  A thread
    holds `registers` 32-bit registers, reads `read` rows of the input, and takes `slots` issue slots of its lane.
    """

    channels: int
    columns: int
    rows: int
    lanes: int
    threads: int
    blocks: int
    registers: int
    read: int
    slots: float


def takes(region: Region) -> Decline | None:
    parts = anchor_with_epilogue(region)
    if isinstance(parts, Decline):
        return parts
    op = conv_op(parts)
    x, w = parts.anchor.operand_types
    who = str(parts.anchor)
    if not (op.groups == x.shape[1] == w.shape[0]) or op.groups == 1:
        return Decline(
            Code.PATTERN, f"{who} has groups={op.groups} on {x.shape[1]} channels; one filter a channel is needed"
        )
    if x.rank != 4 or not x.dtype.is_float or not w.dtype.is_float:
        return Decline(Code.PATTERN, f"{who} is {x} by {w}; the depthwise kernel takes floats on two spatial axes")
    if x.layout[1] != 1:
        return Decline(
            Code.LAYOUT, f"{who} reads {x}, whose channels are not innermost; the depthwise kernel walks them"
        )
    if next(choices(parts), None) is None:
        return Decline(Code.SIZE, f"{who} has a filter of {w.shape[2:]}; the depthwise kernel keeps one in registers")
    return None


def choices(parts: Anchored) -> Iterator[Strips]:
    """The divisions of the work that fit registers and shared memory."""
    w = parts.anchor.operand_types[1]
    channels = parts.anchor.result.type.shape[1]
    taps = w.shape[2] * w.shape[3]
    wide = 2 if accumulator(parts.anchor.operand_types[0].dtype) == "double" else 1
    for each in (n for n in CHANNELS if channels % n == 0):
        lanes = min(WARP, channels // each, SHARED_BYTES // (taps * each * WORD_BYTES * wide))
        if lanes == 0:
            continue
        lanes = -(-(channels // each) // -(-(channels // each) // lanes))
        # The rows of a dilated filter have no row of the input in common.
        most_rows = MOST_ROWS if conv_op(parts).dilation[0] == 1 else 1
        for rows, columns in product(range(1, most_rows + 1), range(1, MOST_COLUMNS + 1)):
            if rows * columns * each <= MOST_SUMS:
                strips = strips_of(parts, (each, columns, rows, lanes), wide)
                if strips.registers <= MOST_REGISTERS:
                    yield strips


def strips_of(parts: Anchored, cut: tuple[int, int, int, int], wide: int) -> Strips:
    """One division of the work, (channels, columns, rows, lanes), with its cost; a number takes `wide` registers."""
    each, columns, rows, lanes = cut
    op = conv_op(parts)
    x, w = parts.anchor.operand_types
    batch, channels, height, width = parts.anchor.result.type.shape
    _, _, taps_h, taps_w = w.shape
    span = (columns - 1) * op.stride[1] + (taps_w - 1) * op.dilation[1] + 1
    read = taps_h if rows == 1 else (rows - 1) * op.stride[0] + taps_h
    sums = rows * columns * each
    a_block = BLOCK // lanes
    chunks = -(-(channels // each) // lanes)
    strips = batch * -(-height // rows) * -(-width // columns)
    multiplied = rows * taps_h * taps_w * each * wide
    # By the machine code: a column is an address, a comparison and a load, and halves are widened one by one.
    fetched = read * span * (3 + (each if x.dtype.is_half else 0))
    return Strips(
        channels=each,
        columns=columns,
        rows=rows,
        lanes=lanes,
        threads=lanes * a_block,
        blocks=chunks * -(-strips // a_block),
        registers=wide * (sums + span * each + each) + OTHER_REGISTERS,
        read=read,
        slots=multiplied * (MULTIPLY_SLOTS * columns + SHARED_SLOTS * WORD_BYTES)
        + FETCH_SLOTS * fetched
        + RESULT_SLOTS * sums,
    )


def walk_us(strips: Strips, target: Target) -> float:
    """Microseconds of the multiprocessors with the most blocks: issue slots and waiting, without the bytes' time."""
    a_core = -(-strips.blocks // target.sm_count)
    resident = max(1, min(THREADS_A_CORE // BLOCK, REGISTERS_A_CORE // (strips.threads * strips.registers)))
    # The rate counts a multiply-add as two.
    rate = target.rate("float32") / 2 / target.sm_count
    return 1e6 * a_core * strips.threads * strips.slots / rate + ROW_US * strips.read * -(-a_core // resident)


def ranked(parts: Anchored, target: Target) -> list[Strips]:
    """The divisions of the work, fastest by estimate first."""
    return sorted(choices(parts), key=lambda s: walk_us(s, target))


def estimate(region: Region, target: Target) -> float:
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    memory = 1e6 * (region.read_bytes + region.written_bytes) / target.bandwidth
    return target.launch_us + FIXED_US + walk_us(ranked(parts, target)[0], target) + MOVED * memory


def generate(region: Region, target: Target) -> Recipe:
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    return recipe(region, parts, ranked(parts, target)[0])


def others(region: Region, target: Target) -> tuple[Recipe, ...]:
    """The next best divisions of the work, and the best of each number of channels."""
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    first, *rest = ranked(parts, target)
    kept = rest[:OTHERS]
    seen = {s.channels for s in (first, *kept)}
    for strips in rest:
        if strips.channels not in seen:
            seen.add(strips.channels)
            kept.append(strips)
    return tuple(recipe(region, parts, strips) for strips in kept)


def recipe(region: Region, parts: Anchored, strips: Strips) -> Recipe:
    kernel = Kernel(
        "depthwise",
        partial(source, region, parts, strips),
        buffers(region),
        (strips.blocks, 1, 1),
        (strips.threads, 1, 1),
    )
    return Recipe(f"depthwise_{strips.rows}x{strips.columns}x{strips.channels}", (kernel,))


def cut_constants(parts: Anchored, strips: Strips) -> str:
    """The division of the work as C++ constants."""
    batch, channels, height, width = parts.anchor.result.type.shape
    a_row, a_column = -(-width // strips.columns), -(-height // strips.rows)
    values = {
        "C": channels,
        "VC": strips.channels,
        "TW": strips.columns,
        "TH": strips.rows,
        "LANES": strips.lanes,
        "THREADS": strips.threads,
        "CHUNKS": -(-(channels // strips.channels) // strips.lanes),
        "STRIPS_A_BLOCK": strips.threads // strips.lanes,
        "STRIPS_A_ROW": a_row,
        "STRIPS_A_COLUMN": a_column,
        "STRIPS": batch * a_column * a_row,
    }
    return f"constexpr int {', '.join(f'{name} = {value}' for name, value in values.items())};"


def source(region: Region, parts: Anchored, strips: Strips) -> str:
    x, w = parts.anchor.operands
    sums = strips.rows * strips.columns * strips.channels
    result = f"sum[u][t][{'j' if strips.channels > 1 else '0'}]"
    epilogue = epilogue_of(region, parts, result, sums, MOST_SUMS)
    small = 2 * max(x.type.extent, w.type.extent) <= LARGEST_INT and epilogue.fits_int
    x_n, _, x_h, x_w = x.type.layout
    w_c, _, w_h, w_w = w.type.layout
    vectors = all(s % strips.channels == 0 for s in (x_n, x_h, x_w))
    names = ["at0", "at1", "at2", "at3"]
    parameter = parameter_names(region)
    return "\n".join(
        (
            prelude(),
            epilogue.function,
            f"typedef {'int' if small else 'i64'} Index;",
            f"typedef {accumulator(x.type.dtype)} Acc;",
            f"typedef {storage(x.type.dtype)} TA;\ntypedef {storage(w.type.dtype)} TB;",
            cut_constants(parts, strips),
            *window_constants(parts),
            declared("X_", (x_n, x_h, x_w), "NHW", "Index"),
            declared("W_", (w_c, w_h, w_w), "CHW", "Index"),
            f"constexpr bool VECTORS = {str(vectors).lower()}, FILTER_DENSE = {str(w_c != 1).lower()};",
            template("depthwise.cu"),
            opening(strips.threads, "depthwise", parameters(region)),
            f"const TA* x = {parameter[x]};\nconst TB* w = {parameter[w]};",
            template("depthwise_body.cu"),
            epilogue.condition(1, strips.channels),
            f'_Pragma("unroll") for (int u = 0; u < {strips.rows}; ++u) {{',
            f'_Pragma("unroll") for (int t = 0; t < {strips.columns}; ++t) {{',
            "const Index at2 = first_h + u, at3 = first_w + t;",
            "if (at2 < OH && at3 < OW) {",
            f"const bool whole = true;\nconst int count = {strips.channels};",
            *epilogue.text(names, 1, strips.channels),
            "}\n}\n}\n}\n",
        )
    )


FAMILY = Family("depthwise", (Conv,), takes, generate, estimate, others=others)
