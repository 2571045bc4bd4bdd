"""Which ops on images are channels-last and which row-major: a minimum cut of the graph, in bytes.

A part is a connected set of ops that work on images (N, C, *spatial) and run in either layout, with a convolution among
them.  The cut puts each op of it on one of two sides, channels-last or row-major, such that the sum of these is least:

- for each value whose maker and readers are on different sides its bytes, once however many read it: it is converted;
- as many again where a convolution or pointwise op makes it and pointwise ops read it: on one side they could be one
  region, and the value would never be written to memory;
- for a convolution on the row-major side twice the bytes that it reads and writes: the library converts inside it, and
  fuses less with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import MatMul
from graphdnn.ir.ops.movement import Pad, Slice, Split
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.ir.types import TensorType, channels_last
from graphdnn.lazy import cached_property
from graphdnn.passes.layout.minimum_cut import source_side
from graphdnn.passes.layout.rules import (
    CONVOLUTIONS,
    FOLLOWERS,
    has_dense_rows,
    is_matrix,
    layouts_around,
    promised_strides,
)

IMAGE_RANKS = (4, 5)
PENALTY = 2
"""Bytes that a convolution in row-major layout costs, for each byte of its image and its result."""

COPIED = 1
"""Bytes counted where a pad reads one layout and writes another: it copies in any case, so next to nothing, but not 0,
so that of equal cuts the one without such a turn is taken."""

LAST, MAJOR = -1, -2
"""The source and the sink of the flow network, for channels-last and row-major; ops and values are numbered from 0."""


def is_flexible(node: Node) -> bool:
    """Whether a node works on images and its layout is to be chosen."""
    if not node.operands or node.operands[0].type.rank not in IMAGE_RANKS:
        return isinstance(node.op, FOLLOWERS) and node.result.type.rank in IMAGE_RANKS
    ranks = {node.operands[0].type.rank, node.result.type.rank}
    return len(ranks) == 1 and isinstance(node.op, (*CONVOLUTIONS, *FOLLOWERS, Slice, Split))


def matters(type: TensorType) -> bool:
    """Whether row-major and channels-last differ for such a tensor."""
    return type.rank in IMAGE_RANKS and type.shape[1] != 1 and any(n != 1 for n in type.shape[2:])


def channels_last_nodes(graph: Graph) -> Mapping[Node, bool]:
    """For each node of a part with a convolution whether it is channels-last; other nodes are absent.

    All parts are cut at once, since they may share conversions of an input.
    """
    return network(graph).cut()


def least_converted_nodes(graph: Graph) -> Mapping[Node, bool]:
    """The same by converted bytes alone, whatever could be one region."""
    return replace(network(graph), joins=False).cut()


def both_cuts(graph: Graph) -> tuple[Mapping[Node, bool], Mapping[Node, bool]]:
    """What channels_last_nodes and least_converted_nodes give, for one look at the graph."""
    joined = network(graph)
    return joined.cut(), replace(joined, joins=False, edges={}).cut()


def network(graph: Graph) -> Network:
    nodes = convolutional_nodes(graph)
    return Network(graph, nodes, known_layouts(graph, nodes))


def convolutional_nodes(graph: Graph) -> list[Node]:
    """The nodes whose layout is chosen: those of parts with a convolution."""
    parts = [p for p in image_parts(graph) if any(isinstance(n.op, CONVOLUTIONS) for n in p)]
    return [n for p in parts for n in p]


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


def known_layouts(graph: Graph, chosen: Sequence[Node]) -> Mapping[Value, TensorType]:
    """Types with strides of the values whose layout is certain before the layouts of `chosen` are.

    That is of the graph's inputs and states; and, of the nodes that lead to an image which `chosen` read, the results
    that lie alike when all of `chosen` are channels-last and when none is.
    """
    sources = (*graph.inputs.values(), *graph.states.values())
    known = {v: v.type.with_strides(v.type.layout) for v in sources}
    inside = set(chosen)
    needed = 0
    for value in dict.fromkeys(v for n in chosen for v in n.operands if matters(v.type)):
        maker = graph.producer.get(value)
        if maker is not None and maker not in inside:
            needed |= graph.ancestors[maker] | 1 << graph.position[maker]
    if not needed:
        return known
    nodes = [n for i, n in enumerate(graph.nodes) if needed >> i & 1]
    last, major = (laid_out(graph, nodes, known, dict.fromkeys(chosen, side)) for side in (True, False))
    made = [v for n in nodes if n not in inside for v in n.results]
    return known | {v: last[v] for v in made if last[v].layout == major[v].layout}


def laid_out(
    graph: Graph, nodes: Sequence[Node], known: Mapping[Value, TensorType], images: Mapping[Node, bool]
) -> Mapping[Value, TensorType]:
    """Types with strides of what these nodes make, when those of `images` are channels-last or not."""
    promised = promised_strides(graph)
    made: dict[Value, TensorType] = {}
    for node in nodes:
        operands = [made.get(v, known.get(v, v.type)) for v in node.operands]
        found = layouts_around(node, operands, images, promised)
        made |= {v: v.type.with_strides(s) for v, s in zip(node.results, found.results, strict=True)}
    return made


@dataclass
class Network:
    """The flow network of some parts: the side of LAST is channels-last, that of MAJOR row-major.

    With `joins` it counts what it costs that two nodes cannot be one region.
    """

    graph: Graph
    nodes: Sequence[Node]
    known: Mapping[Value, TensorType]
    joins: bool = True
    edges: dict[tuple[int, int], int | None] = field(default_factory=dict)
    count: int = 0

    @cached_property
    def leaving(self) -> Mapping[Value, Sequence[int]]:
        """Ends of the network for the layouts in which values leave the graph."""
        graph = self.graph
        wanted = [(value, graph.output_type(name)) for name, value in graph.outputs.items()]
        wanted += [(value, graph.states[name].type) for name, value in graph.updates.items()]
        found: dict[Value, list[int]] = {}
        for value, type in wanted:
            side = side_of(type)
            if side is not None:
                found.setdefault(value, []).append(side)
        return found

    def cut(self) -> dict[Node, bool]:
        """The side of each node; the one unique cut whose channels-last side is largest."""
        place = {n: i for i, n in enumerate(self.nodes)}
        self.count = len(place)
        for node in self.nodes:
            self.add_preference(node, place[node])
        for value in self.values():
            self.add_value(value, place)
        last = source_side(self.edges, LAST, MAJOR)
        return {n: i in last for n, i in place.items()}

    def connect(self, a: int, b: int, capacity: int | None) -> None:
        """An edge that costs `capacity` when `a` is channels-last and `b` is not; None: that must not be."""
        before = self.edges.get((a, b), 0)
        self.edges[a, b] = None if capacity is None or before is None else before + capacity

    def values(self) -> Iterable[Value]:
        """Images that the parts read or make, constants aside: those are laid out for free."""
        constants = set(self.graph.constants.values())
        touched = dict.fromkeys(v for n in self.nodes for v in (*n.operands, *n.results))
        return [v for v in touched if v.literal is None and v not in constants and matters(v.type)]

    def add_preference(self, node: Node, place: int) -> None:
        moved = node.operands[0].type.nbytes + node.result.type.nbytes
        if isinstance(node.op, CONVOLUTIONS):
            self.connect(LAST, place, PENALTY * moved)
        elif reduces_rows(node):
            self.connect(place, MAJOR, node.operands[0].type.nbytes)

    def add_value(self, value: Value, place: Mapping[Node, int]) -> None:
        """What it costs when the maker of a value and its readers are on different sides."""
        maker = self.graph.producer.get(value)
        if maker is not None and maker in place:
            home = place[maker]
        else:
            side = side_of(self.known.get(value))
            if side is None:
                return
            home = side
        inside = [u for u in self.graph.users.get(value, ()) if u in place]
        readers = [place[u] for u in inside if not isinstance(u.op, Pad)]
        others = [u for u in self.graph.users.get(value, ()) if u not in place]
        if any(converts_channels_last(u, value) for u in others):
            readers.append(MAJOR)
        readers += self.leaving.get(value, ())
        if home >= 0:
            self.connect(home, MAJOR, value.type.nbytes * sum(copies_channels_last(u, value) for u in others))
        turned, returned = self.count, self.count + 1
        self.count += 2
        for reader in dict.fromkeys(readers):
            self.connect(turned, reader, None)
            self.connect(reader, returned, None)
        if self.joins and maker is not None and home >= 0:
            self.add_separation(maker, value, [u for u in inside if may_join(maker, u)], place)
        for copier in (place[u] for u in inside if isinstance(u.op, Pad)):
            self.connect(home, copier, COPIED)
            self.connect(copier, home, COPIED)
        self.connect(home, turned, value.type.nbytes)
        self.connect(returned, home, value.type.nbytes)

    def add_separation(self, maker: Node, value: Value, joining: Sequence[Node], place: Mapping[Node, int]) -> None:
        """Adds what is lost where a value's maker and these readers of it, on different sides, cannot be one region.

        Beyond the conversion, which `add_value` counts, the value is then written and read: as many bytes again, or
        half as many where it is written in any case, for other readers or as an output.
        """
        if not joining:
            return
        home, apart, away = place[maker], self.count, self.count + 1
        self.count += 2
        for reader in joining:
            self.connect(apart, place[reader], None)
            self.connect(place[reader], away, None)
        stays = value not in self.graph.escaping and len(joining) == len(self.graph.users[value])
        saved = value.type.nbytes if stays else value.type.nbytes // 2
        self.connect(home, apart, saved)
        self.connect(away, home, saved)


def may_join(maker: Node, reader: Node) -> bool:
    """Whether a reader can be one region with the maker of what it reads, as far as both lie alike."""
    return isinstance(maker.op, (*CONVOLUTIONS, Elementwise)) and isinstance(reader.op, Elementwise)


def side_of(type: TensorType | None) -> int | None:
    """The end of the network that a tensor of known layout stands at; None for any other layout."""
    if type is None:
        return None
    return LAST if type.is_channels_last else MAJOR if type.is_row_major else None


def reduces_rows(node: Node) -> bool:
    """Whether a node goes along the last axis and not along the channels, which is slow channels-last."""
    axes = (node.op.axis,) if isinstance(node.op, Softmax) else getattr(node.op, "axes", ())
    return axes == (node.operands[0].type.rank - 1,)


def converts_channels_last(user: Node, value: Value) -> bool:
    """Whether a reader outside the parts cannot read this operand channels-last, and needs it converted."""
    last = value.type.with_strides(channels_last(value.type.shape))
    if isinstance(user.op, MatMul):
        return not is_matrix(last)
    return isinstance(user.op, Attention) and value in user.operands[:3] and not has_dense_rows(last)


def copies_channels_last(user: Node, value: Value) -> bool:
    """Whether a reader such as a reshape is a view of a row-major operand, and a copy of a channels-last one."""
    last = value.type.with_strides(channels_last(value.type.shape))
    if not user.op.is_renaming or user.op.view(last) is not None:
        return False
    return user.op.view(value.type.with_strides(None)) is not None
