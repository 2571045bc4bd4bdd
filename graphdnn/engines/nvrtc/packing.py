"""Packing pixels: boxes whose innermost axis in the result is so short that one thread writes all of it.

A thread reads neighbouring pixels of each plane at once and writes them with their channels side by side, as from NCHW
of three channels to NHWC of three, or of four with zeros behind: no shared memory, whole vectors where strides allow.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphdnn.engines.nvrtc.copies import BoxCopy
from graphdnn.engines.nvrtc.hardware import BYTES_IN_FLIGHT, VECTOR_BYTES, WORD_BYTES
from graphdnn.engines.nvrtc.indexing import common_width


@dataclass(frozen=True)
class Packing:
    """How a box is packed: pixels that a thread takes, channels that it reads and writes of each, and its vectors."""

    pixels: int
    read: int
    written: int
    width_in: int
    width_out: int


def packing_of(copy: BoxCopy, size: int) -> Packing | None:
    """The packing of a box that ends in few channels; None where another way does as well."""
    if not copy.is_plain or copy.source is None or copy.target.strides[-1] != 1:
        return None
    written = copy.extents[-1]
    if written == 1 or written * size > VECTOR_BYTES:
        return None
    in_rows = len(copy.extents) > 1 and copy.target.strides[-2] == written
    pixels = pixels_at_once(written, size) if in_rows else 1
    if copy.filled is None and not pays(copy, written, pixels, size):
        return None
    read = written if copy.filled is None else copy.filled
    # The axis of pixels is split into groups: each starts at a multiple of the width, and so does what is left.
    source, target, rest = copy.source, copy.target, len(copy.extents) - 2
    left = copy.extents[-2] % pixels if in_rows else 0
    terms_in = [source.offset, pixels, left, *source.strides[:rest], *([source.strides[-1]] if read > 1 else [])]
    terms_out = [target.offset, pixels * written, left * written, *target.strides[: rest if in_rows else rest + 1]]
    neighbours = in_rows and source.strides[-2] == 1
    return Packing(
        pixels,
        read,
        written,
        common_width(VECTOR_BYTES // size, terms_in) if neighbours else 1,
        common_width(VECTOR_BYTES // size, terms_out),
    )


def pays(copy: BoxCopy, written: int, pixels: int, size: int) -> bool:
    """Whether a turned box is read in whole words at least, and written in whole vectors."""
    assert copy.source is not None
    turned = len(copy.extents) > 1 and copy.source.strides[-2] == 1 and copy.source.strides[-1] > 1
    return turned and pixels * size >= WORD_BYTES and pixels * written * size % VECTOR_BYTES == 0


def pixels_at_once(written: int, size: int) -> int:
    """Pixels that fill whole vectors, or fewer where a thread would hold too much."""
    pixels = 1
    while pixels * written * size % VECTOR_BYTES:
        pixels *= 2
    while pixels * written * size > BYTES_IN_FLIGHT:
        pixels //= 2
    return pixels


def groups_of(copy: BoxCopy, packing: Packing) -> tuple[int, ...]:
    """Groups of pixels along each axis of the box but the last."""
    if len(copy.extents) == 1:
        return (1,)
    return (*copy.extents[:-2], -(-copy.extents[-2] // packing.pixels))
