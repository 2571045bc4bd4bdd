"""Which regions are worth asking the engines about.  Nothing is claimed here: the same node stands in many of them.

A region grows from its anchor by one neighbour at a time and stays convex at every step, which reaches every convex
region (a nearest node of a larger one can always be added).  Views are no computation: a region holds at most those
between its nodes, and only where nobody else reads them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from graphdnn.ir.graph import Graph, Node
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.region import Region
from graphdnn.ir.views import is_free
from graphdnn.lazy import cached_property
from graphdnn.passes.cover_search import bits
from graphdnn.passes.patterns import FUSIONS
from graphdnn.passes.patterns.fusion import Fusion

WHOLE_ANCHORS = 6
WHOLE_LIMIT = 24
"""Most anchors, and most other nodes, of the one large region around each anchor that may hold further anchors.  It is
proposed so that the report can say which engine declines it, and why."""


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
        if is_anchor(node):
            add(whole_around(field, node), node, "whole")
    for node in field.computing:
        add(1 << graph.position[node], None, "single")
    return tuple(found.values())


def is_anchor(node: Node) -> bool:
    """Whether a node is what a fusion is about, and not one of many like it."""
    return any(isinstance(node.op, fusion.anchors) for fusion in FUSIONS if not fusion.forward)


class Field:
    """The computing nodes of a graph and who is next to whom, by position."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        free = [is_free(n) for n in graph.nodes]
        self.computing = tuple(n for n, view in zip(graph.nodes, free, strict=True) if not view)
        self.views = sum(1 << i for i, view in enumerate(free) if view)
        self.above = tuple(graph.ancestors[n] for n in graph.nodes)
        self.below = tuple(graph.descendants[n] for n in graph.nodes)

    @cached_property
    def beside(self) -> Neighbours:
        """Who reads computing nodes, directly."""
        return self._neighbours(0)

    @cached_property
    def across(self) -> Neighbours:
        """Who reads computing nodes, directly or through views."""
        return self._neighbours(self.views) if self.views else self.beside

    def _neighbours(self, through: int) -> Neighbours:
        places = [self.graph.position[n] for n in self.computing]
        return Neighbours({i: self.readers_of(i, through) for i in places})

    def readers_of(self, i: int, through: int) -> tuple[int, ...]:
        """Computing nodes that read a node's results, or those of `through` (bit set) in between, ascending."""
        position, users = self.graph.position, self.graph.users
        found: set[int] = set()
        todo = [i]
        while todo:
            for reader in {position[u] for v in self.graph.nodes[todo.pop()].results for u in users.get(v, ())}:
                if through >> reader & 1:
                    todo.append(reader)
                elif not self.views >> reader & 1:
                    found.add(reader)
        return tuple(sorted(found))

    def keeps_views(self, mask: int) -> bool:
        """Whether all views of a set are read within it alone."""
        escaping, users, position = self.graph.escaping, self.graph.users, self.graph.position
        return all(
            v not in escaping and all(mask >> position[u] & 1 for u in users.get(v, ()))
            for node in self.nodes_of(mask & self.views)
            for v in node.results
        )

    def nodes_of(self, mask: int) -> tuple[Node, ...]:
        nodes = self.graph.nodes
        return tuple([nodes[i] for i in bits(mask)])


class Neighbours:
    """For each computing node, by position, the bit sets of those that read it and of those that make what it reads."""

    def __init__(self, readers: dict[int, tuple[int, ...]]) -> None:
        self.readers = {i: sum(1 << reader for reader in found) for i, found in readers.items()}
        self.makers = dict.fromkeys(readers, 0)
        for i, found in readers.items():
            for reader in found:
                self.makers[reader] |= 1 << i


class Grown(NamedTuple):
    """A convex set of nodes in the making, as bit sets: all nodes, what leads to and from them, who reads its computing
    nodes and who makes what they read.

    `mask` has the views between its `size` computing nodes too.
    """

    mask: int
    size: int
    above: int
    below: int
    readers: int
    makers: int
    partners: int = 0


@dataclass(frozen=True)
class Growth:
    """How a region grows from the node at position `start`, one neighbour at a time.

    A node that reads from the region joins where `reader` holds of it, one that makes something for it where `maker`
    does, up to `limit` of both; a neighbour for which `partner` holds, a further anchor, joins as one of up to
    `partners`.  `views` (bit set) may stand between the nodes.  Nodes before position `first` never join.
    """

    field: Field
    beside: Neighbours
    views: int
    start: int
    reader: Callable[[Node], bool]
    maker: Callable[[Node], bool]
    partner: Callable[[Node], bool]
    limit: int
    partners: int
    first: int = 0

    @property
    def seed(self) -> Grown:
        i, field, beside = self.start, self.field, self.beside
        return Grown(1 << i, 1, field.above[i], field.below[i], beside.readers[i], beside.makers[i])

    def steps(self, grown: Grown) -> Iterator[tuple[Grown, bool]]:
        """The set with one node more, readers first in the order they run, then makers, nearest first; and whether it
        was a reader."""
        free = ~grown.mask >> self.first << self.first
        readers, makers = grown.readers & free, grown.makers & free
        while readers:
            low = readers & -readers
            readers ^= low
            larger = self.joined(grown, low.bit_length() - 1, self.reader)
            if larger is not None:
                yield larger, True
        while makers:
            i = makers.bit_length() - 1
            makers ^= 1 << i
            larger = self.joined(grown, i, self.maker)
            if larger is not None:
                yield larger, False

    def joined(self, grown: Grown, i: int, fits: Callable[[Node], bool]) -> Grown | None:
        node = self.field.graph.nodes[i]
        if fits(node):
            others = grown.size - 1 - grown.partners
            return self.with_node(grown, i, 0) if others < self.limit else None
        if grown.partners < self.partners and self.partner(node):
            return self.with_node(grown, i, 1)
        return None

    def with_node(self, grown: Grown, i: int, partners: int) -> Grown | None:
        """The set with node `i` too, and the views that stand between; None where a path would leave it and come
        back."""
        field, beside = self.field, self.beside
        mask = grown.mask | 1 << i
        above, below = grown.above | field.above[i], grown.below | field.below[i]
        between = above & below & ~mask
        if between & ~self.views:
            return None
        return Grown(
            mask | between,
            grown.size + 1,
            above,
            below,
            grown.readers | beside.readers[i],
            grown.makers | beside.makers[i],
            grown.partners + partners,
        )

    def series(self) -> Iterator[Grown]:
        """Ever larger sets: first all readers one by one, then makers, up to the largest."""
        grown, read_last = self.seed, True
        while (step := next(self.steps(grown), None)) is not None:
            larger, reads = step
            turned = read_last and not reads
            if grown.size <= SMALL or grown.size % SPACING == 0 or turned:
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
    """Bit sets of the regions that a fusion proposes around an anchor, smallest first, the series after that."""
    start = field.graph.position[anchor]
    growth = Growth(
        field,
        field.across if fusion.across_views else field.beside,
        field.views if fusion.across_views else 0,
        start,
        fusion.epilogue,
        fusion.prologue,
        lambda node: fusion.joins(anchor, node),
        fusion.limit,
        fusion.partners,
        start if fusion.forward else 0,
    )
    found = chain(growth.all_small(fusion.budget), growth.series())
    yield from (grown.mask for grown in found if field.keeps_views(grown.mask))


def whole_around(field: Field, anchor: Node) -> int:
    """Bit set of the largest region around an anchor that takes in other anchors as well."""

    def pointwise(node: Node) -> bool:
        return isinstance(node.op, Elementwise)

    start = field.graph.position[anchor]
    growth = Growth(field, field.beside, 0, start, pointwise, pointwise, is_anchor, WHOLE_LIMIT, WHOLE_ANCHORS - 1)
    grown = growth.seed
    while (step := next(growth.steps(grown), None)) is not None:
        grown = step[0]
    return grown.mask
