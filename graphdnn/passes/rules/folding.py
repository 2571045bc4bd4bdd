"""Batch norms and constant products behind a linear op, moved into its weights; batch norms as one multiply-add."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from graphdnn.answer import Code, Decline
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.movement import Reshape
from graphdnn.ir.ops.norm import BatchNorm
from graphdnn.ir.ops.pointwise import Bias, Cast, Pointwise
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.payload import Payload
from graphdnn.ir.types import Array, DType, TensorType, float16, promote
from graphdnn.passes.pattern import Is, Match, first_decline, leaves_as
from graphdnn.passes.rewrite import Emitter, Precomputed, Rule

LINEAR = (Conv, ConvTranspose, MatMul)


@dataclass(frozen=True)
class Chain:
    """A linear op and the additions of one constant a channel between it and the node that is to be folded."""

    linear: Node
    additions: tuple[Node, ...]

    @property
    def axis(self) -> int:
        """The axis of channels of the linear op's result."""
        return self.linear.result.type.rank - 1 if isinstance(self.linear.op, MatMul) else 1


def chain_below(value: Value, graph: Graph) -> Chain | None:
    """What makes `value`, if that is a linear op followed by constant additions to its channels."""
    additions: list[Node] = []
    node = graph.producer.get(value)
    while node is not None and not isinstance(node.op, LINEAR):
        if not (isinstance(node.op, Bias) or node.op == Pointwise(fn="add")):
            return None
        additions.append(node)
        node = graph.producer.get(tensor_and_constant(node, graph)[0])
    if node is None:
        return None
    found = Chain(node, tuple(reversed(additions)))
    return found if all(per_channel(n, found.axis, graph) for n in additions) else None


def tensor_and_constant(node: Node, graph: Graph) -> tuple[Value, Value]:
    """The two operands, a constant one second."""
    first, second = node.operands
    swapped = graph.is_constant(first) and not isinstance(node.op, Bias)
    return (second, first) if swapped else (first, second)


def per_channel(node: Node, axis: int, graph: Graph) -> bool:
    """Whether one operand is a constant with one entry for each channel of the other, and keeps its type."""
    tensor, other = tensor_and_constant(node, graph)
    x, result = tensor.type, node.result.type
    if (x.shape, x.dtype) != (result.shape, result.dtype) or not graph.is_constant(other):
        return False
    shape = aligned(node, other, x.rank)
    return all(n == 1 or a == axis for a, n in enumerate(shape))


def aligned(node: Node, other: Value, rank: int) -> tuple[int, ...]:
    if isinstance(node.op, Bias):
        return node.op.aligned(1, other.type.shape, rank)
    return (1,) * (rank - other.type.rank) + other.type.shape


def stays_inside(chain: Chain, root: Node, graph: Graph) -> Decline | None:
    """Declines where something else reads the linear op's result, or what is added to it on the way."""
    path = (chain.linear, *chain.additions, root)
    for node, reader in pairwise(path):
        value = node.result
        if value in graph.escaping:
            return Decline(Code.ESCAPE, f"{value} is needed as it is: it {leaves_as(graph, value)}")
        for user in graph.users[value]:
            if user is not reader:
                return Decline(Code.ESCAPE, f"{value} is needed as it is, by {user}")
    return None


def weights_of(chain: Chain, graph: Graph) -> Decline | None:
    """Declines weights that are not known when the graph is compiled, or have another place than w."""
    w = chain.linear.operands[1]
    if not graph.is_constant(w):
        return Decline(Code.PATTERN, f"the weights {w} of {chain.linear} are no constant")
    if w.type.dtype != chain.linear.result.type.dtype or not w.type.dtype.is_float:
        return Decline(
            Code.DTYPE,
            f"the weights {w} are {w.type.dtype} and the result is "
            f"{chain.linear.result.type.dtype}; one float type is needed",
        )
    return None


def weights_stay_exact(chain: Chain, factor: Array | None, graph: Graph) -> Decline | None:
    """Declines a factor a channel that leads weights out of their type's range, where its precision ends.

    0.05 * 1e-5 is 0 in float16, though the product of the same factor with the result of the op is none.  Without data
    nothing runs, and nothing is declined.
    """
    w = chain.linear.operands[1]
    if factor is None or not graph.payloads[w.name].has_data:
        return None
    limits = np.finfo(np.float16 if w.type.dtype == float16 else w.type.dtype.compute.numpy)
    peaks = channel_peaks(chain, graph.payloads[w.name].array())
    with np.errstate(all="ignore"):
        scaled = peaks * np.abs(factor.astype(np.float64).reshape(-1))
    wrong = ~((scaled == 0) | ((scaled >= limits.smallest_normal) & (scaled <= limits.max)))
    if not wrong.any():
        return None
    return Decline(
        Code.DTYPE,
        f"a channel of the weights {w} would hold numbers up to {scaled[wrong][0]:g}; {w.type.dtype} is exact between "
        f"{limits.smallest_normal:g} and {limits.max:g}",
    )


def channel_peaks(chain: Chain, w: Array) -> Array:
    """The largest magnitude among `w` for each channel that the linear op makes, NaN where there is one.

    Without its sign bit a float orders as the integer of the same bits, which numpy compares much faster than halves.
    """
    unsigned = np.dtype(f"u{w.dtype.itemsize}")
    bits = np.ascontiguousarray(w).view(unsigned) & unsigned.type(np.iinfo(unsigned).max >> 1)
    op = chain.linear.op
    if isinstance(op, ConvTranspose):
        largest = bits.reshape(op.groups, w.shape[0] // op.groups, w.shape[1], -1).max((1, 3)).reshape(-1)
    elif isinstance(op, Conv):
        largest = bits.reshape(w.shape[0], -1).max(1)
    else:
        largest = bits.reshape(-1, w.shape[-1]).max(0)
    return largest.view(w.dtype).astype(np.float64)


def known(value: Value, graph: Graph) -> Array | None:
    """A constant's numbers where they are here."""
    if value.literal is not None:
        return np.asarray(value.literal, np.float64)
    payload = graph.payloads[value.name]
    return payload.array().astype(np.float64) if payload.has_data else None


@dataclass(frozen=True)
class Affine:
    """y = x * scale + shift with one entry a channel (or one for all), in the type that arithmetic is done in."""

    scale: Value
    shift: Value | None


def per_channel_values(make: Emitter, value: Value, dtype: DType, shape: tuple[int, ...]) -> Value:
    """One entry a channel, or one for all, as `shape` and `dtype`."""
    shaped = value if value.type.shape == shape else make(Reshape(shape=shape), value)
    return shaped if shaped.type.dtype == dtype else make(Cast(dtype=dtype.name), shaped)


def vector(make: Emitter, value: Value, dtype: DType) -> Value:
    return per_channel_values(make, value, dtype, (value.type.size,))


def batch_norm_vectors(make: Emitter, node: Node, shape: tuple[int, ...], wide: DType) -> tuple[Value, Value, Value]:
    """mean, scale / sqrt(var + eps) and bias, all of `shape` and of type `wide`.

    Parameters are reshaped before anything is computed: views of what is given part no region.
    """
    assert isinstance(node.op, BatchNorm)
    mean, var, scale, bias = (per_channel_values(make, v, wide, shape) for v in node.operands[1:])
    inverse = make(Pointwise(fn="rsqrt"), make(Pointwise(fn="add"), var, node.op.eps))
    return mean, make(Pointwise(fn="mul"), scale, inverse), bias


def batch_norm_affine(make: Emitter, node: Node, shape: tuple[int, ...]) -> Affine:
    """scale / sqrt(var + eps), and bias - mean times that, both of `shape`."""
    mean, factor, bias = batch_norm_vectors(make, node, shape, node.operands[0].type.dtype.compute)
    return Affine(factor, make(Pointwise(fn="sub"), bias, make(Pointwise(fn="mul"), mean, factor)))


def into_weights(make: Emitter, found: Match, chain: Chain, affine: Affine) -> Value:
    """The linear op with scaled weights, and one bias for all that was added behind it."""
    linear, root = chain.linear, found.root
    weights = Precomputed(make.rewriter, (*linear.origins, *root.origins))
    w = scaled_weights(weights, chain, affine.scale)
    y = Emitter(make.rewriter, weights.origins)(linear.op, linear.operands[0], w)
    shifts = Precomputed(make.rewriter, (*(o for n in chain.additions for o in n.origins), *root.origins))
    shift = affine.shift
    for node in chain.additions:
        added = constant_vector(shifts, tensor_and_constant(node, found.graph)[1], affine.scale.type.dtype)
        moved = shifts(Pointwise(fn="mul"), added, affine.scale)
        shift = moved if shift is None else shifts(Pointwise(fn="add"), shift, moved)
    if shift is None:
        return y
    return shifts(Bias(axis=chain.axis), y, vector(shifts, shift, y.type.dtype))


def constant_vector(make: Emitter, value: Value, dtype: DType) -> Value:
    if value.literal is None:
        return vector(make, value, dtype)
    return make.constant(Payload(TensorType((1,), dtype), np.full(1, value.literal, dtype.numpy)))


def scaled_weights(make: Precomputed, chain: Chain, scale: Value) -> Value:
    """w times the scale of the channel that it makes, rounded once to its type."""
    op, w = chain.linear.op, chain.linear.operands[1]
    shape = w.type.shape
    count = scale.type.size
    if isinstance(op, ConvTranspose) and op.groups > 1 and count > 1:
        split = TensorType((op.groups, shape[0] // op.groups, *shape[1:]), w.type.dtype)
        column = make(Reshape(shape=(op.groups, 1, shape[1], *(1,) * (len(shape) - 2))), scale)
        product = make.rounded(Pointwise(fn="mul"), split, make(Reshape(shape=split.shape), w), column)
        return make(Reshape(shape=shape), product)
    axis = {Conv: 0, ConvTranspose: 1}.get(type(op), len(shape) - 1)
    column = make(Reshape(shape=tuple(count if a == axis else 1 for a in range(len(shape)))), scale)
    return make.rounded(Pointwise(fn="mul"), TensorType(shape, w.type.dtype), w, column)


def has_linear(found: Match) -> bool:
    """Whether a batch norm stands behind a linear op whose channels are its own."""
    chain = chain_below(found.root.operands[0], found.graph)
    return chain is not None and chain.axis == 1


def chain_of(found: Match) -> Chain:
    tensor = found.root.operands[0]
    if isinstance(found.root.op, Pointwise):
        tensor, _ = tensor_and_constant(found.root, found.graph)
    chain = chain_below(tensor, found.graph)
    assert chain is not None
    return chain


def batch_norm_is_known(found: Match) -> Decline | None:
    chain = chain_of(found)
    names = found.root.op.operand_names
    for name, value in zip(names[1:], found.root.operands[1:], strict=True):
        if not found.graph.is_constant(value):
            return Decline(Code.PATTERN, f"the {name} {value} of {found.root} is no constant")
    refused = first_decline(weights_of(chain, found.graph), stays_inside(chain, found.root, found.graph))
    return weights_stay_exact(chain, batch_norm_factor(found), found.graph) if refused is None else refused


def batch_norm_factor(found: Match) -> Array | None:
    """scale / sqrt(var + eps), where the parameters are here."""
    op = found.root.op
    assert isinstance(op, BatchNorm)
    var, scale = (known(found.root.operands[i], found.graph) for i in (2, 3))
    with np.errstate(all="ignore"):
        return None if var is None or scale is None else np.asarray(scale / np.sqrt(var + op.eps))


def fold_batch_norm(make: Emitter, found: Match) -> Value:
    chain = chain_of(found)
    small = Precomputed(make.rewriter, found.root.origins)
    affine = batch_norm_affine(small, found.root, found.root.operands[1].type.shape)
    return into_weights(make, found, chain, affine)


def says_folded(found: Match) -> str:
    linear, what = ", ".join(chain_of(found).linear.origins), ", ".join(found.root.origins)
    kind = "batch norm" if isinstance(found.root.op, BatchNorm) else "product"
    return f"{linear}: {kind} {what} folded into its weights"


def scales_channels(found: Match) -> bool:
    """Whether a product has a constant factor for each channel of a linear op that nothing else reads."""
    node, graph = found.root, found.graph
    chain = chain_below(tensor_and_constant(node, graph)[0], graph)
    if chain is None or not per_channel(node, chain.axis, graph):
        return False
    return weights_of(chain, graph) is None and stays_inside(chain, node, graph) is None


def product_keeps_weights(found: Match) -> Decline | None:
    factor = known(tensor_and_constant(found.root, found.graph)[1], found.graph)
    return weights_stay_exact(chain_of(found), factor, found.graph)


def fold_product(make: Emitter, found: Match) -> Value:
    factor = tensor_and_constant(found.root, found.graph)[1]
    wide = found.root.result.type.dtype.compute
    scale = constant_vector(Precomputed(make.rewriter, found.root.origins), factor, wide)
    return into_weights(make, found, chain_of(found), Affine(scale, None))


def multiply_add(make: Emitter, found: Match) -> Value:
    """x * scale + shift, the factors computed apart, the result rounded once; or (x - mean) * scale + bias.

    Where the mean is a thousand deviations, the two products cancel and leave a thousand times their rounding error.
    That matters where x is in full precision and no linear op makes it: halves and sums of products are no more exact.
    """
    x = found.root.operands[0]
    shape = tuple(n if a == 1 else 1 for a, n in enumerate(x.type.shape))
    apart = Precomputed(make.rewriter, found.root.origins)
    if x.type.dtype.compute == x.type.dtype and chain_below(x, found.graph) is None:
        wide = promote(*(v.type.dtype.compute for v in found.root.operands))
        mean, factor, shift = batch_norm_vectors(apart, found.root, shape, wide)
        scaled = make(Pointwise(fn="mul"), make(Pointwise(fn="sub"), x, mean), factor)
    else:
        affine = batch_norm_affine(apart, found.root, shape)
        assert affine.shift is not None
        scaled, shift = make(Pointwise(fn="mul"), x, affine.scale), affine.shift
    y = make(Pointwise(fn="add"), scaled, shift)
    return y if y.type.dtype == x.type.dtype else make(Cast(dtype=x.type.dtype.name), y)


INTO_WEIGHTS = (
    Rule(
        "batch norm into weights",
        says_folded,
        Is(BatchNorm),
        fold_batch_norm,
        fits=has_linear,
        where=batch_norm_is_known,
    ),
    Rule(
        "product into weights",
        says_folded,
        Is(Pointwise, labels=("mul",)),
        fold_product,
        fits=scales_channels,
        where=product_keeps_weights,
    ),
)

MULTIPLY_ADD = (Rule("batch norm as multiply-add", "one multiply-add for each channel", Is(BatchNorm), multiply_add),)
