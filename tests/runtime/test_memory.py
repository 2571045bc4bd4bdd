"""Packing lifetimes into an arena: never overlapping, close to the least possible."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphdnn.engines.contract import MEMORY_ALIGNMENT
from graphdnn.runtime.memory import Lifetime, lower_bound, pack

lifetimes = st.lists(
    st.builds(
        lambda nbytes, first, length: Lifetime(nbytes, first, first + length),
        st.integers(1, 1 << 20), st.integers(0, 30), st.integers(0, 12),
    ),
    max_size=40,
)  # fmt: skip


@given(lifetimes)
def test_live_buffers_never_overlap(lives: list[Lifetime]) -> None:
    packing = pack(lives)
    for i, (a, start) in enumerate(zip(lives, packing.offsets, strict=True)):
        assert start % MEMORY_ALIGNMENT == 0
        assert start + a.nbytes <= packing.nbytes
        for b, other in list(zip(lives, packing.offsets, strict=True))[:i]:
            if a.first <= b.last and b.first <= a.last:
                assert start + a.nbytes <= other or other + b.nbytes <= start
    assert lower_bound(lives) <= packing.nbytes


@given(lifetimes)
def test_the_bound_is_the_busiest_step(lives: list[Lifetime]) -> None:
    steps = range(50)
    assert lower_bound(lives) == max(sum(a.size for a in lives if a.first <= t <= a.last) for t in steps)


def chain(sizes: list[int]) -> list[Lifetime]:
    """Each buffer is read by the next step only."""
    return [Lifetime(s, i, i + 1) for i, s in enumerate(sizes)]


def resnet(blocks: tuple[int, ...], unit: int) -> list[Lifetime]:
    """Bottlenecks: the wide input lives until the sum at the end, two narrow buffers between; halves at each stage."""
    lives, step = [], 0
    for stage, count in enumerate(blocks):
        wide = unit >> stage
        for block in range(count):
            lives.append(Lifetime(wide, step, step + (4 if block else 3)))
            lives += [Lifetime(wide // 4, step + 1, step + 2), Lifetime(wide // 4, step + 2, step + 3)]
            if not block:
                lives.append(Lifetime(wide, step + 3, step + 4))
            step += 4
    return lives


def encoder(layers: int, unit: int) -> list[Lifetime]:
    """Transformer layers: q, k, v, the attention's result, the sum, and a feed-forward part four times as wide."""
    lives = []
    for base in range(0, 9 * layers, 9):
        lives += [Lifetime(unit, base, base + 5)]
        lives += [Lifetime(unit, base + 1 + i, base + 4) for i in range(3)]
        lives += [Lifetime(unit, base + 4, base + 5), Lifetime(unit, base + 5, base + 8)]
        lives += [Lifetime(4 * unit, base + 6, base + 7), Lifetime(unit, base + 7, base + 8)]
    return lives


def u_net(depth: int, unit: int) -> list[Lifetime]:
    """Halves on the way down, doubles on the way up; each level's result is kept for the way back."""
    down = [unit >> i for i in range(depth)]
    lives = [Lifetime(s, 2 * i, 4 * depth - 2 * i) for i, s in enumerate(down)]
    lives += [Lifetime(s, 2 * i + 1, 2 * i + 2) for i, s in enumerate(down)]
    lives += [Lifetime(s, 4 * depth - 2 * i, 4 * depth - 2 * i + 2) for i, s in enumerate(down)]
    return lives


@pytest.mark.parametrize("number", range(12))
def test_networks_are_within_a_twentieth_of_the_bound(number: int, rng: np.random.Generator) -> None:
    unit = int(rng.integers(1 << 18, 1 << 24))
    networks = {
        "chain": chain([int(s) for s in rng.integers(1 << 10, 1 << 22, 60)]),
        "resnet": resnet((3, 4, 6, 3), unit),
        "encoder": encoder(1 + number % 4, unit),
        "u_net": u_net(3 + number % 4, unit),
    }
    for name, lives in networks.items():
        steps = max(life.last for life in lives)
        scratch = [Lifetime(int(rng.integers(1, unit // 8)), i, i) for i in range(0, steps, 2)]
        for case in (lives, lives + scratch):
            assert pack(case).nbytes <= 1.05 * lower_bound(case), name


def test_nothing_needs_nothing() -> None:
    assert pack([]).nbytes == 0
    assert lower_bound([]) == 0
