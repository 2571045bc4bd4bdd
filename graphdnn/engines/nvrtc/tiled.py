"""The one frame of all tiled products: what is computed comes in as a Contraction, how it is tiled is decided here.

A product's tile goes through shared memory (templates/tile.cu); a contraction says where an operand's elements lie and
which place of the result a sum belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from graphdnn.answer import Decline
from graphdnn.engines.contract import Policy
from graphdnn.engines.nvrtc.emit import opening, prelude, storage, template
from graphdnn.engines.nvrtc.epilogue import Epilogue, anchor_with_epilogue, epilogue_of
from graphdnn.engines.nvrtc.indexing import LARGEST_INT
from graphdnn.engines.nvrtc.recipe import Anchored, Family, Kernel, Recipe, buffers, parameters
from graphdnn.engines.nvrtc.tiling import Fetching, Product, Tiling, accumulator, best_tiling, fold, tiled_us
from graphdnn.ir.op import Op
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, float32
from graphdnn.target import Target


class Read(NamedTuple):
    """How a tile of an operand is fetched: along k or across it, and how many elements at once."""

    along_k: bool
    vector: int


@dataclass(frozen=True, kw_only=True)
class Contraction:
    """An op as a batched matrix product, and the C++ text by which the tiled kernel reads its operands and writes its
    result.

    - `reads` says for a tiling how the tiles of A and of B are fetched.
    - `head` are the C++ constants that the template named `fetch` expects; finding one group of elements there takes
      `instructions` integer instructions.
    - `place` declares the pointers `a` and `b` to the operands of one entry of the batch, given the C++ expression of
      its number.
    - `names` are the C++ variables of the result's indices; the statements `rows` declare some of them from the row m
      of the product, `columns` the others from its column n, which runs along the result's `axis`.
    - With `grouped` the columns of a block belong to one group of several, so that its first index along `axis` need
      not be a multiple of the vector width.
    - No offset into an operand exceeds `reach` elements.
    """

    product: Product
    reads: Callable[[Tiling], tuple[Read, Read]]
    head: Callable[[Tiling], Sequence[str]]
    fetch: str
    instructions: int
    place: Callable[[str], Sequence[str]]
    names: Sequence[str]
    axis: int
    rows: Sequence[str]
    columns: Sequence[str]
    reach: int
    grouped: bool = False


Describe = Callable[[Region, Anchored], Contraction]


def always(region: Region, policy: Policy) -> bool:
    """A library has faster kernels, whatever the region."""
    return True


def but_in_ieee_float32(region: Region, policy: Policy) -> bool:
    """A library has faster kernels but for float32 without TF32.

    There these were faster than cuDNN's first plan in 27 of 35 convolutions of ResNet-50 and U-Net, and 1.7 times as
    slow at most, and in all four transposed ones.
    """
    return policy.precision != "ieee" or any(v.type.dtype != float32 for v in region.inputs)


def tiled_family(
    name: str, anchor: type[Op], describe: Describe, last_resort: Callable[[Region, Policy], bool] = always
) -> Family:
    """The family of an op that is a tiled product."""
    return Family(name, (anchor,), takes, partial(generate, name, describe), partial(estimate, describe), last_resort)


def takes(region: Region) -> Decline | None:
    parts = anchor_with_epilogue(region)
    return parts if isinstance(parts, Decline) else None


def described(region: Region, describe: Describe) -> tuple[Anchored, Contraction]:
    parts = anchor_with_epilogue(region)
    assert isinstance(parts, Anchored)
    return parts, describe(region, parts)


def estimate(describe: Describe, region: Region, target: Target) -> float:
    _, work = described(region, describe)
    tiling = best_tiling(work.product, target)
    a, b = work.reads(tiling)
    return tiled_us(region, work.product, tiling, target, Fetching(work.instructions, a.vector, b.vector))


def generate(name: str, describe: Describe, region: Region, target: Target) -> Recipe:
    parts, work = described(region, describe)
    tiling = best_tiling(work.product, target)
    kernel = Kernel(
        name,
        partial(source, name, region, parts, work, tiling),
        buffers(region),
        (work.product.blocks(tiling), 1, 1),
        (tiling.threads, 1, 1),
    )
    return Recipe(f"{name}_{'x'.join(map(str, tiling.block))}", (kernel,))


def source(name: str, region: Region, parts: Anchored, work: Contraction, tiling: Tiling) -> str:
    """The kernel's text."""
    product = work.product
    epilogue = epilogue_of(region, parts, sum_as_result(parts), tiling.sums)
    reach = max(
        work.reach, *(n + side for n, side in zip((product.m, product.n, product.k), tiling.block, strict=True))
    )
    index = "int" if reach <= LARGEST_INT and epilogue.fits_int else "i64"
    a, b = (t.dtype for t in parts.anchor.operand_types)
    tiles_m, tiles_n = -(-product.m // tiling.block[0]), -(-product.n // tiling.block[1])
    return "\n".join(
        (
            prelude(),
            epilogue.function,
            constants(product, tiling, (a, b), index),
            *work.head(tiling),
            template("tile.cu"),
            opening(tiling.threads, name, parameters(region)),
            f"const int tile_n = blockIdx.x % {tiles_n}, tile_m = blockIdx.x / {tiles_n} % {tiles_m};",
            *work.place(f"blockIdx.x / {tiles_m * tiles_n}"),
            template("tile_begin.cu"),
            template(work.fetch),
            template("tile_loop.cu"),
            *each_sum(epilogue, work, tiling),
            "}\n",
        )
    )


def constants(product: Product, tiling: Tiling, types: tuple[DType, DType], index: str) -> str:
    """What templates/tile.cu expects to be declared, operands apart."""
    (bm, bn, bk), (tm, tn) = tiling.block, tiling.thread
    return "\n".join(
        (
            f"#define MATRIX_UNITS {int(tiling.matrix)}",
            f"#define FOLD {fold(product, tiling)}",
            f"typedef {index} Index;",
            f"typedef {accumulator(product.dtype)} Acc;",
            f"typedef {storage(types[0])} TA;\ntypedef {storage(types[1])} TB;",
            f"constexpr Index M = {product.m}, N = {product.n}, K = {product.k};",
            f"constexpr int BM = {bm}, BN = {bn}, BK = {bk}, TM = {tm}, TN = {tn};",
        )
    )


def sum_as_result(parts: Anchored) -> str:
    """The sum that belongs to element j of a group, as a register value of the result's type."""
    dtype = parts.anchor.result.type.dtype
    return "sum[i][j0 + j]" if dtype.is_float else f"({storage(dtype)})sum[i][j0 + j]"


def each_sum(epilogue: Epilogue, work: Contraction, tiling: Tiling) -> list[str]:
    """Statements that take a thread's sums through the epilogue, in groups of neighbours along n."""
    width = tiling.width
    # Where a block may begin anywhere, vectors start at multiples of their width all the same.
    uneven = f" && at{work.axis} % {width} == 0" if work.grouped and work.product.n % width else ""
    return [
        epilogue.condition(work.axis, width),
        f'_Pragma("unroll") for (int i = 0; i < {tiling.thread[0]}; ++i) {{',
        "const Index m = first_m + row_of(thread_m, i);",
        "if (m < M) {",
        *work.rows,
        f'_Pragma("unroll") for (int j0 = 0; j0 < {tiling.thread[1]}; j0 += {width}) {{',
        "const Index n = first_n + column_of(thread_n, j0);",
        "if (n < N) {",
        *work.columns,
        f"const bool whole = n + {width} <= N{uneven};",
        f"const int count = n + {width} <= N ? {width} : (int)(N - n);",
        *epilogue.text(work.names, work.axis, width),
        "}\n}\n}\n}",
    ]
