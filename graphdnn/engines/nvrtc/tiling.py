"""Tiles of a matrix product through shared memory: which there are, what they cost, their text around the operands.

Matmul and convolution share it (templates/tile.cu): they differ in where an operand's elements lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from graphdnn.engines.cost import Efficiency, roofline_us
from graphdnn.engines.nvrtc.emit import prelude, storage, template
from graphdnn.engines.nvrtc.epilogue import Epilogue
from graphdnn.engines.nvrtc.recipe import Anchored
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType
from graphdnn.target import Target


@dataclass(frozen=True)
class Tiling:
    """A block's tile (m, n, k), a thread's part of it (m, n), and the part of the arithmetic peak it reaches.

    With `matrix` the matrix units multiply, the peak is theirs, and sums lie in neighbouring pairs, not in fours.
    """

    block: tuple[int, int, int]
    thread: tuple[int, int]
    reach: float
    matrix: bool = False

    @property
    def threads(self) -> int:
        return self.block[0] // self.thread[0] * (self.block[1] // self.thread[1])

    @property
    def sums(self) -> int:
        """Sums that a thread keeps."""
        return self.thread[0] * self.thread[1]

    @property
    def width(self) -> int:
        """Neighbours along n that a thread holds next to one another."""
        return 2 if self.matrix else min(4, self.thread[1])

    @property
    def most_fetched(self) -> int:
        """Elements of an operand that may be fetched at once; what is multiplied in registers is spread out by four."""
        return 8 if self.matrix else 4


TILINGS = (
    Tiling((128, 128, 8), (8, 8), 0.60),
    Tiling((64, 64, 16), (4, 4), 0.42),
    Tiling((32, 32, 32), (2, 4), 0.12),
    Tiling((16, 128, 16), (2, 8), 0.12),
    Tiling((128, 8, 16), (4, 2), 0.055),
)
"""Largest first, then those for products with few rows or columns.  A larger tile reads each operand fewer times, a
smaller one leaves no core without work; of the small ones a block takes about as long as a library's of 64 x 64."""

MATRIX_TILINGS = (Tiling((128, 128, 32), (8, 8), 0.30, matrix=True), Tiling((64, 64, 32), (4, 8), 0.15, matrix=True))
"""For operands that are both float16 or both bfloat16."""

BANDWIDTH = 0.4
"""Part of the copy bandwidth: each block waits for its first elements, and stores by twos or fours."""

START_US = 3.0
"""From the launch to the first product and from the last one to the end: what the smallest products take."""

STEP_US = 0.8
"""Least time from one step along k to the next: the elements of the next one come from memory meanwhile."""

RESIDENT = 2
"""Blocks of one multiprocessor that work at once and hide one another's waiting."""

PLAIN = {"float64": 0.5, "int32": 0.5, "int64": 0.1}
"""Rate of multiply-adds outside the matrix units, as part of float32's, by the type that is accumulated in."""


def accumulator(dtype: DType) -> str:
    """C++ type of the sums for operands of a type; integers wrap, which is defined without a sign only."""
    if dtype.is_float:
        return "double" if dtype.bits == 64 else "float"
    return "unsigned long long" if dtype.bits == 64 else "unsigned"


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


@dataclass(frozen=True)
class Fetching:
    """How a tile's elements are found: instructions for each group, and the elements of a group of A and of B."""

    instructions: int
    a: int
    b: int


USUAL = Fetching(8, 4, 4)
"""What tilings are chosen by."""


def product_us(product: Product, tiling: Tiling, target: Target, fetching: Fetching = USUAL) -> float:
    """Time of the waves of blocks, each going through k step by step."""
    m, n, k = tiling.block
    rate = target.rate(product.dtype.name) if tiling.matrix else plain_rate(product.dtype, target)
    step = 2 * m * n * k / (rate * tiling.reach)
    # Addresses are found by integer instructions, half as many a second as multiply-adds, which count as two.
    groups = m * k / fetching.a + n * k / fetching.b
    step += fetching.instructions * groups / (target.rate("float32") / 4)
    blocks = product.blocks(tiling)
    together = min(RESIDENT, -(-blocks // target.sm_count))
    waves = -(-blocks // (target.sm_count * together))
    return waves * -(-product.k // k) * max(1e6 * together * step * target.sm_count, STEP_US)


def tiled_us(region: Region, product: Product, tiling: Tiling, target: Target, fetching: Fetching) -> float:
    """Time of a region that is one tiled product: the larger of its arithmetic and its bytes, and the start."""
    memory = roofline_us(region, target, efficiency=Efficiency(bandwidth=BANDWIDTH, matrix=1.0))
    return START_US + max(memory, target.launch_us + product_us(product, tiling, target, fetching))


def plain_rate(dtype: DType, target: Target) -> float:
    """Multiply-adds outside the matrix units, counted as two, a second."""
    sums = dtype.compute.name if dtype.is_float or dtype.bits == 64 else "int32"
    return target.rate("float32") * PLAIN.get(sums, 1.0)


def best_tiling(product: Product, target: Target) -> Tiling:
    """The fastest by estimate; the matrix units take halves."""
    halves = product.dtype.is_float and product.dtype.bits == 16
    return min((*TILINGS, *(MATRIX_TILINGS if halves else ())), key=lambda t: product_us(product, t, target))


def dense_vector(step: int, others: tuple[int, ...], extent: int, itemsize: int, share: int, most: int = 4) -> int:
    """Elements of an operand that are fetched at once along an axis of stride `step`; `share` falls to each thread."""
    width = min(16 // itemsize, most, share)
    while width > 1 and (step != 1 or extent % width or any(s % width for s in others)):
        width //= 2
    return width


def constants(product: Product, tiling: Tiling, types: tuple[DType, DType], index: str) -> str:
    """What templates/tile.cu expects to be declared, operands apart."""
    (bm, bn, bk), (tm, tn) = tiling.block, tiling.thread
    return "\n".join(
        (
            f"#define MATRIX_UNITS {int(tiling.matrix)}",
            f"typedef {index} Index;",
            f"typedef {accumulator(product.dtype)} Acc;",
            f"typedef {storage(types[0])} TA;\ntypedef {storage(types[1])} TB;",
            f"constexpr int M = {product.m}, N = {product.n}, K = {product.k};",
            f"constexpr int BM = {bm}, BN = {bn}, BK = {bk}, TM = {tm}, TN = {tn};",
        )
    )


def sum_as_result(parts: Anchored) -> str:
    """The sum that belongs to element j of a group, as a register value of the result's type."""
    dtype = parts.anchor.result.type.dtype
    return "sum[i][j0 + j]" if dtype.is_float else f"({storage(dtype)})sum[i][j0 + j]"


def each_sum(
    epilogue: Epilogue,
    names: Sequence[str],
    axis: int,
    tiling: Tiling,
    place_m: Sequence[str],
    place_n: Sequence[str],
    extra: str = "",
) -> list[str]:
    """Statements that take a thread's sums through the epilogue, in groups of neighbours along `axis`, the product's n.

    `place_m` and `place_n` declare the index variables `names` from `m` and `n`; `extra` is a further condition for
    a group to start at a multiple of its width.
    """
    width = tiling.width
    return [
        epilogue.condition(axis, width),
        f'_Pragma("unroll") for (int i = 0; i < {tiling.thread[0]}; ++i) {{',
        "const Index m = first_m + row_of(thread_m, i);",
        "if (m < M) {",
        *place_m,
        f'_Pragma("unroll") for (int j0 = 0; j0 < {tiling.thread[1]}; j0 += {width}) {{',
        "const Index n = first_n + column_of(thread_n, j0);",
        "if (n < N) {",
        *place_n,
        f"const bool whole = n + {width} <= N{extra};",
        f"const int count = n + {width} <= N ? {width} : (int)(N - n);",
        *epilogue.text(names, axis, width),
        "}\n}\n}\n}",
    ]


def tiled_kernel(head: Sequence[str], signature: str, place: Sequence[str], fetch: str, tail: Sequence[str]) -> str:
    """A whole kernel: `head` declares constants, `place` the tile and the operands, `fetch` how groups are read."""
    return "\n".join(
        (
            prelude(),
            *head,
            template("tile.cu"),
            signature,
            *place,
            template("tile_begin.cu"),
            template(fetch),
            template("tile_loop.cu"),
            *tail,
            "}\n",
        )
    )
