"""Patterns as data: shapes of producers that a rule looks for, matched backwards from the value that the root makes.

A pattern says what must be there (op, wiring, numbers); what must hold of shapes and attributes is left to the rule,
so that a near miss has a reason to report.  A value that is needed outside a match is never swallowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from math import frexp, isclose

import numpy as np

from graphdnn.answer import Code, Decline
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.pointwise import Bias, Pointwise, Select
from graphdnn.ir.types import DType, float64

COMMUTATIVE = frozenset({"add", "mul", "minimum", "maximum", "logical_and", "logical_or", "equal", "not_equal"})
"""Functions whose operands a pattern may meet in either order."""


@dataclass(frozen=True)
class Var:
    """Any value, bound to `name`; in one pattern the same name stands for the same value."""

    name: str


@dataclass(frozen=True)
class Number:
    """A Python number, or a constant with one element, equal to `value` (any, where that is None), bound to `name`."""

    value: float | None = None
    name: str | None = None


@dataclass(frozen=True)
class Is:
    """The first result of a node whose op is of class `op`, for which `where(node)` holds, and whose operands match.

    Without `operands` any will do; where `commutative`, they match in either order.  With `labels` the op's label must
    be one of them.  `name` binds the result.  Nodes inside a match may be read by the match alone, except `shared`
    ones: the rewrite reads past them, and they stay in the graph for their other readers.
    """

    op: type[Op] | tuple[type[Op], ...]
    operands: tuple[Pattern, ...] | None = None
    where: Callable[[Node], bool] | None = None
    name: str | None = None
    commutative: bool = False
    shared: bool = False
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class OneOf:
    """The first of the choices that fits, the rest tried where later parts of the pattern do not follow."""

    choices: tuple[Pattern, ...]


Pattern = Var | Number | Is | OneOf


def one_of(*choices: Pattern) -> OneOf:
    """A pattern that any of `choices` fits."""
    return OneOf(choices)


def fn(name: str, *operands: Pattern, bind: str | None = None, shared: bool = False) -> Is:
    """A pointwise node of that function, its operands aligned as in numpy, in either order where that is the same."""
    op, labels = (Pointwise, Bias, Select), (name, "bias") if name == "add" else (name,)
    return Is(op, operands, aligns_as_numpy, bind, name in COMMUTATIVE, shared, labels)


def aligns_as_numpy(node: Node) -> bool:
    """Whether a pointwise node's operands are aligned at their last axes, which a bias along another axis is not."""
    return not isinstance(node.op, Bias) or node.op.axis in (None, node.operands[0].type.rank - 1)


@dataclass(frozen=True)
class Match:
    """What stood where: `nodes` in topological order, the last of them `root`; values and numbers by their names.

    `bypassed` are those of the nodes that the pattern lets others read too.
    """

    graph: Graph
    root: Node
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    numbers: Mapping[str, float]
    bypassed: frozenset[Node] = frozenset()

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values or name in self.numbers

    def node(self, name: str) -> Node:
        """The node that makes the value bound to `name`."""
        return self.graph.producer[self.values[name]]

    @property
    def origins(self) -> tuple[str, ...]:
        """The user's nodes whose work the matched nodes do, in order."""
        return tuple(dict.fromkeys(o for n in self.nodes for o in n.origins))

    @property
    def escape(self) -> Decline | None:
        """A Decline where a value inside the match, other than the root's, is needed outside."""
        for node in self.nodes:
            for value in node.results if node is not self.root and node not in self.bypassed else ():
                if value in self.graph.escaping:
                    return Decline(
                        Code.ESCAPE, f"{value} is needed outside the match: it {leaves_as(self.graph, value)}"
                    )
                for user in self.graph.users.get(value, ()):
                    if user not in self.nodes:
                        return Decline(Code.ESCAPE, f"{value} is needed outside the match, by {user}")
        return None


@dataclass(frozen=True)
class Partial:
    """A match in the making; each step gives another one, so that alternatives do not disturb each other."""

    graph: Graph
    values: Mapping[str, Value]
    numbers: Mapping[str, float]
    nodes: Mapping[Node, bool]
    """Matched nodes, with whether the pattern lets others read them too."""

    def bind(self, name: str | None, value: Value) -> Partial | None:
        """With `name` standing for `value`; None where it already stands for another."""
        if name is None:
            return self
        known = self.values.get(name)
        if known is not None:
            return self if same(known, value) else None
        return replace(self, values={**self.values, name: value})


def same(a: Value, b: Value) -> bool:
    """Whether two values are one tensor: identical, or equal immediates."""
    return a is b or (a.literal is not None and a.literal == b.literal and a.type == b.type)


def matches(pattern: Pattern, root: Node, graph: Graph) -> Iterator[Match]:
    """Every way in which `pattern` fits the first result of `root`, values that escape not looked at."""
    for found in solve(pattern, root.result, Partial(graph, {}, {}, {})):
        order = tuple(sorted(found.nodes, key=graph.position.__getitem__))
        bypassed = frozenset(n for n, shared in found.nodes.items() if shared)
        yield Match(graph, root, order, found.values, found.numbers, bypassed)


def first_decline(*checks: Decline | None) -> Decline | None:
    """The first objection; `or` would pass over it, since a Decline is falsy."""
    return next((check for check in checks if check is not None), None)


def leaves_as(graph: Graph, value: Value) -> str:
    for name, output in graph.outputs.items():
        if output is value:
            return f"is output {name}"
    return f"is the next value of state {next(name for name, v in graph.updates.items() if v is value)}"


def solve(pattern: Pattern, value: Value, so_far: Partial) -> Iterator[Partial]:
    """Every extension of `so_far` in which `pattern` fits `value`."""
    match pattern:
        case Var(name):
            bound = so_far.bind(name, value)
            if bound is not None:
                yield bound
        case Number():
            yield from solve_number(pattern, value, so_far)
        case OneOf(choices):
            for choice in choices:
                yield from solve(choice, value, so_far)
        case Is():
            yield from solve_node(pattern, value, so_far)


def solve_number(pattern: Number, value: Value, so_far: Partial) -> Iterator[Partial]:
    found = number_of(value, so_far.graph)
    if found is None or (pattern.value is not None and not is_number(found, pattern.value, value.type.dtype)):
        return
    if pattern.name is None:
        yield so_far
    elif so_far.numbers.get(pattern.name, found) == found:
        yield replace(so_far, numbers={**so_far.numbers, pattern.name: found})


def solve_node(pattern: Is, value: Value, so_far: Partial) -> Iterator[Partial]:
    node = so_far.graph.producer.get(value)
    if node is None or node.result is not value or not isinstance(node.op, pattern.op):
        return
    if pattern.labels is not None and node.op.label not in pattern.labels:
        return
    if pattern.where is not None and not pattern.where(node):
        return
    bound = so_far.bind(pattern.name, value)
    if bound is None:
        return
    shared = pattern.shared and so_far.nodes.get(node, True)
    start = replace(bound, nodes={**bound.nodes, node: shared})
    if pattern.operands is None:
        yield start
    elif len(pattern.operands) == len(node.operands):
        for operands in permutations(node.operands) if pattern.commutative else (node.operands,):
            yield from solve_operands(pattern.operands, operands, start)


def solve_operands(patterns: tuple[Pattern, ...], values: tuple[Value, ...], so_far: Partial) -> Iterator[Partial]:
    if not patterns:
        yield so_far
        return
    for found in solve(patterns[0], values[0], so_far):
        yield from solve_operands(patterns[1:], values[1:], found)


def number_of(value: Value, graph: Graph) -> float | None:
    """The number that a value always holds: an immediate, or a constant of one element whose data is here."""
    if value.literal is not None:
        return float(value.literal)
    if value.type.size != 1 or not graph.is_constant(value):
        return None
    payload = graph.payloads[value.name]
    return float(payload.array().reshape(())) if payload.has_data else None


def is_number(found: float, wanted: float, dtype: DType) -> bool:
    """Whether `found` is `wanted` written in `dtype`: rounded to it, or with the digits that people write (1e-6).

    A number of eight bits, which every float type holds (2, one half), is written in full: x ** 2.000001 is no square.
    """
    if (frexp(wanted)[0] * 256).is_integer():
        return found == wanted
    if isclose(found, wanted, rel_tol=1e-14 if dtype == float64 else 1e-6):
        return True
    return dtype.is_float and found == float(np.asarray(wanted).astype(dtype.numpy))
