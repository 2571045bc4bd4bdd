"""The invariants of a graph, one function each, in the order they are checked."""

from __future__ import annotations

from collections.abc import Callable

from graphdnn.errors import GraphError
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.types import LARGEST_SPAN, TensorType, are_apart
from graphdnn.spelling import named, quoted


def names_are_unique(graph: Graph) -> None:
    seen: dict[str, Value] = {}
    sources = [*graph.inputs.values(), *graph.constants.values(), *graph.states.values()]
    for value in (*sources, *(v for n in graph.nodes for v in n.results)):
        if seen.setdefault(value.name, value) is not value:
            raise GraphError(f"graph {named(graph.name)}: two values are named {named(value.name)}")
    nodes = [n.name for n in graph.nodes]
    if len(set(nodes)) != len(nodes):
        twice = next(n for n in nodes if nodes.count(n) > 1)
        raise GraphError(f"graph {named(graph.name)}: two nodes are named {named(twice)}")


def operands_are_defined_before_use(graph: Graph) -> None:
    known = {*graph.inputs.values(), *graph.constants.values(), *graph.states.values()}
    for node in graph.nodes:
        for index, value in enumerate(node.operands):
            if value.literal is None and value not in known:
                raise GraphError(
                    f"{node}: operand {index} ({value}) is not a value of graph {named(graph.name)} made before it"
                )
        known.update(node.results)
    for what, values in (("output", graph.outputs), ("next value of state", graph.updates)):
        for name, value in values.items():
            if value not in known:
                raise GraphError(f"{what} {named(name)} is {value}, which is not a value of graph {named(graph.name)}")


def types_are_inferred(graph: Graph) -> None:
    for node in graph.nodes:
        inferred = node.inferred
        found = tuple((t.shape, t.dtype) for t in node.result_types)
        if found != tuple((t.shape, t.dtype) for t in inferred):
            raise GraphError(
                f"{node}: results are {', '.join(map(str, node.result_types))}, but the op gives "
                f"{', '.join(map(str, inferred))}"
            )


def updates_fit_their_states(graph: Graph) -> None:
    for name, value in graph.updates.items():
        state = graph.states.get(name)
        if state is None:
            known = quoted(list(graph.states))
            raise GraphError(f"update {named(name)} names no state of graph {named(graph.name)}; states are {known}")
        if (value.type.shape, value.type.dtype) != (state.type.shape, state.type.dtype):
            raise GraphError(f"update of state {named(name)} is {value.type}, but the state is {state.type}")


def output_strides_fit(graph: Graph) -> None:
    for name, strides in graph.output_strides.items():
        if name not in graph.outputs:
            raise GraphError(f"strides are declared for {named(name)}, which is no output of graph {named(graph.name)}")
        declared = graph.outputs[name].type.with_strides(strides)
        if not are_apart(declared.shape, strides) or min(strides, default=0) < 0:
            raise GraphError(
                f"output {named(name)} of type {declared.with_strides(None)} has strides {strides}, "
                "which make elements share memory or run backwards"
            )


def declared_strides_span_memory(graph: Graph) -> None:
    declared = {f"input {named(name)}": value.type for name, value in graph.inputs.items()}
    declared |= {f"output {named(name)}": graph.output_type(name) for name in graph.output_strides}
    for who, type in declared.items():
        checked_span(who, type)


def checked_span(who: str, type: TensorType) -> TensorType:
    """A type whose declared strides span memory that can be.  Raises GraphError for others."""
    if type.extent > max(type.size, LARGEST_SPAN):
        raise GraphError(
            f"{who} of type {type.with_strides(None)} has strides {type.layout}, which spread its elements over "
            f"{type.extent}; at most 2**40 are possible"
        )
    return type


def there_is_an_output(graph: Graph) -> None:
    if not graph.outputs and not graph.updates:
        raise GraphError(f"graph {named(graph.name)} has no outputs; at least one is needed")


INVARIANTS: tuple[Callable[[Graph], None], ...] = (
    there_is_an_output,
    names_are_unique,
    operands_are_defined_before_use,
    types_are_inferred,
    updates_fit_their_states,
    output_strides_fit,
    declared_strides_span_memory,
)
"""Cheapest first; a later one may rely on the earlier ones."""


def verify(graph: Graph) -> None:
    """Raises GraphError, in one sentence, for the first invariant that does not hold."""
    for invariant in INVARIANTS:
        invariant(graph)
