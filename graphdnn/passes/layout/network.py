"""The flow network whose cut says which nodes are channels-last: what it costs when two are on different sides.

It counts what the layouts of rules.py really have converted and copied, but for two things that no cut can say: what
more than one node decides about a value outside, and that the copy of an image with gaps which a row-major convolution
needs serves others too.  The best cut has no such convolution, but where its filter is computed at run time and larger
than its images, or several reshapes copy its result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.movement import Pad
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.ir.types import IMAGE_RANKS, TensorType
from graphdnn.passes.layout.dependence import LAST, MAJOR, NOTHING, Dependence, Laid, Needs
from graphdnn.passes.layout.minimum_cut import source_side
from graphdnn.passes.layout.rules import CONVOLUTIONS, fits, matters

PENALTY = 2
"""Bytes that a convolution in row-major layout costs, for each byte of its image and its result."""

COPIED = 1
"""Bytes counted where a pad reads one layout and writes another: it copies in any case, so next to nothing, but not 0,
so that of equal cuts the one without such a turn is taken."""

ENDS = (LAST, MAJOR)
ACROSS = {LAST: MAJOR, MAJOR: LAST}


class Copies(NamedTuple):
    """What a value in one form is copied for: `any_case` bytes, and for each end of the network the places that need a
    copy laid out so when they are on its side."""

    any_case: int
    places: Mapping[int, Sequence[int]]


class Network:
    """The flow network of a graph's chosen nodes: the side of LAST is channels-last, that of MAJOR row-major."""

    def __init__(self, graph: Graph, dependence: Dependence) -> None:
        self.graph = graph
        self.dependence = dependence
        self.place = dependence.place
        self.edges: dict[tuple[int, int], int | None] = {}
        self.count = len(self.place)
        for node, number in self.place.items():
            self.add_preference(node, number)
        for value in self.values():
            self.add_value(value)

    def cut(self) -> dict[Node, bool]:
        """The side of each node; the one unique cut whose channels-last side is largest."""
        last = source_side(self.edges, LAST, MAJOR)
        return {n: i in last for n, i in self.place.items()}

    def add_separations(self) -> None:
        """Adds what is lost where nodes on different sides cannot be one region.

        Beyond the conversion, which is counted before, a value is then written and read: as many bytes again, or half
        as many where it is written in any case, for other readers or as an output.
        """
        for maker, number in self.place.items():
            for value in (v for v in maker.results if matters(v.type)):
                users = self.graph.users.get(value, ())
                joining = [self.place[u] for u in users if u in self.place and may_join(maker, u)]
                stays = value not in self.graph.escaping and len(joining) == len(users)
                for end in ENDS:
                    self.pay(end, number, joining, value.type.nbytes if stays else value.type.nbytes // 2)

    def connect(self, a: int, b: int, capacity: int | None) -> None:
        """An edge that costs `capacity` when `a` is channels-last and `b` is not; None: that must not be."""
        before = self.edges.get((a, b), 0)
        self.edges[a, b] = None if capacity is None or before is None else before + capacity

    def pay(self, end: int, home: int, readers: Iterable[int], nbytes: int) -> None:
        """Bytes paid once, when any of the readers is on the side of `end` and `home` is not."""
        places = dict.fromkeys(readers)
        if not places or (home == ACROSS[end] and end in places):
            return  # never, or in any case
        paid, *_ = places
        if len(places) > 1:
            paid = self.count
            self.count += 1
            for reader in places:
                self.connect(*((reader, paid) if end == LAST else (paid, reader)), None)
        self.connect(*((paid, home) if end == LAST else (home, paid)), nbytes)

    def values(self) -> Iterable[Value]:
        """What the nodes read, literals and constants aside as those are laid out for free, and all that depends on
        their sides."""
        laid, constants = self.dependence.laid, self.graph.constants
        read = (v for n in self.place for v in n.operands if v.literal is None and v.name not in constants)
        return dict.fromkeys((*read, *(v for v, found in laid.items() if found.home != LAST)))

    def add_preference(self, node: Node, place: int) -> None:
        moved = node.operands[0].type.nbytes + node.result.type.nbytes
        if isinstance(node.op, CONVOLUTIONS):
            self.connect(LAST, place, PENALTY * moved)
        elif reduces_rows(node):
            self.connect(place, MAJOR, node.operands[0].type.nbytes)

    def add_value(self, value: Value) -> None:
        """What it costs when a value's home and its readers are on different sides."""
        laid, nbytes = self.dependence.laid[value], value.type.nbytes
        home = laid.home
        turns = matters(value.type)
        if home is None or (home == LAST and not turns):
            return  # not known, or the same in any case
        images = [u for u in self.graph.users.get(value, ()) if u in self.place and reads_image(u, value)]
        readers = [u for u in images if not isinstance(u.op, Pad)]
        needs = self.dependence.needs.get(value, (NOTHING, NOTHING))
        last, major = (self.copies(t, n, readers) for t, n in zip((laid.last, laid.major), needs, strict=True))
        if last.any_case > major.any_case:
            self.connect(home, MAJOR, last.any_case - major.any_case)
        if last.any_case < major.any_case:
            self.connect(LAST, home, major.any_case - last.any_case)
        self.add_conversions(LAST, home, last.places[LAST], major.places[LAST], nbytes)
        self.add_conversions(MAJOR, home, major.places[MAJOR], last.places[MAJOR], nbytes)
        for pad in images:
            if turns and isinstance(pad.op, Pad):
                self.add_turn(laid, home, self.place[pad])

    def copies(self, form: TensorType, needs: Needs, readers: Sequence[Node]) -> Copies:
        """What a value that lies in this form is copied for."""
        layouts = set(needs.converted)
        places: dict[int, list[int]] = {LAST: [], MAJOR: []}
        wanted = [t.layout for t in self.dependence.images(form)] if form.rank in IMAGE_RANKS else []
        turns = matters(form)
        for layout, (end, asking) in zip(wanted, places.items(), strict=False):
            if form.layout == layout:
                continue
            has_gaps = not (turns and form.layout in wanted) and fits(form, end == LAST, dense=False)
            askers = [u for u in readers if isinstance(u.op, CONVOLUTIONS)] if has_gaps else readers
            if not turns:
                layouts |= {layout} if askers else set()
                continue
            asking += [self.place[u] for u in askers]
            if layout in layouts or (has_gaps and askers and end == LAST):
                asking.append(end)  # a convolution is channels-last in every best cut
                layouts.discard(layout)
        return Copies(form.nbytes * len(layouts) + sum(needs.copied), places)

    def add_conversions(self, end: int, home: int, near: Sequence[int], far: Sequence[int], nbytes: int) -> None:
        """Adds the copies laid out as on the side of `end`: for those `near` even when the value's home is on that
        side, for those `far` when it is on the other."""
        self.pay(end, ACROSS[end], near, nbytes)
        if home != LAST and end not in near:
            self.pay(end, home, [p for p in far if p not in near], nbytes)

    def add_turn(self, laid: Laid, home: int, pad: int) -> None:
        """Adds what it costs that a pad reads one layout and writes another."""
        ends = (LAST, MAJOR) if home == LAST else (home, home)
        if not fits(laid.last, last=False, dense=False):
            self.connect(ends[0], pad, COPIED)
        if not fits(laid.major, last=True, dense=False):
            self.connect(pad, ends[1], COPIED)


def reads_image(reader: Node, value: Value) -> bool:
    """Whether a chosen node needs this operand in the layout of its side."""
    return value.type.rank == reader.result.type.rank


def may_join(maker: Node, reader: Node) -> bool:
    """Whether a reader can be one region with the maker of what it reads, as far as both lie alike."""
    return isinstance(maker.op, (*CONVOLUTIONS, Elementwise)) and isinstance(reader.op, Elementwise)


def reduces_rows(node: Node) -> bool:
    """Whether a node goes along the last axis and not along the channels, which is slow channels-last."""
    axes = (node.op.axis,) if isinstance(node.op, Softmax) else getattr(node.op, "axes", ())
    return axes == (node.operands[0].type.rank - 1,)
