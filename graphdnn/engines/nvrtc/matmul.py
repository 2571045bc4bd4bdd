"""Last-resort matrix product: any types, strides and batch, tiled through shared memory, with a pointwise epilogue.

Products of floats are summed in float32 (float64 in float64), of integers without a sign so that they wrap.  This is
what float32 runs on in IEEE arithmetic where no library promises it.
"""

from __future__ import annotations

from graphdnn.answer import Decline
from graphdnn.engines.cost import Efficiency, roofline_us
from graphdnn.engines.nvrtc.epilogue import anchor_with_epilogue, epilogue_of
from graphdnn.engines.nvrtc.indexing import LARGEST_INT, offset_terms, split_index
from graphdnn.engines.nvrtc.placement import placed_strides, right_aligned
from graphdnn.engines.nvrtc.recipe import Anchored, Family, Kernel, Recipe, all_buffers, buffers, parameters
from graphdnn.engines.nvrtc.tiling import (
    Product,
    Tiling,
    arithmetic_us,
    best_tiling,
    constants,
    dense_vector,
    each_sum,
    sum_as_result,
    tiled_kernel,
)
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.linear import MatMul
from graphdnn.ir.region import Region
from graphdnn.ir.types import promote
from graphdnn.target import Target


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
    arithmetic = arithmetic_us(product, best_tiling(product, target), target)
    memory = roofline_us(region, target, efficiency=Efficiency(bandwidth=0.6, matrix=1.0))
    return max(memory, target.launch_us + arithmetic)


def generate(region: Region, target: Target) -> Recipe:
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    product = product_of(parts)
    tiling = best_tiling(product, target)
    kernel = Kernel(
        "matmul",
        source(region, parts, product, tiling),
        all_buffers(region),
        (product.blocks(tiling), 1, 1),
        (tiling.threads, 1, 1),
    )
    return Recipe(f"matmul_{'x'.join(map(str, tiling.block))}", (kernel,))


def operand_constants(
    name: str, across: int, strides: tuple[int, ...], extents: tuple[int, int], itemsize: int, tiling: Tiling
) -> str:
    """C++ constants of one operand: strides (across the tile, along k), how it is fetched.

    `strides` end with (across, k), `extents` are those of the two axes; the rest of the strides are the batch's.
    """
    *batch, step, step_k = strides
    along_k = step_k == 1 and step != 1
    share = across * tiling.block[2] // tiling.threads
    vector = (
        dense_vector(step_k, (*batch, step), extents[1], itemsize, min(share, tiling.block[2]), tiling.most_fetched)
        if along_k
        else dense_vector(step, (*batch, step_k), extents[0], itemsize, share, tiling.most_fetched)
    )
    axis = "M" if name == "A" else "N"
    return (
        f"constexpr Index {name}_{axis} = {step}, {name}_K = {step_k};\n"
        f"constexpr int V{name} = {vector};\nconstexpr bool {name}_ALONG_K = {str(along_k).lower()};"
    )


def batch_strides(value: Value, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an operand along the batch axes of the result."""
    place = right_aligned(value.type.shape[:-2], batch)
    assert place is not None
    return placed_strides(value, (*place, None, None), len(batch))


def source(region: Region, parts: Anchored, product: Product, tiling: Tiling) -> str:
    a, b = parts.anchor.operands
    epilogue = epilogue_of(region, parts, sum_as_result(parts))
    small = max(a.type.extent, b.type.extent) <= LARGEST_INT and epilogue.fits_int
    batch_a, batch_b = (batch_strides(v, product.batch) for v in (a, b))
    strides_a = (*batch_a, *a.type.layout[-2:])
    strides_b = (*batch_b, b.type.layout[-1], b.type.layout[-2])
    names = [f"i{axis}" for axis in range(len(product.batch) + 2)]
    *batch, row, column = names
    tiles_m, tiles_n = -(-product.m // tiling.block[0]), -(-product.n // tiling.block[1])
    slot = buffers(region)
    head = [
        constants(product, tiling, (a.type.dtype, b.type.dtype), "int" if small else "i64"),
        operand_constants("A", tiling.block[0], strides_a, (product.m, product.k), a.type.dtype.itemsize, tiling),
        operand_constants("B", tiling.block[1], strides_b, (product.n, product.k), b.type.dtype.itemsize, tiling),
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
