"""Activations that were spelled out: sigmoid, SiLU, GELU in both forms, hard sigmoid, hard swish, ReLU."""

from __future__ import annotations

import math
from collections.abc import Mapping

from graphdnn.answer import Code, Decline
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.pointwise import FUNCTIONS, GELU_CUBIC, TAKES, Pointwise
from graphdnn.passes.pattern import Is, Match, Number, OneOf, Pattern, Var, fn, is_number, one_of
from graphdnn.passes.rewrite import Emitter, Rule
from graphdnn.passes.rules.pointwise import x_is_whole

X = Var("x")

NUMBERS: Mapping[str, float] = {
    "one": 1.0,
    "half": 0.5,
    "two": 2.0,
    "three": 3.0,
    "six": 6.0,
    "a sixth": 1 / 6,
    "minus one": -1.0,
    "root of 2": math.sqrt(2),
    "root of 1/2": math.sqrt(0.5),
    "minus root of 2": -math.sqrt(2),
    "minus root of 1/2": -math.sqrt(0.5),
    "root of 2/pi": math.sqrt(2 / math.pi),
    "cubic factor": GELU_CUBIC,
}
"""What the numbers of the spellings must be.  Patterns take any, so that a wrong one is reported and not overlooked."""


def number(name: str) -> Number:
    return Number(name=name)


def right_numbers(found: Match) -> Decline | None:
    """Declines a spelling with another number than the definition has."""
    for name, given in found.numbers.items():
        wanted = NUMBERS.get(name)
        if wanted is not None and not is_number(given, wanted, found.root.result.type.dtype):
            return Decline(Code.ATTRIBUTE, f"{given!r} stands where the definition has {wanted!r} ({name})")
    return None


def raised(name: str, function: str, pattern: Is | OneOf) -> Rule:
    """The rule that makes `function` of x out of its spelling."""

    def build(make: Emitter, found: Match) -> Value:
        return make(Pointwise(fn=function), found["x"])

    def fits(found: Match) -> bool:
        return x_is_whole(found) and TAKES[FUNCTIONS[function].takes](found["x"].type.dtype)

    return Rule(name, f"raised to {function}", pattern, build, fits=fits, where=right_numbers)


def negative(x: Pattern) -> OneOf:
    return one_of(fn("neg", x), fn("mul", x, number("minus one")), fn("sub", Number(0.0), x))


def halved(x: Pattern, shared: bool = False) -> OneOf:
    return one_of(fn("mul", x, number("half"), shared=shared), fn("div", x, number("two"), shared=shared))


def sixth(x: Pattern) -> OneOf:
    return one_of(fn("div", x, number("six")), fn("mul", x, number("a sixth")))


def clipped(x: Pattern, low: float, high: float) -> OneOf:
    """min(max(x, low), high) as clip or as two nodes."""
    at_least = one_of(*([fn("relu", x)] if low == 0 else []), fn("maximum", x, Number(low)))
    whole = Is(Pointwise, (x,), lambda node: node.op == Pointwise(fn="clip", parameters=(low, high)))
    return one_of(
        whole, fn("minimum", at_least, Number(high)), fn("maximum", fn("minimum", x, Number(high)), Number(low))
    )


# What is cheap to compute from x alone may be read elsewhere too: half of x, its square and its cube.
SQUARE = one_of(fn("square", X, shared=True), fn("mul", X, X, shared=True), fn("pow", X, Number(2.0), shared=True))
CUBE = one_of(fn("pow", X, number("three"), shared=True), fn("mul", SQUARE, X, shared=True))
CUBIC_FACTOR = number("cubic factor")
CUBIC = one_of(
    fn("mul", CUBE, CUBIC_FACTOR),
    fn("mul", fn("mul", SQUARE, CUBIC_FACTOR), X),
    fn("mul", fn("mul", X, CUBIC_FACTOR), SQUARE),
    fn("mul", fn("mul", fn("mul", X, CUBIC_FACTOR), X), X),
)
QUADRATIC = one_of(fn("mul", SQUARE, CUBIC_FACTOR), fn("mul", fn("mul", X, CUBIC_FACTOR), X))
FACTORED = fn("add", QUADRATIC, number("one"))
ROOT = number("root of 2/pi")
TANH_ARGUMENT = one_of(
    fn("mul", fn("add", X, CUBIC), ROOT),
    fn("mul", fn("mul", X, ROOT), FACTORED),
    fn("mul", fn("mul", X, FACTORED), ROOT),
    fn("mul", X, fn("mul", FACTORED, ROOT)),
)


def over_root_2(x: Pattern, sign: str = "") -> OneOf:
    return one_of(fn("div", x, number(f"{sign}root of 2")), fn("mul", x, number(f"{sign}root of 1/2")))


ERF = fn("erf", over_root_2(X))
OPPOSITE_ERF = fn("erf", one_of(negative(over_root_2(X)), over_root_2(negative(X)), over_root_2(X, "minus ")))
"""The error function of -x / sqrt 2, which is minus that of x / sqrt 2."""


def gated(step: Pattern, *gates: Pattern) -> OneOf:
    """x * (1 + step) / 2, whichever product comes first; `gates` are other spellings of 1 + step."""
    gate = one_of(fn("add", step, number("one")), *gates)
    return one_of(
        fn("mul", halved(X, shared=True), gate),
        fn("mul", X, halved(gate)),
        halved(fn("mul", X, gate)),
        fn("mul", X, fn("add", halved(step), number("half"))),
    )


DENOMINATOR = fn("add", fn("exp", negative(X)), number("one"))
SIX = clipped(fn("add", X, number("three")), 0.0, 6.0)


def swish(make: Emitter, found: Match) -> Value:
    return make(Pointwise(fn="swish", parameters=(found.numbers["beta"],)), found["x"])


def is_clip_at_zero(found: Match) -> bool:
    return found.root.op == Pointwise(fn="clip", parameters=(0.0, None)) and x_is_whole(found)


ACTIVATIONS = (
    raised("gelu", "gelu", gated(ERF, fn("sub", number("one"), OPPOSITE_ERF))),
    raised("gelu in the tanh form", "gelu_tanh", gated(fn("tanh", TANH_ARGUMENT))),
    raised("silu", "silu", one_of(fn("mul", X, fn("sigmoid", X)), fn("div", X, DENOMINATOR))),
    raised("sigmoid", "sigmoid", one_of(fn("div", number("one"), DENOMINATOR), fn("reciprocal", DENOMINATOR))),
    Rule("swish", "raised to swish", fn("mul", X, fn("sigmoid", fn("mul", X, Number(name="beta")))), swish, x_is_whole),
    raised(
        "hard swish",
        "hard_swish",
        one_of(fn("mul", X, fn("hard_sigmoid", X)), sixth(fn("mul", X, SIX)), fn("mul", sixth(X), SIX)),
    ),
    raised("hard sigmoid", "hard_sigmoid", one_of(sixth(SIX), clipped(fn("add", sixth(X), number("half")), 0.0, 1.0))),
    raised("relu", "relu", fn("maximum", X, Number(0.0))),
    Rule(
        "relu as a clip",
        "raised to relu",
        Is(Pointwise, (X,), labels=("clip",)),
        lambda make, found: make(Pointwise(fn="relu"), found["x"]),
        is_clip_at_zero,
    ),
)
"""The larger before those that are a part of them."""
