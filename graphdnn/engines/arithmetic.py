"""What types a region's arithmetic is done in, for reports and for limits of libraries."""

from __future__ import annotations

from functools import lru_cache

from graphdnn.ir.graph import Node
from graphdnn.ir.op import Op
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.norm import Norm
from graphdnn.ir.ops.pointwise import Cast, Elementwise, Select
from graphdnn.ir.ops.pool import Pool
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType

COMPUTES: tuple[type[Op], ...] = (Elementwise, Conv, ConvTranspose, MatMul, Norm, Softmax, Reduce, Pool, Attention)
CHANNELS_AT_ONCE = 8
"""Channels of half precision that kernels for the matrix units load at once, 16 bytes."""


def has_few_channels(node: Node) -> bool:
    """Whether this is a 2-D convolution of halves on fewer channels than that, as the first of a network is."""
    if not isinstance(node.op, Conv) or node.op.groups > 1:
        return False
    x = node.operands[0].type
    return x.rank == 4 and x.dtype.is_half and x.shape[1] < CHANNELS_AT_ONCE


MOVES: tuple[type[Op], ...] = (Cast, Select)
"""Pointwise, and yet no arithmetic: what they give is one of their operands, rounded perhaps."""


TF32 = "tf32"
"""The words for products of float32 operands that are rounded to TF32; all other words follow from the types."""

HALF_SUMS = "float16 accumulate"
HALF_PARTS = "parts added in"
"""Words of products whose sums, or the parts of split ones, are kept in half precision."""


CACHE_SIZE = 256
"""Combinations of operand and result types that are cached: the nodes of a graph have the same few."""


def is_exact(words: str) -> bool:
    """Whether arithmetic that is described so is as the types say, which is all that precision="ieee" allows."""
    return words != TF32 and HALF_SUMS not in words and HALF_PARTS not in words


def computes(node: Node) -> bool:
    return isinstance(node.op, COMPUTES) and not isinstance(node.op, MOVES)


def compute_type(node: Node) -> DType:
    """The widest type that a node's arithmetic is in: floats before integers, sums of integers in their result's."""
    return widest(tuple([v.type.dtype for v in (*node.operands, *node.results)]))


@lru_cache(CACHE_SIZE)
def widest(types: tuple[DType, ...]) -> DType:
    return max({t.compute for t in types}, key=rank_of)


def compute_types(region: Region) -> tuple[DType, ...]:
    """The types of a region's arithmetic, widest first; none where it only moves and rounds."""
    found = {compute_type(n) for n in region.nodes if computes(n)}
    return tuple(sorted(found, key=rank_of, reverse=True))


def rank_of(dtype: DType) -> tuple[bool, bool, int, str]:
    return dtype.is_float, dtype.is_integer, dtype.bits, dtype.name


def arithmetic_words(region: Region) -> str:
    """What a report says: the type of the arithmetic, or several; of a region that only moves data, its type."""
    types = [t for t in compute_types(region) if t.is_float] or list(compute_types(region)[:1])
    if not types:
        return region.nodes[-1].result_types[0].dtype.name
    words = " and ".join(t.name for t in types)
    anchors = [n for n in region.nodes if computes(n) and not isinstance(n.op, Elementwise)]
    first = next(iter(anchors), next(n for n in region.nodes if computes(n)))
    read = (first.operand_types or first.result_types)[0].dtype
    return words if not read.is_float or read.compute == read else f"{read.name} in, {words} arithmetic"
