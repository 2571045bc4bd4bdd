"""Tiles of a matrix product through shared memory: which there are, and what they cost."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod

from graphdnn.engines.cost import Efficiency, roofline_us
from graphdnn.engines.nvrtc.hardware import VECTOR_BYTES
from graphdnn.engines.nvrtc.indexing import common_width
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

    def share(self, operand: int) -> int:
        """Elements of the tile of A (0) or B (1) that each thread fetches."""
        return self.block[operand] * self.block[2] // self.threads

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
    Tiling((128, 128, 8), (8, 8), 0.93),
    Tiling((64, 64, 16), (4, 4), 0.71),
    Tiling((32, 32, 32), (2, 4), 0.2),
    Tiling((16, 128, 16), (2, 8), 0.19),
    Tiling((128, 8, 16), (4, 2), 0.09),
)
"""Largest first, then those for products with few rows or columns.  A larger tile reads each operand fewer times, a
smaller one leaves no core without work.  The first two reach what was measured (3277 us for 4096 cubed, 75.3 us for
1024 cubed, both float32), the third what it does where each core has one block (230 us for 288 steps, 56 us for 72).
The others were not measured: for few rows or columns they are taken to be as much faster than once thought as the
first two were."""

MATRIX_TILINGS = (Tiling((128, 128, 32), (8, 8), 0.27, matrix=True), Tiling((64, 64, 32), (4, 8), 0.135, matrix=True))
"""For operands that are both float16 or both bfloat16; by 109 us for a 3x3 convolution of 64 channels."""

BANDWIDTH = 0.4
"""Part of the copy bandwidth: each block waits for its first elements, and stores by twos or fours."""

START_US = 3.0
"""From the launch to the first product and from the last one to the end: what the smallest products take."""

MATRIX_STEP_US, MATRIX_FETCH_US = 0.3, 0.031
"""Least time from one step along k to the next, and for each k of it: the elements of the next step come from memory
meanwhile.  Measured where each core has one block: 99.8 us for 72 steps of 32, a 3x3 convolution of 256 channels."""

MATRIX_WAVE_US = 2.0
"""What each further wave of blocks takes besides its steps, to begin and to store: 1.6 to 2.2 us in convolutions of 3
channels and 32 images, which have one step or two."""

STEP_US = 0.8
"""The same outside the matrix units, for 16 and for 32 elements alike: 0.75 to 0.83 in seven float32 convolutions."""

RESIDENT = 2
"""Blocks of one multiprocessor that work at once and hide one another's waiting."""

FOLDED = 512
"""Products that a float32 sum takes in before it is added to a total: over 9216 of them one sum is off by 2.5e-6 of the
largest, which is more than a network of twenty such layers can lose within 1e-5."""

MOST_FOLDED = 16
"""Sums of a thread up to which totals beside them leave registers for two blocks."""

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
    least = MATRIX_STEP_US + MATRIX_FETCH_US * k if tiling.matrix else STEP_US
    blocks = product.blocks(tiling)
    together = min(RESIDENT, -(-blocks // target.sm_count))
    waves = -(-blocks // (target.sm_count * together))
    between = MATRIX_WAVE_US * (waves - 1) if tiling.matrix else 0.0
    return between + waves * -(-product.k // k) * max(1e6 * together * step * target.sm_count, least)


def tiled_us(region: Region, product: Product, tiling: Tiling, target: Target, fetching: Fetching) -> float:
    """Time of a region that is one tiled product: the larger of its arithmetic and its bytes, and the start."""
    memory = roofline_us(region, target, efficiency=Efficiency(bandwidth=BANDWIDTH, matrix=1.0))
    return START_US + max(memory, target.launch_us + product_us(product, tiling, target, fetching))


def plain_rate(dtype: DType, target: Target) -> float:
    """Multiply-adds outside the matrix units, counted as two, a second."""
    sums = dtype.compute.name if dtype.is_float or dtype.bits == 64 else "int32"
    return target.rate("float32") * PLAIN.get(sums, 1.0)


def fold(product: Product, tiling: Tiling) -> int:
    """Steps along k after which a thread's float32 sums are added to its totals; 0 where it keeps none."""
    if tiling.matrix or accumulator(product.dtype) != "float" or product.k < 2 * FOLDED or tiling.sums > MOST_FOLDED:
        return 0
    return FOLDED // tiling.block[2]


@functools.lru_cache(maxsize=1024)
def best_tiling(product: Product, target: Target) -> Tiling:
    """The fastest by estimate; the matrix units take halves."""
    return min(
        (*TILINGS, *(MATRIX_TILINGS if product.dtype.is_half else ())), key=lambda t: product_us(product, t, target)
    )


def dense_vector(step: int, others: tuple[int, ...], extent: int, itemsize: int, share: int, most: int = 4) -> int:
    """Elements of an operand that are fetched at once along an axis of stride `step`; `share` falls to each thread."""
    return common_width(min(VECTOR_BYTES // itemsize, most, share), (extent, *others)) if step == 1 else 1
