"""Softmax spelled out, with the largest entry taken off or not."""

from __future__ import annotations

from graphdnn.answer import Code, Decline
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.reduction import Reduce, reduced_shape
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.passes.pattern import Is, Match, Number, OneOf, Pattern, Var, first_decline, fn, one_of
from graphdnn.passes.rewrite import Emitter, Rule
from graphdnn.passes.rules.movement import RESHAPES
from graphdnn.passes.rules.pointwise import x_is_whole


def reduction(function: str, x: Pattern, name: str) -> OneOf:
    """A reduction, or a reshape of one (which may put its axes back); `name` is what comes out in the end."""
    label = (f"reduce_{function}",)
    reduced = Is(Reduce, (x,), name=f"{name} reduced", labels=label)
    return one_of(Is(Reduce, (x,), name=name, labels=label), Is(RESHAPES, (reduced,), name=name))


def reduced_axes(found: Match, name: str) -> tuple[int, ...]:
    """Axes of the reduction called `name`."""
    op = found.node(f"{name} reduced" if f"{name} reduced" in found else name).op
    assert isinstance(op, Reduce)
    return op.axes


def is_kept(found: Match, name: str, shape: tuple[int, ...]) -> Decline | None:
    """Declines a reduction of something of this shape whose axes are gone, so that it broadcasts along others."""
    given, wanted = found[name].type.shape, reduced_shape(shape, reduced_axes(found, name), True)
    if given == wanted:
        return None
    return Decline(Code.SHAPE, f"{found[name]} has shape {given}; {wanted} is needed, with the reduced axes kept")


def is_softmax(found: Match) -> Decline | None:
    shape, axes = found["x"].type.shape, reduced_axes(found, "total")
    if len(axes) != 1:
        return Decline(Code.ATTRIBUTE, f"the sum {found['total']} is over axes {axes}; softmax has one axis")
    if "peak" in found and reduced_axes(found, "peak") != axes:
        other = reduced_axes(found, "peak")
        return Decline(Code.ATTRIBUTE, f"the maximum is over axes {other} and the sum over axes {axes}")
    return first_decline(*(is_kept(found, name, shape) for name in ("peak", "total") if name in found))


def softmax(make: Emitter, found: Match) -> Value:
    return make(Softmax(axis=reduced_axes(found, "total")[0]), found["x"])


X = Var("x")
POWERS = one_of(fn("exp", fn("sub", X, reduction("max", X, "peak")), bind="powers"), fn("exp", X, bind="powers"))
TOTAL = reduction("sum", Var("powers"), "total")
SHARE = one_of(fn("reciprocal", TOTAL), fn("div", Number(1.0), TOTAL), fn("pow", TOTAL, Number(-1.0)))

SOFTMAX = (
    Rule(
        "softmax",
        "raised to softmax",
        one_of(fn("div", POWERS, TOTAL), fn("mul", POWERS, SHARE)),
        softmax,
        fits=x_is_whole,
        where=is_softmax,
    ),
)
