"""Pointwise identities that hold to the last bit, signed zeros and NaN included."""

from __future__ import annotations

from math import copysign, frexp

from graphdnn.answer import Decline
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.pointwise import Cast, Elementwise, Pointwise
from graphdnn.ir.types import DType
from graphdnn.passes.pattern import Is, Match, Number, Var, fn, one_of
from graphdnn.passes.rewrite import Emitter, Rule, leaves_a_node

NEUTRAL = {"add": -0.0, "sub": 0.0, "mul": 1.0, "div": 1.0}
"""The second operand that changes nothing: x + 0.0 would turn -0.0 into 0.0, x - 0.0 does not."""

MOST_EXPONENT = 64
"""Powers of two up to this may become their inverses: float32, in which halves are divided too, has 126."""

IDEMPOTENT = ("relu", "abs", "ceil", "floor")
INVOLUTIONS = ("neg", "logical_not")

WIDENINGS = {
    "bool": {"int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"},
    "int8": {"int32", "int64", "float16", "bfloat16", "float32", "float64"},
    "uint8": {"int32", "int64", "float16", "bfloat16", "float32", "float64"},
    "int32": {"int64", "float64"},
    "float16": {"float32", "float64"},
    "bfloat16": {"float32", "float64"},
    "float32": {"float64"},
}
"""Types that hold every number of a type exactly."""


def x_itself(make: Emitter, found: Match) -> Value:
    return found["x"]


def x_is_whole(found: Match) -> bool:
    """Whether x has the type that the match gives, so that it can stand in for it."""
    x, result = found["x"].type, found.root.result.type
    return (x.shape, x.dtype) == (result.shape, result.dtype)


def leaves_x(found: Match) -> Decline | None:
    return leaves_a_node(found, found["x"])


def is_neutral(found: Match) -> bool:
    if not x_is_whole(found):
        return False
    op = found.root.op
    assert isinstance(op, Elementwise)
    number, wanted = found.numbers["c"], NEUTRAL[op.function]
    if not found["x"].type.dtype.is_float:
        return number == wanted
    return number == wanted and copysign(1, number) == copysign(1, wanted)


def halves_exactly(found: Match) -> bool:
    """Whether dividing by c and multiplying by 1/c round alike: c is a power of two, and neither end overflows."""
    number = found.numbers["c"]
    if number == 0 or not x_is_whole(found) or not found["x"].type.dtype.is_float:
        return False
    mantissa, exponent = frexp(abs(number))
    return mantissa == 0.5 and abs(exponent) <= MOST_EXPONENT


def is_exact_widening(before: DType, after: DType) -> bool:
    return after.name in WIDENINGS.get(before.name, ())


def passes_through(found: Match) -> bool:
    inner = found.node("inner")
    return is_exact_widening(inner.operands[0].type.dtype, inner.result.type.dtype)


def cast_directly(make: Emitter, found: Match) -> Value:
    x, dtype = found["x"], found.root.result.type.dtype
    return x if x.type.dtype == dtype else make(Cast(dtype=dtype.name), x)


def same_twice(name: str, result: str) -> Rule:
    """`name` of `name`, which is `result`: "once" or "x"."""
    inner = fn(name, Var("x"), bind="once", shared=True)
    return Rule(
        f"{name} twice",
        f"the second {name} changes nothing" if result == "once" else f"{name} twice is nothing",
        fn(name, inner),
        lambda make, found: found[result],
        fits=lambda found: found[result].type == found.root.result.type,
        where=lambda found: leaves_a_node(found, found[result]),
    )


POINTWISE = (
    Rule("identity", "identity left out", fn("identity", Var("x")), x_itself, where=leaves_x),
    Rule(
        "cast to the same type",
        "the cast changes nothing",
        Is(Cast, (Var("x"),)),
        x_itself,
        fits=x_is_whole,
        where=leaves_x,
    ),
    Rule(
        "cast through a wider type",
        "cast without the wider type between",
        Is(Cast, (Is(Cast, (Var("x"),), name="inner", shared=True),)),
        cast_directly,
        fits=passes_through,
        where=lambda found: leaves_x(found) if x_is_whole(found) else None,
    ),
    *(same_twice(name, "once") for name in IDEMPOTENT),
    *(same_twice(name, "x") for name in INVOLUTIONS),
    Rule(
        "neutral number",
        "the number changes nothing",
        one_of(*(fn(name, Var("x"), Number(name="c")) for name in NEUTRAL)),
        x_itself,
        fits=is_neutral,
        where=leaves_x,
    ),
    Rule(
        "division by a power of two",
        "divides by a power of two, which is a product",
        fn("div", Var("x"), Number(name="c")),
        lambda make, found: make(Pointwise(fn="mul"), found["x"], 1 / found.numbers["c"]),
        fits=halves_exactly,
    ),
    Rule(
        "power of two",
        "the second power is a square",
        fn("pow", Var("x"), Number(2.0)),
        lambda make, found: make(Pointwise(fn="square"), found["x"]),
        fits=x_is_whole,
    ),
)
"""Order has no meaning: each rule takes away a node or a costlier one."""
