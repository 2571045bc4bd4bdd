"""Depthwise convolution in channels-last layout: one filter a channel, near the memory's or the arithmetic's limit.

Libraries run it at a small part of either, so it is a family of its own and no last resort.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphdnn.answer import Code, Decline
from graphdnn.engines.cost import Efficiency, roofline_us
from graphdnn.engines.nvrtc.conv import conv_op, declared, window_constants
from graphdnn.engines.nvrtc.emit import prelude, storage, template
from graphdnn.engines.nvrtc.epilogue import anchor_with_epilogue, epilogue_of
from graphdnn.engines.nvrtc.indexing import LARGEST_INT
from graphdnn.engines.nvrtc.recipe import Anchored, Family, Kernel, Recipe, all_buffers, buffers, parameters
from graphdnn.engines.nvrtc.tiling import accumulator
from graphdnn.ir.ops.linear import Conv
from graphdnn.ir.region import Region
from graphdnn.target import Target

BLOCK = 256
SHARED_BYTES = 40 * 1024
"""What the filters of a block's channels may take; more would leave a core with too few blocks."""

MOST_REGISTERS = 168
"""32-bit registers for sums, inputs and filters of a thread; the rest of its 255 holds addresses."""

ENOUGH_THREADS = 512
"""Threads a multiprocessor needs to be busy."""

REACH = 0.65
"""Part of the issue rate that the inner loop reaches."""


@dataclass(frozen=True)
class Strips:
    """How the work is cut: channels and result columns a thread, threads along the channels, all threads, and cost.

    `instructions` counts what all threads together issue.
    """

    channels: int
    columns: int
    lanes: int
    threads: int
    instructions: int


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
    if not choices(parts):
        return Decline(Code.SIZE, f"{who} has a filter of {w.shape[2:]}; the depthwise kernel keeps one in registers")
    return None


def choices(parts: Anchored) -> list[Strips]:
    """The ways to cut the work that fit registers and shared memory."""
    op = conv_op(parts)
    x, w = parts.anchor.operand_types
    batch, channels, height, width = parts.anchor.result.type.shape
    taps = w.shape[2] * w.shape[3]
    wide = 2 if accumulator(x.dtype) == "double" else 1
    each = next(n for n in (4, 2, 1) if channels % n == 0)
    lanes = min(32, channels // each, SHARED_BYTES // (taps * each * 4 * wide))
    if lanes == 0:
        return []
    lanes = -(-(channels // each) // -(-(channels // each) // lanes))
    found: list[Strips] = []
    for columns in range(1, 9):
        span = (columns - 1) * op.stride[1] + (w.shape[3] - 1) * op.dilation[1] + 1
        if (columns * each + each + span * each) * wide > MOST_REGISTERS:
            continue
        threads = batch * height * -(-width // columns) * (channels // each)
        fetch = span * (4 + (each if x.dtype.bits < 32 else 0))
        work = w.shape[2] * (fetch + w.shape[3] * (1 + columns * each)) * wide + 6 * columns * each
        found.append(Strips(each, columns, lanes, threads, threads * work))
    return found


def best(parts: Anchored, target: Target) -> Strips:
    """The cut that issues least, where there are too few threads counted as if the cores stood still in part."""
    enough = target.sm_count * ENOUGH_THREADS
    return min(choices(parts), key=lambda s: s.instructions / min(1.0, s.threads / enough))


def estimate(region: Region, target: Target) -> float:
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    strips = best(parts, target)
    busy = min(1.0, strips.threads / (target.sm_count * ENOUGH_THREADS))
    # The rate counts a multiply-add as two.
    arithmetic = 1e6 * strips.instructions / (target.rate("float32") / 2 * REACH * busy)
    memory = roofline_us(region, target, efficiency=Efficiency(bandwidth=0.75, matrix=1.0))
    return max(memory, target.launch_us + arithmetic)


def generate(region: Region, target: Target) -> Recipe:
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    strips = best(parts, target)
    batch, channels, height, width = parts.anchor.result.type.shape
    a_block = BLOCK // strips.lanes
    a_row = -(-width // strips.columns)
    chunks = -(-(channels // strips.channels) // strips.lanes)
    blocks = chunks * -(-(batch * height * a_row) // a_block)
    threads = strips.lanes * a_block
    head = [
        "constexpr int "
        f"C = {channels}, VC = {strips.channels}, TW = {strips.columns}, LANES = {strips.lanes}, THREADS = {threads}, "
        f"CHUNKS = {chunks}, STRIPS_A_BLOCK = {a_block}, STRIPS_A_ROW = {a_row}, STRIPS = {batch * height * a_row};"
    ]
    kernel = Kernel(
        "depthwise", source(region, parts, strips, head, threads), all_buffers(region), (blocks, 1, 1), (threads, 1, 1)
    )
    return Recipe(f"depthwise_{strips.columns}x{strips.channels}", (kernel,))


def source(region: Region, parts: Anchored, strips: Strips, head: list[str], threads: int) -> str:
    x, w = parts.anchor.operands
    sums = strips.columns * strips.channels
    epilogue = epilogue_of(region, parts, f"sum[t][{'j' if strips.channels > 1 else '0'}]", sums)
    small = 2 * max(x.type.extent, w.type.extent) <= LARGEST_INT and epilogue.fits_int
    x_n, _, x_h, x_w = x.type.layout
    w_c, _, w_h, w_w = w.type.layout
    vectors = all(s % strips.channels == 0 for s in (x_n, x_h, x_w))
    names = ["i0", "i1", "i2", "i3"]
    slot = buffers(region)
    return "\n".join(
        (
            prelude(),
            epilogue.function,
            f"typedef {'int' if small else 'i64'} Index;",
            f"typedef {accumulator(x.type.dtype)} Acc;",
            f"typedef {storage(x.type.dtype)} TA;\ntypedef {storage(w.type.dtype)} TB;",
            *head,
            *window_constants(parts),
            declared("X_", (x_n, x_h, x_w), "NHW").replace("int", "Index", 1),
            declared("W_", (w_c, w_h, w_w), "CHW").replace("int", "Index", 1),
            f"constexpr bool VECTORS = {str(vectors).lower()}, FILTER_DENSE = {str(w_c != 1).lower()};",
            template("depthwise.cu"),
            f'extern "C" __global__ void __launch_bounds__({threads}) depthwise({parameters(region)}) {{',
            f"const TA* x = p{slot[x].index};\nconst TB* w = p{slot[w].index};",
            template("depthwise_body.cu"),
            epilogue.condition(1, strips.channels),
            f'_Pragma("unroll") for (int t = 0; t < {strips.columns}; ++t) {{',
            "const Index i3 = first + t;",
            "if (i3 < OW) {",
            f"const bool whole = true;\nconst int count = {strips.channels};",
            *epilogue.text(names, 1, strips.channels),
            "}\n}\n}\n",
        )
    )


FAMILY = Family("depthwise", (Conv,), takes, generate, estimate)
