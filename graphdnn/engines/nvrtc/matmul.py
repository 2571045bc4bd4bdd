"""Last-resort matrix product: any types, strides and batch, tiled through shared memory, with a pointwise epilogue.

Products of floats are summed in float32 (float64 in float64), of integers without a sign so that they wrap.  This is
what float32 runs on in IEEE arithmetic where no library promises it.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphdnn.engines.nvrtc.indexing import offset_terms, split_index
from graphdnn.engines.nvrtc.places import Grid, Run, strides_at
from graphdnn.engines.nvrtc.recipe import Anchored, parameter_names
from graphdnn.engines.nvrtc.tiled import Contraction, Read, tiled_family
from graphdnn.engines.nvrtc.tiling import Product, Tiling, dense_vector
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.linear import MatMul
from graphdnn.ir.region import Region
from graphdnn.ir.types import promote

Sizes = tuple[int, ...]
Walk = tuple[Sizes, Sizes]

INSTRUCTIONS = 8
"""What finding a group's address takes, and whether it lies inside."""


def product_of(parts: Anchored) -> Product:
    a, b = parts.anchor.operand_types
    shape = parts.anchor.result.type.shape
    return Product(shape[:-2], shape[-2], shape[-1], a.shape[-1], promote(a.dtype, b.dtype))


def contraction(region: Region, parts: Anchored) -> Contraction:
    """A matmul as a tiled product."""
    product = product_of(parts)
    operands = parts.anchor.operands
    walked = walks(parts, product)
    parameter = parameter_names(region)
    names = [f"at{axis}" for axis in range(len(product.batch) + 2)]
    *batch, row, column = names

    def reads(tiling: Tiling) -> tuple[Read, Read]:
        a, b = (
            operand_fetch(tiling.share(number), walk, v.type.dtype.itemsize, tiling)
            for number, (walk, v) in enumerate(zip(walked, operands, strict=True))
        )
        return a, b

    def head(tiling: Tiling) -> Sequence[str]:
        each = zip("AB", "MN", walked, reads(tiling), strict=True)
        return [operand_constants(name, axis, walk, read) for name, axis, walk, read in each]

    def place(block: str) -> Sequence[str]:
        starts = (offset_terms(batch_strides(v, product.batch), batch) for v in operands)
        each = zip(("A", "B"), ("a", "b"), operands, starts, strict=True)
        return [
            *split_index(f"(Index)({block})", product.batch, batch, "Index"),
            *(f"const T{big}* {small} = {parameter[v]} + ({start});" for big, small, v, start in each),
        ]

    return Contraction(
        product=product,
        reads=reads,
        head=head,
        fetch="matmul_fetch.cu",
        instructions=INSTRUCTIONS,
        place=place,
        names=names,
        axis=len(names) - 1,
        rows=[f"const Index {row} = m;"],
        columns=[f"const Index {column} = n;"],
        reach=max(v.type.extent for v in operands),
    )


def walks(parts: Anchored, product: Product) -> tuple[Walk, Walk]:
    """How A and B lie: strides (those of the batch, across the tile, along k), and the extents of the last two."""
    a, b = parts.anchor.operands
    strides_a = (*batch_strides(a, product.batch), *a.type.layout[-2:])
    strides_b = (*batch_strides(b, product.batch), b.type.layout[-1], b.type.layout[-2])
    return (strides_a, (product.m, product.k)), (strides_b, (product.n, product.k))


def operand_fetch(share: int, walk: Walk, itemsize: int, tiling: Tiling) -> Read:
    """How an operand's tile is fetched, `share` elements by each thread: along k where only that axis is dense."""
    strides, extents = walk
    *batch, step, step_k = strides
    most = tiling.most_fetched
    if step_k == 1 and step != 1:
        share = min(share, tiling.block[2])
        return Read(True, dense_vector(step_k, (*batch, step), extents[1], itemsize, share, most))
    return Read(False, dense_vector(step, (*batch, step_k), extents[0], itemsize, share, most))


def operand_constants(name: str, axis: str, walk: Walk, read: Read) -> str:
    """C++ constants of one operand: strides (across the tile, along k), how it is fetched."""
    strides, _ = walk
    return (
        f"constexpr Index {name}_{axis} = {strides[-2]}, {name}_K = {strides[-1]};\n"
        f"constexpr int V{name} = {read.vector};\nconstexpr bool {name}_ALONG_K = {str(read.along_k).lower()};"
    )


def batch_strides(value: Value, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of an operand along the batch axes of the result."""
    place = Grid.of(batch).aligned(value.type.shape[:-2])
    assert place is not None
    return strides_at(value.type.layout, (*place, Run(), Run()), batch)


FAMILY = tiled_family("matmul", MatMul, contraction)
