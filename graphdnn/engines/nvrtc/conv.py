"""Last-resort convolution: any types, layouts, strides, padding, dilation and groups, as a matrix product.

Rows of the product are places of the result, its columns output channels, k the taps of the filter.  Nothing is
unrolled in memory: a tile's elements are fetched from where they lie, and zeros where the window hangs over the edge.
"""

from __future__ import annotations

from functools import partial
from math import prod

from graphdnn.answer import Decline
from graphdnn.engines.nvrtc.epilogue import anchor_with_epilogue, epilogue_of
from graphdnn.engines.nvrtc.indexing import LARGEST_INT, split_index
from graphdnn.engines.nvrtc.recipe import Anchored, Family, Kernel, Recipe, all_buffers, buffers, parameters
from graphdnn.engines.nvrtc.tiling import (
    Fetching,
    Product,
    Tiling,
    best_tiling,
    constants,
    dense_vector,
    each_sum,
    sum_as_result,
    tiled_kernel,
    tiled_us,
)
from graphdnn.ir.ops.linear import Conv
from graphdnn.ir.region import Region
from graphdnn.ir.types import promote, row_major
from graphdnn.target import Target

Sizes = tuple[int, ...]

TAP_INSTRUCTIONS = 24
"""What finding a group's tap and address takes, and whether it lies inside."""


def takes(region: Region) -> Decline | None:
    parts = anchor_with_epilogue(region)
    return parts if isinstance(parts, Decline) else None


def product_of(parts: Anchored) -> Product:
    """The product that one convolution is; groups are its batch."""
    x, w = parts.anchor.operand_types
    batch, channels, *places = parts.anchor.result.type.shape
    groups = conv_op(parts).groups
    return Product((groups,), batch * prod(places), channels // groups, prod(w.shape[1:]), promote(x.dtype, w.dtype))


def conv_op(parts: Anchored) -> Conv:
    op = parts.anchor.op
    assert isinstance(op, Conv)
    return op


def estimate(region: Region, target: Target) -> float:
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    product = product_of(parts)
    tiling = best_tiling(product, target)
    _, _, wide_x, wide_w = operand_fetches(parts, product, tiling)
    return tiled_us(region, product, tiling, target, Fetching(TAP_INSTRUCTIONS, wide_x, wide_w))


def generate(region: Region, target: Target) -> Recipe:
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    product = product_of(parts)
    tiling = best_tiling(product, target)
    kernel = Kernel(
        "conv",
        partial(source, region, parts, product, tiling),
        all_buffers(region),
        (product.blocks(tiling), 1, 1),
        (tiling.threads, 1, 1),
    )
    return Recipe(f"conv_{'x'.join(map(str, tiling.block))}", (kernel,))


def three(values: Sizes, fill: int) -> tuple[int, int, int]:
    """Depth, height and width of a 2-D or 3-D convolution."""
    depth, height, width = (fill,) * (3 - len(values)) + tuple(values)
    return depth, height, width


def declared(stem: str, values: Sizes, suffixes: str = "DHW") -> str:
    """One C++ constant for each value: the stem and a suffix."""
    return f"constexpr int {', '.join(f'{stem}{s} = {v}' for s, v in zip(suffixes, values, strict=True))};"


def window_constants(parts: Anchored) -> list[str]:
    """Extents, steps, dilations and paddings of the window, as C++ constants."""
    op = conv_op(parts)
    x, w = parts.anchor.operand_types
    return [
        declared("X", three(x.shape[2:], 1)),
        declared("K", three(w.shape[2:], 1)),
        declared("O", three(parts.anchor.result.type.shape[2:], 1)),
        declared("STEP_", three(op.stride, 1)),
        declared("DILATE_", three(op.dilation, 1)),
        declared("PAD_", three(tuple(lo for lo, _ in op.padding), 0)),
    ]


def operand_fetches(parts: Anchored, product: Product, tiling: Tiling) -> tuple[bool, bool, int, int]:
    """Whether x and w are fetched along k (x: along its channels), and how many elements of each at once."""
    x, w = parts.anchor.operand_types
    channels = w.shape[1]
    inner = x.layout[1] == 1 and channels > 1
    share, most = [tiling.block[axis] * tiling.block[2] // tiling.threads for axis in (0, 1)], tiling.most_fetched
    x_others = (x.layout[0], *x.layout[2:], channels)
    wide_x = dense_vector(1, x_others, channels, x.dtype.itemsize, share[0], most) if inner else 1
    group_step = product.n * w.layout[0]
    if inner and w.layout[1] == 1:
        w_others, extent = (w.layout[0], *w.layout[2:], group_step), channels
    elif not inner and w.layout[1:] == row_major(w.shape)[1:]:
        w_others, extent = (w.layout[0], group_step), product.k
    elif w.layout[0] == 1:
        w_others = (*w.layout[1:], group_step)
        return inner, False, wide_x, dense_vector(1, w_others, product.n, w.dtype.itemsize, share[1], most)
    else:
        return inner, True, wide_x, 1
    return inner, True, wide_x, dense_vector(1, w_others, extent, w.dtype.itemsize, share[1], most)


def operand_constants(parts: Anchored, product: Product, tiling: Tiling) -> list[str]:
    """Strides of both operands and how their tiles are fetched, as C++ constants."""
    x, w = parts.anchor.operand_types
    channels = w.shape[1]
    inner, along_k, wide_x, wide_w = operand_fetches(parts, product, tiling)
    flags = {"CHANNELS_INNER": inner, "A_ALONG_K": inner, "B_ALONG_K": along_k}
    return [
        f"constexpr int CG = {channels}, VA = {wide_x}, VB = {wide_w};",
        *(f"constexpr bool {name} = {str(flag).lower()};" for name, flag in flags.items()),
        declared("X_", (*x.layout[:2], *three(x.layout[2:], 0)), "NCDHW").replace("int", "Index", 1),
        declared("W_", (*w.layout[:2], *three(w.layout[2:], 0)), "KCDHW").replace("int", "Index", 1),
    ]


def source(region: Region, parts: Anchored, product: Product, tiling: Tiling) -> str:
    x, w = parts.anchor.operands
    epilogue = epilogue_of(region, parts, sum_as_result(parts), tiling.sums)
    small = 2 * max(x.type.extent, w.type.extent) <= LARGEST_INT and epilogue.fits_int
    tiles_m, tiles_n = -(-product.m // tiling.block[0]), -(-product.n // tiling.block[1])
    batch, _, *places = parts.anchor.result.type.shape
    names = [f"i{axis}" for axis in range(2 + len(places))]
    slot = buffers(region)
    head = [
        epilogue.function,
        constants(product, tiling, (x.type.dtype, w.type.dtype), "int" if small else "i64"),
        *window_constants(parts),
        *operand_constants(parts, product, tiling),
    ]
    place = [
        f"const int tile_n = blockIdx.x % {tiles_n}, tile_m = blockIdx.x / {tiles_n} % {tiles_m};",
        f"const Index group = blockIdx.x / {tiles_m * tiles_n};",
        f"const TA* a = p{slot[x].index} + group * CG * X_C;",
        f"const TB* b = p{slot[w].index} + group * N * W_K;",
    ]
    signature = f'extern "C" __global__ void __launch_bounds__({tiling.threads}) conv({parameters(region)}) {{'
    rows = split_index("m", (batch, *places), [names[0], *names[2:]], "Index")
    width = tiling.width
    # A group's channels start at any number, and vectors only at multiples of their width.
    uneven = f" && i1 % {width} == 0" if product.batch[0] > 1 and product.n % width else ""
    sums = each_sum(epilogue, names, 1, tiling, rows, ["const Index i1 = group * N + n;"], uneven)
    return tiled_kernel(head, signature, place, "conv_fetch.cu", sums)


FAMILY = Family("conv", (Conv,), takes, generate, estimate, last_resort=True)
