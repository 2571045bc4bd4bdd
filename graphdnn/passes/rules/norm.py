"""Layer norm and RMS norm spelled out, their parameters, and casts around them that change nothing."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from graphdnn.answer import Code, Decline
from graphdnn.ir.graph import Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.movement import Reshape
from graphdnn.ir.ops.norm import LayerNorm, RmsNorm
from graphdnn.ir.ops.pointwise import Cast
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.passes.pattern import Is, Match, Number, OneOf, Pattern, Var, first_decline, fn, is_number, one_of
from graphdnn.passes.rewrite import Emitter, Precomputed, Rule
from graphdnn.passes.rules.pointwise import x_is_whole
from graphdnn.passes.rules.softmax import is_kept, reduced_axes, reduction

NORMS: tuple[type[Op], ...] = (LayerNorm, RmsNorm)


def squared(x: Pattern) -> OneOf:
    return one_of(fn("square", x), fn("mul", x, x), fn("pow", x, Number(2.0)))


def over_root(x: Pattern, power: Pattern) -> OneOf:
    """x / sqrt(power + eps) in its spellings; without eps it is 0."""
    inside = one_of(fn("add", power, Number(name="eps")), power)
    root = one_of(fn("sqrt", inside), fn("pow", inside, Number(0.5)))
    inverse = one_of(fn("rsqrt", inside), fn("reciprocal", root), fn("div", Number(1.0), root))
    return one_of(fn("mul", x, inverse), fn("div", x, root), fn("mul", x, fn("pow", inside, Number(-0.5))))


X = Var("x")
CENTRED = fn("sub", X, reduction("mean", X, "mean"), bind="centred")
VARIANCE = reduction("mean", squared(Var("centred")), "power")
POWER = reduction("mean", squared(X), "power")


def eps_of(found: Match) -> float:
    return found.numbers.get("eps", 0.0)


def is_over_last_axes(found: Match) -> Decline | None:
    rank, axes = found["x"].type.rank, reduced_axes(found, "power")
    if axes != tuple(range(rank - len(axes), rank)):
        return Decline(Code.ATTRIBUTE, f"the mean is over axes {axes} of {found['x'].type}; the last axes are needed")
    if eps_of(found) < 0:
        return Decline(Code.ATTRIBUTE, f"eps is {eps_of(found)}; a number that is not negative is needed")
    return is_kept(found, "power", found["x"].type.shape)


def is_layer_norm(found: Match) -> Decline | None:
    mean, power = reduced_axes(found, "mean"), reduced_axes(found, "power")
    if mean != power:
        return Decline(Code.ATTRIBUTE, f"the mean is over axes {mean} and the variance over axes {power}")
    return first_decline(is_kept(found, "mean", found["x"].type.shape), is_over_last_axes(found))


def layer_norm(make: Emitter, found: Match) -> Value:
    return make(LayerNorm(axes=reduced_axes(found, "power"), eps=eps_of(found)), found["x"])


def rms_norm(make: Emitter, found: Match) -> Value:
    return make(RmsNorm(axes=reduced_axes(found, "power"), eps=eps_of(found)), found["x"])


def normalized_shape(found: Match) -> tuple[int, ...]:
    """What shape the parameters of the norm have."""
    norm = found.node("norm")
    assert isinstance(norm.op, LayerNorm | RmsNorm)
    return tuple(norm.operands[0].type.shape[a] for a in norm.op.axes)


def takes_parameter(found: Match) -> bool:
    """Whether the other operand lies along the normalized axes, and the norm has no parameter after its place yet.

    With further axes of extent 1 it could as well be a tensor like x of a batch of one, unless it is a constant.
    """
    norm, other = found.node("norm"), found["parameter"]
    assert isinstance(norm.op, LayerNorm | RmsNorm)
    free = "bias" not in norm.op.affine if adds(found) else not norm.op.affine
    lead = other.type.shape[: max(0, other.type.rank - len(norm.op.axes))]
    along = not lead or (prod(lead) == 1 and found.graph.is_constant(other))
    last = norm.op.axes[0] == norm.operands[0].type.rank - len(norm.op.axes)
    return free and last and other.literal is None and along


def adds(found: Match) -> bool:
    return found.root.op.label in ("add", "bias")


def is_parameter(found: Match) -> Decline | None:
    shape, other = normalized_shape(found), found["parameter"]
    if other.type.size != prod(shape) or other.type.shape[-len(shape) :] != shape:
        return Decline(Code.SHAPE, f"{other} is {other.type}; shape {shape}, that of the normalized axes, is needed")
    norm, result = found["norm"].type, found.root.result.type
    if result.dtype != norm.dtype:
        return Decline(
            Code.DTYPE,
            f"{other} is {other.type.dtype}, which makes the result {result.dtype}; a norm keeps "
            f"{norm.dtype}, the type of its x",
        )
    if result.shape != norm.shape:
        return Decline(Code.SHAPE, f"{other} of shape {other.type.shape} makes the result {result.shape}")
    return None


def with_parameter(make: Emitter, found: Match) -> Value:
    norm, other, shape = found.node("norm"), found["parameter"], normalized_shape(found)
    if other.type.shape != shape:
        other = Precomputed(make.rewriter, found.root.origins)(Reshape(shape=shape), other)
    assert isinstance(norm.op, LayerNorm | RmsNorm)
    op = replace(norm.op, affine=(*norm.op.affine, "bias" if adds(found) else "scale"))
    return make(op, *norm.operands, other)


def is_mean(found: Match) -> bool:
    op, x = found.node("sum").op, found["x"].type
    assert isinstance(op, Reduce)
    count = prod(x.shape[a] for a in op.axes)
    wanted = count if found.root.op.label == "div" else 1 / count
    whole = found["sum"].type == found.root.result.type
    return whole and x.dtype.is_float and is_number(found.numbers["count"], wanted, x.dtype)


def mean(make: Emitter, found: Match) -> Value:
    op = found.node("sum").op
    assert isinstance(op, Reduce)
    return make(replace(op, fn="mean"), found["x"])


def reads_a_cast(found: Match) -> bool:
    """Whether op's x is cast to the type that op computes in anyway, and the result back."""
    node = found.node("op")
    cast = found.graph.producer.get(node.operands[0])
    if cast is None or not isinstance(cast.op, Cast):
        return False
    before = cast.operands[0].type.dtype
    return before == found.root.result.type.dtype and before.compute == cast.result.type.dtype


def in_its_own_type(make: Emitter, found: Match) -> Value:
    node = found.node("op")
    cast = found.graph.producer[node.operands[0]]
    make.also([cast])
    return make(node.op, cast.operands[0], *node.operands[1:])


SUM = Is(Reduce, (X,), name="sum", labels=("reduce_sum",))

NORM = (
    Rule(
        "mean",
        "raised to reduce_mean",
        one_of(fn("div", SUM, Number(name="count")), fn("mul", SUM, Number(name="count"))),
        mean,
        fits=is_mean,
    ),
    Rule(
        "layer norm",
        "raised to layer_norm",
        over_root(CENTRED, VARIANCE),
        layer_norm,
        fits=x_is_whole,
        where=is_layer_norm,
    ),
    Rule("rms norm", "raised to rms_norm", over_root(X, POWER), rms_norm, fits=x_is_whole, where=is_over_last_axes),
    Rule(
        "parameters of a norm",
        "taken into the norm as a parameter",
        one_of(
            fn("mul", Is(NORMS, name="norm"), Var("parameter")), fn("add", Is(LayerNorm, name="norm"), Var("parameter"))
        ),
        with_parameter,
        fits=takes_parameter,
        where=is_parameter,
    ),
    Rule(
        "casts around an op",
        "the casts change nothing, since statistics are float32 anyway",
        Is(Cast, (Is((*NORMS, Softmax), name="op"),)),
        in_its_own_type,
        fits=reads_a_cast,
    ),
)
"""Layer norm before RMS norm, which is a part of it."""
