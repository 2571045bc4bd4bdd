"""Which offers run the graph: every computing node covered once, at least total cost, without a cycle between regions.

The graph falls into parts that share neither a value that a node makes nor an offer; each is searched alone, exactly
where that is affordable (cover_search.py), and `Cover.exact` says whether it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from graphdnn.errors import CompileError
from graphdnn.ir.graph import Graph, Node
from graphdnn.ir.region import Region
from graphdnn.ir.views import is_free
from graphdnn.passes.cover_search import Component, CoverSearch, Offer, bits

__all__ = ["Cover", "Offer", "select"]


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
    """The cheapest cover; among equal ones that of fewer regions, then that with fewer strays (see Bid).

    Raises CompileError naming the first node that no offer holds, or that no way of covering the rest leaves room for.
    """
    wanted = sum(1 << i for i, n in enumerate(graph.nodes) if not is_free(n))
    check_offered(graph, wanted, offers)
    conflicts = {i: r for i, o in enumerate(offers) if (r := own_conflict(o.region, wanted))}
    picks: list[int] = []
    exact = True
    for component in components(graph, offers, cheapest_by_mask(offers, conflicts)):
        search = CoverSearch.of(graph, component, offers, wanted)
        found = search.solve()
        exact &= found.exact
        picks += found.picks
        if search.met_cycle and found.exact:
            free = search.without_order().solve()
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
    views = [region.graph.nodes[i] for i in bits(region.mask & ~wanted)]
    if any(region.graph.producer.get(n.operands[0]) not in region.nodes for n in views):
        return "it holds a view of what others make, which is nothing to compute"
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
    joined: dict[int, int] = {}  # nearly every offer lies within one of these parts already
    for i in range(len(graph.nodes)):
        joined[root(i)] = joined.get(root(i), 0) | 1 << i
    for index in usable:
        nodes, mask = offers[index].region.nodes, offers[index].region.mask
        if mask & ~joined[root(graph.position[nodes[0]])]:
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
    """Those of `picks` that wait for themselves by way of others."""
    holder = {n: i for i, pick in enumerate(picks) for n in offers[pick].region.nodes}
    waits = [needed(graph, offers[pick].region, holder) for pick in picks]
    return [pick for i, pick in enumerate(picks) if i in awaited(waits, i)]


def awaited(waits: Sequence[Sequence[int]], start: int) -> set[int]:
    """All that `start` waits for."""
    found: set[int] = set()
    queue = list(waits[start])
    while queue:
        i = queue.pop()
        if i not in found:
            found.add(i)
            queue += waits[i]
    return found
