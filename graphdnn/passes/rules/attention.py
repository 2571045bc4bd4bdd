"""Attention spelled out: two matrix products with a softmax between them, and what stands around it.

The spelling may scale before or after the first product, add a bias or two, one of them for each window of a batch,
select by a mask, compute the softmax in float32, and repeat heads of K and V.  K is found transposed, by a node or by
its strides: it is transposed back.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce
from math import inf, isfinite, isinf, prod

import numpy as np

from graphdnn.answer import Code, Decline
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import MatMul
from graphdnn.ir.ops.movement import Expand, Reshape, Transpose
from graphdnn.ir.ops.pointwise import Cast, Pointwise, cast_to
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.ir.types import Array, broadcast_shapes, promote
from graphdnn.passes.constants import LARGEST_KNOWN, known_array
from graphdnn.passes.pattern import Is, Match, Number, OneOf, Pattern, Var, first_decline, fn, number_of, one_of
from graphdnn.passes.rewrite import Emitter, Precomputed, Rule
from graphdnn.passes.rules.movement import RESHAPES
from graphdnn.passes.rules.pointwise import is_exact_widening

MASKED = -3e4
"""A score at most this much is no score: weights of e ** -30000 are 0 in every type, and float16 ends at -65504."""


def widens(node: Node) -> bool:
    return is_exact_widening(node.operands[0].type.dtype, node.result.type.dtype)


def widened(x: Pattern) -> OneOf:
    """x, or x cast to a wider type."""
    return one_of(Is(Cast, (x,), widens), x)


PRODUCT = widened(Is(MatMul, (Var("q"), Var("k")), name="product"))
SCALED = one_of(fn("mul", PRODUCT, Number(name="scale")), fn("div", PRODUCT, Number(name="divisor")), PRODUCT)
BIASED = fn("add", widened(SCALED), Var("bias"))
IN_WINDOWS = Is(RESHAPES, (one_of(widened(BIASED), widened(SCALED)),), name="in windows")
ADDED_TO = one_of(
    fn("add", widened(BIASED), Var("second bias")),
    Is(RESHAPES, (fn("add", IN_WINDOWS, Var("bias of windows")),)),
    BIASED,
    SCALED,
)
MASKED_SCORES = one_of(
    fn("select", Var("mask"), ADDED_TO, Number(name="fill")),
    fn("select", Var("hidden"), Number(name="fill"), ADDED_TO),
    ADDED_TO,
)
SOFTMAX = Is(Softmax, (widened(MASKED_SCORES),), name="weights")
WEIGHTS = one_of(Is(Cast, (SOFTMAX,), lambda node: node.result.type.dtype.is_float), SOFTMAX)


def is_attention(found: Match) -> Decline | None:
    """Whether types, shapes and the mask are such that attention's equation is the very same function."""
    checks = (has_right_axes, has_one_type, has_finite_scale, has_fitting_extras, hides_what_it_masks)
    return first_decline(*(check(found) for check in checks))


def has_right_axes(found: Match) -> Decline | None:
    q, k, v = found["q"].type, found["k"].type, found["v"].type
    weights = found.node("weights")
    assert isinstance(weights.op, Softmax)
    if weights.op.axis != weights.result.type.rank - 1:
        return Decline(Code.ATTRIBUTE, f"the softmax is along axis {weights.op.axis}; the last one, of keys, is needed")
    if not 2 <= q.rank == k.rank == v.rank <= 4:
        return Decline(Code.RANK, f"q is {q}, k {k}, v {v}; two to four axes, the same number for each, are needed")
    (b, hq), (bk, hk), (bv, hv) = (leading(t.shape) for t in (q, k, v))
    if not b == bk == bv or hk != hv or hq % hk:
        return Decline(
            Code.BROADCAST, f"q is {q}, k {k}, v {v}; one batch, and heads of q a multiple of k's and v's, are needed"
        )
    return None


def leading(shape: tuple[int, ...]) -> tuple[int, int]:
    """Extents of the axes of batch and heads, 1 where there is no such axis."""
    batch, heads = (1, 1, *shape[:-2])[-2:]
    return batch, heads


def has_one_type(found: Match) -> Decline | None:
    dtypes = {found[name].type.dtype for name in ("q", "k", "v")} | {found.root.result.type.dtype}
    if len(dtypes) == 1 and next(iter(dtypes)).is_float:
        return None
    return Decline(
        Code.DTYPE, f"q, k, v and the result are {', '.join(sorted(map(str, dtypes)))}; one float type is needed"
    )


def has_finite_scale(found: Match) -> Decline | None:
    scale = scale_of(found)
    if scale is not None and isfinite(scale):
        return None
    return Decline(Code.ATTRIBUTE, f"the scores are scaled by {found.numbers}; a finite scale is needed")


def scale_of(found: Match) -> float | None:
    """What the product of q and k is scaled by, in K's scale too; None for a division by zero."""
    divisor = found.numbers.get("divisor", 1.0)
    if divisor == 0:
        return None
    inner = scaled(found["k"], found.graph)
    return found.numbers.get("scale", 1.0) / divisor * (1.0 if inner is None else inner[1])


def has_fitting_extras(found: Match) -> Decline | None:
    scores = found["product"].type.shape
    if found["weights"].type.shape != scores:
        return Decline(
            Code.BROADCAST, f"bias or mask make scores of shape {scores} larger, {found['weights'].type.shape}"
        )
    for bias in biases_of(found):
        if not bias.type.dtype.is_float:
            return Decline(Code.DTYPE, f"the bias is {bias.type}; a float type is needed")
    if "in windows" in found and found["in windows"].type.shape[1 - len(scores) :] != scores[1:]:
        return Decline(
            Code.SHAPE,
            f"a bias is added to scores of shape {scores} in another shape, {found['in windows'].type.shape}; only "
            "their first axis may be split for it",
        )
    return None


def biases_of(found: Match) -> list[Value]:
    """All that is added to the scores."""
    return [found[name] for name in ("bias", "second bias", "bias of windows") if name in found]


def hides_what_it_masks(found: Match) -> Decline | None:
    """A row with no key gives 0 in attention; a spelling with a finite score for hidden keys averages all values."""
    if "fill" not in found or isinf(found.numbers["fill"]):
        return None if found.numbers.get("fill", -1.0) < 0 else Decline(Code.ATTRIBUTE, "hidden scores are +inf")
    fill = found.numbers["fill"]
    if fill > MASKED:
        return Decline(
            Code.ATTRIBUTE, f"hidden scores are {fill!r}; at most {MASKED:g} is needed to be no score at all"
        )
    allowed = allowed_keys(found)
    if allowed is None:
        return Decline(
            Code.ATTRIBUTE,
            f"hidden scores are {fill!r} and the mask is known at run time only: a row that "
            "it hides would average all values, where attention gives 0; -inf is needed",
        )
    allowed = np.broadcast_to(allowed, np.broadcast_shapes(allowed.shape, (1, 1)))
    if not allowed.any(-1).all():
        return Decline(Code.ATTRIBUTE, "the mask hides all keys of a row, which then averages all values")
    return leaves_the_rest(found, allowed, fill) if biases_of(found) else None


def leaves_the_rest(found: Match, allowed: Array, fill: float) -> Decline | None:
    """Declines a bias that may take from a row with hidden keys all that its mask left.

    The bias must keep a key nearer to no bias than to `fill`, beside which hidden keys are no score at all.
    """
    if found["product"].type.size > LARGEST_KNOWN or (bias := known_bias(found)) is None:
        return Decline(
            Code.ATTRIBUTE,
            f"hidden scores are {fill!r} and the bias is known at run time only: a row whose other keys it hides would "
            "average the values of the hidden ones, where attention gives 0; -inf is needed",
        )
    best = np.where(allowed, bias, -np.inf).max(-1)
    if not (allowed.all(-1) | (best >= fill / 2)).all():
        return Decline(Code.ATTRIBUTE, "the bias hides the keys that the mask leaves a row, which then averages others")
    return None


def known_bias(found: Match) -> Array | None:
    """All that is added to the scores, where it is known and added in their shape."""
    arrays = [known_array(bias, found.graph) for bias in biases_of(found)]
    known = [a.astype(np.float64) for a in arrays if a is not None]
    return sum(known[1:], known[0]) if len(known) == len(arrays) and "in windows" not in found else None


def allowed_keys(found: Match) -> Array | None:
    """The boolean mask where it is known: which keys each query may attend to."""
    name = "mask" if "mask" in found else "hidden"
    known = known_array(found[name], found.graph)
    return known if known is None or name == "mask" else ~known


def attention(make: Emitter, found: Match) -> Value:
    scale = scale_of(found)
    assert scale is not None
    q, v = (with_four_axes(make, found[name]) for name in ("q", "v"))
    k = found["k"]
    inner = scaled(k, found.graph)
    if inner is not None:
        k, _, node = inner
        make.also([node])
    k = with_four_axes(make, transposed_back(make, k, found.graph))
    biases = biases_of(found)
    if "fill" in found:
        causal = causal_mask(found)
    else:
        causal, biases = without_triangle(biases, found.graph, found["product"].type.shape)
    extras: dict[str, Value] = {}
    if biases:
        extras["bias"] = summed(make, [of_scores(make, found, bias) for bias in biases])
    if "fill" in found and causal is None:
        mask = found["mask"] if "mask" in found else make(Pointwise(fn="logical_not"), found["hidden"])
        extras["mask"] = with_four_axes(make, mask)
    op, optional = Attention(scale=scale, causal=causal).with_optional(extras)
    o = make(op, q, k, v, *optional)
    shape = found.root.result.type.shape
    return o if o.type.shape == shape else make(Reshape(shape=shape), o)


def of_scores(make: Emitter, found: Match, bias: Value) -> Value:
    """A bias with the four axes of the scores; what is added for each window of a batch is repeated for the batch."""
    if "in windows" in found and bias is found["bias of windows"]:
        inside, kept = found["in windows"].type.shape, len(found["product"].type.shape) - 1
        shape = (1,) * (len(inside) - bias.type.rank) + bias.type.shape
        split, rest = len(inside) - kept, shape[len(inside) - kept :]
        if any(n > 1 for n in shape[:split]):
            bias = make(Expand(shape=(*inside[:split], *rest)), bias)
        bias = make(Reshape(shape=(bias.type.size // prod(rest), *rest)), bias)
    return with_four_axes(make, bias)


def summed(make: Emitter, biases: list[Value]) -> Value:
    """Biases in one, of their common type; computed now where that takes no larger constant."""
    size = prod(broadcast_shapes(*(b.type.shape for b in biases)))
    if size <= max(b.type.size for b in biases):
        make = Precomputed(make.rewriter, make.origins)
    dtype = promote(*(b.type.dtype for b in biases))
    return reduce(partial(make, Pointwise(fn="add")), [cast_to(make, b, dtype) for b in biases])


def with_four_axes(make: Emitter, x: Value) -> Value:
    shape = (1,) * (4 - x.type.rank) + x.type.shape
    return x if x.type.rank == 4 else Precomputed(make.rewriter, make.origins)(Reshape(shape=shape), x)


def transposed_back(make: Emitter, k: Value, graph: Graph) -> Value:
    """K (..., Skv, D) of its transpose, without a node where a node transposes it."""
    swap = (*range(k.type.rank - 2), k.type.rank - 1, k.type.rank - 2)
    made = graph.producer.get(k)
    if made is not None and isinstance(made.op, Transpose):
        make.also([made])
        axes = tuple(made.op.axes[a] for a in swap)
        k = made.operands[0]
        return k if axes == tuple(range(len(axes))) else make(Transpose(axes=axes), k)
    return make(Transpose(axes=swap), k)


def causal_alignment(allowed: Array, scores: tuple[int, ...]) -> str | None:
    """The alignment where the mask is that triangle, the same for all heads and batches."""
    sq, skv = scores[-2:]
    if allowed.shape[-2:] != (sq, skv) or prod(allowed.shape[:-2]) != 1:
        return None
    plain = allowed.reshape(sq, skv)
    for alignment, offset in (("top_left", 0), ("bottom_right", skv - sq)):
        if np.array_equal(plain, np.tri(sq, skv, offset, dtype=np.bool_)):
            return alignment
    return None


def causal_mask(found: Match) -> str | None:
    """The alignment that the mask spells, where it is known."""
    allowed = allowed_keys(found)
    return None if allowed is None else causal_alignment(allowed, found["product"].type.shape)


def without_triangle(biases: list[Value], graph: Graph, scores: tuple[int, ...]) -> tuple[str | None, list[Value]]:
    """The alignment that one of some biases spells, and the others.

    Beside others it must hide keys by -inf: with a finite score a row that the others hide would average those.
    """
    for index, bias in enumerate(biases):
        causal = causal_bias(bias, graph, scores, -inf if biases[1:] else MASKED)
        if causal is not None:
            return causal, biases[:index] + biases[index + 1 :]
    return None, biases


def causal_bias(bias: Value, graph: Graph, scores: tuple[int, ...], hidden: float) -> str | None:
    """The alignment that a constant bias of nothing but 0 and at most `hidden` spells, if it leaves each row a key."""
    known = known_array(bias, graph)
    if known is None:
        return None
    plain = known.astype(np.float32)
    allowed = plain == 0
    if not (allowed | (plain <= hidden)).all() or not allowed.any(-1).all():
        return None
    return causal_alignment(allowed, scores)


def attention_node(found: Match) -> tuple[Attention, Node]:
    node = found.root
    assert isinstance(node.op, Attention)
    return node.op, node


def scaled(value: Value, graph: Graph) -> tuple[Value, float, Node] | None:
    """x, c and the node where `value` is c * x."""
    node = graph.producer.get(value)
    if node is None or node.op not in (Pointwise(fn="mul"), Pointwise(fn="div")):
        return None
    for x, other in ((node.operands[0], node.operands[1]), (node.operands[1], node.operands[0])):
        factor = number_of(other, graph)
        if factor is None or x.type != value.type or (node.op == Pointwise(fn="div") and x is not node.operands[0]):
            continue
        if factor == 0 or not np.isfinite(factor):
            return None
        return x, 1 / factor if node.op == Pointwise(fn="div") else factor, node
    return None


def has_scaled_operand(found: Match) -> bool:
    """Whether q or k is scaled, by what leaves attention a finite scale."""
    op, node = attention_node(found)
    factors = [inner[1] for v in node.operands[:2] if (inner := scaled(v, found.graph)) is not None]
    return bool(factors) and isfinite(prod((op.scale, *factors)))


def with_scale(make: Emitter, found: Match) -> Value:
    op, node = attention_node(found)
    operands = list(node.operands)
    scale = op.scale
    for index in (0, 1):
        inner = scaled(operands[index], found.graph)
        if inner is not None:
            operands[index], factor, product = inner
            scale *= factor
            make.also([product])
    return make(replace(op, scale=scale), *operands)


def ungrouped(value: Value, graph: Graph) -> tuple[Value, tuple[Node, ...]] | None:
    """(B, Hkv, 1, S, D) and the nodes where `value` repeats each head of it: an expansion and a reshape."""
    merge = graph.producer.get(value)
    repeat = graph.producer.get(merge.operands[0]) if merge is not None and isinstance(merge.op, Reshape) else None
    if merge is None or repeat is None or not isinstance(repeat.op, Expand):
        return None
    before, wide, after = repeat.operands[0].type.shape, repeat.op.shape, value.type.shape
    if len(wide) != 5 or before != (*wide[:2], 1, *wide[3:]) or after != (wide[0], wide[1] * wide[2], *wide[3:]):
        return None
    return repeat.operands[0], (repeat, merge)


def repeats_heads(found: Match) -> bool:
    _, node = attention_node(found)
    k, v = (ungrouped(x, found.graph) for x in node.operands[1:3])
    return k is not None and v is not None and k[0].type.shape[:2] == v[0].type.shape[:2]


def with_groups(make: Emitter, found: Match) -> Value:
    op, node = attention_node(found)
    operands = list(node.operands)
    for index in (1, 2):
        inner = ungrouped(operands[index], found.graph)
        assert inner is not None
        (b, h, _, s, d), nodes = inner[0].type.shape, inner[1]
        make.also(nodes)
        before = found.graph.producer.get(inner[0])
        # of one order and one shape is one tensor; another op may have an operand of the same shape too
        if before is not None and isinstance(before.op, RESHAPES) and before.operands[0].type.shape == (b, h, s, d):
            make.also([before])
            operands[index] = before.operands[0]
        else:
            operands[index] = make(Reshape(shape=(b, h, s, d)), inner[0])
    return make(op, *operands)


ATTENTION = (
    Rule("attention", "raised to attention", Is(MatMul, (WEIGHTS, Var("v"))), attention, where=is_attention),
    Rule(
        "scale before attention",
        "taken into the scale of attention",
        Is(Attention, where=lambda node: not node.results[1:]),
        with_scale,
        fits=has_scaled_operand,
    ),
    Rule(
        "repeated heads of attention",
        "heads shared instead of repeated",
        Is(Attention, where=lambda node: not node.results[1:]),
        with_groups,
        fits=repeats_heads,
    ),
)
"""The last two work on what the first one leaves."""
