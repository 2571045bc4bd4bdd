"""Graphs: values with identity, nodes, and the immutable graph that holds them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from graphdnn.errors import GraphError
from graphdnn.ir.op import Op
from graphdnn.ir.payload import Payload
from graphdnn.ir.types import Array, TensorType
from graphdnn.lazy import cached_property
from graphdnn.spelling import counted, named

if TYPE_CHECKING:
    from pathlib import Path


class Owner(Protocol):
    """Whoever made a value and can apply a pointwise op or a matmul to it: a GraphBuilder."""

    def _operate(self, fn: str, *operands: Value | float) -> Value: ...


@dataclass(frozen=True, eq=False)
class Value:
    """One tensor in a graph.  Values have identity: two with equal fields are two tensors.

    `literal` is set on immediates only: a Python scalar used as an operand, of shape () and of the other operand's
    type, kept at full precision as PyTorch keeps it.  `owner` is the builder, while there is one, for `+ - * / @`.
    """

    name: str
    type: TensorType
    literal: bool | int | float | None = None
    owner: weakref.ref[Owner] | None = None

    __array_ufunc__ = None
    """numpy leaves `array + value` to us, who refuse it; it would make a node for each element."""

    def _operate(self, fn: str, *operands: Value | float) -> Value:
        owner = self.owner() if self.owner else None
        if owner is None:
            raise GraphError(
                f"{self}: its builder is gone, so it takes no more operators; build the graph in one place"
            )
        return owner._operate(fn, *operands)

    def __add__(self, other: Value | float) -> Value:
        return self._operate("add", self, other)

    def __radd__(self, other: float) -> Value:
        return self._operate("add", other, self)

    def __sub__(self, other: Value | float) -> Value:
        return self._operate("sub", self, other)

    def __rsub__(self, other: float) -> Value:
        return self._operate("sub", other, self)

    def __mul__(self, other: Value | float) -> Value:
        return self._operate("mul", self, other)

    def __rmul__(self, other: float) -> Value:
        return self._operate("mul", other, self)

    def __truediv__(self, other: Value | float) -> Value:
        return self._operate("div", self, other)

    def __rtruediv__(self, other: float) -> Value:
        return self._operate("div", other, self)

    def __neg__(self) -> Value:
        return self._operate("neg", self)

    def __matmul__(self, other: Value) -> Value:
        return self._operate("matmul", self, other)

    def __rmatmul__(self, other: Value) -> Value:
        return self._operate("matmul", other, self)

    def __str__(self) -> str:
        return f"%{named(self.name)}" if self.literal is None else repr(self.literal)

    def __repr__(self) -> str:
        return f"<Value {self}: {self.type}>"


@dataclass(frozen=True, eq=False)
class Node:
    """One application of an op.  `origins` are the names of the user's nodes whose work it does."""

    name: str
    op: Op
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    origins: tuple[str, ...]

    def __repr__(self) -> str:
        results = ", ".join(map(str, self.result_types))
        return f"<Node {self}: {counted(len(self.operands), 'operand')} -> {results}>"

    @property
    def result(self) -> Value:
        """The first result; the only one of most ops."""
        return self.results[0]

    @property
    def operand_types(self) -> tuple[TensorType, ...]:
        return tuple(v.type for v in self.operands)

    @property
    def result_types(self) -> tuple[TensorType, ...]:
        return tuple(v.type for v in self.results)

    @cached_property
    def inferred(self) -> tuple[TensorType, ...]:
        """The types that the op gives for the operands; asked for each graph that the node is carried into."""
        return self.op.infer(*self.operand_types)

    @cached_property
    def flops(self) -> int:
        return self.op.flops(self.operand_types, self.result_types)

    @cached_property
    def form(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Shape and layout of all its tensors, numbers aside; None where they differ."""
        found = {(v.type.shape, v.type.layout) for v in (*self.operands, *self.results) if v.literal is None}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def kind(self) -> str:
        """What the node does, apart from names and wiring: op with attributes, types of the results with layouts."""
        return f"{self.op!r} -> {' '.join(v.type.key for v in self.results)}"

    def __str__(self) -> str:
        return f"{self.op.label} %{named(self.name)}"


SHOWN = 4
"""Inputs or outputs that one line about a graph names."""


@dataclass(frozen=True, eq=False)
class Graph:
    """An immutable, typed, verified graph.  `nodes` stand in topological order.

    `inputs`, `constants`, `states` and `outputs` are values by name; `updates` gives the next value of each state
    that changes; `output_strides` holds declared layouts of outputs (absent means row-major).  Analyses are cached.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: Mapping[str, Value]
    constants: Mapping[str, Value]
    payloads: Mapping[str, Payload]
    outputs: Mapping[str, Value]
    states: Mapping[str, Value] = field(default_factory=dict)
    updates: Mapping[str, Value] = field(default_factory=dict)
    output_strides: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("inputs", "constants", "payloads", "outputs", "states", "updates", "output_strides"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @cached_property
    def producer(self) -> Mapping[Value, Node]:
        """The node that makes each value; inputs, constants, states and immediates have none."""
        return {v: n for n in self.nodes for v in n.results}

    @cached_property
    def users(self) -> Mapping[Value, tuple[Node, ...]]:
        """The nodes that read each value, each once, in order; values that nothing reads are absent."""
        users: dict[Value, dict[Node, None]] = {}
        for node in self.nodes:
            for value in node.operands:
                users.setdefault(value, {})[node] = None
        return {v: tuple(ns) for v, ns in users.items()}

    @cached_property
    def readers(self) -> Mapping[Value, int]:
        """For each value the bit set (by `position`) of the nodes that read it; values without readers are absent."""
        masks: dict[Value, int] = {}
        for index, node in enumerate(self.nodes):
            for value in node.operands:
                masks[value] = masks.get(value, 0) | 1 << index
        return masks

    @cached_property
    def position(self) -> Mapping[Node, int]:
        """Each node's place in the topological order."""
        return {n: i for i, n in enumerate(self.nodes)}

    @cached_property
    def escaping(self) -> frozenset[Value]:
        """Values that are needed outside: outputs and next values of states."""
        return frozenset((*self.outputs.values(), *self.updates.values()))

    @cached_property
    def ancestors(self) -> Mapping[Node, int]:
        """For each node the bit set (by `position`) of the nodes it depends on, itself excluded."""
        masks: dict[Node, int] = {}
        for node in self.nodes:
            mask = 0
            for value in node.operands:
                source = self.producer.get(value)
                if source is not None:
                    mask |= masks[source] | (1 << self.position[source])
            masks[node] = mask
        return masks

    @cached_property
    def descendants(self) -> Mapping[Node, int]:
        """For each node the bit set of the nodes that depend on it, itself excluded."""
        masks: dict[Node, int] = {}
        for node in reversed(self.nodes):
            mask = 0
            for value in node.results:
                for user in self.users.get(value, ()):
                    mask |= masks[user] | (1 << self.position[user])
            masks[node] = mask
        return masks

    def is_constant(self, value: Value) -> bool:
        """Whether a value is known when the graph is compiled: a constant of this graph, or a Python number."""
        return value.literal is not None or self.constants.get(value.name) is value

    def node(self, name: str) -> Node:
        """The node of that name.  Raises GraphError with the first names when there is none."""
        for node in self.nodes:
            if node.name == name:
                return node
        known = ", ".join(named(n.name) for n in self.nodes[:8])
        raise GraphError(f"graph {named(self.name)} has no node {named(name)}; it has {known}")

    @property
    def signature(self) -> str:
        """Inputs and outputs with their types, in one line; of many the first few."""
        inputs = listed({n: v.type for n, v in self.inputs.items()})
        return f"{inputs} -> {listed({n: self.output_type(n) for n in self.outputs})}"

    def output_type(self, name: str) -> TensorType:
        """Type of an output as the caller gets it: with declared strides, or row-major."""
        return self.outputs[name].type.with_strides(self.output_strides.get(name))

    def to_json(self) -> str:
        """The graph as a JSON document with a schema version (see graphdnn.ir.document)."""
        from graphdnn.ir.document import dump

        return dump(self)

    @staticmethod
    def from_json(text: str, constants: Mapping[str, Array] | None = None) -> Graph:
        """The graph of a JSON document.  Raises GraphError naming the first wrong field."""
        from graphdnn.ir.document import load

        return load(text, constants)

    def to_networkx(self) -> Any:
        """A networkx.MultiDiGraph of this graph, for drawing it and for networkx's algorithms.

        Its nodes are pairs such as ("input", "x"), ("node", "conv") and ("output", "y") with attributes `op` and
        `type`; an edge stands for an operand, with its index as `operand` and the value's name as `value`, so that
        `add(x, x)` has two.  Changing it changes no graph of ours.
        """
        from graphdnn.ir.algorithms import to_networkx

        return to_networkx(self)

    def save(self, path: str | Path) -> None:
        """Writes the JSON document to `path` and constants over 1 KiB to a safetensors file beside it.

        Raises GraphError for what is no path of a file, OSError where it cannot be written.
        """
        from graphdnn.ir.document import save

        save(self, path)

    @staticmethod
    def load(path: str | Path) -> Graph:
        """Reads what `save` wrote.  Raises GraphError naming what is wrong with it, OSError where it cannot be read."""
        from graphdnn.ir.document import read

        return read(path)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as its document, with the data of the constants that have it."""
        from graphdnn.ir.document import dump

        return unpickled, (dump(self), {name: p.array() for name, p in self.payloads.items() if p.has_data})

    def __copy__(self) -> Graph:
        return self

    def __deepcopy__(self, memo: object) -> Graph:
        return self

    def __str__(self) -> str:
        from graphdnn.ir.text import print_graph

        return print_graph(self)

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {counted(len(self.nodes), 'node')}; {self.signature}>"


def unpickled(document: str, arrays: Mapping[str, Array]) -> Graph:
    """The graph of a document, with the data of its constants by name."""
    from graphdnn.ir.document import load

    graph = load(document)
    payloads = {
        name: Payload(payload.type, arrays[name], payload.digest) if name in arrays else payload
        for name, payload in graph.payloads.items()
    }
    return replace(graph, payloads=payloads)


def listed(types: Mapping[str, TensorType]) -> str:
    """Names with types, the first few of many."""
    found = [f"{name} {type}" for name, type in types.items()]
    return ", ".join(found) if len(found) <= SHOWN else f"{', '.join(found[:SHOWN])}, ... ({len(found)} in all)"
