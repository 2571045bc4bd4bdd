"""Regions: convex sets of nodes of one graph, which is what engines are asked about and plans are built for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.views import is_part_of, resolve
from graphdnn.lazy import cached_property

ALIGNMENT = 16
"""Bytes at whose multiples every input, constant, state and computed value starts, whoever hands it in."""


@dataclass(frozen=True, eq=False)
class Region:
    """Some nodes of a graph, in topological order.  Values have decided strides once the layout pass has run."""

    graph: Graph
    nodes: tuple[Node, ...]

    @staticmethod
    def of(graph: Graph, nodes: Iterable[Node]) -> Region:
        """The region of these nodes, put in the graph's order."""
        return Region(graph, tuple(sorted(set(nodes), key=graph.position.__getitem__)))

    @cached_property
    def mask(self) -> int:
        """Bit set of the nodes, by position in the graph."""
        position, mask = self.graph.position, 0
        for node in self.nodes:
            mask |= 1 << position[node]
        return mask

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """Values read from outside, each once, in order of first use; constants count, immediates do not."""
        inside = {v for n in self.nodes for v in n.results}
        read = [v for n in self.nodes for v in n.operands if v not in inside and v.literal is None]
        return tuple(dict.fromkeys(read))

    @cached_property
    def outputs(self) -> tuple[Value, ...]:
        """Values that are needed outside: by other nodes, as graph outputs or as next values of states."""
        escaping, readers, outside = self.graph.escaping, self.graph.readers, ~self.mask
        return tuple([v for n in self.nodes for v in n.results if v in escaping or readers.get(v, 0) & outside])

    @cached_property
    def alignments(self) -> tuple[int, ...]:
        """For each input a power of two of bytes, at most ALIGNMENT, at whose multiples its first element lies.

        Memory of its own starts at multiples of ALIGNMENT; a view starts anywhere in it.
        """
        starts = zip(self.inputs, self._places, strict=True)
        return tuple(
            [gcd(ALIGNMENT, offset * v.type.dtype.itemsize) if offset else ALIGNMENT for v, (_, offset) in starts]
        )

    @property
    def _sharing(self) -> tuple[str, ...]:
        """For each input that is a view of an earlier one's memory, where it lies from there; empty for the others."""
        first: dict[Value, tuple[int, int]] = {}
        found: list[str] = []
        for index, (root, offset) in enumerate(self._places):
            before, start = first.setdefault(root, (index, offset))
            found.append("" if before == index else f" in i{before} from {offset - start}")
        return tuple(found)

    @cached_property
    def _places(self) -> tuple[tuple[Value, int], ...]:
        """For each input the value in whose memory it lies, and how many elements into it."""
        places = resolve(self.graph)
        return tuple([places[v] for v in self.inputs])

    @cached_property
    def common_form(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The shape and layout that all tensors of a purely pointwise region have in common, Python numbers aside.

        None where nodes are not pointwise or tensors differ.  Checks of layouts need look at one node of such a region.
        """
        first = self.nodes[0].form
        return first if all(n.form == first and isinstance(n.op, Elementwise) for n in self.nodes) else None

    @property
    def layout_nodes(self) -> tuple[Node, ...]:
        """The nodes to look at to know the layouts of all tensors: the first where all have a
        `common_form`, else every one."""
        return self.nodes if self.common_form is None else self.nodes[:1]

    @cached_property
    def pattern(self) -> str:
        """Names of the ops joined with "+", in order."""
        return "+".join(n.op.label for n in self.nodes)

    @cached_property
    def origins(self) -> tuple[str, ...]:
        """Names of the user's nodes whose work the region does, in order."""
        return tuple(dict.fromkeys(o for n in self.nodes for o in n.origins))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the values in whose memory the inputs lie, of the inputs, of the nodes and of what they make.

        In regions of equal keys those at one place correspond; a later one of equal names is the closer one.
        """
        roots = [root.name for root, _ in self._places]
        made = [name for node in self.nodes for name in (node.name, *[v.name for v in node.results])]
        return (*roots, *[v.name for v in self.inputs], *made)

    @cached_property
    def wording(self) -> str:
        """SHA-256 of what an engine's sentences about the region may mention and `key` leaves out.

        That is the names of values and nodes, whether types are printed with strides, and where views start.  Regions
        with equal keys and equal wordings get equal refusals.
        """
        values = (*self.inputs, *[v for n in self.nodes for v in n.results])
        starts = [offset for _, offset in self._places]
        said = repr((self.names, [v.type.strides is None for v in values], starts))
        return hashlib.sha256(said.encode()).hexdigest()

    @cached_property
    def read_bytes(self) -> int:
        """Bytes of the inputs that the nodes need, each once: of a gather's table the rows that it takes, of a view
        nothing where another input is the whole of it."""
        needed = dict.fromkeys(self.inputs, 0)
        for node in self.nodes:
            for index, value in enumerate(node.operands):
                if value in needed:
                    read = node.op.bytes_read(index, node.operand_types, node.result_types)
                    needed[value] = max(needed[value], read)
        if len({root for root, _ in self._places}) == len(needed):
            return sum(needed.values())
        whole: list[Value] = []
        for value in sorted(needed, key=lambda v: v.type.nbytes, reverse=True):
            if any(is_part_of(self.graph, value, w) for w in whole):
                needed[value] = 0
            elif needed[value] >= value.type.nbytes:
                whole.append(value)
        return sum(needed.values())

    @property
    def written_bytes(self) -> int:
        return sum(v.type.nbytes for v in self.outputs)

    @cached_property
    def is_convex(self) -> bool:
        """Whether no path leaves the region and comes back."""
        ancestors, descendants = self.graph.ancestors, self.graph.descendants
        below = above = 0
        for node in self.nodes:
            below |= descendants[node]
            above |= ancestors[node]
        return not (below & above & ~self.mask)

    @cached_property
    def key(self) -> str:
        """SHA-256 of the structure, free of names: ops, wiring, types with strides, where inputs may start, which of
        them share memory, which results leave.

        Two regions with equal keys compute the same function, read the same bytes and can share one plan.
        """
        ids: dict[Value, str] = {}
        lines: list[str] = []
        for value, bytes, shared in zip(self.inputs, self.alignments, self._sharing, strict=True):
            ids[value] = place = f"i{len(ids)}"
            lines.append(f"{place} {value.type.key} at {bytes}{shared}")
        for number, node in enumerate(self.nodes):
            line = f"{node.kind} of"
            for value in node.operands:
                line += f" {ids[value]}" if value.literal is None else f" {value.literal!r}:{value.type.dtype}"
            lines.append(line)
            for i, value in enumerate(node.results):
                ids[value] = f"n{number}.{i}"
        lines.append("out " + " ".join([ids[v] for v in self.outputs]))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
