"""The axes of a product: which batch axes become rows or columns, which are one call's batch, and which need calls.

The library takes one step from a batch entry to the next.  Batch axes that do not lie in memory as one therefore take
several calls, as few as possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

from graphdnn.answer import Code, Decline, Fix
from graphdnn.engines.cublaslt.chain import Chain
from graphdnn.ir.graph import Value
from graphdnn.ir.types import TensorType

MOST_CALLS = 64
"""Calls that one plan makes at most: one for each head of the largest models, whatever the number of sequences.  So
many starts are 211 us on an H200; of the generated kernel, a fifth slower than the library in float32, that is what it
loses in a millisecond.  Each call also is a node of every captured graph, and some microseconds of the host's where
the plan is not captured."""

Types = Mapping[str, TensorType]


@dataclass(frozen=True)
class Axis:
    """One axis of the product: its size and each tensor's step along it, 0 where the tensor repeats or has none."""

    size: int
    steps: dict[str, int]

    def encloses(self, inner: Axis) -> bool:
        """Whether walking this axis is what comes after the end of `inner`, in every tensor."""
        return all(step == inner.size * inner.steps[t] for t, step in self.steps.items())

    def times(self, inner: Axis) -> Axis:
        """Both axes as one, where this one encloses the other."""
        return Axis(self.size * inner.size, inner.steps)


@dataclass(frozen=True)
class Loops:
    """The axes of the product: rows M, columns N, the sum's K, the batch of one call, and those that need calls."""

    m: Axis
    n: Axis
    k: Axis
    batch: Axis
    outer: tuple[Axis, ...] = ()

    @property
    def calls(self) -> int:
        return prod(x.size for x in self.outer)

    def starts(self) -> Iterator[dict[str, int]]:
        """For each call, how many elements behind its own start each tensor is read from."""
        for place in product(*(range(x.size) for x in self.outer)):
            yield {t: sum(i * x.steps[t] for i, x in zip(place, self.outer, strict=True)) for t in self.batch.steps}


def find_loops(chain: Chain) -> list[Loops] | Decline:
    """The ways to see a product's axes, those of fewer calls first; of equal ones that of the larger matrices, since
    one large product runs better than many."""
    values = operands(chain)
    found = ways(chain, {t: v.type for t, v in values.items()})
    return [x for x in found if x.calls <= MOST_CALLS] or too_many(chain, values, found[0])


def operands(chain: Chain) -> dict[str, Value]:
    a, b = chain.anchor.operands
    return {"a": a, "b": b, "d": chain.last.result}


def ways(chain: Chain, types: Types) -> list[Loops]:
    """The axes with and without batch axes that become rows or columns, those of fewer calls first."""
    *batch, m, n = axes_of(chain, types)
    a, b = types["a"], types["b"]
    k = Axis(a.shape[-1], {"a": a.layout[-1], "b": b.layout[-2]})
    rest = sorted((x for x in batch if x.size > 1), key=lambda x: -x.steps["d"])
    wide, left = absorb(m, rest, "b")
    long, left = absorb(n, left, "a")
    found = [Loops(wide, long, k, *strided(left, m))]
    if len(left) < len(rest):
        found.append(Loops(m, n, k, *strided(rest, m)))
    return sorted(found, key=lambda x: x.calls)


def axes_of(chain: Chain, types: Types) -> list[Axis]:
    """The result's axes, outermost first, with every tensor's steps along them."""
    a, b, d = types["a"], types["b"], types["d"]
    rank = d.rank - 2
    steps: dict[str, list[int]] = {
        "a": [*batch_steps(a, rank), a.layout[-2], 0],
        "b": [*batch_steps(b, rank), 0, b.layout[-1]],
        "d": list(d.layout),
    }
    for number, summand in enumerate(chain.summands):
        steps[f"s{number}"] = list(summand.strides)
    return [Axis(n, {t: s[i] for t, s in steps.items()}) for i, n in enumerate(d.shape)]


def batch_steps(type: TensorType, rank: int) -> list[int]:
    """Steps along the product's batch axes, 0 where the tensor has size 1 or no such axis."""
    own = [s if n != 1 else 0 for n, s in zip(type.shape[:-2], type.layout[:-2], strict=True)]
    return [0] * (rank - len(own)) + own


def absorb(axis: Axis, batch: list[Axis], shared: str) -> tuple[Axis, list[Axis]]:
    """`axis` made longer by the batch axes along which operand `shared` repeats, and the batch axes that are left."""
    rest = list(batch)
    progress = True
    while progress:
        progress = False
        for candidate in reversed(rest):
            if candidate.steps[shared] == 0 and (axis.size == 1 or candidate.encloses(axis)):
                axis = candidate if axis.size == 1 else candidate.times(axis)
                rest.remove(candidate)
                progress = True
                break
    return axis, rest


def strided(batch: Sequence[Axis], like: Axis) -> tuple[Axis, tuple[Axis, ...]]:
    """The batch axes of one call as one axis, and those that are left for further calls.

    Of all axes that lie as one those of the most entries are taken; of equal ones the innermost.
    """
    best = Axis(1, dict.fromkeys(like.steps, 0))
    used: list[Axis] = []
    for first in reversed(batch):
        axis, chain = first, [first]
        while (outer := next((x for x in batch if x not in chain and x.encloses(axis)), None)) is not None:
            axis, chain = outer.times(axis), [*chain, outer]
        if axis.size > best.size:
            best, used = axis, chain
    return best, tuple(x for x in batch if x not in used)


def too_many(chain: Chain, values: Mapping[str, Value], found: Loops) -> Decline:
    """Why so many calls would be needed, and the operands whose strides would make it fewer."""
    sizes = " and ".join(str(x.size) for x in (*found.outer, found.batch))
    return Decline(
        Code.LAYOUT,
        f"the batch axes of {chain.anchor} do not lie in memory as one (sizes {sizes}); cuBLASLt takes one step a "
        f"batch entry, which makes {found.calls} calls, and {MOST_CALLS} are the most that a plan makes",
        relaid(chain, values),
    )


def relaid(chain: Chain, values: Mapping[str, Value]) -> Fix | None:
    """The fewest tensors that would have to be row-major for the calls to be few enough; None where that helps not."""
    scattered = list(dict.fromkeys(v for v in values.values() if not v.type.is_row_major))
    for count in range(1, len(scattered) + 1):
        for chosen in combinations(scattered, count):
            types = {t: v.type.with_strides(None) if v in chosen else v.type for t, v in values.items()}
            if ways(chain, types)[0].calls <= MOST_CALLS:
                names = " and ".join(v.name for v in chosen)
                before = " and ".join(str(v.type.layout) for v in chosen)
                after = " and ".join(str(v.type.with_strides(None).layout) for v in chosen)
                return Fix(names, "strides", before, after)
    return None
