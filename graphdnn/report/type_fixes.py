"""Fixes of element types: made in the region that they are about, asked about there, and told of the user's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from graphdnn.answer import Fix
from graphdnn.errors import GraphError
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.pointwise import Cast
from graphdnn.ir.payload import Payload
from graphdnn.ir.region import ALIGNMENT, Region
from graphdnn.ir.types import DTYPES, TensorType
from graphdnn.ir.views import resolve
from graphdnn.ir.writer import GraphWriter, Operand
from graphdnn.lazy import cached_property

JOIN = " and "
"""Between the targets of one fix."""


@dataclass(frozen=True)
class TypeFix:
    """A change of `region`'s tensors from one element type to another.

    A target is a tensor that the region reads, a cast, which then gives the other type, or another node, whose operands
    are of the other type then.
    """

    region: Region
    fix: Fix

    @cached_property
    def targets(self) -> frozenset[str]:
        return frozenset(self.fix.target.split(JOIN))

    @cached_property
    def changed(self) -> frozenset[Value]:
        """The inputs of the region that are of another type then."""
        read = {v for n in self.region.nodes if self._is_anchor(n) for v in n.operands}
        return frozenset(v for v in self.region.inputs if self._is_before(v) and (v.name in self.targets or v in read))

    @property
    def is_of_whole_nodes(self) -> bool:
        """Whether the region does all of the work of each of the user's nodes that it does work of."""
        origins = set(self.region.origins)
        return all(n in self.region.nodes or origins.isdisjoint(n.origins) for n in self.region.graph.nodes)

    @property
    def is_of_all(self) -> bool:
        """Whether nothing that the region reads or casts to is of the old type then."""
        casts = {n.name for n in self.region.nodes if isinstance(n.op, Cast) and n.op.dtype == self.fix.before}
        return casts <= self.targets and all(v in self.changed for v in self.region.inputs if self._is_before(v))

    @cached_property
    def made(self) -> Region | None:
        """The region after the change; None where it has nothing to change, or would be no region then."""
        try:
            return self._made()
        except GraphError:
            return None

    def _made(self) -> Region | None:
        graph, nodes = self.region.graph, self.region.nodes
        casts = [n for n in nodes if isinstance(n.op, Cast) and n.name in self.targets]
        if any(n.op.dtype != self.fix.before for n in casts if isinstance(n.op, Cast)) or self._would_promote:
            return None
        if not (self.changed or casts or any(map(self._is_anchor, nodes))):
            return None
        writer, new = GraphWriter(graph.name), dict[Value, Value]()
        writer.reserve(v.name for v in self.region.inputs)
        for value in self.region.inputs:
            type = self._after(value.type) if value in self.changed else value.type
            if resolve(graph)[value][1] * type.dtype.itemsize % ALIGNMENT:
                return None
            writer.free(value.name)
            is_constant = graph.is_constant(value)
            payload = Payload(type, digest=value.name)
            new[value] = writer.constant(payload, value.name) if is_constant else writer.input(value.name, type)
        for node in nodes:
            read: list[Operand] = [v.literal if v.literal is not None else new[v] for v in node.operands]
            op = Cast(dtype=self.fix.after) if node in casts else node.op
            if self._is_anchor(node):
                for index, value in enumerate(node.operands):
                    if self._is_before(value) and value not in self.changed:
                        (read[index],) = writer.emit(Cast(dtype=self.fix.after), [new[value]], stem="cast")
            new.update(zip(node.results, writer.emit(op, read, name=node.name, origins=node.origins), strict=True))
        outputs = {f"y{i}": new[v] for i, v in enumerate(self.region.outputs)}
        return laid_out(writer.finish(outputs), self.region)

    @property
    def _would_promote(self) -> bool:
        """Whether an operand is cast to the old type since another one is of it, as it would not be then."""
        return any(
            isinstance(n.op, Cast) and n.op.dtype == self.fix.before and n.name not in n.origins
            for n in self.region.nodes
        )

    def _is_anchor(self, node: Node) -> bool:
        return node.name in self.targets and not isinstance(node.op, Cast)

    def _is_before(self, value: Value) -> bool:
        return value.literal is None and value.type.dtype.name == self.fix.before

    def _after(self, type: TensorType) -> TensorType:
        return TensorType(type.shape, DTYPES[self.fix.after], type.strides)


def laid_out(graph: Graph, like: Region) -> Region:
    """All of `graph`, whose tensors lie as those of equal names in another region."""
    strides = {v.name: v.type.strides for n in like.nodes for v in n.results}
    new: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        for value in node.results:
            lies = strides.get(value.name)
            new[value] = replace(value, type=value.type.with_strides(lies))
        operands = tuple(new.get(v, v) for v in node.operands)
        nodes.append(replace(node, operands=operands, results=tuple(new[v] for v in node.results)))
    whole = replace(graph, nodes=tuple(nodes), outputs={n: new.get(v, v) for n, v in graph.outputs.items()})
    return Region(whole, whole.nodes)


@dataclass(frozen=True)
class UserTensors:
    """What the user's graph calls the tensors that a region reads."""

    graph: Graph

    @cached_property
    def by_origin(self) -> Mapping[str, list[Node]]:
        """Each of the user's nodes with the casts that the builder put in front of it."""
        found: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            found.setdefault(node.origins[0], []).append(node)
        return found

    def of_type(self, dtype: str, region: Region) -> tuple[str, ...]:
        """Tensors of that type which the user's nodes behind a region read from others, or cast to."""
        nodes = [n for origin in region.origins for n in self.by_origin.get(origin, ())]
        inside = {v for n in nodes for v in n.results}
        read = [v for n in nodes for v in n.operands if v.literal is None and v not in inside]
        casts = [n.result for n in nodes if isinstance(n.op, Cast) and n.op.dtype == dtype and n.name in n.origins]
        return tuple(dict.fromkeys(v.name for v in (*read, *casts) if v.type.dtype.name == dtype))

    def told(self, change: TypeFix) -> Fix | None:
        """The fix with the user's own targets; None where no change of single tensors of theirs brings it about.

        Passes compute equal things once and make one op of several, so what is one tensor in the region may be several
        of the user's.
        """
        fix, region = change.fix, change.region
        anchor = next((n for n in region.nodes if n.name == fix.target), None)
        if anchor is not None and not isinstance(anchor.op, Cast) and anchor.origins == (anchor.name,):
            return fix
        own = self.of_type(fix.before, region)
        if change.is_of_all:
            return replace(fix, target=JOIN.join(own)) if own else None
        read = [v for v in region.inputs if v.type.dtype.name == fix.before]
        casts = [n for n in region.nodes if isinstance(n.op, Cast) and n.op.dtype == fix.before]
        is_apart = len(own) == len(read) + len(casts) and change.targets <= set(own)
        return fix if is_apart else None
