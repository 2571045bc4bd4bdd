"""The search for the cheapest cover of one part of a graph.

The search goes through the nodes in a topological order that finishes one branch before it begins the next.  The first
node that is not covered yet picks among the offers that begin with it.  What has been decided matters for the rest
only through the nodes that are covered already and through the dependences that contracted regions have added, so
partial covers that agree on both are compared and one is kept.  While at most `WIDTH` of them are alive this is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from graphdnn.errors import CompileError
from graphdnn.ir.graph import Graph, Node
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.region import Region

WIDTH = 4096
"""Partial covers alive at once up to which the search is exact."""

SKETCH = 64
"""Partial covers alive at once in the quick first search; half of them are kept where there are more."""

TICKS = 100
"""Costs are added as whole numbers of 0.01 us, so that sums that differ by rounding only compare equal; no estimate is
as exact as that."""


@dataclass(frozen=True)
class Offer:
    """Somebody's "yes": `region` in `cost_us` microseconds.  `payload` is the caller's."""

    region: Region
    cost_us: float
    payload: object = None


class Component(NamedTuple):
    """Nodes that depend on nothing outside, in the order of the search, and the offers on them."""

    nodes: tuple[Node, ...]
    usable: tuple[int, ...]


class Bid(NamedTuple):
    """An offer as the search sees it: bit sets over the component's nodes, cost and least share of it in ticks.

    `strays` counts nodes that do not depend on the region's heaviest one: work that could as well be done before.  A
    node that is not pointwise is heavier than one that is; where all are pointwise, each is a stray.
    """

    offer: int
    mask: int
    above: int
    below: int
    ticks: int
    share: int
    strays: int


Span = tuple[int, int]
"""A region's uncovered ancestors and descendants: through it each of the former leads to each of the latter."""

State = tuple[int, tuple[Span, ...]]
"""What of a partial cover matters for the rest: the nodes covered, and the spans that the graph itself lacks."""


class Choice(NamedTuple):
    """An offer by index, and the choice before it."""

    before: Choice | None
    offer: int


class Partial(NamedTuple):
    """A partial cover: `ticks`, `regions` and `strays` so far, the choices, and the least that the rest can cost."""

    ticks: int
    regions: int
    strays: int
    last: Choice | None
    rest: int

    @property
    def rank(self) -> tuple[int, int, int]:
        return (self.ticks + self.rest, self.regions, self.strays)


class Solution(NamedTuple):
    """What a search found: indices of offers."""

    picks: tuple[int, ...]
    ticks: int
    exact: bool


@dataclass
class CoverSearch:
    """One component's search: bids by their first node, the bit set to cover, each node's descendants.

    `least` is a lower bound on the whole cost; with `ordered` covers whose regions wait for each other are refused.
    """

    nodes: tuple[Node, ...]
    bids: tuple[tuple[Bid, ...], ...]
    wanted: int
    reach: tuple[int, ...]
    least: int
    ordered: bool = True
    met_cycle: bool = False

    @staticmethod
    def of(graph: Graph, part: Component, offers: Sequence[Offer], wanted: int) -> CoverSearch:
        place = {n: i for i, n in enumerate(part.nodes)}
        above, below = closures(graph, place)
        weights = [(not isinstance(n.op, Elementwise), n.flops) for n in part.nodes]
        covered = {n for n in part.nodes if wanted >> graph.position[n] & 1}
        to_cover = sum(1 << place[n] for n in covered)
        # A view between a region's nodes is theirs alone, and nothing to cover.
        held = {i: sorted([place[n] for n in offers[i].region.nodes if n in covered]) for i in part.usable}
        shares = least_shares(part, offers, held)
        begins: list[list[Bid]] = [[] for _ in part.nodes]
        for index, places in held.items():
            mask = up = down = 0
            for i in places:
                mask, up, down = mask | 1 << i, up | above[i], down | below[i]
            share = sum(shares[i] for i in places)
            outside = to_cover & ~mask
            heaviest = max(places, key=weights.__getitem__)
            anchored = weights[heaviest][0]
            strays = (mask & ~below[heaviest]).bit_count() - 1 if anchored else len(places)
            begins[places[0]].append(
                Bid(index, mask, up & outside, down & outside, ticks(offers[index]), share, strays)
            )
        return CoverSearch(part.nodes, tuple(map(tuple, begins)), to_cover, tuple(below), sum(shares))

    def without_order(self) -> CoverSearch:
        """The same search with cycles allowed, which tells what they ruled out."""
        return replace(self, ordered=False, met_cycle=False)

    def solve(self) -> Solution:
        """The cheapest cover.  Raises CompileError where the offers leave no way to cover every node."""
        sketch = self.search(SKETCH, SKETCH // 2, None)
        if sketch is not None and sketch.exact:
            return sketch
        found = self.search(WIDTH, 0, sketch.ticks if sketch else None) or sketch
        if found is None:
            raise CompileError(
                f"no set of offers covers {self.nodes[0]} and all that depends on it, each node once "
                "and without a cycle; offers for single nodes are needed"
            )
        return found

    def search(self, width: int, keep: int, bound: int | None) -> Solution | None:
        """The cheapest cover of at most `bound` ticks.  Where more than `width` partial covers are alive, the most
        promising `keep` of those at hand go on, or, if that is 0, the search gives up."""
        todo: list[dict[State, Partial]] = [{} for _ in range(len(self.nodes) + 1)]
        todo[self.first_uncovered(0)][0, ()] = Partial(0, 0, 0, None, self.least)
        exact = True
        alive = 1
        for position, bids in enumerate(self.bids):
            states = list(todo[position].items())
            todo[position] = {}
            if alive > width and len(states) > keep:
                if not keep:
                    return None
                exact = False
                states.sort(key=lambda item: item[1].rank)
                alive -= len(states) - keep
                del states[keep:]
            alive -= len(states)
            for state, partial in states:
                alive += sum(self.extend(todo, state, partial, bid, bound) for bid in bids if not bid.mask & state[0])
        if not todo[-1]:
            return None
        best = min(todo[-1].values(), key=lambda p: p.rank)
        return Solution(unchained(best.last), best.ticks, exact)

    def extend(
        self, todo: list[dict[State, Partial]], state: State, partial: Partial, bid: Bid, bound: int | None
    ) -> int:
        """Puts the partial cover with one bid more where it belongs; 1 where that is a new state, else 0."""
        rest = partial.rest - bid.share
        cost = partial.ticks + bid.ticks
        if bound is not None and cost + rest > bound:
            return 0
        covered, spans = state[0] | bid.mask, state[1]
        if self.ordered and (spans or bid.above & ~covered):
            longer = self.contracted(covered, spans, bid)
            if longer is None:
                self.met_cycle = True
                return 0
            spans = longer
        bucket = todo[self.first_uncovered(covered)]
        new = Partial(cost, partial.regions + 1, partial.strays + bid.strays, Choice(partial.last, bid.offer), rest)
        old = bucket.get((covered, spans))
        if old is None or new.rank < old.rank:
            bucket[covered, spans] = new
        return int(old is None)

    def contracted(self, covered: int, spans: tuple[Span, ...], bid: Bid) -> tuple[Span, ...] | None:
        """The spans once `bid` is one region too; None where regions would wait for each other."""
        up, down = closed(spans, bid)
        if up & down != bid.mask:
            return None
        free = self.wanted & ~covered
        rest: set[Span] = set()
        for a, b in spans:
            if down & a and up & b:
                return None
            if (above := a & free) and (below := b & free):
                rest.add((above, below))
        up, down = up & free, down & free
        if up and down and self.adds(up, down, bid.mask):
            rest.add((up, down))
        return tuple(sorted(rest))

    def adds(self, up: int, down: int, mask: int) -> bool:
        """Whether some path from `up` to `down` leads through the region `mask` and through no single node of it.

        All others the graph has already, and a region that holds both ends is not convex.
        """
        for i in bits(up):
            through = 0
            for j in bits(mask & self.reach[i]):
                through |= self.reach[j]
            if down & ~through:
                return True
        return False

    def first_uncovered(self, covered: int) -> int:
        left = self.wanted & ~covered
        return (left & -left).bit_length() - 1 if left else len(self.nodes)


def closed(spans: tuple[Span, ...], bid: Bid) -> Span:
    """All nodes that lead to the bid's region, and all that it leads to, through contracted regions as well; those of
    the region are among both."""
    up, down = bid.above | bid.mask, bid.below | bid.mask
    settled = False
    while not settled:
        before = up, down
        for above, below in spans:
            if down & above:
                down |= below
            if up & below:
                up |= above
        settled = before == (up, down)
    return up, down


def ticks(offer: Offer) -> int:
    return round(offer.cost_us * TICKS)


def least_shares(part: Component, offers: Sequence[Offer], held: Mapping[int, Sequence[int]]) -> list[int]:
    """For each node the least that an offer costs a node it holds: added up, a lower bound on every cover."""
    shares = sorted([(ticks(offers[index]) // len(places), index) for index, places in held.items()])
    least: dict[int, int] = {}
    for share, index in shares:
        if len(least) == len(part.nodes):
            break
        for place in held[index]:
            least.setdefault(place, share)
    return [least.get(i, 0) for i in range(len(part.nodes))]


def closures(graph: Graph, place: Mapping[Node, int]) -> tuple[list[int], list[int]]:
    """For each node of a component the bit sets of its ancestors and descendants, itself excluded, by `place`."""
    above = [0] * len(place)
    below = [0] * len(place)
    order = sorted(place, key=place.__getitem__)
    for node in order:
        for value in node.operands:
            source = graph.producer.get(value)
            if source is not None:
                above[place[node]] |= above[place[source]] | 1 << place[source]
    for node in reversed(order):
        for value in node.results:
            for user in graph.users.get(value, ()):
                below[place[node]] |= below[place[user]] | 1 << place[user]
    return above, below


def bits(mask: int) -> list[int]:
    """Places of the ones, ascending."""
    if not mask:
        return []
    # The set of a region in a long graph is a few ones far from the origin: shifted there, numbers stay short.
    first = (mask & -mask).bit_length() - 1
    mask >>= first
    out = []
    while mask:
        low = mask & -mask
        out.append(first + low.bit_length() - 1)
        mask ^= low
    return out


def unchained(last: Choice | None) -> tuple[int, ...]:
    """The offers chosen, first choice first."""
    out: list[int] = []
    while last is not None:
        out.append(last.offer)
        last = last.before
    return tuple(reversed(out))
