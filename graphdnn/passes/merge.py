"""Merging: products that share their left operand become one product with their constant weights side by side.

Q, K and V projections, gate and up projection.  The results are slices of one buffer; what reads them reads the slices.
Whether that pays is asked of the engines for the products and what follows them, apart and merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf, isinf

import numpy as np

from graphdnn.errors import CompileError
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.movement import Concat, Convert, Split
from graphdnn.ir.ops.pointwise import Bias, Elementwise, Pointwise
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.payload import Payload
from graphdnn.ir.region import Region
from graphdnn.ir.types import TensorType
from graphdnn.ir.writer import GraphWriter, Rewriter
from graphdnn.passes.fuse import propose
from graphdnn.passes.layout.assign import assign_layouts
from graphdnn.passes.pattern import leaves_as
from graphdnn.passes.rewrite import Ask, Emitter, Precomputed, Refusal, Rewritten, finish, in_user_names, user_name
from graphdnn.passes.rules.folding import per_channel, tensor_and_constant, vector
from graphdnn.passes.select import Offer, select

SLICE_ALIGNMENT = 8
"""Elements at a multiple of which every slice and every row of it begins: 16 bytes of halves, as attention needs."""

MOST_PRODUCTS = 8
"""Products merged into one at most; the results of all of them live as long as the last one that is read."""

MOST_READERS = 48
"""Most nodes behind the products whose cost is compared with them, apart and merged."""

BARRIERS: tuple[type[Op], ...] = (MatMul, Conv, ConvTranspose, Attention)
"""Ops at which the neighbourhood of the products ends: they belong to it, but what reads their results does not, since
a merge changes nothing behind them."""


@dataclass(frozen=True)
class Branch:
    """A product with constant weights, and the addition of a constant to its columns that alone reads it, if any."""

    product: Node
    bias: Node | None

    @property
    def weights(self) -> Value:
        return self.product.operands[1]

    @property
    def result(self) -> Value:
        return (self.bias or self.product).result

    @property
    def columns(self) -> int:
        return self.result.type.shape[-1]


def merge_products(graph: Graph, ask: Ask) -> Rewritten:
    """The graph with products merged where the engines say that it is cheaper; a second application changes nothing.

    A merge changes the neighbourhoods in which others were weighed, so all are weighed again until none merges; each
    round leaves fewer products.
    """
    done = merge_once(graph, ask)
    while True:
        after = merge_once(done.graph, ask)
        if not after.changes:
            return done
        done = Rewritten(after.graph, done.changes + after.changes, after.refusals)


def merge_once(graph: Graph, ask: Ask) -> Rewritten:
    """Every group of products weighed once, as the graph is."""
    changes: list[str] = []
    refusals: list[Refusal] = []
    merged: list[tuple[Branch, ...]] = []
    known: Known = {}
    for group in groups(graph):
        fit: list[Branch] = []
        for branch in group:
            reason = unfit(branch, graph)
            if reason is None:
                fit.append(branch)
            else:
                refusals.append(Refusal("merge", branch.product.origins, reason))
        for start in range(0, len(fit), MOST_PRODUCTS):
            some = tuple(fit[start : start + MOST_PRODUCTS])
            if len(some) > 1:
                decided = decide(graph, some, ask, known)
                if isinstance(decided, Refusal):
                    refusals.append(decided)
                else:
                    merged.append(decided[0])
                    changes.append(decided[1])
    after = with_merged(graph, merged) if merged else graph
    return Rewritten(after, tuple(changes), in_user_names(dict.fromkeys(refusals), graph))


def groups(graph: Graph) -> Iterator[tuple[Branch, ...]]:
    """Products of one left operand with constant matrices of one type, two or more, in the graph's order."""
    found: dict[object, list[Branch]] = {}
    for node in graph.nodes:
        if isinstance(node.op, MatMul) and graph.is_constant(node.operands[1]) and node.operands[1].type.rank == 2:
            branch = Branch(node, bias_behind(node, graph))
            if not is_split(branch.result, graph):
                key = (node.operands[0], node.operands[1].type.dtype, node.result.type.dtype)
                found.setdefault(key, []).append(branch)
    return (tuple(branches) for branches in found.values() if len(branches) > 1)


def bias_behind(product: Node, graph: Graph) -> Node | None:
    """The only reader of a product, if that adds a constant with one entry for each column."""
    users = graph.users.get(product.result, ())
    if len(users) != 1 or product.result in graph.escaping:
        return None
    (node,) = users
    if not (isinstance(node.op, Bias) or node.op == Pointwise(fn="add")):
        return None
    tensor, other = tensor_and_constant(node, graph)
    type = product.result.type
    fits = tensor is product.result and other.literal is None and per_channel(node, type.rank - 1, graph)
    return node if fits and (other.type.size, other.type.dtype) == (type.shape[-1], type.dtype) else None


def is_split(value: Value, graph: Graph) -> bool:
    """Whether the columns are taken apart again: whoever wrote that, or this pass, has merged already."""
    last = value.type.rank - 1
    return any(isinstance(n.op, Split) and n.op.axis == last for n in graph.users.get(value, ()))


def unfit(branch: Branch, graph: Graph) -> str | None:
    """Why a product cannot be a slice of a larger one."""
    if branch.columns % SLICE_ALIGNMENT:
        return (
            f"{branch.product} has {branch.columns} columns; slices of one product begin at multiples of "
            f"{SLICE_ALIGNMENT}, or what reads them would read unaligned memory"
        )
    views = [branch.result]
    for value in views:
        if value in graph.escaping:
            return f"{value} {leaves_as(graph, value)}, which needs memory of its own: a slice would be copied there"
        views += (v for n in graph.users.get(value, ()) if n.op.is_renaming for v in n.results)
    return None


Known = dict[object, tuple[float, list[float]]]
"""Costs of neighbourhoods that were weighed already, by structure."""


def decide(
    graph: Graph, branches: tuple[Branch, ...], ask: Ask, known: Known
) -> tuple[tuple[Branch, ...], str] | Refusal:
    """Which of the branches to merge, with the sentence that says so; a Refusal where apart is at least as cheap.

    All of them, or those that no pointwise work follows: behind a slice such work is a kernel of its own.
    """
    quiet = tuple(b for b in branches if not is_followed(b, graph))
    choices = [branches, quiet] if 1 < len(quiet) < len(branches) else [branches]
    near = part(graph, neighbourhood(graph, branches))
    key = Region(near, near.nodes).key, tuple(near.position[n] for c in choices for b in c for n in nodes_of(b))
    if key not in known:
        known[key] = cost(near, ask), [cost(with_merged(near, [choice]), ask) for choice in choices]
    apart, costs = known[key]
    best = min(costs)
    chosen = choices[costs.index(best)]
    names = tuple(dict.fromkeys(o for b in chosen for o in b.product.origins))
    if best < apart:
        columns = sum(b.columns for b in chosen)
        return chosen, (
            f"{', '.join(names)}: one product with {columns} columns; with what reads them {best:.1f} us instead of "
            f"{in_words(apart)}"
        )
    reason = f"as one product they and what reads them would take {in_words(best)}, apart they take {in_words(apart)}"
    return Refusal("merge", names, reason)


def in_words(cost: float) -> str:
    return "more than any engine can do" if isinf(cost) else f"{cost:.1f} us"


def is_followed(branch: Branch, graph: Graph) -> bool:
    return any(isinstance(n.op, Elementwise) for n in graph.users.get(branch.result, ()))


def nodes_of(branch: Branch) -> tuple[Node, ...]:
    return (branch.product,) if branch.bias is None else (branch.product, branch.bias)


def neighbourhood(graph: Graph, branches: Sequence[Branch]) -> tuple[Node, ...]:
    """The branches and what reads them, up to the next heavy op, in the graph's order.

    A node that also waits for something behind the branches which is left out is left out too, so that no path leaves
    these nodes and comes back.
    """
    position = graph.position
    chosen = {position[n] for b in branches for n in nodes_of(b)}
    behind = 0
    for branch in branches:
        behind |= graph.descendants[branch.product]

    def readers(value: Value) -> list[int]:
        return [position[n] for n in graph.users.get(value, ())]

    limit = len(chosen) + MOST_READERS
    queue = [i for b in branches for i in readers(b.result)]
    heapify(queue)
    while queue and len(chosen) < limit:
        i = heappop(queue)
        node = graph.nodes[i]
        made = (position[graph.producer[v]] for v in node.operands if v in graph.producer)
        if i in chosen or any(behind >> p & 1 and p not in chosen for p in made):
            continue
        chosen.add(i)
        for value in node.results if not isinstance(node.op, BARRIERS) else ():
            for reader in readers(value):
                heappush(queue, reader)
    return tuple(graph.nodes[i] for i in sorted(chosen))


def part(graph: Graph, nodes: Sequence[Node]) -> Graph:
    """Some nodes as a graph of their own."""
    writer = GraphWriter(graph.name)
    inside = {v for n in nodes for v in n.results}
    for value in (v for n in nodes for v in n.operands if v not in inside and v.literal is None):
        if graph.is_constant(value):
            writer.constants[value.name] = value
            writer.payloads[value.name] = graph.payloads[value.name]
        else:
            writer.inputs[value.name] = value
    for node in nodes:
        writer.adopt(node)
    return writer.finish({v.name: v for v in Region(graph, tuple(nodes)).outputs})


def cost(graph: Graph, ask: Ask) -> float:
    """Microseconds of the cheapest cover, without copies of results to where a graph's outputs lie; inf if none is."""
    laid = assign_layouts(graph).graph
    offers = []
    for proposal in propose(laid):
        price = ask(proposal.region)
        if price is not None:
            offers.append(Offer(proposal.region, price, None))
    try:
        picks = select(laid, offers).picks
    except CompileError:
        return inf
    return sum(o.cost_us for o in picks if not is_copy_out(o.region))


def is_copy_out(region: Region) -> bool:
    (first, *_) = region.nodes
    return isinstance(first.op, Convert) and first.result in region.graph.escaping


def with_merged(graph: Graph, merged: Sequence[tuple[Branch, ...]]) -> Graph:
    """The graph with each of these groups as one product."""
    at: Mapping[Node, tuple[Branch, ...]] = {g[0].product: g for g in merged}
    gone = {n for g in merged for b in g for n in nodes_of(b)}
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node in at:
            for branch, slice in zip(at[node], slices(rewriter, at[node], graph), strict=True):
                rewriter.replace(branch.result, slice)
        elif node not in gone:
            rewriter.keep(node)
    return finish(rewriter)


def slices(rewriter: Rewriter, branches: tuple[Branch, ...], graph: Graph) -> tuple[Value, ...]:
    """The results of the branches as parts of one product, in their order; each is called what the user calls it."""
    origins = tuple(dict.fromkeys(o for b in branches for o in b.product.origins))
    last = branches[0].result.type.rank - 1
    first, writer = branches[0].product, rewriter.writer
    for branch in branches:
        writer.free(branch.result.name)
    names = [writer.claim(None, user_name(b.result, graph)) for b in branches]
    weights = Precomputed(rewriter, origins)(Concat(axis=1), *(b.weights for b in branches))
    y = Emitter(rewriter, origins)(first.op, first.operands[0], weights)
    biases = [b.bias for b in branches if b.bias is not None]
    if biases:
        make = Precomputed(rewriter, (o for n in biases for o in n.origins))
        y = make(Bias(axis=last), y, make(Concat(axis=0), *(added(make, b, graph) for b in branches)))
    split = Split(sizes=tuple(b.columns for b in branches), axis=last)
    parts = tuple(Value(name, type) for name, type in zip(names, split.infer(y.type), strict=True))
    writer.adopt(Node(writer.claim(None, origins[0]), split, (y,), parts, origins))
    return parts


def added(make: Emitter, branch: Branch, graph: Graph) -> Value:
    """What a branch adds to each column: zero where it has no bias."""
    dtype = branch.result.type.dtype
    if branch.bias is None:
        return make.constant(Payload(TensorType((branch.columns,), dtype), np.zeros(branch.columns, dtype.numpy)))
    return vector(make, tensor_and_constant(branch.bias, graph)[1], dtype)
