"""One arena for all intermediates: which bytes each buffer gets, from when it lives."""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from graphdnn.engines.contract import aligned

ENOUGH = 1.02
"""An arena within this factor of the lower bound is not improved further."""

ROUNDS = 150
"""Repairs tried of each first attempt when all of them leave more than that."""

ROUND_BUDGET = 60_000
"""Buffers placed in all repairs together; about half a second."""


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `nbytes` that is in use from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int

    @property
    def size(self) -> int:
        """Bytes taken up, alignment included."""
        return aligned(self.nbytes)


@dataclass(frozen=True)
class Packing:
    """An offset for each lifetime, in the order they were given, and the bytes of the whole arena."""

    offsets: tuple[int, ...]
    nbytes: int


def lower_bound(lifetimes: Sequence[Lifetime]) -> int:
    """The most bytes that are in use at one step; no arena can be smaller."""
    changes: list[tuple[int, int]] = []
    for life in lifetimes:
        changes += ((life.first, life.size), (life.last + 1, -life.size))
    # At equal times what ends goes before what begins: negative changes sort first.
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


ORDERS: tuple[Callable[[Lifetime], tuple[int, ...]], ...] = (
    lambda life: (life.first, -life.last, -life.size),
    lambda life: (-life.size, life.first),
    lambda life: (-(life.last - life.first), -life.size),
    lambda life: (-life.size * (life.last - life.first + 1), life.first),
    lambda life: (-life.last, -life.size),
)
"""Orders in which buffers are placed; all are tried and the smallest arena wins."""


def pack(lifetimes: Sequence[Lifetime]) -> Packing:
    """Offsets such that no two buffers that are in use at the same step share a byte.

    Several orders and two ways of placing are tried; then these attempts are repaired one after the other, the best
    first, until the arena is close to the lower bound or the budget is spent.
    """
    if not lifetimes:
        return Packing((), 0)
    bound = lower_bound(lifetimes)
    rivals = neighbours(lifetimes)
    attempts: list[tuple[Packing, list[int]]] = []
    for key in ORDERS:
        order = sorted(range(len(lifetimes)), key=lambda i, key=key: (*key(lifetimes[i]), i))  # type: ignore[misc]
        for capacity in (bound, 0):
            found = place(lifetimes, rivals, order, capacity)
            if found.nbytes <= bound * ENOUGH:
                return found
            attempts.append((found, order))
    attempts.sort(key=lambda attempt: attempt[0].nbytes)
    return improve(lifetimes, rivals, attempts, bound)


def improve(
    lifetimes: Sequence[Lifetime],
    rivals: Sequence[Sequence[int]],
    attempts: Sequence[tuple[Packing, list[int]]],
    bound: int,
) -> Packing:
    """Moves a buffer that ends above the bound to an earlier turn and places all anew, keeping what is no worse.

    An attempt that is not mended within ROUNDS is left for the next one, since it may be one that no such move mends.
    The draws are seeded: equal lifetimes always give equal offsets.
    """
    draw = random.Random(0)
    best = attempts[0][0]
    rounds = ROUND_BUDGET // len(lifetimes)
    for found, order in attempts:
        current = found
        for _ in range(min(ROUNDS, rounds)):
            rounds -= 1
            high = [t for t, i in enumerate(order) if current.offsets[i] + lifetimes[i].size > bound]
            turn = draw.choice(high)
            moved = order.copy()
            moved.insert(draw.randrange(turn + 1), moved.pop(turn))
            again = place(lifetimes, rivals, moved, draw.choice((bound, 0)))
            if again.nbytes <= current.nbytes:
                current, order = again, moved
            if current.nbytes <= bound * ENOUGH:
                return current
        if current.nbytes < best.nbytes:
            best = current
    return best


def neighbours(lifetimes: Sequence[Lifetime]) -> list[list[int]]:
    """For each buffer those that are in use at some step together with it."""
    found: list[list[int]] = [[] for _ in lifetimes]
    order = sorted(range(len(lifetimes)), key=lambda i: lifetimes[i].first)
    active: list[int] = []
    for index in order:
        active = [i for i in active if lifetimes[i].last >= lifetimes[index].first]
        for other in active:
            found[index].append(other)
            found[other].append(index)
        active.append(index)
    return found


def place(
    lifetimes: Sequence[Lifetime], rivals: Sequence[Sequence[int]], order: Sequence[int], capacity: int
) -> Packing:
    """Buffers in this order, each into a gap between placed rivals.

    With a capacity a buffer goes to that end of a gap where its neighbour stays longest, a wall staying forever: what
    lives long gathers at the walls, and the middle stays in one piece.  Without, it goes to the low end of the tightest
    gap.  What fits nowhere goes on top.
    """
    offsets = [-1] * len(lifetimes)
    top = 0
    for index in order:
        life = lifetimes[index]
        taken: list[tuple[int, int, int]] = []
        for other in rivals[index]:
            if offsets[other] >= 0:
                insort(taken, (offsets[other], offsets[other] + lifetimes[other].size, lifetimes[other].last))
        offsets[index] = beside_the_longest(taken, life.size, capacity) if capacity else tightest(taken, life.size, top)
        top = max(top, offsets[index] + life.size)
    return Packing(tuple(offsets), top)


def tightest(taken: Sequence[tuple[int, int, int]], size: int, top: int) -> int:
    """Start of the smallest gap below `top` that holds `size` bytes, or the end of what is taken."""
    best, best_width, end = -1, 0, 0
    for start, stop, _ in taken:
        width = start - end
        if width >= size and (best < 0 or width < best_width):
            best, best_width = end, width
        end = max(end, stop)
    if top - end >= size and (best < 0 or top - end < best_width):
        return end
    return best if best >= 0 else end


def beside_the_longest(taken: Sequence[tuple[int, int, int]], size: int, capacity: int) -> int:
    """An end of a gap below `capacity`, beside the rival of longest life; the end of what is taken otherwise."""
    forever = 1 << 62
    best, best_score, end, below = -1, (-1, 0), 0, forever
    for start, stop, last in (*taken, (capacity, capacity, forever)):
        width = start - end
        if width >= size:
            for offset, neighbour in ((end, below), (start - size, last)):
                score = (neighbour, -width)
                if score > best_score:
                    best, best_score = offset, score
        if stop > end:
            end, below = stop, last
    return best if best >= 0 else max((stop for _, stop, _ in taken), default=0)
