"""Matmul regions to test with: built by the public builder, with any strides, and their numbers in flat memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import graphdnn as gd
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, DType
from graphdnn.ir.writer import Rewriter

Tail = Callable[[gd.GraphBuilder, Value, Callable[..., Value]], Value]
"""Work behind the product: takes the builder, the product, and a function (name, shape, dtype, strides) -> input."""


@dataclass(frozen=True)
class Strided:
    """Shape and strides of an operand; no strides is row-major."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None


def nothing(g: gd.GraphBuilder, y: Value, new: Callable[..., Value]) -> Value:
    return y


def product(
    a: Strided, b: Strided, dtype: DType = gd.float32, tail: Tail = nothing, strides: Sequence[int] | None = None
) -> Region:
    """The region of all nodes of y = tail(a @ b); `strides` are y's."""
    g = gd.GraphBuilder("product")

    def new(name: str, shape: tuple[int, ...], of: DType = dtype, strides: Sequence[int] | None = None) -> Value:
        return g.input(name, shape, of, strides=strides)

    x = new("a", a.shape, dtype, a.strides)
    w = new("b", b.shape, dtype, b.strides)
    graph = g.build({"y": tail(g, g.matmul(x, w), new)})
    if strides is not None:
        graph = restrided(graph, strides)
    return Region.of(graph, graph.nodes)


def restrided(graph: Graph, strides: Sequence[int]) -> Graph:
    """The graph with other strides of its only output."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node.result is graph.outputs["y"]:
            types = [node.result.type.with_strides(strides)]
            operands = [rewriter[v] for v in node.operands]
            (made,) = rewriter.emit(node.op, *operands, origins=node.origins, types=types)
            rewriter.replace(node.result, made)
        else:
            rewriter.keep(node)
    return rewriter.finish()


def packed(batch: int, heads: int, tokens: int, depth: int, by_columns: bool = False, gap: int = 0) -> Strided:
    """One third of the queries, keys and values of several sequences, (batch, heads, tokens, depth), or the last two
    axes the other way round; `gap` elements lie behind each token."""
    step = 3 * heads * depth + gap
    shape, strides = (batch, heads, tokens, depth), (tokens * step, depth, step, 1)
    return Strided((*shape[:2], depth, tokens), (*strides[:2], 1, step)) if by_columns else Strided(shape, strides)


def draw(region: Region, rng: np.random.Generator) -> dict[str, Array]:
    """Fresh random numbers for each input, in row-major arrays."""
    found: dict[str, Array] = {}
    for value in region.inputs:
        dtype = value.type.dtype
        numbers = rng.standard_normal(value.type.shape) if dtype.is_float else rng.integers(-9, 9, value.type.shape)
        found[value.name] = np.asarray(numbers).astype(dtype.numpy)
    return found


def memory_of(region: Region, inputs: Mapping[str, Array]) -> list[Array]:
    """Flat memory of the region's inputs, then of its outputs; gaps and outputs are NaN, or 99 in integers."""
    memory: list[Array] = []
    for value in (*region.inputs, *region.outputs):
        flat = np.full(value.type.extent, np.nan if value.type.dtype.is_float else 99).astype(value.type.dtype.numpy)
        if value.name in inputs:
            value.type.strided(flat)[...] = inputs[value.name]
        memory.append(flat)
    return memory


def expected(region: Region, inputs: Mapping[str, Array]) -> Array:
    """The result by the definition, in float64."""
    return gd.evaluate(region.graph, dict(inputs), dtype=gd.float64)["y"]


def scale_of(region: Region, inputs: Mapping[str, Array], result: Array) -> float:
    """What errors are measured against: the peak of the result, or of the product of magnitudes."""
    magnitudes = np.abs(inputs["a"].astype(np.float64)) @ np.abs(inputs["b"].astype(np.float64))
    return float(max(np.abs(result).max(), magnitudes.max(), 1e-30))


def vector(axis: int) -> Tail:
    """A 1-D bias along an axis."""
    return lambda g, y, new: g.bias(y, new("bias", (y.type.shape[axis],), y.type.dtype), axis=axis)


def residual(strides: Sequence[int] | None = None) -> Tail:
    """A tensor of the full size, added."""
    return lambda g, y, new: g.add(y, new("c", y.type.shape, y.type.dtype, strides))


def behind(*tails: Tail) -> Tail:
    """One tail after the other."""

    def all_of(g: gd.GraphBuilder, y: Value, new: Callable[..., Value]) -> Value:
        for tail in tails:
            y = tail(g, y, new)
        return y

    return all_of


def relu(g: gd.GraphBuilder, y: Value, new: Callable[..., Value]) -> Value:
    return g.relu(y)


def gelu(g: gd.GraphBuilder, y: Value, new: Callable[..., Value]) -> Value:
    return g.gelu(y, approximate="tanh")


def times(number: float) -> Tail:
    return lambda g, y, new: g.mul(y, number)


TAILS: dict[str, Tail] = {
    "alone": nothing,
    "bias": vector(-1),
    "bias of full rank": lambda g, y, new: g.add(y, new("bias", (1, y.type.shape[-1]), y.type.dtype)),
    "relu": relu,
    "gelu": gelu,
    "bias relu": behind(vector(-1), relu),
    "bias gelu": behind(vector(-1), gelu),
    "bias residual relu": behind(vector(-1), residual(), relu),
    "residual": residual(),
    "residual first": lambda g, y, new: g.add(new("c", y.type.shape, y.type.dtype), y),
    "scaled residual": behind(residual(), times(-1.5)),
    "minus": lambda g, y, new: g.sub(y, new("c", y.type.shape, y.type.dtype)),
    "subtracted": lambda g, y, new: g.sub(new("c", y.type.shape, y.type.dtype), y),
    "bias minus product": lambda g, y, new: g.sub(new("bias", (y.type.shape[-1],), y.type.dtype), y),
    "scaled bias relu": behind(times(0.125), vector(-1), relu),
    "divided": lambda g, y, new: g.div(y, 8.0),
    "negated": lambda g, y, new: g.neg(y),
    "bias residual gelu": behind(vector(-1), residual(), gelu),
    "residual bias relu": behind(residual(), vector(-1), relu),
}
"""Work behind a product that the library's one formula covers, whatever the type."""


def tail_for(dtype: gd.DType, name: str) -> Tail:
    """The tail of that name; relu in place of gelu in float64, where the library's GELU is not exact enough."""
    return TAILS[name.replace("gelu", "relu") if dtype == gd.float64 else name]
