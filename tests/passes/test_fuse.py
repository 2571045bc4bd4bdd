"""Proposals: which regions engines are asked about; convex, connected, with no views but their own, complete."""

import functools
import itertools
import sys
from collections import Counter
from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest

from graphdnn.ir.builder import GraphBuilder
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.types import float16, float32
from graphdnn.ir.views import is_free
from graphdnn.passes.fuse import Proposal, propose
from graphdnn.passes.layout.assign import assign_layouts
from graphdnn.passes.patterns import FUSIONS
from graphdnn.passes.patterns.convolution import CONVOLUTION
from graphdnn.passes.patterns.fusion import Fusion
from graphdnn.passes.patterns.matmul import MATMUL
from graphdnn.passes.patterns.rows import ROWS
from graphdnn.passes.select import Offer, select
from tests.passes.random_graphs import random_graph
from tests.passes.test_select import check_cover
from tests.processes import said_by_every_process


def names(proposal: Proposal) -> frozenset[str]:
    return frozenset(n.name for n in proposal.region.nodes)


def sets(graph: Graph) -> dict[frozenset[str], Proposal]:
    return {names(p): p for p in propose(graph)}


def conv(g: GraphBuilder, x: Value, channels: int, name: str) -> Value:
    w = g.input(f"{name}_w", (channels, x.type.shape[1], 3, 3), x.type.dtype)
    return g.conv(x, w, padding=1, name=name)


def image(g: GraphBuilder, name: str = "x") -> Value:
    return g.input(name, (2, 5, 7, 9), float16)


def check_lawful(graph: Graph, proposals: tuple[Proposal, ...]) -> None:
    view = nx.DiGraph()
    view.add_nodes_from(graph.nodes)
    for node in graph.nodes:
        view.add_edges_from((graph.producer[v], node) for v in node.operands if v in graph.producer)
    closure = nx.transitive_closure_dag(view)
    masks = [p.region.mask for p in proposals]
    assert len(masks) == len(set(masks))
    for proposal in proposals:
        nodes = set(proposal.region.nodes)
        assert nx.is_weakly_connected(view.subgraph(nodes))
        for free in filter(is_free, nodes):
            assert graph.producer.get(free.operands[0]) in nodes
            assert all(u in nodes for v in free.results for u in graph.users.get(v, ()))
            assert not graph.escaping & set(free.results)
        assert proposal.anchor is None or proposal.anchor in nodes
        for between in closure.nodes - nodes:
            assert not (nodes & set(closure.pred[between]) and nodes & set(closure.succ[between]))
    alone = {p.region.nodes[0] for p in proposals if len(p.region.nodes) == 1}
    assert alone == {n for n in graph.nodes if not is_free(n)}


def residual_block(g: GraphBuilder) -> dict[str, Value]:
    x = image(g)
    left = g.bias(conv(g, x, 5, "left"), g.input("b1", (5,), float16), axis=1, name="left_bias")
    right = g.bias(conv(g, x, 5, "right"), g.input("b2", (5,), float16), axis=1, name="right_bias")
    return {"y": g.relu(g.add(left, right, name="sum"), name="relu")}


def two_exits(g: GraphBuilder) -> dict[str, Value]:
    y = conv(g, image(g), 5, "conv")
    return {"a": g.relu(y, name="relu"), "b": g.mul(y, 2.0, name="double")}


def around_another_conv(g: GraphBuilder) -> dict[str, Value]:
    """`sum` reads the first conv by a short way, and by a long one through the second conv."""
    y = conv(g, image(g), 5, "first")
    long = conv(g, g.relu(y, name="relu"), 5, "second")
    return {"y": g.add(g.neg(y, name="neg"), long, name="sum")}


def two_readers_of_a_prologue(g: GraphBuilder) -> dict[str, Value]:
    """`shared` feeds a conv, and through a reduction also what comes behind that conv."""
    shared = g.relu(image(g), name="shared")
    mean = g.reduce_mean(shared, axes=(2, 3), keepdims=True, name="mean")
    return {"y": g.mul(conv(g, shared, 5, "conv"), mean, name="scaled")}


def gated(g: GraphBuilder) -> dict[str, Value]:
    x = g.input("x", (33, 24), float16)
    gate, up = (g.matmul(x, g.input(f"w_{n}", (24, 40), float16), name=n) for n in ("gate", "up"))
    return {"y": g.mul(g.silu(gate, name="silu"), up, name="product")}


def residual_norm(g: GraphBuilder) -> dict[str, Value]:
    x, r = g.input("x", (33, 40), float16), g.input("r", (33, 40), float16)
    total = g.add(x, r, name="sum")
    return {"sum": total, "y": g.rms_norm(total, g.input("scale", (40,), float16), name="norm")}


def spelled_attention(g: GraphBuilder) -> dict[str, Value]:
    q, k, v = (g.input(n, s, float16) for n, s in (("q", (3, 7, 8)), ("k", (3, 8, 9)), ("v", (3, 9, 8))))
    scores = g.mul(g.matmul(q, k, name="scores"), 0.35, name="scaled")
    powers = g.exp(g.sub(scores, g.reduce_max(scores, axes=-1, keepdims=True, name="max"), name="less"), name="exp")
    weights = g.div(powers, g.reduce_sum(powers, axes=-1, keepdims=True, name="total"), name="weights")
    return {"o": g.matmul(weights, v, name="mixed")}


def two_convs(g: GraphBuilder) -> dict[str, Value]:
    return {"y": g.relu(conv(g, g.relu(conv(g, image(g), 3, "first"), name="relu1"), 4, "second"), name="relu2")}


def conv_then_mean(g: GraphBuilder) -> dict[str, Value]:
    y = g.bias(conv(g, image(g), 3, "conv"), g.input("b", (3,), float16), axis=1, name="bias")
    return {"y": g.reduce_mean(g.relu(y, name="relu"), axes=(2, 3), name="mean")}


def scaled_conv(g: GraphBuilder) -> dict[str, Value]:
    s, b = g.input("s", (1, 5, 1, 1), float16), g.input("b", (1, 5, 1, 1), float16)
    x = g.relu(g.add(g.mul(image(g), s, name="mul"), b, name="add"), name="relu")
    return {"y": conv(g, x, 3, "conv")}


def layer_norm_spelled(g: GraphBuilder) -> dict[str, Value]:
    x = g.add(g.input("x", (33, 40), float32), g.input("r", (33, 40), float32), name="residual")
    centred = g.sub(x, g.reduce_mean(x, axes=-1, keepdims=True, name="mean"), name="centred")
    power = g.reduce_mean(g.square(centred, name="square"), axes=-1, keepdims=True, name="power")
    y = g.mul(centred, g.rsqrt(g.add(power, 1e-5, name="eps"), name="rsqrt"), name="scaled")
    return {"y": g.mul(y, g.input("scale", (40,), float32), name="affine")}


Build = Callable[[GraphBuilder], dict[str, Value]]
ALL = "all"

PROPOSED: tuple[tuple[Build, str], ...] = (
    (residual_block, "left left_bias"),
    (residual_block, "left left_bias sum relu"),
    (residual_block, "right right_bias sum relu"),
    (residual_block, "sum relu"),
    (residual_block, ALL),
    (two_exits, "conv relu"),
    (two_exits, "conv double"),
    (two_exits, ALL),
    (around_another_conv, "first relu neg"),
    (around_another_conv, "second sum"),
    (around_another_conv, "neg second sum"),
    (around_another_conv, "relu second"),
    (around_another_conv, ALL),
    (two_readers_of_a_prologue, "shared conv"),
    (two_readers_of_a_prologue, "conv scaled"),
    (two_readers_of_a_prologue, ALL),
    (gated, "gate silu product"),
    (gated, "up product"),
    (gated, ALL),
    (residual_norm, ALL),
    (residual_norm, "norm"),
    (spelled_attention, "scores scaled"),
    (spelled_attention, "max less exp total weights"),
    (spelled_attention, "scaled max less exp total weights"),
    (spelled_attention, ALL),
    (two_convs, "first relu1"),
    (two_convs, "relu1 second relu2"),
    (two_convs, ALL),
    (conv_then_mean, "conv bias relu"),
    (conv_then_mean, "bias relu mean"),
    (conv_then_mean, ALL),
    (scaled_conv, ALL),
    (layer_norm_spelled, "mean centred square power eps rsqrt scaled affine"),
    (layer_norm_spelled, ALL),
)


@pytest.mark.parametrize(("build", "wanted"), PROPOSED, ids=lambda v: getattr(v, "__name__", v))
def test_proposed(build: Build, wanted: str) -> None:
    g = GraphBuilder("g")
    graph = g.build(build(g))
    expected = {n.name for n in graph.nodes} if wanted == ALL else set(wanted.split())
    assert frozenset(expected) in sets(graph)


REFUSED: tuple[tuple[Build, str], ...] = (
    (around_another_conv, "first neg sum"),
    (around_another_conv, "first relu neg sum"),
    (two_readers_of_a_prologue, "shared conv scaled"),
    (spelled_attention, "scores scaled less"),
    (spelled_attention, "scaled less exp"),
)


@pytest.mark.parametrize(("build", "unwanted"), REFUSED, ids=lambda v: getattr(v, "__name__", v))
def test_what_would_wait_for_itself_is_not_proposed(build: Build, unwanted: str) -> None:
    g = GraphBuilder("g")
    found = sets(g.build(build(g)))
    assert frozenset(unwanted.split()) not in found


@pytest.mark.parametrize("build", {row[0]: None for row in PROPOSED}, ids=lambda v: v.__name__)
def test_lawful(build: Build) -> None:
    g = GraphBuilder("g")
    graph = g.build(build(g))
    check_lawful(graph, propose(graph))


def test_a_region_with_two_exits_gives_both() -> None:
    g = GraphBuilder("g")
    graph = g.build(two_exits(g))
    whole = sets(graph)[frozenset({"conv", "relu", "double"})]
    assert [v.name for v in whole.region.outputs] == ["relu", "double"]
    assert whole.fusion == "convolution"


def test_matmuls_of_different_operands_are_not_joined_but_by_the_largest_region() -> None:
    g = GraphBuilder("g")
    a, b = (g.matmul(g.input(f"x{n}", (5, 7), float16), g.input(f"w{n}", (7, 3), float16), name=n) for n in "ab")
    graph = g.build({"y": g.add(a, b, name="sum")})
    assert sets(graph)[frozenset({"a", "b", "sum"})].fusion == "whole"


def test_reductions_over_other_rows_are_not_joined() -> None:
    g = GraphBuilder("g")
    x = g.input("x", (5, 7), float32)
    rows = g.sub(x, g.reduce_max(x, axes=-1, keepdims=True, name="rows"), name="less")
    graph = g.build({"y": g.sub(rows, g.reduce_max(rows, axes=0, keepdims=True, name="columns"), name="least")})
    assert not any({"rows", "columns"} <= names(p) and p.fusion == "rows" for p in propose(graph))


def test_islands_grow_across_views() -> None:
    g = GraphBuilder("g")
    y = g.relu(g.reshape(g.relu(g.input("x", (4, 6), float32), name="a"), (3, 8), name="v"), name="b")
    graph = g.build({"y": g.neg(y, name="c")})
    assert set(sets(graph)) == {frozenset(s) for s in ("a", "b", "c", "bc", "avb", "avbc")}


def test_anchors_do_not_grow_across_views() -> None:
    g = GraphBuilder("g")
    y = g.reshape(conv(g, image(g), 5, "conv"), (2, 5, 63))
    graph = g.build({"y": g.relu(y, name="relu")})
    assert set(sets(graph)) == {frozenset({"conv"}), frozenset({"relu"})}


@pytest.mark.parametrize("reader", ["another node", "the caller"])
def test_a_view_that_others_read_is_in_no_region(reader: str) -> None:
    g = GraphBuilder("g")
    v = g.reshape(g.relu(g.input("x", (4, 6), float32), name="a"), (3, 8), name="v")
    more = g.softmax(v, name="softmax") if reader == "another node" else v
    graph = g.build({"y": g.neg(v, name="b"), "z": more})
    assert not any("v" in s for s in sets(graph))


def test_an_island_holds_a_split_of_which_nobody_reads_a_part() -> None:
    g = GraphBuilder()
    first, _ = g.split(g.relu(g.input("x", (4, 6), float32), name="before"), (1, 3), axis=0, name="split")
    graph = assign_layouts(g.build({"y": g.relu(first, name="behind")})).graph
    proposals = propose(graph)
    check_lawful(graph, proposals)
    assert frozenset({"before", "split", "behind"}) in set(map(names, proposals))


def test_islands_hold_what_joins_and_pads() -> None:
    g = GraphBuilder("g")
    x = g.input("x", (2, 3, 5, 16), float16)
    first, second = g.split(x, [8, 8], axis=-1)
    joined = g.concat([g.neg(second, name="neg"), first], axis=-1, name="concat")
    y = g.add(g.mul(x, g.input("cos", (5, 16), float16), name="straight"), joined, name="sum")
    found = sets(assign_layouts(g.build({"y": g.pad(y, ((0, 0),) * 3 + ((0, 8),), name="pad")})).graph)
    assert found[frozenset({"straight", "neg", "concat", "sum", "pad"})].fusion == "pointwise"
    assert frozenset({"neg", "concat"}) in found


def test_growth_stops_at_its_limit() -> None:
    g = GraphBuilder("g")
    y = conv(g, image(g), 5, "conv")
    for _ in range(40):
        y = g.relu(y)
    sizes = [len(p.region.nodes) for p in propose(g.build({"y": y})) if p.fusion == "convolution"]
    assert max(sizes) == 1 + CONVOLUTION.limit


@pytest.mark.parametrize("fusion", [MATMUL, ROWS], ids=lambda f: f.name)
def test_no_more_anchors_join_than_the_fusion_takes(fusion: Fusion) -> None:
    g = GraphBuilder("g")
    x = g.input("x", (4, 4), float32)
    count = fusion.partners + 2
    if fusion is MATMUL:
        anchors = [g.matmul(x, g.input(f"w{i}", (4, 4), float32)) for i in range(count)]
    else:
        anchors = [g.reduce_max(x * float(i + 2), axes=-1, keepdims=True) for i in range(count)]
    found = propose(g.build({"y": functools.reduce(g.add, anchors)}))
    held = [sum(isinstance(n.op, fusion.anchors) for n in p.region.nodes) for p in found if p.fusion == fusion.name]
    assert max(held) == 1 + fusion.partners


def subsets(graph: Graph, anchor: str) -> set[frozenset[str]]:
    """Every connected convex set of nodes that holds the anchor, by trying all sets."""
    found = set()
    view = nx.DiGraph()
    view.add_nodes_from(graph.nodes)
    for node in graph.nodes:
        view.add_edges_from((graph.producer[v], node) for v in node.operands if v in graph.producer)
    below = {n: nx.descendants(view, n) for n in graph.nodes}
    for size in range(1, len(graph.nodes) + 1):
        for some in itertools.combinations(graph.nodes, size):
            chosen = set(some)
            if anchor not in {n.name for n in some} or not nx.is_weakly_connected(view.subgraph(chosen)):
                continue
            outside = [n for n in graph.nodes if n not in chosen]
            if not any(below[n] & chosen and any(n in below[s] for s in chosen) for n in outside):
                found.add(frozenset(n.name for n in some))
    return found


@pytest.mark.parametrize("case", range(12))
def test_all_regions_of_a_small_graph_are_proposed(case: int, rng: np.random.Generator) -> None:
    g = GraphBuilder("g")
    values = [g.relu(g.input("x", (4, 4), float32))]
    while len(values) < 4:
        values.append(g.add(values[int(rng.integers(len(values)))], values[-1]))
    values.append(g.matmul(values[-1], g.input("w", (4, 4), float32), name="anchor"))
    while len(values) < 7:
        values.append(g.add(values[int(rng.integers(1, len(values)))], values[-1]))
    graph = g.build({"y": values[-1]})
    expected = subsets(graph, "anchor")
    assert len(expected) <= FUSIONS[1].budget
    assert expected == {names(p) for p in propose(graph) if any(n.name == "anchor" for n in p.region.nodes)}


def test_every_op_that_computes_more_than_pointwise_is_named_by_one_fusion_at_most() -> None:
    for first, second in itertools.combinations(FUSIONS, 2):
        for a, b in itertools.product(first.anchors, second.anchors):
            assert not issubclass(a, b), (first.name, second.name)
            assert not issubclass(b, a), (first.name, second.name)


@pytest.mark.parametrize("case", range(12))
def test_random_graphs_get_lawful_proposals_and_a_lawful_cover(case: int, rng: np.random.Generator) -> None:
    graph = assign_layouts(random_graph(rng, steps=10)).graph
    proposals = propose(graph)
    check_lawful(graph, proposals)
    cover = select(graph, [Offer(p.region, float(rng.uniform(1, 3)), p) for p in proposals])
    check_cover(graph, cover.picks)
    assert cover.exact


def trunk(blocks: int) -> Graph:
    """Residual blocks one after the other, as in ResNet."""
    g = GraphBuilder("trunk")
    x = image(g)
    for block in range(blocks):
        inner = g.relu(conv(g, x, 5, f"conv{block}a"))
        x = g.relu(g.add(x, conv(g, inner, 5, f"conv{block}b")))
    return g.build({"y": x})


def test_a_deep_network_gets_a_bounded_number_of_proposals_and_calls_per_node() -> None:
    counts, calls = {}, {}
    for blocks in (40, 160):
        graph = trunk(blocks)
        made: Counter[str] = Counter()
        sys.setprofile(lambda frame, event, argument, made=made: made.update((event,)))
        try:
            proposals = propose(graph)
        finally:
            sys.setprofile(None)
        counts[blocks], calls[blocks] = len(proposals), made["call"]
        assert all(sum(isinstance(n.op, Elementwise) for n in p.region.nodes) <= 32 for p in proposals)
    assert counts[160] < 4.2 * counts[40]
    assert calls[160] < 4.5 * calls[40], calls


SCRIPT = """
from tests.passes.test_fuse import trunk
from graphdnn.passes.fuse import propose
print([(p.fusion, [n.name for n in p.region.nodes]) for p in propose(trunk(3))])
"""


def test_every_process_proposes_the_same() -> None:
    assert "conv2b" in said_by_every_process(SCRIPT)
