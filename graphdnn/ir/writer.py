"""The one doorway through which graphs are made: GraphWriter collects nodes, Rewriter turns one graph into another."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

from graphdnn.errors import GraphError
from graphdnn.ir.graph import Graph, Node, Owner, Value
from graphdnn.ir.op import Op
from graphdnn.ir.payload import Payload
from graphdnn.ir.types import LARGEST_RANK, LARGEST_SIZE, DType, TensorType, promote
from graphdnn.ir.verify import verify
from graphdnn.spelling import named, quoted

Operand = Value | bool | int | float


class GraphWriter:
    """Collects inputs, constants, states and nodes; `finish` verifies and freezes them."""

    def __init__(self, name: str, owner: weakref.ref[Owner] | None = None) -> None:
        self.name = name
        self.owner = owner
        self.nodes: list[Node] = []
        self.inputs: dict[str, Value] = {}
        self.constants: dict[str, Value] = {}
        self.payloads: dict[str, Payload] = {}
        self.states: dict[str, Value] = {}
        self._names: set[str] = set()
        self._counters: dict[str, int] = {}

    def claim(self, wanted: str | None, stem: str) -> str:
        """A name nobody has: `wanted` itself, which must be free, or one made from `stem`."""
        if wanted is not None:
            checked_name("a value or node", wanted)
            if wanted in self._names:
                raise GraphError(
                    f"graph {named(self.name)}: the name {named(wanted)} is taken; names of values and nodes are unique"
                )
            self._names.add(wanted)
            return wanted
        count = self._counters.get(stem, 0)
        while (name := stem if count == 0 and stem not in self._names else f"{stem}_{count}") in self._names:
            count += 1
        self._counters[stem] = count + 1
        self._names.add(name)
        return name

    def free(self, name: str) -> None:
        """Nobody has the name any more."""
        self._names.discard(name)

    def reserve(self, names: Iterable[str]) -> None:
        """Has no name made that is one of these."""
        self._names.update(names)

    def input(self, name: str, type: TensorType) -> Value:
        value = self.inputs[self.claim(checked_name("input", name), name)] = Value(name, type, owner=self.owner)
        return value

    def state(self, name: str, type: TensorType) -> Value:
        value = self.states[self.claim(checked_name("state", name), name)] = Value(name, type, owner=self.owner)
        return value

    def constant(self, payload: Payload, name: str | None = None, stem: str = "constant") -> Value:
        claimed = self.claim(name, stem)
        value = self.constants[claimed] = Value(claimed, payload.type, owner=self.owner)
        self.payloads[claimed] = payload
        return value

    def emit(
        self,
        op: Op,
        operands: Sequence[Operand],
        *,
        name: str | None = None,
        stem: str | None = None,
        origins: tuple[str, ...] | None = None,
        types: Sequence[TensorType] | None = None,
        first: Mapping[int, Op] | None = None,
    ) -> tuple[Value, ...]:
        """Adds one node and returns its results.  `types` overrides inference where strides are already decided.

        Without `origins` the node is its own origin, as a user's node is.  `first` are ops in front of it, by the index
        of the operand that each is applied to: nodes that do part of its work.
        """
        first = first or {}
        try:
            values = immediates(op, operands)
            read = [first[i].infer(v.type)[0] if i in first else v.type for i, v in enumerate(values)]
            inferred = tuple(types) if types is not None else op.infer(*read)
            for type in inferred if origins is None else ():
                checked_size(op.label, type)
        except GraphError as error:
            raise in_context(error, named(name or stem or op.label), operands) from None
        claimed = self.claim(name, stem or op.label)
        if first:
            own = (claimed,) if origins is None else origins
            values = tuple(
                self.emit(first[i], [v], stem=claimed, origins=own)[0] if i in first else v
                for i, v in enumerate(values)
            )
        if len(inferred) == 1:
            results: tuple[Value, ...] = (Value(claimed, inferred[0], owner=self.owner),)
        else:
            results = tuple(
                Value(self.claim(None, f"{claimed}.{i}"), t, owner=self.owner) for i, t in enumerate(inferred)
            )
        self.nodes.append(Node(claimed, op, values, results, (claimed,) if origins is None else origins))
        return results

    def adopt(self, node: Node) -> None:
        """Adds an existing node as it is, names and results included."""
        self.reserve((node.name, *(v.name for v in node.results)))
        self.nodes.append(node)

    def finish(
        self,
        outputs: Mapping[str, Value],
        updates: Mapping[str, Value] | None = None,
        output_strides: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Graph:
        """The frozen graph.  Raises GraphError naming the first violated invariant."""
        layouts = {
            name: outputs[name].type.with_strides(strides).layout if name in outputs else strides
            for name, strides in (output_strides or {}).items()
        }
        graph = Graph(
            self.name,
            tuple(self.nodes),
            self.inputs,
            self.constants,
            self.payloads,
            outputs,
            self.states,
            updates or {},
            layouts,
        )
        verify(graph)
        return graph


def in_context(error: GraphError, wanted: str, operands: Sequence[Operand]) -> GraphError:
    """What an op said, with the name of its node, which an unnamed node has from its op, and with its operands."""
    said = str(error) if str(error).startswith(f"{wanted}:") else f"{wanted}: {error}"
    read = ", ".join(str(v) if isinstance(v, Value) else quoted(v) for v in operands)
    return GraphError(f"{said}; its operands are {read}" if operands else said)


def checked_name(who: str, name: object) -> str:
    """A name that every written form of a graph can hold.  Raises GraphError for anything else."""
    if not is_text(name) or not name:
        raise GraphError(f"the name of {who} is {quoted(name)}; text of at least one character is needed")
    return name


def checked_output_name(name: object) -> str:
    """As `checked_name`; an output's name is only what callers find it by, and may be empty."""
    if not is_text(name):
        raise GraphError(f"the name of an output is {quoted(name)}; text is needed")
    return name


def is_text(name: object) -> TypeGuard[str]:
    """Whether it is text that can be encoded, which half of a character cannot."""
    return isinstance(name, str) and (name.isascii() or not any("\ud800" <= c <= "\udfff" for c in name))


def checked_size(who: str, type: TensorType) -> TensorType:
    """A type that can be, and be written.  Raises GraphError for one with too many axes or elements."""
    if type.rank > LARGEST_RANK or type.size > LARGEST_SIZE:
        raise GraphError(f"{who}: {type} has more than {LARGEST_RANK} axes or 2**48 elements")
    return type


def immediates(op: Op, operands: Sequence[Operand]) -> tuple[Value, ...]:
    """Operands with Python numbers turned into immediates of the tensors' common type."""
    if all(isinstance(v, Value) for v in operands):
        return tuple(v for v in operands if isinstance(v, Value))
    dtypes = [v.type.dtype for v in operands if isinstance(v, Value)]
    if not dtypes:
        raise GraphError(f"{op.label}: all operands are Python numbers; at least one tensor is needed")
    try:
        common = promote(*(d for d in dtypes if d.kind != "bool" or len(dtypes) == 1))
    except ValueError as error:
        raise GraphError(f"{op.label}: operand types do not go together: {error}; cast one of them") from None
    return tuple(v if isinstance(v, Value) else immediate(op, v, common) for v in operands)


def immediate(op: Op, number: bool | int | float, dtype: DType) -> Value:
    """A Python number as a value of `dtype`.  Raises GraphError when the type cannot hold it."""
    if dtype.is_integer and (isinstance(number, float) and not number.is_integer()):
        raise GraphError(
            f"{op.label}: {quoted(number)} is not a whole number but the other operand is {dtype}; cast it first"
        )
    if dtype.kind == "bool" and not isinstance(number, bool):
        raise GraphError(f"{op.label}: {quoted(number)} meets a bool tensor; cast the tensor first")
    if not dtype.is_float and not dtype.holds(number):
        raise GraphError(
            f"{op.label}: {quoted(number)} is outside {dtype}, the type of the other operand; cast that first"
        )
    try:
        literal = float(number) if dtype.is_float else number if dtype.kind == "bool" else int(number)
    except OverflowError:
        raise GraphError(f"{op.label}: {quoted(number)} is too large for a floating-point number") from None
    return Value(repr(literal), TensorType((), dtype), literal)


class Rewriter:
    """Builds a new graph from `graph`: keep nodes, emit others in their place, say which new value replaces an old one.

    Inputs, constants and states are carried over as the same values; constants that nothing reads any more are
    dropped by `finish`.  A kept node whose operands did not change is the same node.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.writer = GraphWriter(graph.name)
        self.writer.inputs.update(graph.inputs)
        self.writer.constants.update(graph.constants)
        self.writer.payloads.update(graph.payloads)
        self.writer.states.update(graph.states)
        self.writer.reserve((*graph.inputs, *graph.constants, *graph.states))
        self.writer.reserve(n.name for n in graph.nodes)
        self.writer.reserve(v.name for n in graph.nodes for v in n.results)
        self._new: dict[Value, Value] = {}

    def __getitem__(self, old: Value) -> Value:
        """What stands for an old value in the new graph."""
        return self._new.get(old, old)

    def replace(self, old: Value, new: Value) -> None:
        """From now on, whoever read `old` reads `new`."""
        self._new[old] = new

    def replace_results(self, node: Node, results: Sequence[Value]) -> None:
        """From now on, whoever read the results of an old node reads these."""
        self._new.update(zip(node.results, results, strict=True))

    def keep(
        self, node: Node, *, operands: Sequence[Value] | None = None, origins: tuple[str, ...] | None = None
    ) -> tuple[Value, ...]:
        """Carries a node over, reading the new values of its operands (or `operands`), doing the work of `origins`."""
        reads = tuple(self[v] for v in node.operands) if operands is None else tuple(operands)
        work = node.origins if origins is None else origins
        if reads == node.operands and work == node.origins:
            kept = node
        else:
            kept = Node(node.name, node.op, reads, tuple(Value(v.name, v.type) for v in node.results), work)
            if all(new.type is old.type for new, old in zip(reads, node.operands, strict=True)):
                kept.__dict__["inferred"] = node.inferred  # what an op gives follows from the types of its operands
            self.replace_results(node, kept.results)
        self.writer.adopt(kept)
        return kept.results

    def emit(
        self,
        op: Op,
        /,
        *operands: Operand,
        origins: Iterable[str],
        stem: str | None = None,
        types: Sequence[TensorType] | None = None,
    ) -> tuple[Value, ...]:
        """Adds a new node on values of the *new* graph, doing the work of the user's nodes `origins`."""
        merged = tuple(dict.fromkeys(origins))
        return self.writer.emit(
            op, operands, stem=stem or (merged[0] if merged else op.label), origins=merged, types=types
        )

    def constant(self, payload: Payload, stem: str = "constant") -> Value:
        return self.writer.constant(payload, stem=stem)

    def precompute(self, old: Value, payload: Payload) -> None:
        """A constant in place of an old value, and of its name, whose node is not kept."""
        self.writer.free(old.name)
        self.replace(old, self.writer.constant(payload, name=old.name))

    def finish(self, outputs: Mapping[str, Value] | None = None, updates: Mapping[str, Value] | None = None) -> Graph:
        """The new graph.  `outputs` and `updates` are values of it; absent, they are what stands for the old ones."""
        read = {v for n in self.writer.nodes for v in n.operands}
        if outputs is None:
            outputs = {name: self[v] for name, v in self.graph.outputs.items()}
        if updates is None:
            updates = {name: self[v] for name, v in self.graph.updates.items()}
        read.update(outputs.values(), updates.values())
        unread = [name for name, v in self.writer.constants.items() if v not in read]
        for name in unread:
            del self.writer.constants[name], self.writer.payloads[name]
        return self.writer.finish(outputs, updates, self.graph.output_strides)
