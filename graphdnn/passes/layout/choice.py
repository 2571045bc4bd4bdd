"""Which of two ways to lay images out: pointwise work in one region with its convolution, or fewer bytes converted.

They differ where a graph's row-major edges reach such work, a residual input say: it is as many bytes to convert that
input as the convolution's result, and what a region of both saves depends on the engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphdnn.errors import CompileError
from graphdnn.ir.graph import Graph, Node
from graphdnn.passes.fuse import propose
from graphdnn.passes.layout.assign import assign_layouts
from graphdnn.passes.layout.images import both_cuts, channels_last_nodes, least_converted_nodes
from graphdnn.passes.layout.network import may_join
from graphdnn.passes.rewrite import Ask, Refusal, Rewritten, user_name
from graphdnn.passes.select import Offer, select


def row_major_images(graph: Graph) -> Rewritten:
    """Layouts with every convolutional part row-major, whatever it costs."""
    return assign_layouts(graph, dict.fromkeys(channels_last_nodes(graph), False))


def apart_layouts(graph: Graph) -> Rewritten:
    """Layouts with fewest bytes converted, where there are to be no larger regions."""
    return assign_layouts(graph, least_converted_nodes(graph))


def cheapest_layouts(graph: Graph, ask: Ask) -> Rewritten:
    """Layouts by whichever of the two ways has the cheaper cover by `ask`, the larger regions where it is equal.

    Where neighbours that could be one region lie differently, a refusal says so.
    """
    images, apart = both_cuts(graph)
    done, reason = assign_layouts(graph, images), "which converts fewer bytes than one layout for both"
    if images != apart:
        other = assign_layouts(graph, apart)
        us, other_us = cover_us(done.graph, ask), cover_us(other.graph, ask)
        if us is not None and other_us is not None and other_us < us:
            done, images = other, apart
            reason = f"which is {other_us:.1f} us for the graph by estimate, against {us:.1f} with one layout for both"
    return with_refusals(done, graph, images, reason)


def cover_us(graph: Graph, ask: Ask) -> float | None:
    """Microseconds of the cheapest cover; None where a node is taken by nobody."""
    prices = ((p.region, ask(p.region)) for p in propose(graph))
    try:
        return select(graph, [Offer(region, us) for region, us in prices if us is not None]).cost_us
    except CompileError:
        return None


def with_refusals(done: Rewritten, graph: Graph, images: Mapping[Node, bool], reason: str) -> Rewritten:
    found: list[Refusal] = []
    for maker, reader in separated(graph, images):
        lies = "channels-last" if images[maker] else "row-major"
        how = f"{user_name(maker.result, graph)} is {lies} and the reader is not, {reason}"
        found.append(Refusal("one layout", (*maker.origins, *reader.origins), how))
    return Rewritten(done.graph, done.changes, tuple(found))


def separated(graph: Graph, images: Mapping[Node, bool]) -> Iterator[tuple[Node, Node]]:
    """Neighbours that could be one region and lie differently."""
    for maker, is_last in images.items():
        for value in maker.results:
            for reader in graph.users.get(value, ()):
                if may_join(maker, reader) and images.get(reader, is_last) != is_last:
                    yield maker, reader
