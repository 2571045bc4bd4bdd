"""What a region computes, read as cuBLASLt's one formula: act(alpha * A B + sums), cast once; or why it is not that."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from graphdnn.answer import Code, Decline
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.linear import MatMul
from graphdnn.ir.ops.pointwise import Bias, Cast, Elementwise, Pointwise
from graphdnn.ir.region import Region
from graphdnn.ir.types import aligned_strides

ACTIVATIONS = ("relu", "gelu_tanh")
"""Activations that the library applies; its GELU is the tanh form only."""

SUMS = {"add": 1.0, "sub": -1.0}
"""Functions that add a tensor, with the sign of the second operand."""

MOST_SUMMANDS = 2
"""One tensor as the bias, one as the matrix C."""


@dataclass(frozen=True)
class Summand:
    """A tensor from outside that is added to the product, `factor` times; strides along the product's axes, 0 where
    it repeats."""

    value: Value
    strides: tuple[int, ...]
    is_full: bool
    factor: float


@dataclass(frozen=True)
class Chain:
    """act(alpha * A B + sum of factor * summand), of the last node's type."""

    anchor: Node
    last: Node
    alpha: float = 1.0
    summands: tuple[Summand, ...] = ()
    activation: str = ""

    def scaled(self, factor: float) -> Chain:
        summands = tuple(replace(s, factor=s.factor * factor) for s in self.summands)
        return replace(self, alpha=self.alpha * factor, summands=summands)


def read_chain(region: Region) -> Chain | Decline:
    """The region as a product with pointwise work behind it, each step reading the one before."""
    anchors = [n for n in region.nodes if isinstance(n.op, MatMul)]
    if len(anchors) != 1:
        return Decline(Code.PATTERN, f"cuBLASLt runs one matmul at a time, and {region.pattern} has {len(anchors)}")
    if region.nodes[0] is not anchors[0]:
        return Decline(
            Code.PATTERN, f"{region.nodes[0]} stands beside or before the matmul; cuBLASLt works behind it only"
        )
    chain = Chain(anchors[0], anchors[0])
    for node in region.nodes[1:]:
        step = extend(chain, node)
        if isinstance(step, Decline):
            return step
        chain = replace(step, last=node)
    if region.outputs != (chain.last.result,):
        inner = ", ".join(str(v) for v in region.outputs if v is not chain.last.result)
        return Decline(Code.ESCAPE, f"{inner} is needed outside the region; cuBLASLt writes one result")
    return chain


def extend(chain: Chain, node: Node) -> Chain | Decline:
    """The chain with one more node, which must read its last result once."""
    current = chain.last.result
    if not isinstance(node.op, Elementwise):
        return Decline(Code.OP, f"{node} is not pointwise; behind a product cuBLASLt takes pointwise work only")
    if node.operands.count(current) != 1:
        return Decline(Code.PATTERN, f"{node} does not read {current} exactly once; cuBLASLt works step by step")
    if node.result.type.shape != current.type.shape:
        return Decline(Code.BROADCAST, f"{node} makes {node.result.type} of {current.type}; cuBLASLt keeps the shape")
    accumulator = chain.anchor.operands[0].type.dtype.compute
    if isinstance(chain.last.op, Cast) and current.type.dtype != accumulator:
        return Decline(
            Code.PATTERN,
            f"{chain.last} rounds to {current.type.dtype} before {node}; cuBLASLt stays in {accumulator} until the end",
        )
    if isinstance(node.op, Cast):
        return chain
    if chain.activation:
        return Decline(Code.PATTERN, f"{node} stands behind {chain.activation}, which cuBLASLt applies last")
    return extend_formula(chain, node, current)


def extend_formula(chain: Chain, node: Node, current: Value) -> Chain | Decline:
    """The chain with one more pointwise function."""
    fn = node.op.function if isinstance(node.op, Elementwise) else ""
    if fn in ACTIVATIONS:
        return replace(chain, activation=fn)
    if fn == "neg":
        return chain.scaled(-1.0)
    first = node.operands[0] is current
    other = next((v for v in node.operands if v is not current), None)
    if isinstance(node.op, Pointwise | Bias) and fn in SUMS and other is not None and other.literal is None:
        sign = SUMS[fn]
        # b - y is -1 * y + b
        return add(chain if first else chain.scaled(sign), node, other, sign if first else 1.0)
    if fn in ("mul", "div") and other is not None and other.literal is not None:
        return scale(chain, node, fn, first, float(other.literal))
    takes = "bias, add, sub, mul and div by a number, neg, relu, gelu in the tanh form and a last cast"
    return Decline(Code.OP, f"{node} is not in cuBLASLt's epilogue; it takes {takes}")


def scale(chain: Chain, node: Node, fn: str, first: bool, number: float) -> Chain | Decline:
    """The chain times a number, or divided by it; a zero is refused, since the library then does not read A and B."""
    if fn == "div" and not first:
        return Decline(Code.OP, f"{node} divides a number by the product; cuBLASLt cannot")
    factor = 0.0 if number == 0 else 1 / number if fn == "div" else number
    scaled = chain.scaled(factor)
    if not all(is_factor(x) for x in (scaled.alpha, *(s.factor for s in scaled.summands))):
        return Decline(Code.ATTRIBUTE, f"{node} has the number {number}; cuBLASLt needs a finite factor other than 0")
    return scaled


def is_factor(number: float) -> bool:
    """Whether a number stays finite and other than 0 in float32, the type of the library's scalars."""
    with np.errstate(over="ignore", under="ignore"):
        return math.isfinite(np.float32(number)) and np.float32(number) != 0


def add(chain: Chain, node: Node, other: Value, factor: float) -> Chain | Decline:
    """The chain plus a tensor from outside."""
    if len(chain.summands) == MOST_SUMMANDS:
        return Decline(Code.PATTERN, f"{node} adds a third tensor; cuBLASLt adds a bias and one full-size tensor")
    shape = node.result.type.shape
    assert isinstance(node.op, Elementwise)
    aligned = node.op.aligned(node.operands.index(other), other.type.shape, len(shape))
    summand = Summand(other, aligned_strides(other.type, aligned), aligned == shape, factor)
    return replace(chain, summands=(*chain.summands, summand))
