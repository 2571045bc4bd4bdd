"""Random pointwise graphs around a convolution or a product, or alone: side branches, shared values, several outputs.

The graphs that fusion proposes are not chains: a value may be scaled, or joined with another, before it meets the
product's result.  Functions are continuous and values moderate.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

import graphdnn as gd
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.pointwise import Pointwise
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType
from graphdnn.ir.writer import Rewriter
from graphdnn.passes.rewrite import Emitter
from tests.engines.cudnn.layouts import spatial_last, whole

ONE = ("relu", "sigmoid", "tanh", "abs", "neg", "gelu", "silu", "leaky_relu", "hard_swish", "identity")
TWO = ("add", "sub", "mul", "maximum", "minimum")
GRADIENTS = ("tanh_backward", "sigmoid_backward", "softplus_backward", "silu_backward", "elu_backward", "gelu_backward")
MOST_OUTPUTS = 2

T = TypeVar("T")


@dataclass
class Neighbourhood:
    """A region in the making: what later functions may read, what nothing has read, what follows from the product."""

    rng: np.random.Generator
    dtype: DType
    g: gd.GraphBuilder = field(default_factory=lambda: gd.GraphBuilder("neighbourhood"))
    inputs: list[Value] = field(default_factory=list)
    pool: list[Value] = field(default_factory=list)
    loose: list[Value] = field(default_factory=list)
    behind: list[Value] = field(default_factory=list)
    everything: list[Value] = field(default_factory=list)

    def one_of(self, choices: Sequence[T]) -> T:
        return choices[int(self.rng.integers(len(choices)))]

    def number(self) -> float:
        return float(np.float32(self.rng.uniform(-2.0, 2.0)))

    def input(self, shape: tuple[int, ...]) -> Value:
        self.inputs.append(self.g.input(f"in{len(self.inputs)}", shape, self.dtype, strides=spatial_last(shape)))
        return self.inputs[-1]

    def other(self, shape: tuple[int, ...]) -> Value | float:
        """What a function of two operands joins: a number, a value there is, a new one, whole or one a channel."""
        kind = self.one_of(("number", "there", "there", "full", "small"))
        if kind == "number":
            return self.number()
        if kind == "there":
            return self.one_of(self.pool)
        return self.input(shape if kind == "full" else (1, shape[1], 1, 1) if len(shape) == 4 else shape[-1:])

    def step(self, x: Value, shape: tuple[int, ...]) -> Value:
        """One more function of x."""
        if self.rng.random() < 0.3:
            return self.took(getattr(self.g, self.one_of(ONE))(x), x)
        if self.rng.random() < 0.1:
            return self.took(self.g.cast(self.g.cast(x, gd.float32), self.dtype), x)
        if self.rng.random() < 0.2:
            other = self.one_of(self.pool)
            return self.took(getattr(self.g, self.one_of(GRADIENTS))(x, other), x, other)
        other = self.other(shape)
        operands = (x, other) if self.rng.random() < 0.5 else (other, x)
        return self.took(getattr(self.g, self.one_of(TWO))(*operands), x, other)

    def took(self, made: Value, *operands: Value | float) -> Value:
        if any(o in self.behind for o in operands):
            self.behind.append(made)
        self.loose = [v for v in self.loose if v not in operands] + [made]
        self.everything.append(made)
        self.pool.append(made)
        return made

    def join(self, most: int) -> None:
        """Adds up what nothing has read until so many are left, each of them behind the product."""
        while len(self.loose) > most or any(v not in self.behind for v in self.loose):
            a = min(self.loose, key=self.behind.__contains__)
            b = next(v for v in (*self.loose, *self.behind) if v is not a and v in self.behind)
            self.took(self.g.add(a, b), a, b)


def random_region(rng: np.random.Generator, dtype: DType, kind: str) -> tuple[Region, Graph]:
    """A region around one of ANCHORS, and its graph with every value that follows from the anchor as an output."""
    made = Neighbourhood(rng, dtype)
    y = ANCHORS[kind](made)
    shape = y.type.shape
    same = [v for v in (*made.inputs, *made.everything) if v.type.shape == shape]
    made.pool = [y, *same, made.input(shape)]
    made.everything, made.loose, made.behind = [*made.everything, y], [y], [y]
    for _ in range(int(rng.integers(2, 8))):
        made.step(made.one_of(made.pool), shape)
    made.join(int(rng.integers(1, MOST_OUTPUTS + 1)))
    graph = made.g.build({f"y{i}": v for i, v in enumerate(made.loose)})
    return whole(graph), made.g.build({f"v{i}": v for i, v in enumerate(made.everything)})


def convolution(made: Neighbourhood) -> Value:
    """A convolution whose result often has the shape of its input."""
    channels, kernel = made.one_of((3, 5, 8, 16, 24)), made.one_of((1, 3, 5))
    filters = channels if made.rng.random() < 0.5 else made.one_of((4, 8, 20))
    x = made.input((2, channels, made.one_of((2, 6, 9)), made.one_of((1, 5, 8))))
    w = made.input((filters, channels, kernel, kernel))
    padding = kernel // 2 if made.rng.random() < 0.7 else made.one_of(tuple(range(kernel // 2, kernel)))
    return made.g.conv(x, w, padding=padding, stride=1 if made.rng.random() < 0.8 else 2)


def product(made: Neighbourhood) -> Value:
    """A matrix product, batched or not."""
    return made.g.matmul(*operands(made))


def operands(made: Neighbourhood) -> tuple[Value, Value]:
    batch = made.one_of(((), (3,)))
    m, k = made.one_of((5, 24, 33)), made.one_of((8, 24, 40))
    n = k if made.rng.random() < 0.5 else made.one_of((8, 17, 48))
    return made.input((*batch, m, k)), made.input((*batch, k, n))


def activated_product(made: Neighbourhood) -> Value:
    """A matrix product of what up to three functions make of its first operand."""
    a, b = operands(made)
    made.pool = [a]
    for _ in range(int(made.rng.integers(1, 4))):
        made.step(made.pool[-1], a.type.shape)
    return made.g.matmul(made.pool[-1], b)


def transposed(made: Neighbourhood) -> Value:
    """A transposed convolution."""
    channels, filters, stride = made.one_of((8, 16, 24)), made.one_of((8, 20)), made.one_of((1, 2))
    x = made.input((2, channels, made.one_of((2, 6)), made.one_of((1, 5, 8))))
    w = made.input((channels, filters, 3, 3))
    return made.g.conv_transpose(x, w, stride=stride, padding=1, output_padding=stride - 1)


def nothing(made: Neighbourhood) -> Value:
    """A function of an input, where there is no product."""
    shape = made.one_of(((2, 8, 6, 5), (3, 5, 24), (33, 40)))
    return getattr(made.g, made.one_of(ONE))(made.input(shape))  # type: ignore[no-any-return]


ANCHORS: dict[str, Callable[[Neighbourhood], Value]] = {
    "conv": convolution,
    "matmul": product,
    "activated matmul": activated_product,
    "transposed conv": transposed,
    "nothing": nothing,
}

IN_TF32 = ("matmul", "activated matmul", "transposed conv")
"""Those that cuDNN takes in float32 only where TF32 is allowed."""


def rounding_operands(graph: Graph) -> Graph:
    """The graph with every product's operands rounded to the 11 bits of TF32, where it is evaluated in float64.

    By Veltkamp's splitting: c - (c - x) is x rounded to the bits that c = (2^42 + 1) x leaves of float64's 53.
    """
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if not isinstance(node.op, Conv | ConvTranspose | MatMul):
            rewriter.keep(node)
            continue
        make = Emitter(rewriter, node.origins)
        operands = []
        for x in node.operands:
            c = make(Pointwise(fn="add"), make(Pointwise(fn="mul"), x, 2.0**42), x)
            operands.append(make(Pointwise(fn="sub"), c, make(Pointwise(fn="sub"), c, x)))
        rewriter.keep(node, operands=operands)
    return rewriter.finish()
