"""Which offers run the graph: every computing node covered once, at least total cost, without a cycle between regions.

The search goes through the nodes in a topological order that finishes one branch before it begins the next.  The first
node that is not covered yet picks among the offers that begin with it.  What has been decided matters for the rest
only through the nodes that are covered already and through the dependences that contracted regions have added, so
partial covers that agree on both are compared and one is kept.  While at most `WIDTH` of them are alive this is exact;
beyond, the most promising are kept and `Cover.exact` is False.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from graphdnn.errors import CompileError
from graphdnn.ir.graph import Graph, Node
from graphdnn.ir.region import Region
from graphdnn.ir.views import is_free

WIDTH = 4096
"""Partial covers alive at once up to which the search is exact."""

SKETCH = 64
"""Partial covers alive at once in the quick first search; half of them are kept where there are more."""

TICKS = 1_000_000
"""Costs are added as whole numbers of 1e-6 us, so that equal sums compare equal in whatever order they were made."""


@dataclass(frozen=True)
class Offer:
    """Somebody's "yes": `region` in `cost_us` microseconds.  `payload` is the caller's."""

    region: Region
    cost_us: float
    payload: object = None


@dataclass(frozen=True)
class Cover:
    """The chosen offers, in an order in which they can run.

    `conflicts` are offers that a cheaper choice would hold if it could be run, with the reason.  `exact` is False where
    the search had to drop partial covers.
    """

    picks: tuple[Offer, ...]
    cost_us: float
    exact: bool
    conflicts: tuple[tuple[Offer, str], ...] = ()


def select(graph: Graph, offers: Sequence[Offer]) -> Cover:
    """The cheapest cover; among equal ones that of fewer regions, then one of earlier offers.

    Raises CompileError naming the first node that no offer holds, or that no way of covering the rest leaves room for.
    """
    wanted = sum(1 << i for i, n in enumerate(graph.nodes) if not is_free(n))
    check_offered(graph, wanted, offers)
    conflicts = {i: r for i, o in enumerate(offers) if (r := own_conflict(o.region, wanted))}
    picks: list[int] = []
    exact = True
    for component in components(graph, offers, cheapest_by_mask(offers, conflicts)):
        problem = Problem.of(graph, component, offers, wanted)
        found = problem.solve()
        exact &= found.exact
        picks += found.picks
        if problem.met_cycle and found.exact:
            free = problem.without_order().solve()
            if free.exact and free.ticks < found.ticks:
                conflicts |= {i: CYCLIC for i in on_cycles(graph, offers, free.picks) if i not in found.picks}
    ordered = run_order(graph, [offers[i] for i in picks])
    reasons = tuple((offers[i], conflicts[i]) for i in sorted(conflicts))
    return Cover(ordered, sum(o.cost_us for o in ordered), exact, reasons)


CYCLIC = "together with other regions of the cheapest cover it would wait for its own result"


def check_offered(graph: Graph, wanted: int, offers: Sequence[Offer]) -> None:
    missing = wanted
    for offer in offers:
        missing &= ~offer.region.mask
    if missing:
        node = graph.nodes[bits(missing)[0]]
        raise CompileError(f"no engine takes {node}; an offer that runs it, alone or within a larger region, is needed")


def own_conflict(region: Region, wanted: int) -> str:
    """Why a region can be part of no cover, or nothing."""
    if region.mask & ~wanted:
        return "it holds a view, which is nothing to compute"
    if not region.is_convex:
        return "a path leaves the region and comes back, so it would wait for its own result"
    return ""


def cheapest_by_mask(offers: Sequence[Offer], ruled_out: Mapping[int, str]) -> tuple[int, ...]:
    """Indices of the offers worth a look: for each set of nodes the cheapest, the earliest among equals."""
    best: dict[int, int] = {}
    for index, offer in enumerate(offers):
        if index in ruled_out:
            continue
        kept = best.setdefault(offer.region.mask, index)
        if offer.cost_us < offers[kept].cost_us:
            best[offer.region.mask] = index
    return tuple(sorted(best.values()))


class Component(NamedTuple):
    """Nodes that depend on nothing outside, in the order of the search, and the offers on them."""

    nodes: tuple[Node, ...]
    usable: tuple[int, ...]


def components(graph: Graph, offers: Sequence[Offer], usable: Sequence[int]) -> list[Component]:
    """The graph's parts that share neither a value that a node makes nor an offer."""
    parent = list(range(len(graph.nodes)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def join(a: Node, b: Node) -> None:
        low, high = sorted((root(graph.position[a]), root(graph.position[b])))
        parent[high] = low

    for node in graph.nodes:
        for value in node.operands:
            if value in graph.producer:
                join(node, graph.producer[value])
    for index in usable:
        nodes = offers[index].region.nodes
        for node in nodes[1:]:
            join(nodes[0], node)
    members: dict[int, list[Node]] = {}
    for node in branch_order(graph):
        members.setdefault(root(graph.position[node]), []).append(node)
    held: dict[int, list[int]] = {}
    for index in usable:
        held.setdefault(root(graph.position[offers[index].region.nodes[0]]), []).append(index)
    return [Component(tuple(members[r]), tuple(held.get(r, ()))) for r in sorted(members)]


def branch_order(graph: Graph) -> list[Node]:
    """A topological order in which what one node needs stands together, so that few branches are open at a time."""
    order: list[Node] = []
    seen: set[Node] = set()
    for sink in graph.nodes:
        stack = [sink] if not any(graph.users.get(v) for v in sink.results) else []
        while stack:
            node = stack[-1]
            waiting = (
                []
                if node in seen
                else [p for v in reversed(node.operands) if (p := graph.producer.get(v)) is not None and p not in seen]
            )
            if waiting:
                stack += waiting
                continue
            stack.pop()
            if node not in seen:
                seen.add(node)
                order.append(node)
    return order


class Bid(NamedTuple):
    """An offer as the search sees it: bit sets over the component's nodes, cost and least share of it in ticks."""

    offer: int
    mask: int
    above: int
    below: int
    ticks: int
    share: int


Span = tuple[int, int]
"""A region's uncovered ancestors and descendants: through it each of the former leads to each of the latter."""

State = tuple[int, tuple[Span, ...]]
"""What of a partial cover matters for the rest: the nodes covered, and the spans that the graph itself lacks."""


class Choice(NamedTuple):
    """An offer by index, and the choice before it."""

    before: Choice | None
    offer: int


class Partial(NamedTuple):
    """A partial cover: `ticks` and `regions` so far, the choices, and the least that the rest can cost."""

    ticks: int
    regions: int
    last: Choice | None
    rest: int

    @property
    def rank(self) -> tuple[int, int]:
        return (self.ticks + self.rest, self.regions)


class Solution(NamedTuple):
    """What a search found: indices of offers."""

    picks: tuple[int, ...]
    ticks: int
    exact: bool


@dataclass
class Problem:
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
    def of(graph: Graph, part: Component, offers: Sequence[Offer], wanted: int) -> Problem:
        place = {n: i for i, n in enumerate(part.nodes)}
        above, below = closures(graph, place)
        shares = least_shares(part, offers, place)
        to_cover = sum(1 << i for i, n in enumerate(part.nodes) if wanted >> graph.position[n] & 1)
        begins: list[list[Bid]] = [[] for _ in part.nodes]
        for index in part.usable:
            places = sorted(place[n] for n in offers[index].region.nodes)
            mask = up = down = 0
            for i in places:
                mask, up, down = mask | 1 << i, up | above[i], down | below[i]
            share = sum(shares[i] for i in places)
            outside = to_cover & ~mask
            begins[places[0]].append(Bid(index, mask, up & outside, down & outside, ticks(offers[index]), share))
        return Problem(part.nodes, tuple(map(tuple, begins)), to_cover, tuple(below), sum(shares))

    def without_order(self) -> Problem:
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
        todo[self.first_uncovered(0)][0, ()] = Partial(0, 0, None, self.least)
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
        new = Partial(cost, partial.regions + 1, Choice(partial.last, bid.offer), rest)
        old = bucket.get((covered, spans))
        if old is None or new.rank < old.rank:
            bucket[covered, spans] = new
        return int(old is None)

    def contracted(self, covered: int, spans: tuple[Span, ...], bid: Bid) -> tuple[Span, ...] | None:
        """The spans once `bid` is one region too; None where regions would wait for each other."""
        up, down = closed(spans, bid)
        if down & up or any((down | bid.mask) & a and (up | bid.mask) & b for a, b in spans):
            return None
        rest = [(a & ~covered, b & ~covered) for a, b in spans]
        up, down = up & ~covered, down & ~covered
        if self.adds(up, down, bid.mask):
            rest.append((up, down))
        return tuple(sorted({(a, b) for a, b in rest if a and b}))

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
    """All nodes that lead to the bid's region, and all that it leads to, through contracted regions as well."""
    up, down = bid.above, bid.below
    settled = False
    while not settled:
        settled = True
        for above, below in spans:
            if (down | bid.mask) & above and below & ~(down | bid.mask):
                down, settled = down | below & ~bid.mask, False
            if (up | bid.mask) & below and above & ~(up | bid.mask):
                up, settled = up | above & ~bid.mask, False
    return up, down


def ticks(offer: Offer) -> int:
    return round(offer.cost_us * TICKS)


def least_shares(part: Component, offers: Sequence[Offer], place: Mapping[Node, int]) -> list[int]:
    """For each node the least that an offer costs a node it holds: added up, a lower bound on every cover."""
    least: dict[int, int] = {}
    for index in part.usable:
        nodes = offers[index].region.nodes
        share = ticks(offers[index]) // len(nodes)
        for node in nodes:
            least[place[node]] = min(least.get(place[node], share), share)
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
    out = []
    while mask:
        low = mask & -mask
        out.append(low.bit_length() - 1)
        mask ^= low
    return out


def unchained(last: Choice | None) -> tuple[int, ...]:
    """The offers chosen, first choice first."""
    out: list[int] = []
    while last is not None:
        out.append(last.offer)
        last = last.before
    return tuple(reversed(out))


def run_order(graph: Graph, picks: Sequence[Offer]) -> tuple[Offer, ...]:
    """The offers in an order in which each finds its inputs made, as near to the graph's as that allows."""
    holder = {n: i for i, o in enumerate(picks) for n in o.region.nodes}
    first = [graph.position[o.region.nodes[0]] for o in picks]
    missing = [needed(graph, o.region, holder) for o in picks]
    readers: list[list[int]] = [[] for _ in picks]
    for i, sources in enumerate(missing):
        for source in sources:
            readers[source].append(i)
    left = [len(sources) for sources in missing]
    ready = [(first[i], i) for i, count in enumerate(left) if not count]
    heapify(ready)
    order: list[Offer] = []
    while ready:
        _, i = heappop(ready)
        order.append(picks[i])
        for reader in readers[i]:
            left[reader] -= 1
            if not left[reader]:
                heappush(ready, (first[reader], reader))
    if len(order) < len(picks):
        raise CompileError(
            f"graph {graph.name}: the chosen regions wait for each other; a cover without cycles is needed"
        )
    return tuple(order)


def needed(graph: Graph, region: Region, holder: Mapping[Node, int]) -> list[int]:
    """Regions that make a region's inputs, looking through views."""
    inside = set(region.nodes)
    found: dict[int, None] = {}
    queue = [v for n in region.nodes for v in n.operands]
    while queue:
        source = graph.producer.get(queue.pop())
        if source is None or source in inside:
            continue
        if source in holder:
            found[holder[source]] = None
        else:
            queue += source.operands
    return sorted(found)


def on_cycles(graph: Graph, offers: Sequence[Offer], picks: Sequence[int]) -> list[int]:
    """Those of `picks` that wait for each other."""
    import networkx as nx

    holder = {n: i for i, pick in enumerate(picks) for n in offers[pick].region.nodes}
    waits = nx.DiGraph((i, j) for i, pick in enumerate(picks) for j in needed(graph, offers[pick].region, holder))
    return sorted(picks[i] for part in nx.strongly_connected_components(waits) if len(part) > 1 for i in part)
