"""Index spaces: which dimensions a kernel walks, in which order, and how far each operand moves along them.

Shared by the families: dimensions of size 1 vanish, neighbours that every operand walks alike become one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd, prod

from graphdnn.engines.nvrtc.hardware import VECTOR_BYTES

Strides = tuple[int, ...]
LARGEST_INT = 2**31 - 1

ROUNDED_UP = 2**20
"""More elements than any block takes, so that the count of a whole number of blocks is below count plus this."""

MOST_ELEMENTS = 8
"""Elements of a group, but of bytes, which fill a vector: wider groups only cost registers."""


@dataclass(frozen=True)
class Space:
    """Extents, outermost first, and for each access its stride along each of them, in elements (0: broadcast)."""

    extents: tuple[int, ...]
    accesses: tuple[Strides, ...]

    @property
    def size(self) -> int:
        return prod(self.extents)

    @property
    def fits_int(self) -> bool:
        """Whether every offset, and the count rounded up to whole blocks, fits a 32-bit integer."""
        reach = max(
            (sum((n - 1) * abs(s) for n, s in zip(self.extents, a, strict=True)) for a in self.accesses), default=0
        )
        return max(reach, self.size + ROUNDED_UP) <= LARGEST_INT


def ordered(space: Space, leader: int) -> Space:
    """The same space with the dimensions sorted by the strides of access `leader`, largest outermost.

    Where the leader does not move, a dimension goes by the largest stride that another access has there.
    """

    def weight(axis: int) -> tuple[int, int]:
        return (space.accesses[leader][axis], max(a[axis] for a in space.accesses))

    order = sorted(range(len(space.extents)), key=weight, reverse=True)
    return Space(tuple(space.extents[i] for i in order), tuple(tuple(a[i] for i in order) for a in space.accesses))


def collapsed(space: Space) -> Space:
    """The same walk with as few dimensions as possible; at least one."""
    extents: list[int] = []
    columns: list[tuple[int, ...]] = []
    for axis, n in enumerate(space.extents):
        if n == 1:
            continue
        column = tuple(a[axis] for a in space.accesses)
        if columns and all(outer == inner * n for outer, inner in zip(columns[-1], column, strict=True)):
            extents[-1], columns[-1] = extents[-1] * n, column
        else:
            extents.append(n)
            columns.append(column)
    if not extents:
        return Space((1,), tuple((0,) for _ in space.accesses))
    return Space(tuple(extents), tuple(zip(*columns, strict=True)))


def vector_width(space: Space, itemsizes: Sequence[int], most: int = VECTOR_BYTES) -> int:
    """Elements that a thread may take at once along the innermost dimension: a power of two.

    Every access that moves by one element there must start each group at a multiple of the width, so the width
    divides all its outer strides; it divides the extent unless there is only one dimension, whose tail is guarded.
    The smallest element decides: its group fills one vector at most.
    """
    moving = [(a, size) for a, size in zip(space.accesses, itemsizes, strict=True) if a[-1] == 1]
    if not moving:
        return 1
    most = most if all(size == 1 for size in itemsizes) else min(most, MOST_ELEMENTS)
    width = min(most, max(1, VECTOR_BYTES // min(size for _, size in moving)))
    *outer, last = space.extents
    if outer:
        return common_width(width, (last, *(s for a, _ in moving for s in a[:-1])))
    while width > last:
        width //= 2
    return width


def common_width(most: int, terms: Iterable[int]) -> int:
    """The largest power of two that divides all the terms, `most` (itself a power of two) at most.

    Extents, strides and offsets that a width divides are those by which vectors of that width stay aligned.
    """
    return gcd(most, *terms)


def offset_terms(strides: Sequence[int], names: Sequence[str]) -> str:
    """The C++ sum of index times stride, without the terms that are 0."""
    terms = [name if s == 1 else f"{name} * {s}" for name, s in zip(names, strides, strict=True) if s]
    return " + ".join(terms) or "0"


def split_index(flat: str, extents: Sequence[int], names: Sequence[str], kind: str) -> list[str]:
    """Statements that take a flat index apart into one index a dimension; divisions are by literals."""
    if not extents:
        return []
    lines: list[str] = []
    rest = flat
    for axis in reversed(range(1, len(extents))):
        lines.append(f"const {kind} {names[axis]} = {rest} % {extents[axis]};")
        lines.append(f"const {kind} {names[axis]}_q = {rest} / {extents[axis]};")
        rest = f"{names[axis]}_q"
    lines.append(f"const {kind} {names[0]} = {rest};")
    return lines
