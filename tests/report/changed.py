"""A user's graph with the change of element types made that a fix asks for, by nothing but the names in it."""

from collections.abc import Collection

import graphdnn as gd
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.pointwise import Cast
from graphdnn.ir.payload import Payload
from graphdnn.ir.types import DTYPES, TensorType
from graphdnn.ir.writer import GraphWriter, Operand
from graphdnn.report.model import FixReport

ADDED = "changed"
"""Stem of the casts that stand for a change of what an op gives, or of what an op reads."""


class Change:
    """Rebuilds a graph: leaves of other types, casts to others, and casts behind nodes or in front of them."""

    def __init__(self, graph: Graph, nodes: Collection[str], fix: FixReport) -> None:
        self.graph, self.nodes, self.fix = graph, nodes, fix
        self.targets = set(fix.target.split(" and "))
        self.met: set[str] = set()
        self.writer = GraphWriter(graph.name)
        self.new: dict[Value, Value] = {}

    def made(self) -> Graph:
        graph, writer = self.graph, self.writer
        for name, value in graph.inputs.items():
            self.new[value] = writer.input(name, self.leaf(value))
        for name, value in graph.states.items():
            self.new[value] = writer.state(name, self.leaf(value))
        for name, value in graph.constants.items():
            type = self.leaf(value)
            array = graph.payloads[name].array().astype(type.dtype.numpy)
            self.new[value] = writer.constant(Payload(type, array), name)
        for node in graph.nodes:
            self.node(node)
        assert self.met == self.targets, f"the graph has no {self.targets - self.met}"
        updates = {n: self.cast(self.new[v], writer.states[n].type.dtype) for n, v in graph.updates.items()}
        return writer.finish({n: self.new[v] for n, v in graph.outputs.items()}, updates, graph.output_strides)

    def leaf(self, value: Value) -> TensorType:
        if value.name not in self.targets:
            return value.type
        self.meet(value.name, value.type.dtype.name)
        return TensorType(value.type.shape, DTYPES[self.fix.after], value.type.strides)

    def node(self, node: Node) -> None:
        op, is_target, is_cast = node.op, node.name in self.targets, isinstance(node.op, Cast)
        read: list[Operand] = [self.new[v] if v.literal is None else v.literal for v in node.operands]
        if is_target and isinstance(op, Cast):
            self.meet(node.name, op.dtype)
            op = Cast(dtype=self.fix.after)
        elif is_target and node.name in self.nodes:
            wrong = [i for i, v in enumerate(node.operands) if v.type.dtype.name == self.fix.before]
            self.meet(node.name, self.fix.before if wrong else "")
            for i in wrong:
                read[i] = self.cast(self.new[node.operands[i]], DTYPES[self.fix.after])
        results = self.writer.emit(op, read, name=node.name)
        for old, given in zip(node.results, results, strict=True):
            is_behind = not is_cast and node.name not in self.nodes and old.name in self.targets
            if is_behind:
                self.meet(old.name, old.type.dtype.name)
            self.new[old] = self.cast(given, DTYPES[self.fix.after]) if is_behind else given

    def cast(self, value: Value, dtype: gd.DType) -> Value:
        if value.type.dtype == dtype:
            return value
        return self.writer.emit(Cast(dtype=dtype.name), [value], stem=ADDED)[0]

    def meet(self, name: str, found: str) -> None:
        assert found == self.fix.before, f"{name} is {found}, and the fix says {self.fix.before}"
        self.met.add(name)
