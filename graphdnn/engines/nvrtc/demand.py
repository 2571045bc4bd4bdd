"""The loads, conditions and statements that compute values of a region at one point of a kernel's index space.

Slices, transposes and the like become no statements: they only change where their operand is loaded.  A concat or a pad
becomes a choice by the coordinate, and what is not chosen is not loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from graphdnn.answer import Code, Decline
from graphdnn.engines.nvrtc.emit import convert, emit_node, literal, register
from graphdnn.engines.nvrtc.places import Misplaced, Place, Run, offset_at, operand_place, strides_at
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.movement import Concat, Pad
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.types import DType

MOST_PARTS = 8
"""Most operands of one concat: each is computed at every point, and its elements take registers."""


class Bound(NamedTuple):
    """A condition on the point: `low` <= sum of `strides` times the point's indices < `high`; None is no such end."""

    strides: tuple[int, ...]
    low: int | None
    high: int | None


class Located(NamedTuple):
    """A value in memory: strides along the space, offset of its first element, names of the bounds that must hold."""

    value: Value
    strides: tuple[int, ...]
    offset: int
    bounds: tuple[str, ...]


class Demand:
    """Emits the computation of values at one point of a space of `extents`, called once for each value.

    `given` has the C++ expressions of values that are computed already, such as a matmul's sum; values that no node of
    `nodes` produces are loaded.  After all calls `loads` and `bounds` have the variables that hold each load and each
    condition, `lines` are the statements in order, and `flops` counts their operations.
    """

    def __init__(self, nodes: Sequence[Node], extents: Sequence[int], given: Mapping[Value, str] | None = None) -> None:
        self.extents = tuple(extents)
        self.producer = {v: n for n in nodes for v in n.results}
        self.given = dict(given or {})
        self.lines: list[str] = []
        self.loads: dict[Located, str] = {}
        self.bounds: dict[Bound, str] = {}
        self.flops = 0.0
        self._names: dict[tuple[Value, Place], str] = {}

    def __call__(self, value: Value, place: Place) -> str:
        """The C++ expression of a value at the current place.  Raises Misplaced where something it needs has none."""
        if value.literal is not None:
            return literal(value.literal, value.type.dtype)
        if value in self.given:
            return self.given[value]
        known = self._names.get((value, place))
        if known is None:
            node = self.producer.get(value)
            if node is None:
                known = self.loads.setdefault(self.located(value, place), f"x{len(self.loads)}")
            else:
                known = self._made(node, value, place)
            self._names[value, place] = known
        return known

    def located(self, value: Value, place: Place) -> Located:
        """Where the elements of a tensor lie that has its axes at `place`."""
        found = [self.within(run, 0, n) for run, n in zip(place, value.type.shape, strict=True) if n > 1]
        bounds = tuple(b for b in found if isinstance(b, str))
        layout = value.type.layout
        return Located(value, strides_at(layout, place, self.extents), offset_at(layout, place), bounds)

    def _made(self, node: Node, value: Value, place: Place) -> str:
        if isinstance(node.op, Concat):
            return self._chosen(node, node.op, place)
        number = node.results.index(value)
        if isinstance(node.op, Pad):
            return self._padded(node, node.op, place)
        operands = [
            self(v, place if v.literal is not None else operand_place(node, i, number, place, self.extents))
            for i, v in enumerate(node.operands)
        ]
        if not isinstance(node.op, Elementwise):
            return operands[0]
        name = f"v{len(self.lines)}"
        self.lines.append("\n".join(emit_node(node, operands, name)))
        self.flops += node.flops / node.result.type.size
        return name

    def _chosen(self, node: Node, op: Concat, place: Place) -> str:
        """The operand of a concat within whose part of the axis the place lies."""
        if len(node.operands) > MOST_PARTS:
            raise Misplaced(
                Decline(
                    Code.SIZE,
                    f"{node} joins {len(node.operands)} tensors; a kernel that computes with its result joins "
                    f"{MOST_PARTS}, since it computes each of them everywhere",
                )
            )
        run, start, dtype = place[op.axis], 0, node.result.type.dtype
        parts: list[tuple[str, str]] = []
        for index, value in enumerate(node.operands):
            end = start + value.type.shape[op.axis]
            before = self.within(run, min(0, run.first), end)
            if self.within(run, start, end) is not False:
                text = self(value, operand_place(node, index, 0, place, self.extents))
                parts.append((before if isinstance(before, str) else "", convert(text, value.type.dtype, dtype)))
            start = end
        *several, (_, text) = parts
        for condition, part in reversed(several):
            text = f"{condition} ? {part} : {text}"
        return self._named(text, dtype) if several else text

    def _padded(self, node: Node, op: Pad, place: Place) -> str:
        """The operand where it lies, the number around it."""
        x, dtype = node.operands[0], node.result.type.dtype
        inside = [
            self.within(run, lo, lo + n)
            for run, (lo, hi), n in zip(place, op.padding, x.type.shape, strict=True)
            if lo or hi
        ]
        around = literal(op.value if dtype.is_float else int(op.value), dtype)
        if False in inside:
            return around
        text = self(x, operand_place(node, 0, 0, place, self.extents))
        bounds = " && ".join(dict.fromkeys(b for b in inside if isinstance(b, str)))
        return self._named(f"({bounds}) ? {text} : {around}", dtype) if bounds else text

    def _named(self, text: str, dtype: DType) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"const {register(dtype)} {name} = {text};")
        return name

    def within(self, run: Run, low: int, high: int) -> str | bool:
        """The condition that a coordinate lies from `low` to `high`: a variable's name, or whether it always does."""
        count = prod(self.extents[a] for a in run.axes)
        first, last = (-((run.first - end) // run.step) for end in (low, high))
        if first <= 0 and last >= count:
            return True
        if first >= min(last, count) or last <= 0:
            return False
        strides = strides_at((1,), (Run(run.axes),), self.extents)
        bound = Bound(strides, first if first > 0 else None, last if last < count else None)
        return self.bounds.setdefault(bound, f"inside{len(self.bounds)}")
