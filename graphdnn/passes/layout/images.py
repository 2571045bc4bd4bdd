"""Which ops on images are channels-last and which row-major: a minimum cut of the graph, in bytes.

A part is a connected set of ops that work on images (N, C, *spatial) and run in either layout, with a convolution among
them.  The cut puts each op of it on one of two sides, channels-last or row-major, such that the sum of these is least:

- for each value that is converted its bytes, once for each layout however many read it so: for readers on another side
  than its maker, for readers and outputs outside, and for a convolution that reads a part of an image, with gaps;
- as many again where a convolution or pointwise op makes it and pointwise ops read it: on one side they could be one
  region, and the value would never be written to memory;
- for a convolution on the row-major side twice the bytes that it reads and writes: the library converts inside it, and
  fuses less with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphdnn.ir.graph import Graph, Node
from graphdnn.ir.ops.movement import Slice, Split
from graphdnn.ir.types import IMAGE_RANKS
from graphdnn.passes.layout.dependence import Dependence
from graphdnn.passes.layout.network import Network
from graphdnn.passes.layout.rules import CONVOLUTIONS, FOLLOWERS, matters


def is_flexible(node: Node) -> bool:
    """Whether a node works on images and its layout is to be chosen."""
    if not node.operands or node.operands[0].type.rank not in IMAGE_RANKS:
        return isinstance(node.op, FOLLOWERS) and node.result.type.rank in IMAGE_RANKS
    ranks = {node.operands[0].type.rank, node.result.type.rank}
    return len(ranks) == 1 and isinstance(node.op, (*CONVOLUTIONS, *FOLLOWERS, Slice, Split))


def channels_last_nodes(graph: Graph) -> Mapping[Node, bool]:
    """For each chosen node whether it is channels-last; other nodes are absent.

    All parts are cut at once, since they may share conversions of an input.
    """
    network = Network(graph, dependence(graph))
    network.add_separations()
    return network.cut()


def least_converted_nodes(graph: Graph) -> Mapping[Node, bool]:
    """The same by converted bytes alone, whatever could be one region."""
    return Network(graph, dependence(graph)).cut()


def both_cuts(graph: Graph) -> tuple[Mapping[Node, bool], Mapping[Node, bool]]:
    """What channels_last_nodes and least_converted_nodes give, for one look at the graph."""
    network = Network(graph, dependence(graph))
    apart = network.cut()
    network.add_separations()
    return network.cut(), apart


def dependence(graph: Graph) -> Dependence:
    """How the values of a graph lie by the sides of the nodes that are chosen: those of parts with a convolution.

    Slices of an image are none of them: they lie as it does.
    """
    parts = [p for p in image_parts(graph) if any(isinstance(n.op, CONVOLUTIONS) for n in p)]
    return Dependence(graph, [n for p in parts for n in p if not n.op.is_renaming])


def image_parts(graph: Graph) -> list[list[Node]]:
    """Flexible nodes that hand images to each other, in order."""
    home: dict[Node, int] = {}
    parts: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if not is_flexible(node):
            continue
        sources = (graph.producer.get(v) for v in node.operands if matters(v.type))
        near = sorted({home[s] for s in sources if s in home})
        first = near[0] if near else len(home)
        parts.setdefault(first, []).append(node)
        home[node] = first
        for other in near[1:]:
            for moved in parts[other]:
                home[moved] = first
            parts[first] += parts.pop(other)
    return [sorted(p, key=graph.position.__getitem__) for p in parts.values()]
