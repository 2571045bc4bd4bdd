"""Which regions are worth asking the engines about.  Nothing is claimed here: the same node stands in many of them.

A region grows from its anchor by one neighbour at a time and stays convex at every step, which reaches every convex
region (a nearest node of a larger one can always be added).  Views are no computation: no region holds one, and none
grows across one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from graphdnn.ir.graph import Graph, Node
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.region import Region
from graphdnn.ir.views import is_free
from graphdnn.passes.patterns import FUSIONS
from graphdnn.passes.patterns.fusion import Fusion

WHOLE_ANCHORS = 6
WHOLE_LIMIT = 24
"""Bounds of the largest region with several anchors of any kind, proposed so that the report says who declines it."""


@dataclass(frozen=True)
class Proposal:
    """A region to ask about, the node it grew around (None for a node that anchors nothing), and by which fusion."""

    region: Region
    anchor: Node | None
    fusion: str


def propose(graph: Graph) -> tuple[Proposal, ...]:
    """Regions of several sizes around every anchor and among pointwise nodes, and every computing node alone.

    No set of nodes is proposed twice.  The largest connected region around an anchor is always among them, with
    neighbouring anchors too, within the fusions' limits.
    """
    field = Field(graph)
    found: dict[int, Proposal] = {}

    def add(mask: int, anchor: Node | None, fusion: str) -> None:
        if mask not in found:
            found[mask] = Proposal(Region(graph, field.nodes_of(mask)), anchor, fusion)

    for fusion in FUSIONS:
        for node in field.computing:
            if isinstance(node.op, fusion.anchors):
                for mask in regions_around(field, node, fusion):
                    add(mask, node, fusion.name)
    for node in field.computing:
        if is_anchor(node) and not isinstance(node.op, Elementwise):
            add(whole_around(field, node), node, "whole")
    for node in field.computing:
        add(1 << graph.position[node], None, "single")
    return tuple(found.values())


def is_anchor(node: Node) -> bool:
    return any(isinstance(node.op, fusion.anchors) for fusion in FUSIONS)


class Field:
    """The computing nodes of a graph and who is next to whom, by position."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.computing = tuple(n for n in graph.nodes if not is_free(n))
        self.above = tuple(graph.ancestors[n] for n in graph.nodes)
        self.below = tuple(graph.descendants[n] for n in graph.nodes)

    @cached_property
    def readers(self) -> dict[int, tuple[int, ...]]:
        """Computing nodes that read a computing node's results, ascending."""
        position, users = self.graph.position, self.graph.users
        mine = {position[n] for n in self.computing}
        return {
            position[n]: tuple(sorted({position[u] for v in n.results for u in users.get(v, ())} & mine))
            for n in self.computing
        }

    @cached_property
    def makers(self) -> dict[int, tuple[int, ...]]:
        """Computing nodes that make a computing node's operands, descending."""
        made: dict[int, list[int]] = {i: [] for i in self.readers}
        for i, readers in self.readers.items():
            for reader in readers:
                made[reader].append(i)
        return {i: tuple(sorted(makers, reverse=True)) for i, makers in made.items()}

    def nodes_of(self, mask: int) -> tuple[Node, ...]:
        return tuple(n for n in bits_of(mask, self.graph.nodes))


def bits_of(mask: int, nodes: tuple[Node, ...]) -> Iterator[Node]:
    while mask:
        low = mask & -mask
        yield nodes[low.bit_length() - 1]
        mask ^= low


@dataclass(frozen=True)
class Grown:
    """A convex set of nodes in the making: members in the order they joined, and what leads to and from them."""

    mask: int
    members: tuple[int, ...]
    above: int
    below: int
    partners: int = 0

    def with_node(self, field: Field, i: int, partners: int) -> Grown | None:
        """The set with node `i` too; None where a path would leave it and come back."""
        mask = self.mask | 1 << i
        above, below = self.above | field.above[i], self.below | field.below[i]
        if above & below & ~mask:
            return None
        return Grown(mask, (*self.members, i), above, below, self.partners + partners)


@dataclass(frozen=True)
class Growth:
    """What may join a region: nodes that read from it, nodes that make something for it, and partners among both.

    `allows` says for a node whether it may join as a reader or a maker, and whether it counts as a partner.
    """

    field: Field
    start: int
    reader: Callable[[Node], bool]
    maker: Callable[[Node], bool]
    partner: Callable[[Node], bool]
    limit: int
    partners: int
    first: int = 0

    @property
    def seed(self) -> Grown:
        i = self.start
        return Grown(1 << i, (i,), self.field.above[i], self.field.below[i])

    def steps(self, grown: Grown) -> Iterator[tuple[Grown, bool]]:
        """The set with one node more, readers first in the order they run, then makers, nearest first; and whether it
        was a reader."""
        readers = dict.fromkeys(sorted({j for i in grown.members for j in self.field.readers[i]}))
        makers = dict.fromkeys(sorted({j for i in grown.members for j in self.field.makers[i]}, reverse=True))
        for reads, places, fits in ((True, readers, self.reader), (False, makers, self.maker)):
            for i in places:
                if grown.mask >> i & 1 or i < self.first:
                    continue
                larger = self.joined(grown, i, fits)
                if larger is not None:
                    yield larger, reads

    def joined(self, grown: Grown, i: int, fits: Callable[[Node], bool]) -> Grown | None:
        node = self.field.graph.nodes[i]
        others = len(grown.members) - 1 - grown.partners
        if fits(node):
            return grown.with_node(self.field, i, 0) if others < self.limit else None
        if grown.partners < self.partners and self.partner(node):
            return grown.with_node(self.field, i, 1)
        return None

    def series(self) -> Iterator[Grown]:
        """Ever larger sets: first all readers one by one, then makers, up to the largest."""
        grown, read_last = self.seed, True
        while (step := next(self.steps(grown), None)) is not None:
            larger, reads = step
            turned = read_last and not reads
            size = len(grown.members)
            if size <= SMALL or size % SPACING == 0 or turned:
                yield grown
            grown, read_last = larger, reads
        yield grown

    def all_small(self, budget: int) -> Iterator[Grown]:
        """Every set, smaller ones first, until there are `budget` of them."""
        queue = deque([self.seed])
        seen = {self.seed.mask}
        while queue:
            grown = queue.popleft()
            yield grown
            for larger, _ in self.steps(grown):
                if larger.mask not in seen and len(seen) < budget:
                    seen.add(larger.mask)
                    queue.append(larger)


SMALL = 8
SPACING = 4
"""Of a series all sets of up to SMALL nodes are proposed, of the larger ones every SPACING-th."""


def regions_around(field: Field, anchor: Node, fusion: Fusion) -> Iterator[int]:
    """Bit sets of the regions that a fusion proposes around an anchor, smallest first, the series after that.

    Pointwise nodes anchor only what comes behind them in the graph's order, so that an island is not found once a node.
    """
    start = field.graph.position[anchor]
    growth = Growth(
        field,
        start,
        fusion.epilogue,
        fusion.prologue,
        lambda node: fusion.joins(anchor, node),
        fusion.limit,
        fusion.partners,
        start if isinstance(anchor.op, Elementwise) else 0,
    )
    yield from (grown.mask for grown in growth.all_small(fusion.budget))
    yield from (grown.mask for grown in growth.series())


def whole_around(field: Field, anchor: Node) -> int:
    """Bit set of the largest region around an anchor that takes in other anchors as well."""

    def pointwise(node: Node) -> bool:
        return isinstance(node.op, Elementwise)

    start = field.graph.position[anchor]
    growth = Growth(field, start, pointwise, pointwise, is_anchor, WHOLE_LIMIT, WHOLE_ANCHORS - 1)
    grown = growth.seed
    while (step := next(growth.steps(grown), None)) is not None:
        grown = step[0]
    return grown.mask
