"""How the threads of a row kernel share out rows and elements: vectors, members, caching, splitting.

Two cases.  Rows that lie along memory: a vector is a piece of one row, and a warp, part of one, or a block folds it.
Rows that lie across memory (channels-last spatial means, column sums): a vector is neighbouring rows at one element,
and threads that stand above one another in the block share out the elements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from graphdnn.engines.nvrtc.hardware import (
    BLOCK,
    LOADS_IN_FLIGHT,
    MOST_THREADS,
    SMALL_BLOCK,
    VECTOR_BYTES,
    WARP,
    resident_threads,
)
from graphdnn.engines.nvrtc.indexing import MOST_ELEMENTS, Space, collapsed, ordered, vector_width
from graphdnn.engines.nvrtc.rows_phases import kept_bytes, phases
from graphdnn.engines.nvrtc.rows_program import Output, Program, Term
from graphdnn.ir.types import DType
from graphdnn.target import Target

Access = Term | Output

KEPT_BYTES = 160
"""What a thread may keep of its row in registers, so that two blocks of 1024 threads or more fit a core."""

MOST_KEPT = 64
"""Elements that it may keep: the text repeats the work on each of its vectors."""

ELEMENTS = 16
"""Elements that a thread takes of a row that one block folds: enough loads in flight, few enough registers."""

WARP_ELEMENTS = 32
"""The same where one warp folds a row: more, since it waits for nobody."""

SPLIT_BYTES = 128 * 1024
"""Least bytes of a block's rows that are worth a second kernel; one core reads them in some 2 us."""

MOST_SPLITS = 256
"""Blocks that share a row at most: the next kernel folds a partial result of each, one or two a thread."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a row kernel divides rows and their elements among threads.

    - `rows` are the extents that count the rows, `cols` those of the elements of one row, each outermost first;
      `strides` has for each access its strides along both, in elements.
    - A thread loads vectors of `width` elements: neighbours in one row, or with `across` the elements of `width`
      neighbouring rows at one place.
    - `members` threads share a row (with `across` a vector of rows), and a block has `lanes` of these.
    - `kept` vectors of each member stay in registers between phases; with 0 the row is read again in each phase.
    - `splits` blocks share a row; their partial results meet in the workspace.
    - `fits_int` says whether every offset fits 32 bits, `coalesced` whether neighbouring threads read neighbours.
    - With `at_once` all loads, those of operands that all rows share included, stand before the first reduction.
    """

    rows: tuple[int, ...]
    cols: tuple[int, ...]
    strides: dict[Access, tuple[tuple[int, ...], tuple[int, ...]]]
    across: bool
    width: int
    members: int
    lanes: int
    kept: int
    splits: int
    fits_int: bool
    coalesced: bool
    at_once: bool = False

    @property
    def row_vectors(self) -> int:
        """What a block's lanes count: rows, or vectors of rows."""
        return prod(self.rows) // (self.width if self.across else 1)

    @property
    def vectors(self) -> int:
        """What the members of a row count."""
        return prod(self.cols) // (1 if self.across else self.width)

    def is_shared(self, load: Term) -> bool:
        """Whether all rows load the same elements."""
        return load.varies and not any(self.strides[load][0])

    @property
    def threads(self) -> int:
        return self.members * self.lanes

    @property
    def blocks(self) -> int:
        return -(-self.row_vectors // self.lanes)

    @property
    def share(self) -> int:
        """Vectors of a row that one block takes."""
        return -(-self.vectors // self.splits)


def accesses(program: Program) -> list[Access]:
    """Everything that the kernel reads or writes, loads first."""
    return [*program.loads, *program.outputs]


def element(access: Access) -> DType:
    """Type of an access's elements in memory."""
    assert access.value is not None
    return access.value.type.dtype


def leading(program: Program) -> int:
    """The access that decides the order: the largest that varies along the row."""

    def weight(index: int) -> tuple[bool, int, bool]:
        access = every[index]
        assert access.value is not None
        return (access.varies, access.value.type.nbytes, isinstance(access, Term))

    every = accesses(program)
    return max(range(len(every)), key=weight)


def spaces(program: Program, leader: int) -> tuple[Space, Space]:
    """Rows and columns as walks of their own, each in the leader's order with as few dimensions as possible."""

    def part(axes: tuple[int, ...]) -> Space:
        extents = tuple(program.extents[a] for a in axes)
        strides = tuple(tuple(x.strides[a] for a in axes) for x in accesses(program))
        return collapsed(ordered(Space(extents, strides), leader))

    others = tuple(a for a in range(len(program.extents)) if a not in program.along)
    return part(others), part(program.along)


def joined(outer: Space, inner: Space) -> Space:
    """Two walks of the same accesses as one, `inner` within `outer`."""
    accesses = tuple(a + b for a, b in zip(outer.accesses, inner.accesses, strict=True))
    return Space((*outer.extents, *inner.extents), accesses)


def power_above(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def plan(program: Program, target: Target) -> Layout:
    """Decides the layout.  Cheap, and the same for equal programs."""
    leader = leading(program)
    rows, cols = spaces(program, leader)
    across = cols.accesses[leader][-1] != 1 and rows.accesses[leader][-1] == 1
    items = [element(x).itemsize for x in accesses(program)]
    walk = joined(cols, rows) if across else joined(rows, cols)
    width = vector_width(walk, items, MOST_ELEMENTS if across else VECTOR_BYTES)
    if across:
        # Narrower vectors where there would be less than a warp of them for each multiprocessor.
        while width > 2 and rows.size // width < WARP * target.sm_count:
            width //= 2
        members, lanes = columns_block(rows.size // width, cols.size, target)
    else:
        members, lanes = rows_block(rows.size, cols.size // width, width, target)
    layout = Layout(
        rows=rows.extents,
        cols=cols.extents,
        strides=dict(zip(accesses(program), zip(rows.accesses, cols.accesses, strict=True), strict=True)),
        across=across,
        width=width,
        members=members,
        lanes=lanes,
        kept=0,
        splits=1,
        fits_int=walk.fits_int,
        coalesced=walk.accesses[leader][-1] == 1,
    )
    return finished(program, layout, target)


def rows_block(rows: int, vectors: int, width: int, target: Target) -> tuple[int, int]:
    """Members a row and rows a block, for rows along memory."""
    if vectors <= WARP:
        members = power_above(vectors)
    elif vectors * width <= WARP * WARP_ELEMENTS:
        members = WARP
    else:
        members = min(MOST_THREADS, whole_warps(-(-vectors // max(1, ELEMENTS // width))))
    # A quarter of the threads that there is room for is few.
    while 4 * members * rows < resident_threads(target) and 2 * members <= min(MOST_THREADS, power_above(vectors)):
        members *= 2
    if members > WARP:
        return whole_warps(members), 1
    lanes = SMALL_BLOCK // members
    while lanes > 1 and -(-rows // lanes) < target.sm_count:
        lanes //= 2
    return members, max(lanes, WARP // members)


def whole_warps(threads: int) -> int:
    return -(-threads // WARP) * WARP


def columns_block(row_vectors: int, length: int, target: Target) -> tuple[int, int]:
    """Members a vector of rows and vectors a block, for rows across memory."""
    lanes = min(WARP, power_above(row_vectors))
    members = 1
    while lanes * members < BLOCK and 2 * members <= length and row_vectors * members < resident_threads(target):
        members *= 2
    while lanes * members < SMALL_BLOCK and lanes < row_vectors:
        lanes *= 2
    return members, max(lanes, WARP // members)


def finished(program: Program, layout: Layout, target: Target) -> Layout:
    """With the decision about registers and about splitting rows between blocks."""
    splits = wanted_splits(program, layout, target)
    if splits > 1:
        return replace(layout, splits=splits)
    each = -(-layout.vectors // layout.members)
    once = sum(w.is_walk for w in phases(program, True)) < 2
    elements, bytes = each * layout.width, kept_bytes(program)
    if elements > MOST_KEPT or elements * bytes > KEPT_BYTES or once:
        return replace(layout, kept=0)
    shared = sum(element(t).itemsize for t in program.loads if layout.is_shared(t))
    # Where all blocks run in one wave nothing hides that a load waits behind a fold, and registers are there: half of
    # the threads that there is room for may have 64 each.
    few = 2 * layout.blocks * layout.threads <= resident_threads(target)
    return replace(layout, kept=each, at_once=few and elements * (bytes + shared) <= KEPT_BYTES)


def wanted_splits(program: Program, layout: Layout, target: Target) -> int:
    """Blocks to a row: more than one where few long rows would leave most cores idle."""
    moved = sum(t.dtype.itemsize for t in program.loads if t.varies) * program.length * layout.lanes
    moved *= layout.width if layout.across else 1
    rounds = layout.vectors // (LOADS_IN_FLIGHT * layout.members)
    if 2 * layout.blocks > target.sm_count or rounds < 2 or moved < SPLIT_BYTES:
        return 1
    return min(rounds, -(-2 * target.sm_count // layout.blocks), MOST_SPLITS)
