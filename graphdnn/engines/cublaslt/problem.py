"""A matmul region as cuBLASLt sees it: column-major matrices with leading dimensions, found from shapes and strides.

The library stores matrices by columns.  A result whose last axis is contiguous is the transpose of such a matrix, so
the operands change places: D' = B' A'.  The bias then runs along the rows of D', which is the last axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations, product
from math import gcd

from graphdnn.answer import Code, Decline
from graphdnn.engines.cublaslt.chain import Chain, Summand, read_chain
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, TensorType

VECTOR_BYTES = 16
"""The widest load; leading dimensions in multiples of it are the fast ones."""


TELLING = (Code.PATTERN, Code.LAYOUT, Code.BROADCAST)
"""Of the refusals of all ways to see a region the first of these is told: it came nearest to a fit."""


@dataclass(frozen=True)
class Matrix:
    """A stored matrix: element (r, c) of entry i lies at i * batch_stride + r + c * ld of address `index`."""

    index: int
    dtype: DType
    rows: int
    columns: int
    ld: int
    batch_stride: int


@dataclass(frozen=True)
class BiasVector:
    """A packed vector along the rows of D, one for each batch entry `batch_stride` apart."""

    index: int
    dtype: DType
    batch_stride: int


@dataclass(frozen=True)
class Problem:
    """D = act(alpha * op(A) op(B) + beta * C + bias), all column-major, `batch` times.

    op transposes where the flag says so; A is stored m x k or k x m, B k x n or n x k.  Without a residual beta is 0
    and C is D.  `index` counts the region's inputs, then its output.
    """

    m: int
    n: int
    k: int
    batch: int
    a: Matrix
    b: Matrix
    c: Matrix
    d: Matrix
    transpose_a: bool
    transpose_b: bool
    alpha: float = 1.0
    beta: float = 0.0
    bias: BiasVector | None = None
    activation: str = ""

    @property
    def epilogue(self) -> str:
        """Name of the library's epilogue, such as RELU_BIAS."""
        names = {"": "", "relu": "RELU", "gelu_tanh": "GELU"}
        parts = [p for p in (names[self.activation], "BIAS" if self.bias else "") if p]
        return "_".join(parts) or "DEFAULT"


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
    """The axes of the product: rows M, columns N, the sum's K, and what is left of the batch axes."""

    m: Axis
    n: Axis
    k: Axis
    batch: Axis


def describe(region: Region) -> Problem | Decline:
    """The region as one call of the library, or why it is none.  Needs neither the library nor a device."""
    chain = read_chain(region)
    if isinstance(chain, Decline):
        return chain
    if any(s.value not in region.inputs for s in chain.summands):
        return Decline(
            Code.PATTERN, f"{region.pattern} adds a tensor that it computes itself; cuBLASLt reads it from memory"
        )
    refusals: list[Decline] = []
    for absorbing in (True, False):
        loops = find_loops(chain, absorbing)
        if isinstance(loops, Decline):
            refusals.append(loops)
            continue
        for order in permutations(chain.summands):
            for (residual, bias), swapped in product(places(order), (True, False)):
                found = arrange(region, chain, loops, swapped, residual, bias)
                if isinstance(found, Problem):
                    return found
                if found is not None:
                    refusals.append(found)
    if not refusals:
        return unstored(chain.last.result, "the result")
    return min(refusals, key=lambda refusal: TELLING.index(refusal.code))


def places(summands: tuple[Summand, ...]) -> list[tuple[Summand | None, Summand | None]]:
    """Which summand is the matrix C and which the bias.

    The matrix is tried first: a bias costs the host a call whenever its address changes.
    """
    first, second = (*summands, None, None)[:2]
    return [(first, second), (second, first)] if len(summands) == 1 else [(first, second)]


def batch_steps(type: TensorType, rank: int) -> list[int]:
    """Steps along the product's batch axes, 0 where the tensor has size 1 or no such axis."""
    own = [s if n != 1 else 0 for n, s in zip(type.shape[:-2], type.layout[:-2], strict=True)]
    return [0] * (rank - len(own)) + own


def find_loops(chain: Chain, absorbing: bool) -> Loops | Decline:
    """The axes of the product, batch axes merged where all tensors allow it.  `absorbing` puts them into M or N where
    one operand is the same for the whole batch: one large product runs better than many."""
    a, b = chain.anchor.operand_types
    d = chain.last.result.type
    rank = d.rank - 2
    steps: dict[str, list[int]] = {
        "a": [*batch_steps(a, rank), a.layout[-2], 0],
        "b": [*batch_steps(b, rank), 0, b.layout[-1]],
        "d": list(d.layout),
    }
    for number, summand in enumerate(chain.summands):
        steps[f"s{number}"] = list(summand.strides)
    axes = [Axis(n, {t: s[i] for t, s in steps.items()}) for i, n in enumerate(d.shape)]
    k = Axis(a.shape[-1], {"a": a.layout[-1], "b": b.layout[-2]})
    m, n = axes[-2:]
    batch = sorted((x for x in axes[:-2] if x.size > 1), key=lambda x: -x.steps["d"])
    if absorbing:
        m, batch = absorb(m, batch, "b")
        n, batch = absorb(n, batch, "a")
    merged: list[Axis] = []
    for axis in batch:
        if merged and merged[-1].encloses(axis):
            merged[-1] = merged[-1].times(axis)
        else:
            merged.append(axis)
    if len(merged) > 1:
        sizes = " and ".join(str(x.size) for x in merged)
        return Decline(
            Code.LAYOUT,
            f"the batch axes of {chain.anchor} do not lie in memory as one (sizes {sizes}); "
            "cuBLASLt takes one step a batch entry",
        )
    return Loops(m, n, k, merged[0] if merged else Axis(1, dict.fromkeys(steps, 0)))


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


def stored(rows: Axis, columns: Axis, tensor: str, itemsize: int) -> int | None:
    """Leading dimension of a tensor stored by columns; None where it is not.

    With one column it is never stepped along, and any will do: the next that allows the widest loads.
    """
    if rows.size > 1 and rows.steps[tensor] != 1:
        return None
    if columns.size == 1:
        quantum = max(1, VECTOR_BYTES // itemsize)
        return -(-rows.size // quantum) * quantum
    ld = columns.steps[tensor]
    return ld if ld >= rows.size else None


def operand(rows: Axis, columns: Axis, tensor: str, itemsize: int, prefer_transposed: bool) -> tuple[bool, int] | None:
    """Whether an operand is stored transposed, and its leading dimension.  Where both ways of looking at it are right,
    the one whose leading dimension allows wider loads."""
    ways = [
        (transposed, ld)
        for transposed in (prefer_transposed, not prefer_transposed)
        if (ld := stored(*((columns, rows) if transposed else (rows, columns)), tensor, itemsize)) is not None
    ]
    return max(ways, key=lambda way: gcd(way[1] * itemsize, VECTOR_BYTES), default=None)


def arrange(
    region: Region, chain: Chain, loops: Loops, swapped: bool, residual: Summand | None, bias: Summand | None
) -> Problem | Decline | None:
    """The call with D stored by columns as it is, or as its transpose with the operands changed over; None where D does
    not lie that way round."""
    address = {v: i for i, v in enumerate((*region.inputs, *region.outputs))}
    left, right = chain.anchor.operands
    rows, columns, a, b = (loops.n, loops.m, "b", "a") if swapped else (loops.m, loops.n, "a", "b")
    value_a, value_b = (right, left) if swapped else (left, right)

    def matrix(value: Value, tensor: str, shape: tuple[int, int], ld: int) -> Matrix:
        return Matrix(address[value], value.type.dtype, *shape, ld, loops.batch.steps[tensor])

    result = chain.last.result
    size = result.type.dtype.itemsize
    ld_d = stored(rows, columns, "d", size)
    if ld_d is None:
        return None
    # K-contiguous operands, op(A) transposed and op(B) not, are what int8 needs and every type runs well on.
    way_a = operand(rows, loops.k, a, value_a.type.dtype.itemsize, True)
    way_b = operand(loops.k, columns, b, value_b.type.dtype.itemsize, False)
    if way_a is None or way_b is None:
        return unstored(value_a if way_a is None else value_b, "an operand")
    m, n, k = rows.size, columns.size, loops.k.size
    d = matrix(result, "d", (m, n), ld_d)
    problem = Problem(
        m=m,
        n=n,
        k=k,
        batch=loops.batch.size,
        a=matrix(value_a, a, (k, m) if way_a[0] else (m, k), way_a[1]),
        b=matrix(value_b, b, (n, k) if way_b[0] else (k, n), way_b[1]),
        c=d,
        d=d,
        transpose_a=way_a[0],
        transpose_b=way_b[0],
        alpha=chain.alpha,
        activation=chain.activation,
    )
    if residual is not None:
        tensor = f"s{chain.summands.index(residual)}"
        ld_c = stored(rows, columns, tensor, residual.value.type.dtype.itemsize)
        if ld_c is None:
            return unstored(residual.value, "the added tensor") if residual.is_full else neither(residual)
        c = matrix(residual.value, tensor, (m, n), ld_c)
        problem = replace(problem, c=c, beta=residual.factor)
    if bias is not None:
        tensor = f"s{chain.summands.index(bias)}"
        vector = bias_vector(bias, tensor, rows, columns, loops.batch, address)
        if isinstance(vector, Decline):
            return vector
        problem = replace(problem, bias=vector)
    return problem


def bias_vector(
    bias: Summand, tensor: str, rows: Axis, columns: Axis, batch: Axis, address: dict[Value, int]
) -> BiasVector | Decline:
    """The added tensor as the library's bias."""
    along = rows.size == 1 or rows.steps[tensor] == 1
    constant = columns.size == 1 or columns.steps[tensor] == 0
    if not (along and constant):
        return neither(bias)
    if bias.factor != 1:
        return Decline(
            Code.PATTERN,
            f"{bias.value} is added {bias.factor:g} times; cuBLASLt adds a bias as it is, after any scaling",
        )
    return BiasVector(address[bias.value], bias.value.type.dtype, batch.steps[tensor])


def neither(summand: Summand) -> Decline:
    return Decline(
        Code.BROADCAST,
        f"{summand.value} ({summand.value.type}) is added; cuBLASLt adds one packed vector along the axis in which the "
        "result is contiguous, and one tensor of the result's size",
    )


def unstored(value: Value, what: str) -> Decline:
    return Decline(
        Code.LAYOUT,
        f"{what} {value} has shape {value.type.shape} and strides {value.type.layout}; cuBLASLt needs one of its last "
        "two axes contiguous and the other's stride no smaller than that axis",
    )
