"""Where every value's elements lie: strides for all of them, and `convert` nodes where a reader needs others.

Which convolutions and ops on images around them are channels-last is decided before (images.py, choice.py); every other
op's layout follows from those of its operands (rules.py).  Constants are laid out as they are needed, at compile time.
At the end every output and every state's next value has memory of its own, with the strides that the caller was
promised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.movement import Convert
from graphdnn.ir.payload import Compute, Payload
from graphdnn.ir.types import TensorType, row_major
from graphdnn.ir.views import is_free
from graphdnn.ir.writer import Rewriter
from graphdnn.passes.layout.images import channels_last_nodes
from graphdnn.passes.layout.rules import Strides, layouts_around, promised_strides
from graphdnn.passes.promote import operand_name
from graphdnn.passes.rewrite import Rewritten, user_name


def assign_layouts(graph: Graph, images: Mapping[Node, bool] | None = None) -> Rewritten:
    """The graph with strides on every value; a second application changes nothing.

    `images` says of the nodes of convolutional parts which are channels-last; without it they are where that converts
    fewest bytes, what keeps nodes from being one region counted.
    """
    return Assignment(graph, channels_last_nodes(graph) if images is None else images).run()


class Assignment:
    """One run of the pass: values with strides so far, in whose memory a view lies, and who owns the memory of what
    leaves the graph.  Its sentences name the user's nodes and inputs, and no value that a pass made."""

    def __init__(self, graph: Graph, images: Mapping[Node, bool]) -> None:
        self.graph = graph
        self.rewriter = Rewriter(graph)
        self.images = images
        self.promised = promised_strides(graph)
        self.changes: list[str] = []
        self.made: dict[tuple[Value, Strides], Value] = {}
        self.root: dict[Value, Value] = {}
        self.taken: dict[Value, str] = {}
        self.meant: dict[Value, str] = {}

    def run(self) -> Rewritten:
        self.lay_sources()
        for node in self.graph.nodes:
            self.lay_node(node)
        states = self.graph.states
        updates = {
            name: self.owned(v, states[name].type.layout, f"the next value of state {name}")
            for name, v in self.graph.updates.items()
        }
        outputs = {
            name: self.owned(v, self.graph.output_type(name).layout, f"output {name}")
            for name, v in self.graph.outputs.items()
        }
        return Rewritten(self.rewriter.finish(outputs, updates), tuple(self.changes))

    def lay_sources(self) -> None:
        """Inputs, states and constants as declared, row-major where nothing is."""
        writer = self.rewriter.writer
        for values in (writer.inputs, writer.states, writer.constants):
            for name, old in values.items():
                if old.type.strides is None:
                    values[name] = replace(old, type=old.type.with_strides(row_major(old.type.shape)))
                    self.rewriter.replace(old, values[name])

    def lay_node(self, node: Node) -> None:
        """The node with strides on its results, behind the conversions that it needs."""
        operands = [self.rewriter[v] for v in node.operands]
        wanted = layouts_around(node, [v.type for v in operands], self.images, self.promised)
        for index, (operand, strides) in enumerate(zip(operands, wanted.operands, strict=True)):
            if strides is None and self.is_constant(operand):
                strides = next(iter(wanted.constants[index : index + 1]), None)
            if strides is not None and operand.literal is None:
                operands[index] = self.converted(operand, strides, node, index)
        types = [t.with_strides(s) for t, s in zip(node.result_types, wanted.results, strict=True)]
        results = tuple(replace(v, type=t, owner=None) for v, t in zip(node.results, types, strict=True))
        made = Node(node.name, node.op, tuple(operands), results, node.origins)
        self.rewriter.writer.adopt(made)
        self.rewriter.replace_results(node, results)
        if is_free(made):
            self.root |= dict.fromkeys(results, self.root.get(operands[0], operands[0]))
        self.meant |= {new: user_name(old, self.graph) for old, new in zip(node.results, results, strict=True)}

    def converted(self, value: Value, strides: Strides, reader: Node, index: int) -> Value:
        """The value with other strides as operand `index` of a node, converted once for all who ask; at compile time
        where it is a constant."""
        wanted = value.type.with_strides(strides)
        if wanted.layout == value.type.layout:
            return value
        key = (value, wanted.layout)
        if key not in self.made:
            readers = ", ".join(reader.origins) or user_name(reader.result, self.graph)
            if self.is_constant(value):
                before, after = described(value.type), described(wanted)
                operand = f"{readers}: operand {operand_name(reader, index)}"
                self.changes.append(f"{operand} is converted from {before} to {after}, at compile time")
                self.made[key] = self.relaid(value, wanted)
            else:
                self.made[key] = self.convert(value, wanted, f"for {readers}")
        return self.made[key]

    def relaid(self, constant: Value, wanted: TensorType) -> Value:
        payload = self.rewriter.writer.payloads[constant.name]
        promise = Payload(wanted, compute=Compute(Convert(), (payload,), (payload.type,)))
        return self.rewriter.constant(promise, stem=constant.name)

    def convert(self, value: Value, wanted: TensorType, why: str) -> Value:
        """A conversion at run time."""
        before, after = described(value.type), described(wanted)
        how = "copied" if before == after else f"converted from {before} to {after}"
        self.changes.append(f"{self.name_of(value)} is {how} {why}: {wanted.nbytes} bytes")
        return self.rewriter.emit(Convert(), value, origins=(), stem="convert", types=[wanted])[0]

    def owned(self, old: Value, strides: Strides, leaving: str) -> Value:
        """A value that leaves the graph: with these strides, and alone in memory that a node of the graph wrote."""
        value = self.rewriter[old]
        wanted = value.type.with_strides(strides)
        ready = value if wanted.layout == value.type.layout else self.made.get((value, wanted.layout), value)
        root = self.root.get(ready, ready)
        other = self.other_owner(root, ready)
        if ready.type.layout != wanted.layout or other:
            apart = f", which needs memory of its own, apart from {other}" if other else ""
            root = ready = self.convert(value, wanted, f"for {leaving}{apart}")
        self.taken[root] = leaving
        return ready

    def other_owner(self, root: Value, view: Value) -> str:
        """What else the memory of `root` is for than what lies in it as `view`; empty where there is nothing."""
        writer = self.rewriter.writer
        sources = (("input", writer.inputs), ("state", writer.states), ("constant", writer.constants))
        kind = next((kind for kind, values in sources if values.get(root.name) is root), "")
        if kind:
            return f"{kind} {root.name}" if kind != "constant" else "the constant"
        if root.type.size != view.type.size:
            return f"the rest of {self.name_of(root)}"
        return self.taken.get(root, "")

    def name_of(self, value: Value) -> str:
        """What the user calls a value; constants that passes made have no name of theirs."""
        if self.is_constant(value):
            return "a constant"
        return self.meant.get(value, value.name)

    def is_constant(self, value: Value) -> bool:
        return self.rewriter.writer.constants.get(value.name) is value


def described(type: TensorType) -> str:
    if type.is_row_major:
        return "row-major"
    return "channels-last" if type.is_channels_last else f"strides {type.layout}"
