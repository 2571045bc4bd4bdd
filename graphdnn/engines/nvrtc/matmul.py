"""Last-resort matrix product: any types, strides and batch, tiled through shared memory, with a pointwise epilogue.

Products of floats are summed in float32 (float64 in float64), of integers without a sign so that they wrap.  This is
what float32 runs on in IEEE arithmetic where no library promises it.
"""

from __future__ import annotations

from functools import partial

from graphdnn.answer import Decline
from graphdnn.engines.nvrtc.epilogue import anchor_with_epilogue, epilogue_of
from graphdnn.engines.nvrtc.indexing import LARGEST_INT, offset_terms, split_index
from graphdnn.engines.nvrtc.places import Grid, Run, strides_at
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
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.linear import MatMul
from graphdnn.ir.region import Region
from graphdnn.ir.types import promote
from graphdnn.target import Target

Sizes = tuple[int, ...]
Walk = tuple[Sizes, Sizes]

INSTRUCTIONS = 8
"""What finding a group's address takes, and whether it lies inside."""


def takes(region: Region) -> Decline | None:
    parts = anchor_with_epilogue(region)
    return parts if isinstance(parts, Decline) else None


def product_of(parts: Anchored) -> Product:
    a, b = parts.anchor.operand_types
    shape = parts.anchor.result.type.shape
    return Product(shape[:-2], shape[-2], shape[-1], a.shape[-1], promote(a.dtype, b.dtype))


def estimate(region: Region, target: Target) -> float:
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    product = product_of(parts)
    tiling = best_tiling(product, target)
    (_, wide_a), (_, wide_b) = (
        operand_fetch(across, strides, extents, v.type.dtype.itemsize, tiling)
        for v, across, (strides, extents) in zip(
            parts.anchor.operands, tiling.block, walks(parts, product), strict=False
        )
    )
    return tiled_us(region, product, tiling, target, Fetching(INSTRUCTIONS, wide_a, wide_b))


def generate(region: Region, target: Target) -> Recipe:
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    product = product_of(parts)
    tiling = best_tiling(product, target)
    kernel = Kernel(
        "matmul",
        partial(source, region, parts, product, tiling),
        all_buffers(region),
        (product.blocks(tiling), 1, 1),
        (tiling.threads, 1, 1),
    )
    return Recipe(f"matmul_{'x'.join(map(str, tiling.block))}", (kernel,))


def walks(parts: Anchored, product: Product) -> tuple[Walk, Walk]:
    """How A and B lie: strides (those of the batch, across the tile, along k), and the extents of the last two."""
    a, b = parts.anchor.operands
    strides_a = (*batch_strides(a, product.batch), *a.type.layout[-2:])
    strides_b = (*batch_strides(b, product.batch), b.type.layout[-1], b.type.layout[-2])
    return (strides_a, (product.m, product.k)), (strides_b, (product.n, product.k))


def operand_fetch(across: int, strides: Sizes, extents: Sizes, itemsize: int, tiling: Tiling) -> tuple[bool, int]:
    """Whether a tile `across` wide is fetched along k, and how many elements at once; `walks` gives the rest."""
    *batch, step, step_k = strides
    share = across * tiling.block[2] // tiling.threads
    most = tiling.most_fetched
    if step_k == 1 and step != 1:
        share = min(share, tiling.block[2])
        return True, dense_vector(step_k, (*batch, step), extents[1], itemsize, share, most)
    return False, dense_vector(step, (*batch, step_k), extents[0], itemsize, share, most)


def operand_constants(name: str, across: int, walk: Walk, itemsize: int, tiling: Tiling) -> str:
    """C++ constants of one operand: strides (across the tile, along k), how it is fetched."""
    strides, extents = walk
    along_k, vector = operand_fetch(across, strides, extents, itemsize, tiling)
    axis = "M" if name == "A" else "N"
    return (
        f"constexpr Index {name}_{axis} = {strides[-2]}, {name}_K = {strides[-1]};\n"
        f"constexpr int V{name} = {vector};\nconstexpr bool {name}_ALONG_K = {str(along_k).lower()};"
    )


def batch_strides(value: Value, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an operand along the batch axes of the result."""
    place = Grid.of(batch).aligned(value.type.shape[:-2])
    assert place is not None
    return strides_at(value.type.layout, (*place, Run(), Run()), batch)


def source(region: Region, parts: Anchored, product: Product, tiling: Tiling) -> str:
    a, b = parts.anchor.operands
    epilogue = epilogue_of(region, parts, sum_as_result(parts), tiling.sums)
    small = max(a.type.extent, b.type.extent) <= LARGEST_INT and epilogue.fits_int
    batch_a, batch_b = (batch_strides(v, product.batch) for v in (a, b))
    walk_a, walk_b = walks(parts, product)
    names = [f"i{axis}" for axis in range(len(product.batch) + 2)]
    *batch, row, column = names
    tiles_m, tiles_n = -(-product.m // tiling.block[0]), -(-product.n // tiling.block[1])
    slot = buffers(region)
    head = [
        epilogue.function,
        constants(product, tiling, (a.type.dtype, b.type.dtype), "int" if small else "i64"),
        operand_constants("A", tiling.block[0], walk_a, a.type.dtype.itemsize, tiling),
        operand_constants("B", tiling.block[1], walk_b, b.type.dtype.itemsize, tiling),
    ]
    place = [
        f"const int tile_n = blockIdx.x % {tiles_n}, tile_m = blockIdx.x / {tiles_n} % {tiles_m};",
        *split_index(f"(Index)(blockIdx.x / {tiles_m * tiles_n})", product.batch, batch, "Index"),
        f"const TA* a = p{slot[a].index} + ({offset_terms(batch_a, batch)});",
        f"const TB* b = p{slot[b].index} + ({offset_terms(batch_b, batch)});",
    ]
    signature = f'extern "C" __global__ void __launch_bounds__({tiling.threads}) matmul({parameters(region)}) {{'
    sums = each_sum(
        epilogue, names, len(names) - 1, tiling, [f"const Index {row} = m;"], [f"const Index {column} = n;"]
    )
    return tiled_kernel(head, signature, place, "matmul_fetch.cu", sums)


FAMILY = Family("matmul", (MatMul,), takes, generate, estimate, last_resort=True)
