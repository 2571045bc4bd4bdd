"""What is known of padded values beyond their types, so that a sequence can be padded where the graph masks its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf

from graphdnn.ir.graph import Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.movement import Expand, Iota, Reshape, Squeeze, Transpose, Unsqueeze
from graphdnn.ir.ops.pointwise import Cast, Pointwise, Select
from graphdnn.specialize.axes import Pair, carried


@dataclass(frozen=True)
class Facts:
    """Facts of one value of the padded graph.

    Along `position` each element is its own index.  No element exceeds `limit`.  Along each axis of `cleared` what
    lies behind the exact extent is 0 or False, along each of `sunk` minus infinity.
    """

    position: int | None = None
    limit: int | None = None
    cleared: frozenset[int] = frozenset()
    sunk: frozenset[int] = frozenset()


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
        cleared, sunk = (frozenset(axes[a] for a in known if a in axes) for known in (facts.cleared, facts.sunk))
        return Facts(position, facts.limit, cleared, sunk)


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
    return Facts(cleared=facts.cleared, sunk=facts.sunk if after.kind == "float" else frozenset())


def selected(pair: Pair, known: Knowledge) -> Facts:
    """What is taken where the condition is False lies behind, where that is one number; or what both choices have."""
    condition, chosen, other = (known.moved(pair, i) for i in range(3))
    fill = pair.exact.operands[2].literal
    cleared, sunk = (condition.cleared if fill == number else frozenset() for number in (0, -inf))
    return Facts(cleared=cleared | (chosen.cleared & other.cleared), sunk=sunk | (chosen.sunk & other.sunk))


def computed(pair: Pair, known: Knowledge) -> Facts:
    rule = FUNCTIONS.get(pair.exact.op.label)
    return NONE if rule is None else rule(pair, known)


def less(pair: Pair, known: Knowledge, position: int = 0) -> Facts:
    """Positions below a limit: False from the limit on."""
    axis = known.moved(pair, position).position
    limit = known.of(pair.padded.operands[1 - position]).limit
    if axis is None or limit is None or limit > pair.results()[0][axis]:
        return NONE
    return Facts(cleared=frozenset({axis}))


def both(pair: Pair, known: Knowledge) -> Facts:
    return Facts(cleared=known.moved(pair, 0).cleared | known.moved(pair, 1).cleared)


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
