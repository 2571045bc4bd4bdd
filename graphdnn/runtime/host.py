"""Running plans in host memory: arrays in, arrays out, and states that are arrays."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphdnn.engines.contract import HostPlan
from graphdnn.errors import ExecutionError, OutOfMemoryError
from graphdnn.forking import renew_in_children
from graphdnn.ir.evaluate import apply
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.types import Array
from graphdnn.runtime.arrays import empty, in_memory_order
from graphdnn.runtime.context_lock import ClosedLock, ContextLock, check_open
from graphdnn.runtime.driver import stream_handle
from graphdnn.runtime.reading import check_apart, read_checked, read_inputs, read_writable
from graphdnn.runtime.schedule import Schedule


class HostGraph:
    """What all contexts of one graph share: its plans, its constants, and when each value is read last."""

    def __init__(self, graph: Graph, placed: Schedule) -> None:
        self.graph = graph
        self.schedule = placed
        # numpy adds in the order in which elements lie, so that bits would follow from where an array came from.
        self.constants = {v: in_memory_order(graph.payloads[n].array(), v.type) for n, v in graph.constants.items()}
        last: dict[Value, int] = {}
        for number, step in enumerate(placed.steps):
            for value in step.region.inputs:
                last[value] = number
        self.dying: list[list[Value]] = [[] for _ in placed.steps]
        kept = {*graph.escaping, *graph.inputs.values(), *graph.states.values(), *self.constants}
        viewed = {o for node in graph.nodes if node.op.is_renaming for o in node.operands}
        for value, number in last.items():
            if value not in kept and value not in viewed:
                self.dying[number].append(value)


def room(graph: Graph, name: str) -> Array:
    """An array for an output.  Raises OutOfMemoryError naming it where there is no memory for it."""
    type = graph.output_type(name)
    try:
        return empty(type)
    except MemoryError:
        raise OutOfMemoryError(
            f"output {name} of graph {graph.name} takes {type.extent * type.dtype.itemsize} bytes as it is declared; "
            "there is not so much memory"
        ) from None


class HostContext:
    """The states of one context, and calls on them, one at a time."""

    def __init__(self, loaded: HostGraph) -> None:
        self._loaded = loaded
        self.lock: ContextLock = threading.Lock()
        renew_in_children(self)
        self._states = {name: np.zeros(v.type.shape, v.type.dtype.numpy) for name, v in loaded.graph.states.items()}

    def renew(self) -> None:
        """Makes the lock anew."""
        if not isinstance(self.lock, ClosedLock):
            self.lock = threading.Lock()

    def run(self, inputs: Mapping[str, Any], stream: object | None) -> dict[str, Any]:
        """Outputs in arrays of their own, with the declared strides.  Nothing runs on `stream`, which is checked."""
        if stream is not None:
            stream_handle(stream)
        graph = self._loaded.graph
        results = self.compute(self.read(inputs))
        fresh = {name: room(graph, name) for name in graph.outputs}
        for name, array in fresh.items():
            np.copyto(array, results[name])
        return fresh

    def read(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """The caller's arrays as plain ones: a subclass (a matrix, a masked array) has operators of its own."""
        sources = read_inputs(self._loaded.graph, inputs, 0, None)
        return {name: np.asarray(source.array) for name, source in sources.items()}

    def compute(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, which may share memory with inputs, constants and each other; moves the states on."""
        loaded, graph = self._loaded, self._loaded.graph
        with self.lock:
            check_open(self.lock)  # this call may have waited for `close`
            values: dict[Value, Array] = dict(loaded.constants)
            values.update((v, inputs[name]) for name, v in graph.inputs.items())
            values.update((v, self._states[name]) for name, v in graph.states.items())
            for step, dying in zip(loaded.schedule.steps, loaded.dying, strict=True):
                plan = step.plan
                if not isinstance(plan, HostPlan):
                    raise ExecutionError(
                        f"graph {graph.name}: the plan of {step.region.pattern} does not run on the CPU"
                    )
                results = plan.run([self._value(v, values) for v in step.region.inputs])
                values.update(zip(step.region.outputs, results, strict=True))
                for value in dying:
                    del values[value]
            outputs = {name: self._value(v, values) for name, v in graph.outputs.items()}
            updates = {name: self._value(v, values).copy() for name, v in graph.updates.items()}
            self._states.update(updates)
            return outputs

    def _value(self, value: Value, values: dict[Value, Array]) -> Array:
        """A value's array; views are made from what they view when first asked for, however long their chain is."""
        chain: list[Node] = []
        first = value
        while first not in values:
            chain.append(self._loaded.graph.producer[first])
            (first,) = chain[-1].operands
        for node in reversed(chain):
            results = apply(node.op, [values[v] for v in node.operands], node.result_types)
            values.update(zip(node.results, results, strict=True))
        return values[value]

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None) -> HostBound:
        graph = self._loaded.graph
        check_open(self.lock)
        arrays = self.read(inputs)
        targets: dict[str, Any] = {name: room(graph, name) for name in graph.outputs}
        written = dict(targets)
        taken = {f"input {name}": array for name, array in arrays.items()}
        for name, given in (outputs or {}).items():
            if name not in graph.outputs:
                known = ", ".join(graph.outputs)
                raise ExecutionError(f"{name} is not an output of graph {graph.name}; its outputs are {known}")
            source = read_writable(f"output {name}", given, graph.output_type(name), 0, None)
            assert source.array is not None
            check_apart(f"output {name}", source.array, taken)
            targets[name] = given
            written[name] = taken[f"output {name}"] = source.array
        return HostBound(self, arrays, targets, written)

    def read_state(self, name: str) -> Array:
        with self.lock:
            check_open(self.lock)
            return self._states[name].copy()

    def write_state(self, name: str, array: Any) -> None:
        type = self._loaded.graph.states[name].type
        source = read_checked(f"state {name}", array, type, 0, None)
        assert source.array is not None
        with self.lock:
            check_open(self.lock)
            self._states[name] = np.array(source.array, type.dtype.numpy)

    def close(self) -> None:
        """See Program.close."""
        if isinstance(self.lock, ClosedLock):
            return
        with self.lock:
            self.lock = ClosedLock(self._loaded.graph.name)
            self._states.clear()


class HostBound:
    """A call on fixed arrays; see Program.bind."""

    def __init__(
        self, context: HostContext, inputs: dict[str, Array], targets: dict[str, Any], written: dict[str, Array]
    ) -> None:
        self._context = context
        self._inputs = inputs
        self._targets = targets
        self._written = written

    def __repr__(self) -> str:
        graph = self._context._loaded.graph
        return f"<bound call of {graph.name} on cpu: {graph.signature}>"

    def __call__(self, *, stream: object | None = None) -> dict[str, Any]:
        if stream is not None:
            stream_handle(stream)
        results = self._context.compute(self._inputs)
        for name, array in self._written.items():  # memory apart from all that a result may be a view of
            np.copyto(array, results[name])
        return dict(self._targets)
