"""Last-resort matrix product: any types, strides and batch, tiled through shared memory, with a pointwise epilogue.

Products of floats are summed in float32 (float64 in float64), of integers without a sign so that they wrap.  This is
what float32 runs on in IEEE arithmetic where no library promises it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from graphdnn.answer import Decline
from graphdnn.engines.cost import Efficiency, roofline_us
from graphdnn.engines.nvrtc.emit import prelude, storage, template
from graphdnn.engines.nvrtc.epilogue import Epilogue, anchor_with_epilogue, epilogue_of
from graphdnn.engines.nvrtc.indexing import LARGEST_INT, offset_terms, split_index
from graphdnn.engines.nvrtc.placement import placed_strides, right_aligned
from graphdnn.engines.nvrtc.recipe import Anchored, Family, Kernel, Recipe, all_buffers, buffers, parameters
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.linear import MatMul
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, promote
from graphdnn.target import Target


@dataclass(frozen=True)
class Tiling:
    """A block's tile (m, n, k), a thread's part of it (m, n), and the part of the arithmetic peak it reaches."""

    block: tuple[int, int, int]
    thread: tuple[int, int]
    reach: float

    @property
    def threads(self) -> int:
        return self.block[0] // self.thread[0] * (self.block[1] // self.thread[1])


TILINGS = (Tiling((128, 128, 8), (8, 8), 0.70), Tiling((64, 64, 16), (4, 4), 0.50), Tiling((32, 32, 32), (2, 4), 0.25))
"""Largest first; a larger tile reads each operand fewer times, a smaller one leaves no core without work."""

PLAIN = {"float64": 0.5, "int32": 0.5, "int64": 0.1}
"""Rate of multiply-adds outside the matrix units, as part of float32's, by the type that is accumulated in."""


def accumulator(dtype: DType) -> str:
    """C++ type of the sums for operands of a type; integers wrap, which is defined without a sign only."""
    if dtype.is_float:
        return "double" if dtype.bits == 64 else "float"
    return "unsigned long long" if dtype.bits == 64 else "unsigned"


def takes(region: Region) -> Decline | None:
    parts = anchor_with_epilogue(region)
    return parts if isinstance(parts, Decline) else None


@dataclass(frozen=True)
class Product:
    """The extents of one batched product."""

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    dtype: DType

    def blocks(self, tiling: Tiling) -> int:
        return prod(self.batch) * -(-self.m // tiling.block[0]) * -(-self.n // tiling.block[1])


def product_of(parts: Anchored) -> Product:
    a, b = parts.anchor.operand_types
    shape = parts.anchor.result.type.shape
    return Product(shape[:-2], shape[-2], shape[-1], a.shape[-1], promote(a.dtype, b.dtype))


def arithmetic_us(product: Product, tiling: Tiling, target: Target) -> float:
    """Time of the waves of blocks; a block has its core to itself, as far as arithmetic goes."""
    m, n, _ = tiling.block
    sums = product.dtype.compute if product.dtype.is_float or product.dtype.bits == 64 else None
    rate = target.rate("float32") * PLAIN.get(sums.name if sums else "int32", 1.0) * tiling.reach
    waves = -(-product.blocks(tiling) // target.sm_count)
    return 1e6 * waves * 2 * m * n * product.k / (rate / target.sm_count)


def best_tiling(product: Product, target: Target) -> Tiling:
    return min(TILINGS, key=lambda tiling: arithmetic_us(product, tiling, target))


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


def dense_vector(step: int, others: tuple[int, ...], extent: int, itemsize: int, share: int) -> int:
    """Elements of an operand that are fetched at once along an axis of stride `step`; `share` falls to each thread."""
    width = min(16 // itemsize, 4, share)
    while width > 1 and (step != 1 or extent % width or any(s % width for s in others)):
        width //= 2
    return width


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
        dense_vector(step_k, (*batch, step), extents[1], itemsize, min(share, tiling.block[2]))
        if along_k
        else dense_vector(step, (*batch, step_k), extents[0], itemsize, share)
    )
    axis = "M" if name == "A" else "N"
    return (
        f"constexpr Index {name}_{axis} = {step}, {name}_K = {step_k};\n"
        f"constexpr int V{name} = {vector};\nconstexpr bool {name}_ALONG_K = {str(along_k).lower()};"
    )


def constants(product: Product, tiling: Tiling, types: tuple[DType, DType], index: str) -> str:
    """What templates/matmul.cu expects to be declared, operands apart."""
    (bm, bn, bk), (tm, tn) = tiling.block, tiling.thread
    return "\n".join(
        (
            f"typedef {index} Index;",
            f"typedef {accumulator(product.dtype)} Acc;",
            f"typedef {storage(types[0])} TA;\ntypedef {storage(types[1])} TB;",
            f"constexpr int M = {product.m}, N = {product.n}, K = {product.k};",
            f"constexpr int BM = {bm}, BN = {bn}, BK = {bk}, TM = {tm}, TN = {tn};",
        )
    )


def batch_strides(value: Value, rank: int, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an operand along the batch axes of the result."""
    leading = value.type.shape[:-2]
    place = right_aligned(leading, batch)
    assert place is not None
    return placed_strides(value, (*place, None, None), len(batch)) if rank else ()


def source(region: Region, parts: Anchored, product: Product, tiling: Tiling) -> str:
    a, b = parts.anchor.operands
    epilogue = epilogue_of(region, parts, sum_as_result(parts))
    small = max(a.type.extent, b.type.extent) <= LARGEST_INT and epilogue.fits_int
    index = "int" if small else "i64"
    rank = len(product.batch)
    batch_a, batch_b = (batch_strides(v, rank, product.batch) for v in (a, b))
    strides_a = (*batch_a, *a.type.layout[-2:])
    strides_b = (*batch_b, b.type.layout[-1], b.type.layout[-2])
    names = [f"i{axis}" for axis in range(rank + 2)]
    tiles_m, tiles_n = -(-product.m // tiling.block[0]), -(-product.n // tiling.block[1])
    slot = buffers(region)
    return "\n".join(
        (
            prelude(),
            constants(product, tiling, (a.type.dtype, b.type.dtype), index),
            operand_constants("A", tiling.block[0], strides_a, (product.m, product.k), a.type.dtype.itemsize, tiling),
            operand_constants("B", tiling.block[1], strides_b, (product.n, product.k), b.type.dtype.itemsize, tiling),
            template("matmul.cu"),
            f'extern "C" __global__ void __launch_bounds__({tiling.threads}) matmul({parameters(region)}) {{',
            f"const int tile_n = blockIdx.x % {tiles_n}, tile_m = blockIdx.x / {tiles_n} % {tiles_m};",
            *(
                split_index(f"(Index)(blockIdx.x / {tiles_m * tiles_n})", product.batch, names[:rank], "Index")
                if rank
                else ()
            ),
            f"const TA* a = p{slot[a].index} + ({offset_terms(batch_a, names[:rank])});",
            f"const TB* b = p{slot[b].index} + ({offset_terms(batch_b, names[:rank])});",
            template("matmul_body.cu"),
            *each_sum(epilogue, names, tiling),
            "}\n",
        )
    )


def sum_as_result(parts: Anchored) -> str:
    """The sum that belongs to element j of a group, as a register value of the result's type."""
    dtype = parts.anchor.result.type.dtype
    return "sum[i][j0 + j]" if dtype.is_float else f"({storage(dtype)})sum[i][j0 + j]"


def each_sum(epilogue: Epilogue, names: list[str], tiling: Tiling) -> list[str]:
    """Statements that take a thread's sums through the epilogue, in groups of neighbours along n."""
    width = min(4, tiling.thread[1])
    m, n = names[-2:]
    return [
        epilogue.condition(len(names) - 1, width),
        f'_Pragma("unroll") for (int i = 0; i < {tiling.thread[0]}; ++i) {{',
        f"const Index {m} = first_m + row_of(thread_m, i);",
        f"if ({m} < M) {{",
        f'_Pragma("unroll") for (int j0 = 0; j0 < {tiling.thread[1]}; j0 += {width}) {{',
        f"const Index {n} = first_n + column_of(thread_n, j0);",
        f"if ({n} < N) {{",
        f"const bool whole = {n} + {width} <= N;",
        f"const int count = (int)(N - {n});",
        *epilogue.text(names, len(names) - 1, width),
        "}\n}\n}\n}",
    ]


FAMILY = Family("matmul", (MatMul,), takes, generate, estimate, last_resort=True)
