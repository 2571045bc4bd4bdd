"""Random graphs of pointwise work and movement on small tensors, with outputs in the middle."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

import graphdnn as gd
from graphdnn.ir.graph import Value

Rng = np.random.Generator
EXTENTS = (1, 2, 3, 4, 8, 12, 16)
DTYPES = (gd.float16, gd.bfloat16, gd.float32, gd.int32)
MOST_ELEMENTS = 20_000
MOST_AXES = 5

Step = Callable[[gd.GraphBuilder, Rng, Value, int], Value | None]
"""A value made from another one, with a random axis to use; None where that does not fit."""


def negated(g: gd.GraphBuilder, rng: Rng, v: Value, axis: int) -> Value | None:
    return g.neg(v)


def clipped(g: gd.GraphBuilder, rng: Rng, v: Value, axis: int) -> Value | None:
    return g.relu(v)


def turned(g: gd.GraphBuilder, rng: Rng, v: Value, axis: int) -> Value | None:
    return g.transpose(v, tuple(int(a) for a in rng.permutation(v.type.rank)))


def cut(g: gd.GraphBuilder, rng: Rng, v: Value, axis: int) -> Value | None:
    n = v.type.shape[axis]
    start = int(rng.integers(0, n))
    stop = int(rng.integers(start + 1, n + 1))
    return g.slice(v, [start], [stop], axes=[axis], steps=[int(rng.integers(1, 3))])


def parted(g: gd.GraphBuilder, rng: Rng, v: Value, axis: int) -> Value | None:
    """An axis as two."""
    shape, inner = v.type.shape, int(rng.choice([2, 3, 4, 8]))
    if shape[axis] % inner or v.type.rank >= MOST_AXES:
        return None
    return g.reshape(v, (*shape[:axis], shape[axis] // inner, inner, *shape[axis + 1 :]))


def merged(g: gd.GraphBuilder, rng: Rng, v: Value, axis: int) -> Value | None:
    """Two axes as one."""
    shape = v.type.shape
    if axis + 1 == len(shape):
        return None
    return g.reshape(v, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def padded(g: gd.GraphBuilder, rng: Rng, v: Value, axis: int) -> Value | None:
    lo, hi, value = (int(n) for n in rng.integers(0, 3, 3))
    return g.pad(v, tuple((lo, hi) if a == axis else (0, 0) for a in range(v.type.rank)), value=value)


def doubled(g: gd.GraphBuilder, rng: Rng, v: Value, axis: int) -> Value | None:
    return g.concat([v, g.neg(v) if rng.random() < 0.5 else v], axis=axis)


def rotated(g: gd.GraphBuilder, rng: Rng, v: Value, axis: int) -> Value | None:
    n = v.type.shape[axis]
    if n == 1:
        return None
    first = int(rng.integers(1, n))
    a, b = g.split(v, [first, n - first], axis=axis)
    return g.concat([g.neg(b), a], axis=axis)


def added(g: gd.GraphBuilder, rng: Rng, v: Value, axis: int) -> Value | None:
    """Something that broadcasts."""
    shape = tuple(n if rng.random() < 0.6 else 1 for n in v.type.shape[axis:])
    return v + g.input(f"more{rng.integers(2**40)}", shape, v.type.dtype)


def repeated(g: gd.GraphBuilder, rng: Rng, v: Value, axis: int) -> Value | None:
    shape = v.type.shape
    if v.type.rank >= MOST_AXES:
        return None
    return g.expand(g.unsqueeze(v, [axis]), (*shape[:axis], 2, *shape[axis:]))


STEPS: Sequence[Step] = (negated, clipped, turned, cut, parted, merged, padded, doubled, rotated, added, repeated)


def moving_graph(rng: Rng) -> gd.Graph:
    """Three to nine steps, some of which read an earlier value again; sums of values of one shape; several outputs."""
    g = gd.GraphBuilder("moving")
    shape = tuple(int(n) for n in rng.choice(EXTENTS, int(rng.integers(1, 4))))
    made = [g.input("x", shape, DTYPES[int(rng.integers(len(DTYPES)))])]
    for _ in range(int(rng.integers(3, 10))):
        value = made[-1] if rng.random() < 0.8 else made[int(rng.integers(len(made)))]
        step = STEPS[int(rng.integers(len(STEPS)))]
        found = step(g, rng, value, int(rng.integers(value.type.rank)))
        if found is not None and found.type.size <= MOST_ELEMENTS:
            made.append(found)
    last = total = made[-1]
    for value in [v for v in made[1:-1] if v.type.shape == last.type.shape][:2]:
        total = total + value
    inside = [v for v in made[1:-1] if rng.random() < 0.15]
    return g.build({"y": g.neg(total), **{f"inside{i}": v for i, v in enumerate(inside)}})
