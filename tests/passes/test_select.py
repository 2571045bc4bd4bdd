"""The cover: cheapest, whole, without overlap or cycle, against brute force and networkx, and fast on long graphs."""

import itertools
import sys
from collections import Counter

import networkx as nx
import numpy as np
import pytest

from graphdnn.errors import CompileError
from graphdnn.ir.builder import GraphBuilder
from graphdnn.ir.graph import Graph, Node
from graphdnn.ir.region import Region
from graphdnn.ir.types import float32
from graphdnn.ir.views import is_free
from graphdnn.passes import cover_search
from graphdnn.passes.select import Offer, select
from tests.processes import said_by_every_process


def chain(length: int) -> Graph:
    g = GraphBuilder("chain")
    x = g.input("x", (3, 5), float32)
    for _ in range(length):
        x = g.relu(x)
    return g.build({"y": x})


def random_graph(rng: np.random.Generator, nodes: int) -> Graph:
    """Pointwise nodes and now and then a view, each reading late values more often."""
    g = GraphBuilder("random")
    values = [g.input("x", (3, 3), float32)]
    for index in range(nodes):
        late = values[-4:]
        a, b = (late[int(rng.integers(len(late)))] for _ in range(2))
        kind = rng.random() if index else 0.0  # one node at least computes
        made = g.add(a, b) if kind < 0.6 else g.relu(a) if kind < 0.85 else g.reshape(a, (3, 3))
        values.append(made)
        if index == nodes // 2 and rng.random() < 0.3:
            values.append(g.input("late", (3, 3), float32))
    return g.build({"y": values[-1]})


def computing(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if not is_free(n)]


def random_offers(rng: np.random.Generator, graph: Graph, extra: int) -> list[Offer]:
    nodes = computing(graph)
    offers = [Offer(Region.of(graph, [n]), float(rng.integers(1, 9)), f"alone {n.name}") for n in nodes]
    for index in range(extra):
        size = int(rng.integers(2, 5))
        start = int(rng.integers(len(nodes)))
        near = nodes[start : start + 5]
        some = [near[int(i)] for i in rng.choice(len(near), min(size, len(near)), replace=False)]
        offers.append(Offer(Region.of(graph, some), float(rng.integers(1, 12)), f"extra {index}"))
    return offers


def quotient(graph: Graph, regions: list[Region]) -> nx.DiGraph:
    """Regions and views as nodes, an edge for each value that one reads from another."""
    home: dict[Node, object] = {n: i for i, r in enumerate(regions) for n in r.nodes}
    for node in graph.nodes:
        home.setdefault(node, node.name)
    view = nx.DiGraph()
    view.add_nodes_from(home.values())
    for node in graph.nodes:
        for value in node.operands:
            source = graph.producer.get(value)
            if source is not None and home[source] != home[node]:
                view.add_edge(home[source], home[node])
    return view


def is_runnable(graph: Graph, offers: list[Offer]) -> bool:
    regions = [o.region for o in offers]
    return nx.is_directed_acyclic_graph(quotient(graph, regions)) and all(r.is_convex for r in regions)


def brute_force(graph: Graph, offers: list[Offer]) -> tuple[float, int] | None:
    """Least (cost, regions) over all exact covers that can be run."""
    nodes = computing(graph)
    best: tuple[float, int] | None = None

    def extend(rest: list[Node], picked: list[Offer]) -> None:
        nonlocal best
        if not rest:
            key = (sum(o.cost_us for o in picked), len(picked))
            if (best is None or key < best) and is_runnable(graph, picked):
                best = key
            return
        for offer in offers:
            if rest[0] in offer.region.nodes and set(offer.region.nodes) <= set(rest):
                extend([n for n in rest if n not in offer.region.nodes], [*picked, offer])

    extend(nodes, [])
    return best


def check_cover(graph: Graph, picks: tuple[Offer, ...]) -> None:
    covered = [n for o in picks for n in o.region.nodes]
    assert len(covered) == len(set(covered))
    assert {n for n in covered if not is_free(n)} == set(computing(graph))
    assert is_runnable(graph, list(picks))
    made = {*graph.inputs.values(), *graph.constants.values(), *graph.states.values()}
    for offer in picks:
        waiting = [n for n in graph.nodes if is_free(n)]
        for _ in waiting:
            made |= {v for n in waiting if n.operands[0] in made for v in n.results}
        assert set(offer.region.inputs) <= made
        made |= {v for n in offer.region.nodes for v in n.results}


@pytest.mark.parametrize("case", range(60))
def test_as_cheap_as_brute_force(case: int, rng: np.random.Generator) -> None:
    graph = random_graph(rng, int(rng.integers(3, 9)))
    offers = random_offers(rng, graph, int(rng.integers(2, 12)))
    cover = select(graph, offers)
    check_cover(graph, cover.picks)
    assert cover.exact
    assert (cover.cost_us, len(cover.picks)) == brute_force(graph, offers)


@pytest.mark.parametrize("case", range(20))
def test_as_cheap_as_brute_force_where_single_nodes_are_dear(case: int, rng: np.random.Generator) -> None:
    graph = random_graph(rng, 8)
    offers = [
        Offer(o.region, o.cost_us + (20 if len(o.region.nodes) == 1 else 0), o.payload)
        for o in random_offers(rng, graph, 25)
    ]
    cover = select(graph, offers)
    check_cover(graph, cover.picks)
    assert (cover.cost_us, len(cover.picks)) == brute_force(graph, offers)


@pytest.mark.parametrize("case", range(60))
def test_as_cheap_as_brute_force_where_regions_reach_across_branches(case: int, rng: np.random.Generator) -> None:
    g = GraphBuilder("branches")
    ends = [g.input(f"x{i}", (3,), float32) for i in range(3)]
    for index in range(9):
        branch = index % 3
        other = ends[int(rng.integers(3))]
        ends[branch] = g.add(ends[branch], other) if rng.random() < 0.25 else g.relu(ends[branch])
    graph = g.build({f"y{i}": v for i, v in enumerate(ends)})
    nodes = list(graph.nodes)
    offers = [Offer(Region.of(graph, [n]), 9.0) for n in nodes]
    for _ in range(14):
        some = [nodes[int(i)] for i in rng.choice(len(nodes), int(rng.integers(2, 4)), replace=False)]
        offers.append(Offer(Region.of(graph, some), float(rng.integers(1, 6))))
    cover = select(graph, offers)
    check_cover(graph, cover.picks)
    assert (cover.cost_us, len(cover.picks)) == brute_force(graph, offers)


@pytest.mark.parametrize("case", range(10))
def test_without_single_nodes_agrees_with_brute_force_on_whether_there_is_a_cover(
    case: int, rng: np.random.Generator
) -> None:
    graph = random_graph(rng, 6)
    offers = [o for o in random_offers(rng, graph, 20) if len(o.region.nodes) > 1 or rng.random() < 0.4]
    expected = brute_force(graph, offers)
    if expected is None:
        with pytest.raises(CompileError):
            select(graph, offers)
    else:
        assert select(graph, offers).cost_us == expected[0]


def two_crossing_pairs() -> tuple[Graph, dict[str, Node]]:
    """a1 -> b1 and a2 -> b2: {a1, b2} and {a2, b1} wait for each other."""
    g = GraphBuilder("crossing")
    x, y = g.input("x", (3,), float32), g.input("y", (3,), float32)
    b1 = g.relu(g.neg(x, name="a1"), name="b1")
    b2 = g.relu(g.neg(y, name="a2"), name="b2")
    graph = g.build({"p": b1, "q": b2})
    return graph, {n.name: n for n in graph.nodes}


def test_two_regions_that_wait_for_each_other_are_not_chosen_together() -> None:
    graph, node = two_crossing_pairs()
    crossed = [Offer(Region.of(graph, [node[a], node[b]]), 1.0, a + b) for a, b in (("a1", "b2"), ("a2", "b1"))]
    single = [Offer(Region.of(graph, [n]), 5.0, n.name) for n in graph.nodes]
    assert all(o.region.is_convex for o in crossed)
    cover = select(graph, crossed + single)
    check_cover(graph, cover.picks)
    assert cover.cost_us == 11.0
    assert {o.payload for o, _ in cover.conflicts} == {"a2b1"}
    assert "wait" in cover.conflicts[0][1]


@pytest.mark.parametrize("turned", [False, True])
def test_a_region_with_direct_edges_only_may_still_wait_through_another(turned: bool) -> None:
    """u -> v lie in one region, and v also needs u through p and q, which a second region joins."""
    g = GraphBuilder("through")
    x = g.input("x", (3,), float32)
    y = g.input("y", (3,), float32)
    u = g.neg(x, name="u")
    q = g.relu(y, name="q")
    if turned:
        v = g.add(q, u, name="v")
        p = g.relu(u, name="p")
    else:
        p = g.relu(u, name="p")
        v = g.add(u, q, name="v")
    graph = g.build({"v": v, "p": p})
    node = {n.name: n for n in graph.nodes}
    pairs = [Offer(Region.of(graph, [node["p"], node["q"]]), 1.0), Offer(Region.of(graph, [node["u"], node["v"]]), 1.0)]
    single = [Offer(Region.of(graph, [n]), 4.0) for n in graph.nodes]
    cover = select(graph, pairs + single)
    check_cover(graph, cover.picks)
    assert cover.cost_us == 9.0


def test_a_region_that_is_not_convex_is_a_conflict_and_never_chosen() -> None:
    graph = chain(3)
    ends = Offer(Region.of(graph, [graph.nodes[0], graph.nodes[2]]), 0.1)
    single = [Offer(Region.of(graph, [n]), 4.0) for n in graph.nodes]
    cover = select(graph, [ends, *single])
    assert cover.cost_us == 12.0
    assert [o for o, _ in cover.conflicts] == [ends]


def test_views_need_no_offer_and_may_be_between_nodes_of_one() -> None:
    g = GraphBuilder("views")
    x = g.input("x", (3, 5), float32)
    graph = g.build({"y": g.relu(g.reshape(g.neg(g.reshape(x, (5, 3))), (3, 5)))})
    view, neg, between, relu = graph.nodes
    single = [Offer(Region.of(graph, [n]), 2.0) for n in computing(graph)]
    assert select(graph, single).cost_us == 4.0
    whole = Offer(Region.of(graph, [neg, between, relu]), 1.0)
    assert select(graph, [*single, whole]).picks == (whole,)
    larger = Offer(Region.of(graph, [view, neg, between, relu]), 0.5)
    cover = select(graph, [*single, larger])
    assert cover.cost_us == 4.0
    assert cover.conflicts[0][0] is larger


def test_views_within_offers_do_not_mislead_the_search() -> None:
    """Their share is nobody else's: a cover that goes without the view is not dearer for it."""
    g = GraphBuilder("views")
    graph = g.build({"y": g.relu(g.reshape(g.neg(g.input("x", (3, 5), float32)), (5, 3)))})
    neg, _, relu = graph.nodes
    whole = Offer(Region.of(graph, graph.nodes), 9.0)
    single = [Offer(Region.of(graph, [n]), 4.0) for n in (neg, relu)]
    assert select(graph, [whole, *single]).cost_us == 8.0


def test_a_node_without_an_offer_is_named() -> None:
    graph = chain(2)
    with pytest.raises(CompileError, match=graph.nodes[1].name):
        select(graph, [Offer(Region.of(graph, graph.nodes[:1]), 1.0)])


def test_offers_that_only_overlap_leave_no_cover() -> None:
    graph = chain(3)
    offers = [Offer(Region.of(graph, graph.nodes[:2]), 1.0), Offer(Region.of(graph, graph.nodes[1:]), 1.0)]
    with pytest.raises(CompileError, match="single nodes"):
        select(graph, offers)


def test_equal_costs_take_fewer_regions_and_then_the_earlier_offer() -> None:
    graph = chain(2)
    single = [Offer(Region.of(graph, [n]), 0.1, "single") for n in graph.nodes]
    pair = [Offer(Region.of(graph, graph.nodes), 0.2, name) for name in ("first", "second")]
    assert [o.payload for o in select(graph, single + pair).picks] == ["first"]


def test_at_equal_costs_pointwise_work_goes_with_the_product_before_it() -> None:
    g = GraphBuilder("products")
    x, w, v = (g.input(n, (4, 4), float32) for n in "xwv")
    left = g.relu(g.matmul(x, w, name="left"), name="left_relu")
    right = g.relu(g.matmul(x, v, name="right"), name="right_relu")
    graph = g.build({"y": g.matmul(g.add(left, right, name="sum"), w, name="last")})
    node = {n.name: n for n in graph.nodes}
    groups = (
        ("left",),
        ("right", "left_relu", "right_relu", "sum"),
        ("left", "left_relu"),
        ("right", "right_relu", "sum"),
        ("right",),
        ("left", "left_relu", "right_relu", "sum"),
        ("right", "right_relu"),
        ("left", "left_relu", "sum"),
        ("last",),
        ("sum", "last"),
    )
    offers = [Offer(Region.of(graph, [node[n] for n in names]), 1.0, names) for names in groups]
    chosen = {o.payload for o in select(graph, offers).picks}
    assert ("last",) in chosen
    assert not chosen & {groups[1], groups[5]}


def test_the_cheaper_engine_wins_on_one_region() -> None:
    graph = chain(1)
    offers = [Offer(Region.of(graph, graph.nodes), cost, cost) for cost in (3.0, 2.0, 2.0)]
    assert select(graph, offers).picks[0] is offers[1]


def test_parts_that_share_nothing_are_solved_apart() -> None:
    g = GraphBuilder("parts")
    outputs = {}
    for part in range(12):
        x = g.input(f"x{part}", (3,), float32)
        for _ in range(6):
            x = g.relu(x)
        outputs[f"y{part}"] = x
    graph = g.build(outputs)
    offers = windows(graph, 3)
    cover = select(graph, offers)
    assert cover.exact
    assert len(cover.picks) == 24


def windows(graph: Graph, most: int) -> list[Offer]:
    """Runs of up to `most` nodes that follow each other; a launch costs 2 us and a node 1."""
    nodes = graph.nodes
    runs = [nodes[i : i + n] for i in range(len(nodes)) for n in range(1, most + 1) if i + n <= len(nodes)]
    linked = [r for r in runs if all(a.result in b.operands for a, b in itertools.pairwise(r))]
    return [Offer(Region.of(graph, r), 2.0 + len(r)) for r in linked]


def test_too_many_partial_covers_give_a_good_cover_that_is_not_called_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cover_search, "WIDTH", 8)
    monkeypatch.setattr(cover_search, "SKETCH", 4)
    rng = np.random.default_rng(5)
    graph = random_graph(rng, 40)
    offers = random_offers(rng, graph, 300)
    cover = select(graph, offers)
    check_cover(graph, cover.picks)
    assert not cover.exact
    assert cover.cost_us < sum(o.cost_us for o in offers[: len(computing(graph))])


def wide(branches: int, length: int) -> Graph:
    """Branches that are built layer by layer and joined at the end."""
    g = GraphBuilder("wide")
    x = g.input("x", (3,), float32)
    open_ends = [x] * branches
    for _ in range(length):
        open_ends = [g.relu(v) for v in open_ends]
    total = open_ends[0]
    for value in open_ends[1:]:
        total = g.add(total, value)
    return g.build({"y": total})


def linked_offers(graph: Graph) -> list[Offer]:
    """Every node alone, with its first user, and with that one's first user."""
    offers = []
    for node in graph.nodes:
        run = [node]
        while len(run) <= 3:
            offers.append(Offer(Region.of(graph, run), 2.0 + len(run)))
            users = graph.users.get(run[-1].result, ())
            if not users:
                break
            run.append(users[0])
    return offers


def test_many_branches_stay_exact() -> None:
    graph = wide(24, 8)
    cover = select(graph, [o for o in linked_offers(graph) if o.region.is_convex])
    check_cover_fast(graph, cover.picks)
    assert cover.exact


def check_cover_fast(graph: Graph, picks: tuple[Offer, ...]) -> None:
    assert (
        sum(len(o.region.nodes) for o in picks) == len({n for o in picks for n in o.region.nodes}) == len(graph.nodes)
    )


def test_work_grows_with_the_length_and_not_with_its_square() -> None:
    """By calls of functions, Python's and C's, of which there are the same on every machine."""
    calls = Counter[int]()
    for length in (750, 3000):
        graph = chain(length)
        offers = windows(graph, 8)
        sys.setprofile(lambda frame, event, arg, length=length: calls.update([length]))
        try:
            cover = select(graph, offers)
        finally:
            sys.setprofile(None)
        assert len(cover.picks) == -(-length // 8)
        assert cover.exact
    assert calls[3000] < 5 * calls[750]


SCRIPT = """
import numpy as np
from tests.passes.test_select import random_graph, random_offers
from graphdnn.passes.select import select
rng = np.random.default_rng(7)
graph = random_graph(rng, 30)
print([o.payload for o in select(graph, random_offers(rng, graph, 90)).picks])
"""


def test_every_process_chooses_the_same() -> None:
    assert "alone" in said_by_every_process(SCRIPT)
