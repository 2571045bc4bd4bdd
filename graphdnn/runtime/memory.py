"""One arena for all intermediates: which bytes each buffer gets, from when it lives."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ALIGNMENT = 256
"""Bytes to which every offset is aligned."""

ENOUGH = 1.02
"""An arena within this factor of the lower bound is not improved further."""

ROUNDS = 60
"""Repairs tried when every first order leaves more than that; each moves the buffer that sticks out to the front."""


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


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


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
    lambda life: (-life.size, life.first),
    lambda life: (-(life.last - life.first), -life.size),
    lambda life: (-life.size * (life.last - life.first + 1), life.first),
    lambda life: (life.first, -life.size),
    lambda life: (-life.last, -life.size),
)
"""Orders in which buffers are placed; all are tried and the smallest arena wins."""


def pack(lifetimes: Sequence[Lifetime]) -> Packing:
    """Offsets such that no two buffers that are in use at the same step share a byte.

    Each order places buffer by buffer into the tightest gap that fits.  What then sticks out highest is moved to the
    front of the best order and placed anew, until the arena is close to the lower bound or the rounds are used up.
    """
    if not lifetimes:
        return Packing((), 0)
    bound = lower_bound(lifetimes)
    rivals = neighbours(lifetimes)
    indices = range(len(lifetimes))
    best: Packing | None = None
    best_order: list[int] = []
    for key in ORDERS:
        order = sorted(indices, key=lambda i, key=key: (*key(lifetimes[i]), i))  # type: ignore[misc]
        found = place(lifetimes, rivals, order)
        if best is None or found.nbytes < best.nbytes:
            best, best_order = found, order
        if best.nbytes <= bound * ENOUGH:
            return best
    assert best is not None
    return improve(lifetimes, rivals, best, best_order, bound)


def improve(
    lifetimes: Sequence[Lifetime], rivals: Sequence[Sequence[int]], best: Packing, order: list[int], bound: int
) -> Packing:
    """Places the highest buffer first and tries again, as long as rounds remain; keeps the smallest arena seen."""
    current = best
    seen = {tuple(order)}
    for _ in range(ROUNDS):
        top = max(order, key=lambda i: (current.offsets[i] + lifetimes[i].size, i))
        order = [top, *(i for i in order if i != top)]
        if tuple(order) in seen:
            break
        seen.add(tuple(order))
        current = place(lifetimes, rivals, order)
        if current.nbytes < best.nbytes:
            best = current
        if best.nbytes <= bound * ENOUGH:
            break
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


def place(lifetimes: Sequence[Lifetime], rivals: Sequence[Sequence[int]], order: Sequence[int]) -> Packing:
    """Buffers in this order, each in the tightest gap between placed rivals that fits, else on top of them."""
    offsets = [-1] * len(lifetimes)
    top = 0
    for index in order:
        size = lifetimes[index].size
        taken: list[tuple[int, int]] = []
        for other in rivals[index]:
            if offsets[other] >= 0:
                insort(taken, (offsets[other], offsets[other] + lifetimes[other].size))
        offsets[index] = tightest_gap(taken, size, top)
        top = max(top, offsets[index] + size)
    return Packing(tuple(offsets), top)


def tightest_gap(taken: Sequence[tuple[int, int]], size: int, top: int) -> int:
    """Start of the smallest gap below `top` that holds `size` bytes, or the end of what is taken."""
    best, best_width, end = -1, 0, 0
    for start, stop in taken:
        width = start - end
        if width >= size and (best < 0 or width < best_width):
            best, best_width = end, width
        end = max(end, stop)
    if top - end >= size and (best < 0 or top - end < best_width):
        return end
    return best if best >= 0 else end
