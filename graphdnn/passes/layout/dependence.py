"""On which node's side it depends how each value lies, and what is then converted or copied outside the chosen nodes.

The layout of most values is certain or follows one chosen node: its result, slices and other views of that, and what
ops outside make of those.  Both forms of such a value are found by laying the graph out twice by the pass's own rules,
once with every chosen node channels-last and once with every one row-major.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.types import TensorType, row_major
from graphdnn.passes.layout.rules import (
    Layouts,
    Strides,
    image_strides,
    layouts_around,
    leaving,
    matters,
    promised_strides,
)

LAST, MAJOR = -1, -2
"""The source and the sink of the flow network, for channels-last and row-major; chosen nodes are numbered from 0."""


class Laid(NamedTuple):
    """How a value lies: as `last` when node `home` is channels-last, as `major` when that is row-major.

    What is certain has the home LAST and lies as `last`; without a home more than one node decides.  `roots` are the
    values in whose memory it lies in either form.
    """

    home: int | None
    last: TensorType
    major: TensorType
    roots: tuple[Value, Value]


class Needs(NamedTuple):
    """What a value in one of its forms costs outside: layouts to which it is converted, for readers and outputs, and
    bytes that readers such as a reshape copy."""

    converted: set[Strides]
    copied: list[int]


NOTHING = Needs(set(), [])


class Dependence:
    """How the values of a graph lie by the sides of the chosen nodes, which `place` numbers."""

    def __init__(self, graph: Graph, chosen: Sequence[Node]) -> None:
        self.graph = graph
        self.place = {n: i for i, n in enumerate(chosen)}
        self.promised = promised_strides(graph)
        self.laid: dict[Value, Laid] = {}
        self.needs: dict[Value, tuple[Needs, Needs]] = defaultdict(lambda: (Needs(set(), []), Needs(set(), [])))
        for values in (graph.inputs, graph.states):
            self.laid |= {v: certain(v, v.type.with_strides(v.type.layout)) for v in values.values()}
        self.pairs: dict[tuple[tuple[int, ...], str], tuple[TensorType, TensorType]] = {}
        if chosen:
            self.lay_out()

    def lay_out(self) -> None:
        for node in self.graph.nodes:
            if node in self.place:
                self.choose(node, self.place[node])
            else:
                self.follow(node)
        self.leave()

    def images(self, type: TensorType) -> tuple[TensorType, TensorType]:
        """An image channels-last and row-major, each pair made once: networks repeat a few shapes."""
        key = (type.shape, type.dtype.name)
        if key not in self.pairs:
            last, major = (type.with_strides(image_strides(type.shape, side)) for side in (True, False))
            self.pairs[key] = last, major
        return self.pairs[key]

    def choose(self, node: Node, home: int) -> None:
        for value in node.results:
            if matters(value.type) and value.type.rank == node.result.type.rank:
                self.laid[value] = Laid(home, *self.images(value.type), (value, value))
            else:
                self.laid[value] = certain(value, value.type.with_strides(row_major(value.type.shape)))

    def follow(self, node: Node) -> None:
        """What a node outside makes, and what it needs of its operands."""
        operands = [self.laid.get(v) or certain(v, v.type) for v in node.operands]  # or a constant as it was given
        homes = list(dict.fromkeys(o.home for o in operands if o.home != LAST))
        last = self.found(node, [o.last for o in operands])
        major = self.found(node, [o.major for o in operands]) if homes else last
        for value, operand, *wanted in zip(node.operands, operands, last.operands, major.operands, strict=True):
            if value.literal is None and value.name not in self.graph.constants:
                self.need(value, operand, wanted)
        is_free = views(node, operands[0]) if node.op.is_renaming else (False, False)
        if node.op.is_renaming:
            for needs, free in zip(self.needs[node.operands[0]], is_free, strict=True):
                needs.copied.extend(v.type.nbytes for v in node.results if not free)
        home = homes[0] if len(homes) == 1 else None
        if len(homes) > 1 and last.results != major.results:
            home = self.decider(node, homes, operands, last, major)
        for value, *strides in zip(node.results, last.results, major.results, strict=True):
            one, other = (value.type.with_strides(s) for s in strides)
            roots = [operands[0].roots[i] if free else value for i, free in enumerate(is_free)]
            self.laid[value] = Laid(home if one.layout != other.layout else LAST, one, other, (roots[0], roots[1]))

    def found(self, node: Node, operands: Sequence[TensorType]) -> Layouts:
        return layouts_around(node, operands, {}, self.promised)

    def decider(
        self, node: Node, homes: Sequence[int | None], operands: Sequence[Laid], last: Layouts, major: Layouts
    ) -> int | None:
        """The one of several nodes whose side alone says how the results lie; None where there is none."""
        for home in homes:
            here = self.found(node, [o.last if o.home == home else o.major for o in operands])
            away = self.found(node, [o.major if o.home == home else o.last for o in operands])
            if (here.results, away.results) == (last.results, major.results):
                return home
        return None

    def need(self, value: Value, laid: Laid, wanted: Sequence[Strides | None]) -> None:
        """A reader wants the value with such strides in its two forms, None for those that it has."""
        for needs, form, strides in zip(self.needs[value], (laid.last, laid.major), wanted, strict=True):
            layout = form.layout if strides is None else form.with_strides(strides).layout
            if layout != form.layout:
                needs.converted.add(layout)

    def leave(self) -> None:
        """Outputs and states' next values are alone in memory of their own, with the strides that they have outside."""
        graph = self.graph
        sources = {*graph.inputs.values(), *graph.states.values(), *graph.constants.values()}
        taken: tuple[set[Value], set[Value]] = (set(), set())
        for value, layout in dict.fromkeys((v, t.layout) for v, t in leaving(graph)):
            laid = self.laid.get(value) or certain(value, value.type)
            forms = zip((laid.last, laid.major), laid.roots, self.needs[value], taken, strict=True)
            for form, root, needs, others in forms:
                is_alone = root not in sources and root not in others and root.type.size == value.type.size
                if form.layout == layout and is_alone:
                    others.add(root)
                else:
                    needs.converted.add(layout)


def certain(value: Value, type: TensorType) -> Laid:
    return Laid(LAST, type, type, (value, value))


def views(node: Node, operand: Laid) -> tuple[bool, bool]:
    """Whether the results of a node that renames elements are views of its operand, in either form of that."""
    if node.operands[0].literal is not None:
        return False, False
    return node.op.view(operand.last) is not None, node.op.view(operand.major) is not None
