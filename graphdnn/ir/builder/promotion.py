"""The types that pointwise operands of several kinds meet in, as PyTorch has them; integers beside floats are refused.

An op reads operands of one kind.  What is to be another one is cast in front of it, here, so that definitions, engines
and documents know no mixture of kinds.  docs/decisions/2-promotion.md lists where this is not PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from graphdnn.errors import GraphError
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.pointwise import FUNCTIONS, Cast, Elementwise, Pointwise, Select
from graphdnn.ir.types import DType, bool_, float32, int64, promote, uint8
from graphdnn.ir.writer import Operand, immediate
from graphdnn.spelling import quoted

Number = bool | int | float

OF_FLOATS = frozenset(
    ("div", "atan2", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "tanh", "erf", "sigmoid")
)
"""Functions that take integers and bools as float32.  The other functions of floats refuse them."""

OF_BOOLS: Mapping[str, str] = {
    "add": "logical_or",
    "mul": "logical_and",
    "minimum": "logical_and",
    "maximum": "logical_or",
}
"""What arithmetic on nothing but bools is."""

BOOLS_AS: Mapping[str, DType] = {
    "square": int64,
    **dict.fromkeys(("greater", "greater_equal", "less", "less_equal"), uint8),
}
"""The type that bools are cast to for functions of numbers."""

NO_BOOLS = frozenset({"sub", "neg"})
"""Functions that refuse a bool among whatever operands: people mean `logical_not`, or forgot a cast."""

WHOLE_ALREADY = frozenset({"ceil", "floor"})
"""Functions that leave integers as they are."""


class Promoted(NamedTuple):
    """An op, its operands with numbers as immediates, and the casts in front of it by index of the operand."""

    op: Elementwise
    operands: Sequence[Operand]
    casts: Mapping[int, Cast]


def promoted(op: Elementwise, operands: Sequence[Operand], *, whole: bool = False) -> Promoted:
    """What applying `op` to these operands means.  With `whole`, integers are divided as integers.

    Raises GraphError naming the op, the types and the cast that would help.  Floats beside integers, and operands
    that are Python numbers only, are left for the op and the writer to refuse.
    """
    fn = op.function
    first = 1 if isinstance(op, Select) else 0
    tensors = {i: v.type.dtype for i, v in enumerate(operands) if i >= first and isinstance(v, Value)}
    numbers = [v for v in operands[first:] if not isinstance(v, Value)]
    if isinstance(op, Cast) or not any(isinstance(v, Value) for v in operands):
        return Promoted(op, operands, {})
    if isinstance(op, Pointwise) and fn == "clip":
        numbers += [p for p in op.parameters if p is not None]
    if fn in NO_BOOLS and (bool_ in tensors.values() or any(isinstance(n, bool) for n in numbers)):
        raise GraphError(f"{op.label}: an operand is bool; cast it to a number type, or use logical_not for `1 - x`")
    of_bools = fn in FUNCTIONS and FUNCTIONS[fn].takes == "bool"
    if of_bools and not all(isinstance(n, bool) for n in numbers):
        raise GraphError(
            f"{op.label}: an operand is the number {quoted(numbers[0])}; a tensor, True or False is needed"
        )
    in_floats = fn in OF_FLOATS and not whole
    common = bool_ if of_bools else meeting(op.label, tensors.values(), numbers, in_floats=in_floats)
    if common is None:
        return Promoted(op, operands, {})
    if whole and common.is_float:
        raise GraphError(f'{op.label}: rounding_mode="trunc" is for integers, and the operands are {common}')
    if isinstance(op, Pointwise) and common == bool_ and fn in OF_BOOLS:
        op = Pointwise(fn=OF_BOOLS[fn])
    elif isinstance(op, Pointwise) and common.is_integer and fn in WHOLE_ALREADY:
        op = Pointwise(fn="identity")
    common = BOOLS_AS.get(fn, common) if common == bool_ else common
    known = [v if isinstance(v, Value) else immediate(op, v, common) for v in operands]
    casts = {i: Cast(dtype=common.name) for i, t in tensors.items() if family(t) != family(common)}
    return Promoted(op, known, casts)


def meeting(who: str, tensors: Iterable[DType], numbers: Sequence[Number], *, in_floats: bool = False) -> DType | None:
    """The common type of tensors and Python numbers; None where floats meet integers among the tensors.

    Numbers are weak: they take the tensors' type, and only where all tensors are bool their own (int64, float32).
    With `in_floats` it is float32 at least.  Raises GraphError for a Python float beside integers.
    """
    typed = [t for t in tensors if t != bool_]
    floats = [n for n in numbers if isinstance(n, float)]
    if typed:
        try:
            common = promote(*typed)
        except ValueError:
            return None
    elif floats:
        common = float32
    else:
        common = int64 if any(not isinstance(n, bool) for n in numbers) else bool_
    if in_floats and not common.is_float:
        return float32
    if common.is_integer and floats:
        raise GraphError(f"{who}: {quoted(floats[0])} is a float and the tensor is {common}; {remedy(floats[0])}")
    return common


def remedy(number: float) -> str:
    """What to do about a float beside a tensor of integers."""
    instead = f", or write {int(number)}" if math.isfinite(number) and number.is_integer() else ""
    return f"cast the tensor to a float type{instead}"


def family(dtype: DType) -> str:
    """What operands must have in common to meet without a cast: mixed floats, and mixed integers, do."""
    return "integer" if dtype.is_integer else dtype.kind
