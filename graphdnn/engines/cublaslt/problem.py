"""A matmul region as calls of cuBLASLt: column-major matrices with leading dimensions, found from shapes and strides.

The library stores matrices by columns.  A result whose last axis is contiguous is the transpose of such a matrix, so
the operands change places: D' = B' A'.  The bias then runs along the rows of D', which is the last axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations, product
from math import gcd
from typing import NamedTuple

from graphdnn.answer import Code, Decline
from graphdnn.engines.cublaslt.axes import Axis, Loops, find_loops
from graphdnn.engines.cublaslt.chain import Chain, Summand, read_chain
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType

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


class Start(NamedTuple):
    """Elements by which a call's matrices and bias lie behind the region's."""

    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    bias: int = 0


@dataclass(frozen=True)
class Problem:
    """D = act(alpha * op(A) op(B) + beta * C + bias), all column-major, `batch` times, once from each of `starts`.

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
    starts: tuple[Start, ...] = (Start(),)

    @property
    def calls(self) -> int:
        return len(self.starts)

    def bytes_behind(self, start: Start) -> tuple[int, ...]:
        """What a start adds to the addresses of A, B, C, D and the bias."""
        bias = self.d.dtype if self.bias is None else self.bias.dtype
        sizes = (self.a.dtype, self.b.dtype, self.c.dtype, self.d.dtype, bias)
        return tuple(n * dtype.itemsize for n, dtype in zip(start, sizes, strict=True))

    @property
    def alignment(self) -> int:
        """Bytes at whose multiples all calls find all tensors, where the region's own addresses allow the widest
        loads."""
        return gcd(VECTOR_BYTES, *(n for start in self.starts for n in self.bytes_behind(start)))

    @property
    def epilogue(self) -> str:
        """Name of the library's epilogue, such as RELU_BIAS."""
        names = {"": "", "relu": "RELU", "gelu_tanh": "GELU"}
        parts = [p for p in (names[self.activation], "BIAS" if self.bias else "") if p]
        return "_".join(parts) or "DEFAULT"


def describe(region: Region) -> Problem | Decline:
    """The region as calls of the library that differ in addresses alone, or why it is none.  Needs neither the library
    nor a device."""
    chain = read_chain(region)
    if isinstance(chain, Decline):
        return chain
    if any(s.value not in region.inputs for s in chain.summands):
        return Decline(
            Code.PATTERN, f"{region.pattern} adds a tensor that it computes itself; cuBLASLt reads it from memory"
        )
    ways = find_loops(chain)
    if isinstance(ways, Decline):
        return ways
    refusals: list[Decline] = []
    for loops in ways:
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
    """The calls with D stored by columns as it is, or as its transpose with the operands changed over; None where D
    does not lie that way round."""
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
    tensor_c, tensor_bias = "d", ""
    if residual is not None:
        tensor_c = f"s{chain.summands.index(residual)}"
        ld_c = stored(rows, columns, tensor_c, residual.value.type.dtype.itemsize)
        if ld_c is None:
            return unstored(residual.value, "the added tensor") if residual.is_full else neither(residual)
        c = matrix(residual.value, tensor_c, (m, n), ld_c)
        problem = replace(problem, c=c, beta=residual.factor)
    if bias is not None:
        tensor_bias = f"s{chain.summands.index(bias)}"
        vector = bias_vector(bias, tensor_bias, rows, columns, loops.batch, address)
        if isinstance(vector, Decline):
            return vector
        problem = replace(problem, bias=vector)
    starts = (Start(x[a], x[b], x[tensor_c], x["d"], x.get(tensor_bias, 0)) for x in loops.starts())
    return replace(problem, starts=tuple(starts))


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
