"""Turning a box through shared memory: which boxes need it, and in which tiles.

A box is turned when its source is dense along another axis than its result, as from NCHW to NHWC.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphdnn.engines.nvrtc.copies import BoxCopy
from graphdnn.engines.nvrtc.hardware import VECTOR_BYTES, WARP, WORD_BYTES
from graphdnn.engines.nvrtc.indexing import common_width
from graphdnn.target import Target

TILE_ELEMENTS, TILE_BYTES = 4096, 16 * 1024
"""Elements of a tile, 16 for each thread of a block, and its bytes: eight blocks with such fit a multiprocessor."""

LEAST_TILE_ELEMENTS = 1024
"""Elements down to which tiles are made smaller for want of blocks: four for each thread."""

SHORT_EXTENT = 96
"""An axis up to this is taken whole."""

PART_EXTENT = 64
"""Parts of the shorter of two longer axes are as long at most: with it TILE_ELEMENTS make a square."""

PART_UNIT = 8
"""Elements that a part of an axis is a multiple of, so that vectors of halves start where parts do."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """How a box is transposed through shared memory, a tile for each block.

    `s` is the axis along which the source is dense, `d` that of the result; the tile has `extent_s` x `extent_d`
    elements, and its rows lie `pitch` elements apart in shared memory.  `width_in` elements are read, `width_out`
    written at once; with `flat_in` (`flat_out`) the tile is one dense piece of the source (result), so that such
    vectors may run on from one row to the next.
    """

    s: int
    d: int
    extent_s: int
    extent_d: int
    pitch: int
    flat_in: bool
    flat_out: bool
    width_in: int
    width_out: int


def tile_of(copy: BoxCopy, size: int, target: Target) -> Tile | None:
    """The tile of a box whose source is dense along another axis than its result; None where a walk does as well."""
    if not copy.is_plain or copy.source is None or copy.target.strides[-1] != 1 or copy.source.strides[-1] <= 1:
        return None
    d = len(copy.extents) - 1
    dense = [axis for axis in range(d) if copy.source.strides[axis] == 1]
    if not dense:
        return None
    s = max(dense, key=lambda axis: copy.extents[axis])
    extent_s, extent_d = tile_extents(copy, s, d, size, target)
    whole_s, whole_d = extent_s == copy.extents[s], extent_d == copy.extents[d]
    flat_in = whole_s and copy.source.strides[d] == extent_s
    flat_out = whole_d and copy.target.strides[s] == extent_d
    rest = [axis for axis in range(d) if axis != s]
    # Each group starts at a multiple of the width: the box's offset, the step of each other axis, of a tile, of a row.
    split_s, split_d = not whole_s, not whole_d
    terms_in = [copy.source.offset, *(copy.source.strides[a] for a in rest)]
    terms_out = [copy.target.offset, *(copy.target.strides[a] for a in rest)]
    terms_in += [extent_s * extent_d] * split_d if flat_in else [copy.source.strides[d], *[extent_s] * split_s]
    terms_out += [extent_s * extent_d] * split_s if flat_out else [copy.target.strides[s], *[extent_d] * split_d]
    most = VECTOR_BYTES // size
    return Tile(
        s=s,
        d=d,
        extent_s=extent_s,
        extent_d=extent_d,
        pitch=pitch(extent_s, size),
        flat_in=flat_in,
        flat_out=flat_out,
        width_in=common_width(most, terms_in),
        width_out=common_width(most, terms_out),
    )


def pitch(extent: int, size: int) -> int:
    """Elements from row to row of a tile in shared memory: an odd number of 4-byte banks, of pairs for 8 bytes."""
    unit = max(1, WORD_BYTES // size)
    units = -(-extent // unit)
    return (units | 1) * unit


def tile_extents(copy: BoxCopy, s: int, d: int, size: int, target: Target) -> tuple[int, int]:
    """Extents of a tile along s and d: a short axis whole, the other long enough to make up for it."""
    others = copy.size // (copy.extents[s] * copy.extents[d])
    budget = min(TILE_ELEMENTS, TILE_BYTES // size)
    while True:
        short, long = sorted((s, d), key=lambda axis: copy.extents[axis])
        n = copy.extents[short]
        first = n if n <= SHORT_EXTENT else rounded(-(-n // -(-n // PART_EXTENT)), PART_UNIT)
        limit = max(WARP, budget // first // WARP * WARP)
        m = copy.extents[long]
        second = m if m <= limit else rounded(-(-m // -(-m // limit)), WARP)
        blocks = others * -(-n // first) * -(-m // second)
        if blocks >= 2 * target.sm_count or budget <= LEAST_TILE_ELEMENTS:
            return (first, second) if short == s else (second, first)
        budget //= 2


def rounded(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def tile_counts(copy: BoxCopy, tile: Tile) -> tuple[int, ...]:
    """Tiles along each axis of the box."""
    steps = {tile.s: tile.extent_s, tile.d: tile.extent_d}
    return tuple(-(-n // steps.get(axis, 1)) for axis, n in enumerate(copy.extents))
