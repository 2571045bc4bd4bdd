"""What a region would cost as one cuDNN plan: rooflines with the efficiencies that were measured on an H200.

Small problems do not fill the machine, so matrix work is counted in waves of tiles over the multiprocessors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

from graphdnn.engines.arithmetic import CHANNELS_AT_ONCE, TF32, has_few_channels
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.cost import RESIDUAL_US
from graphdnn.engines.cudnn.anatomy import CONVOLUTIONS, ROW_NORMS, Anatomy, row_length
from graphdnn.engines.cudnn.limits import convolution_class, ieee_float32, lies_channels_last
from graphdnn.engines.cudnn.norm_limits import NORM_ROW_MULTIPLE
from graphdnn.ir.graph import Node
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.norm import InstanceNorm
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.types import IMAGE_RANKS
from graphdnn.target import Target

TILES: tuple[tuple[int, int, float], ...] = ((128, 256, 0.95), (128, 128, 0.9), (64, 128, 0.75), (64, 64, 0.6))
"""Rows and columns of a thread block's tile, and the share of a multiprocessor's rate that it reaches."""

FIXED_US = 1.5
"""What any kernel takes to fill and drain, besides the gap before it."""

PRODUCT_FIXED_US = 2.8
"""The same for matrix products, which are compiled at run time.  128 rows of 1024 times 3072, 1024 and 4096 columns
took 6.3, 4.7 and 9.0 us without the gap; the best plan of the last takes 7.0."""

BANDWIDTH: dict[str, float] = {"conv": 0.6, "matmul": 0.85, "norm": 0.8, "attention": 0.65, "pointwise": 0.6}
"""Share of the copy bandwidth by family: convolutions with an epilogue reach 0.55 to 0.65, fused norms 0.4 to 0.8."""

BARE_NORM = 0.9
BARE_NORM_FIXED_US = 0.8
"""The same, and what stands in place of FIXED_US, of layer and RMS norms by themselves: over 18 of them, of 1 x 4096 to
8192 x 4096, the first plan's time is met within 8 % in the median."""

ODD_ROWS = 0.5
"""Further share for norms whose rows are no multiple of NORM_ROW_MULTIPLE."""

UNALIGNED: tuple[tuple[int, float], ...] = ((8, 1.0), (4, 0.36), (1, 0.2))
"""Share of the matrix units' rate by the largest number that divides the input channels."""

CHANNEL_BLOCK = 32
"""Input channels in eights are multiplied in whole blocks of so many at each tap: 7x7 on 8 channels took 174 us, on 4,
where kernels for few channels take over, 67 us."""

ONE_BLOCK = 0.55
"""Share of the rate on 8 channels, a quarter of such a block: 11 fused first convolutions took 1.1 to 2.3 times as long
as without it, 1.8 in the middle."""

FEW_COLUMNS = 64
FEW_RATE, FEW_FIRST_RATE = 2e13, 1e13
FEW_US = 10.0
"""Convolutions of fewer than 8 channels: columns that are computed at least, operations per second of the best plan and
of the one that heuristics put first, and what either takes besides.  Measured were 20 shapes on 3 and 4 channels of 1
to 32 images: the best plan is met within 1.2 in the middle, the first takes up to nine times as long as the best."""

STEM_EXTENT = 224
STEMS: dict[tuple[int, ...], float] = {(3, 3, 3): 15.0, (3, 7, 7): 23.0, (4, 7, 7): 16.5}
"""Extent of images from which strided convolutions of these channels and kernels have an engine of their own, and what
it takes besides the bytes, until its arithmetic takes longer.  On 1, 8 and 32 images 3x3 to 16 took 19.8, 23.0 and 36.3
us, 7x7 to 64 took 27.1, 31.2 and 82.0, on 4 channels 21.0, 22.2 and 61.5."""

DEPTHWISE_RATE = 6e11
DEPTHWISE_STRIDED_RATE = 3e11
"""Operations per second of cuDNN's kernels for one channel a group with a bias: 2.8e11 to 4.7e11 products, half of it
strided."""

BARE_DEPTHWISE_RATE = 8e12
"""The same of its best kernels without a bias or with another epilogue: 3x3 at 32x16x112x112 took 17 us where the
kernel with a bias took 167."""

NARROW_GROUP = 8
"""Channels of a group below which the matrix units do not help."""

TWO_PRODUCTS = 0.8
"""Share of the rate that one graph of two matrix products reaches (1523 us where two single ones took 1397 us)."""

UNTIMED_TWO_PRODUCTS = 11.5
"""How much longer the plan that heuristics put first may take there: 17440 us, where the best took 1523."""

HEAD_SHARE: tuple[tuple[int, float], ...] = ((128, 0.78), (64, 0.6), (1, 0.4))
"""Share of the matrix rate that attention reaches by features of a head (594 of 790 TFLOP/s at 128)."""

QUERIES = 128
"""Rows of queries that one thread block of attention works on."""

IEEE_CONVERTING = 0.5
"""Share of the copy bandwidth at which convolutions without TF32 convert what is channels-last: their kernels know
row-major tensors only.  With this and IEEE_KERNEL_US the first plan's time is met within 16 % in the mean over 30
shapes of ResNet-50 and U-Net, while the kernel itself reaches its tile's share."""

IEEE_KERNEL_US = 5.8
"""What each converting kernel takes besides its bytes: 1x1 on 64 channels of one image takes 29.5 us in all."""

IEEE_EPILOGUE_RATE = 7.7e11
IEEE_EPILOGUE_STRIDED_RATE = 5e11
"""Operations per second of the only engine that computes a float32 convolution with a residual or a function without
TF32: 7.6e11 to 9.6e11, and 5e11 strided, in 5 regions of ResNet-50, where a generated kernel is 30 times faster."""

PROLOGUE_SHARE = 0.6
"""Share of the rate that is left where an operand is computed on its way to the matrix units, instead of being copied
past the registers; a guess, not measured."""

TILE = 128
"""Rows or columns of a tile, for each of which a prologue is computed anew."""

PLAIN = 0.5
"""Arithmetic of one element of any pointwise function, in special-function operations."""

CONVERTING = 0.6
"""Share of the copy bandwidth at which a plan converts a tensor that is not channels-last, in a kernel of its own.  Of
18 convolutions, graphs without the pass layout took 1.3 to 3.4 times as long as with it."""

SPECIAL: dict[str, float] = {
    "gelu": 10,
    "gelu_tanh": 6,
    "erf": 8,
    "tanh": 4,
    "sigmoid": 2,
    "silu": 2,
    "swish": 2,
    "exp": 1,
    "log": 1,
    "pow": 4,
    "softplus": 4,
    "elu": 2,
}
"""Special-function operations of one element (gelu in its erf form behind a matmul took 47 us for 34 million)."""


@dataclass(frozen=True)
class Product:
    """A matrix product as the tensor cores see it: `count` of M x N x K."""

    count: int
    m: int
    n: int
    k: int


def product_of(node: Node) -> Product:
    """The product that a convolution or a matmul comes to."""
    y = node.result.type.shape
    if isinstance(node.op, MatMul):
        a, b = node.operand_types
        batch = prod(y[:-2])
        if prod(b.shape[:-2]) == 1:
            return Product(1, batch * y[-2], y[-1], a.shape[-1])
        return Product(batch, y[-2], y[-1], a.shape[-1])
    w = node.operands[1].type.shape
    if isinstance(node.op, ConvTranspose):
        x = node.operands[0].type.shape
        return Product(1, x[0] * prod(x[2:]), w[1] * prod(w[2:]), w[0])
    assert isinstance(node.op, Conv)
    return Product(node.op.groups, y[0] * prod(y[2:]), y[1] // node.op.groups, prod(w[1:]))


def tiled_us(product: Product, target: Target, rate: float) -> float:
    """Microseconds of the matrix work, by the best tile."""
    one = rate / target.sm_count
    best = float("inf")
    for rows, columns, share in TILES:
        tiles = product.count * ceil(product.m / rows) * ceil(product.n / columns)
        best = min(best, ceil(tiles / target.sm_count) * 2 * rows * columns * product.k / (one * share))
    return 1e6 * best


def matrix_rate(node: Node, target: Target, policy: Policy) -> float:
    """Operations per second of the unit that does the node's work."""
    dtype = node.operands[0].type.dtype.name
    if dtype != "float32":
        return target.rate(dtype)
    return target.rate("float32" if policy.precision == "ieee" else "tf32")


def convolution_us(node: Node, target: Target, policy: Policy) -> float:
    """Arithmetic of a convolution; narrow groups at the measured rate of the kernels that cuDNN has for them."""
    op, x_type = node.op, node.operands[0].type
    assert isinstance(op, Conv | ConvTranspose)
    channels = x_type.shape[1] // op.groups
    if is_narrow(node):
        return 1e6 * node.flops / (DEPTHWISE_RATE if max(op.stride) == 1 else DEPTHWISE_STRIDED_RATE)
    share = 1.0 if ieee_float32(node, policy) else next(s for n, s in UNALIGNED if channels % n == 0)
    if channels == CHANNELS_AT_ONCE and x_type.dtype.is_half:
        share *= ONE_BLOCK
    return tiled_us(in_blocks(node), target, matrix_rate(node, target, policy) * share)


def is_narrow(node: Node) -> bool:
    """Whether a convolution's groups are too narrow for the matrix units."""
    groups = getattr(node.op, "groups", 1)
    return groups > 1 and node.operands[0].type.shape[1] // groups < NARROW_GROUP


def in_blocks(node: Node) -> Product:
    """The product of a convolution as cuDNN's kernels walk it: halves with channels in eights a block at a time."""
    product, x = product_of(node), node.operands[0].type
    channels = x.shape[1]
    if not isinstance(node.op, Conv) or node.op.groups > 1 or channels % CHANNELS_AT_ONCE or not x.dtype.is_half:
        return product
    return replace(product, k=product.k // channels * CHANNEL_BLOCK * ceil(channels / CHANNEL_BLOCK))


def attention_blocks(node: Node) -> int:
    """Thread blocks that an attention's queries are cut into."""
    b, heads, queries, _ = node.operands[0].type.shape
    return b * heads * ceil(queries / QUERIES)


def attention_us(node: Node, target: Target) -> float:
    """Arithmetic of attention, and how far its blocks of queries fill the machine."""
    _, _, queries, features = node.operands[0].type.shape
    share = next(s for n, s in HEAD_SHARE if features >= n)
    blocks = attention_blocks(node)
    filled = blocks / (ceil(blocks / target.sm_count) * target.sm_count)
    padded = ceil(queries / QUERIES) * QUERIES / queries if queries >= QUERIES else 1.0
    return 1e6 * node.flops * padded / (target.rate(node.operands[0].type.dtype.name) * share * filled)


def prologue_us(anatomy: Anatomy, target: Target) -> float:
    """Pointwise work on the operands of matrix work: done anew for each tile across the operand, at each tap."""
    graph, total = anatomy.region.graph, 0.0
    for anchor in anatomy.anchors:
        if not isinstance(anchor.op, Conv | ConvTranspose | MatMul):
            continue
        product = product_of(anchor)
        for value, extent, across in zip(anchor.operands, (product.m, product.n), (product.n, product.m), strict=False):
            maker = graph.producer.get(value)
            if maker is None or maker not in anatomy.before:
                continue
            nodes = [n for n in anatomy.before if n is maker or graph.ancestors[maker] >> graph.position[n] & 1]
            elements = product.count * extent * product.k * ceil(across / TILE)
            total += elements * sum(PLAIN + special(n) for n in nodes) / target.rate("special")
    return 1e6 * total


def special(node: Node) -> float:
    """Special-function operations of one element of a pointwise node."""
    assert isinstance(node.op, Elementwise)
    return SPECIAL.get(node.op.function, 0)


def epilogue_us(anatomy: Anatomy, target: Target) -> float:
    """Special functions, which come on top of the matrix work."""
    total = 0.0
    for node in anatomy.after if anatomy.has(*CONVOLUTIONS, MatMul) else anatomy.pointwise:
        total += special(node) * node.result.type.size / target.rate("special")
    return 1e6 * total


def family(anatomy: Anatomy) -> str:
    """Row of BANDWIDTH."""
    for name, kinds in (("conv", CONVOLUTIONS), ("matmul", (MatMul,)), ("attention", (Attention,))):
        if anatomy.has(*kinds):
            return name
    return "norm" if anatomy.has(*ROW_NORMS, InstanceNorm) else "pointwise"


@dataclass(frozen=True)
class AnchorTime:
    """What one anchor takes, in microseconds: its arithmetic, and the kernels that convert tensors around it.

    Where the plan that heuristics put first is slower than the best one, `first_us` is the arithmetic of that plan.
    """

    arithmetic_us: float = 0.0
    converting_us: float = 0.0
    first_us: float | None = None
    notes: tuple[str, ...] = ()


def estimate(anatomy: Anatomy, target: Target, policy: Policy) -> Support:
    """The answer for a region that cuDNN takes: the larger of its arithmetic and its bytes, and what comes on top."""
    region, times = anatomy.region, [time_of(node, anatomy, target, policy) for node in anatomy.anchors]
    notes = [note for time in times for note in time.notes]
    arithmetic = sum(time.arithmetic_us for time in times)
    is_double = len(times) == 2
    if is_double:
        arithmetic /= TWO_PRODUCTS
        notes.append("plans of two products differ tenfold, and the one that heuristics put first may be the slowest")
    if anatomy.before and anatomy.has(*CONVOLUTIONS, MatMul):
        arithmetic = arithmetic / PROLOGUE_SHARE + prologue_us(anatomy, target)
        notes.append("what stands before the matrix work is computed anew for each tile")
    pace, kernel_us = memory_pace(anatomy, target)
    residual = residual_bytes(anatomy)
    memory = 1e6 * (region.read_bytes + region.written_bytes - residual) / pace
    fixed = kernel_us + (sum(time.converting_us for time in times) + target.launch_us)
    fixed += RESIDUAL_US + 1e6 * residual / pace if residual else 0.0
    best = fixed + max(arithmetic + epilogue_us(anatomy, target), memory)
    first = [time.first_us for time in times if time.first_us is not None]
    untimed = fixed + sum(first) if first else None
    return Support(
        best,
        precision_of(anatomy, policy),
        notes=tuple(notes),
        untimed_us=UNTIMED_TWO_PRODUCTS * best if is_double else untimed,
    )


def residual_bytes(anatomy: Anatomy) -> int:
    """Bytes of what a matrix product's epilogue reads of the result's size."""
    if not anatomy.has(MatMul):
        return 0
    operands = {v for node in anatomy.anchors for v in node.operands}
    sizes = {node.result.type.size for node in anatomy.anchors}
    read = {v for node in anatomy.after for v in node.operands if v in anatomy.region.inputs and v not in operands}
    return sum(v.type.nbytes for v in read if v.type.size in sizes)


def memory_pace(anatomy: Anatomy, target: Target) -> tuple[float, float]:
    """Bytes a second that the region's kernel moves, and the microseconds that it takes in any case."""
    name = family(anatomy)
    share, fixed = BANDWIDTH[name], PRODUCT_FIXED_US if name == "matmul" else FIXED_US
    norms = [n for n in anatomy.anchors if isinstance(n.op, ROW_NORMS)]
    if norms and len(anatomy.region.nodes) == 1:
        share, fixed = BARE_NORM, BARE_NORM_FIXED_US
    if any(row_length(n) % NORM_ROW_MULTIPLE for n in norms):
        share *= ODD_ROWS
    return target.bandwidth * share, fixed


def time_of(node: Node, anatomy: Anatomy, target: Target, policy: Policy) -> AnchorTime:
    """What one anchor takes.  Norms have no arithmetic to speak of."""
    if isinstance(node.op, CONVOLUTIONS):
        return convolution_time(node, anatomy, target, policy)
    if isinstance(node.op, MatMul):
        return AnchorTime(tiled_us(product_of(node), target, matrix_rate(node, target, policy)))
    return AnchorTime(attention_us(node, target)) if isinstance(node.op, Attention) else AnchorTime()


def convolution_time(node: Node, anatomy: Anatomy, target: Target, policy: Policy) -> AnchorTime:
    """A convolution with the kernels that convert its tensors; other kernels for narrow groups and without TF32."""
    is_ieee, kind = ieee_float32(node, policy), engine_class(anatomy)
    if is_ieee and kind == "conv+pointwise":
        note = "cuDNN's one engine that does this without TF32 is 30 times slower than others"
        time = AnchorTime(ieee_epilogue_us(node), notes=(note,))
    else:
        converting, notes = ieee_conversion(node, target) if is_ieee else conversion(anatomy, target)
        time = AnchorTime(convolution_us(node, target, policy), converting, notes=notes)
    if has_few_channels(node):
        return few_channels(time, node, anatomy, target)
    if not is_narrow(node):
        return time
    notes = (*time.notes, "cuDNN's fused kernels for narrow groups are 8 to 16 times slower than others")
    if kind == "conv+bias":
        return replace(time, notes=notes)
    best = 1e6 * node.flops / BARE_DEPTHWISE_RATE
    return replace(time, arithmetic_us=best, first_us=time.arithmetic_us, notes=notes)


def few_channels(time: AnchorTime, node: Node, anatomy: Anatomy, target: Target) -> AnchorTime:
    """A convolution of halves on fewer than 8 channels."""
    assert isinstance(node.op, Conv)
    (_, channels, *extents), kernel = node.operands[0].type.shape, node.operands[1].type.shape[2:]
    stem_us = STEMS.get((channels, *kernel))
    if stem_us is not None and node.op.stride == (2, 2) and min(extents) >= STEM_EXTENT:
        pace, _ = memory_pace(anatomy, target)
        memory = 1e6 * (anatomy.region.read_bytes + anatomy.region.written_bytes) / pace
        return replace(time, arithmetic_us=max(time.arithmetic_us, stem_us + memory))
    product = product_of(node)
    count = 2 * product.m * max(product.n, FEW_COLUMNS) * product.k
    best, first = (FEW_US + 1e6 * count / rate for rate in (FEW_RATE, FEW_FIRST_RATE))
    note = "cuDNN's plans for fewer than 8 channels differ tenfold, and the one that heuristics put first may be slow"
    return replace(time, arithmetic_us=best, first_us=first, notes=(*time.notes, note))


def conversion(anatomy: Anatomy, target: Target) -> tuple[float, tuple[str, ...]]:
    """Microseconds of the kernels by which a plan converts tensors that are not channels-last, and the note on them."""
    values = (*anatomy.region.inputs, *anatomy.region.outputs)
    found = [v for v in values if v.type.rank in IMAGE_RANKS and not lies_channels_last(v.type)]
    if not found:
        return 0.0, ()
    moved = 2 * sum(v.type.nbytes for v in found)
    us = len(found) * target.launch_us + 1e6 * moved / (target.bandwidth * CONVERTING)
    return us, ("the plan converts tensors that are not channels-last, in scratch memory",)


def ieee_conversion(node: Node, target: Target) -> tuple[float, tuple[str, ...]]:
    """The same of plans without TF32, which compute row-major and convert what is channels-last."""
    found = [t for t in (*node.operand_types[:2], node.result.type) if lies_channels_last(t)]
    if not found:
        return 0.0, ()
    moved = 2 * sum(t.nbytes for t in found)
    us = len(found) * IEEE_KERNEL_US + 1e6 * moved / (target.bandwidth * IEEE_CONVERTING)
    return us, ("the plan computes row-major and converts what is channels-last, in scratch memory",)


def ieee_epilogue_us(node: Node) -> float:
    """A convolution without TF32 by the one engine that also computes something behind it."""
    assert isinstance(node.op, Conv | ConvTranspose)
    return 1e6 * node.flops / (IEEE_EPILOGUE_RATE if max(node.op.stride) == 1 else IEEE_EPILOGUE_STRIDED_RATE)


def precision_of(anatomy: Anatomy, policy: Policy) -> str:
    """What the arithmetic is, in words."""
    first = anatomy.anchors[0] if anatomy.anchors else anatomy.region.nodes[0]
    dtype = first.operands[0].type.dtype.name
    if dtype != "float32":
        return f"{dtype} in, float32 accumulate" if anatomy.anchors else "float32"
    return TF32 if policy.precision != "ieee" and anatomy.has(*CONVOLUTIONS, MatMul) else "float32"


def engine_class(anatomy: Anatomy) -> str:
    """Class of cuDNN's engine numbers, a key of the tables of engines."""
    if anatomy.has(*CONVOLUTIONS):
        return convolution_class(anatomy)
    return family(anatomy)
