"""What is known of padded values beyond their types, so that a sequence can be padded where the graph masks its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isinf

from graphdnn.ir.graph import Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.movement import Expand, Iota, Reshape, Squeeze, Transpose, Unsqueeze
from graphdnn.ir.ops.pointwise import Cast, Pointwise, Select
from graphdnn.specialize.axes import Pair, carried


@dataclass(frozen=True)
class Facts:
    """Facts of one value of the padded graph.

    Along axis `position` each element is its own index.  No element exceeds `limit`.  For each (axis, number) of
    `filled` all that lies behind the exact extent of the axis is that number; False counts as 0.
    """

    position: int | None = None
    limit: int | None = None
    filled: frozenset[tuple[int, float]] = frozenset()

    def filled_with(self, number: float) -> frozenset[int]:
        """Axes behind whose exact extent all is `number`."""
        return frozenset(axis for axis, there in self.filled if there == number)


NONE = Facts()


class Knowledge:
    """Facts by value, learned node by node in the graph's order."""

    def __init__(self, known: Mapping[Value, Facts]) -> None:
        self._known = dict(known)

    def of(self, value: Value) -> Facts:
        return self._known.get(value, NONE)

    def learn(self, pair: Pair) -> None:
        """Notes what follows for the result of a node from what is known of its operands."""
        rule = RULES.get(type(pair.exact.op))
        facts = NONE if rule is None else rule(pair, self)
        if facts != NONE:
            self._known[pair.padded.result] = facts

    def moved(self, pair: Pair, index: int) -> Facts:
        """Facts of operand `index` in terms of the result's axes, where elements stay what they are."""
        facts, axes = self.of(pair.padded.operands[index]), carried(pair, index)
        position = None if facts.position is None else axes.get(facts.position)
        filled = frozenset((axes[axis], number) for axis, number in facts.filled if axis in axes)
        return Facts(position, facts.limit, filled)


def positions(pair: Pair, known: Knowledge) -> Facts:
    return Facts(position=0)


def kept(pair: Pair, known: Knowledge) -> Facts:
    return known.moved(pair, 0)


def cast(pair: Pair, known: Knowledge) -> Facts:
    """Zeros stay zeros in every type, infinities infinite in every float type, positions and limits what they are in
    integers as wide, or wider."""
    facts = known.moved(pair, 0)
    before, after = pair.exact.operands[0].type.dtype, pair.exact.result.type.dtype
    if before.is_integer and after.kind == "int" and after.bits >= max(before.bits, 32):
        return facts
    return Facts(filled=frozenset((a, n) for a, n in facts.filled if not n or (isinf(n) and after.is_float)))


def selected(pair: Pair, known: Knowledge) -> Facts:
    """What both choices have behind the exact extent; where the second is one number, also that number wherever the
    condition is False there, or the first choice has it there."""
    condition, chosen, other = (known.moved(pair, i) for i in range(3))
    number = pair.exact.operands[2].literal
    if number is None:
        return Facts(filled=chosen.filled & other.filled)
    axes = condition.filled_with(False) | chosen.filled_with(number)
    return Facts(filled=frozenset((axis, number) for axis in axes))


def computed(pair: Pair, known: Knowledge) -> Facts:
    rule = FUNCTIONS.get(pair.exact.op.label)
    return NONE if rule is None else rule(pair, known)


def less(pair: Pair, known: Knowledge, position: int = 0) -> Facts:
    """Positions below a limit: False from the limit on."""
    axis = known.moved(pair, position).position
    limit = known.of(pair.padded.operands[1 - position]).limit
    if axis is None or limit is None or limit > pair.results()[0][axis]:
        return NONE
    return Facts(filled=frozenset({(axis, False)}))


def both(pair: Pair, known: Knowledge) -> Facts:
    axes = known.moved(pair, 0).filled_with(False) | known.moved(pair, 1).filled_with(False)
    return Facts(filled=frozenset((axis, False) for axis in axes))


def smaller(pair: Pair, known: Knowledge) -> Facts:
    limits = [n for n in (known.of(v).limit for v in pair.padded.operands) if n is not None]
    return Facts(limit=min(limits, default=None))


FUNCTIONS: dict[str, Callable[[Pair, Knowledge], Facts]] = {
    "less": less,
    "greater": lambda pair, known: less(pair, known, 1),
    "logical_and": both,
    "minimum": smaller,
    "identity": kept,
}
"""Pointwise functions that facts survive, or come from."""

RULES: dict[type[Op], Callable[[Pair, Knowledge], Facts]] = {
    Iota: positions,
    Transpose: kept,
    Reshape: kept,
    Squeeze: kept,
    Unsqueeze: kept,
    Expand: kept,
    Cast: cast,
    Select: selected,
    Pointwise: computed,
}
"""How facts pass through ops; through others they do not."""
