"""Which nodes only rename memory: where each value really lies, and which nodes need no kernel."""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.types import normalized_strides


def is_free(node: Node) -> bool:
    """Whether every result of `node` is a view of its first operand in the strides that its type says."""
    if not node.op.is_renaming or not node.operands or node.operands[0].literal is not None:
        return False
    views = node.op.view(node.operands[0].type)
    if views is None:
        return False
    return all(
        normalized_strides(type.shape, view.strides) == normalized_strides(type.shape, type.layout)
        for view, type in zip(views, node.result_types, strict=True)
    )


PLACES: WeakKeyDictionary[Graph, Mapping[Value, tuple[Value, int]]] = WeakKeyDictionary()
"""What `resolve` found, for as long as the graph lives: engines ask about many regions of one graph."""


def resolve(graph: Graph) -> Mapping[Value, tuple[Value, int]]:
    """For each value of the graph the value in whose memory it lies, and its first element's offset there.

    A value that is no view lies in its own memory at offset 0.
    """
    found = PLACES.get(graph)
    if found is None:
        found = PLACES[graph] = _places(graph)
    return found


def _places(graph: Graph) -> Mapping[Value, tuple[Value, int]]:
    places: dict[Value, tuple[Value, int]] = {}
    for values in (graph.inputs, graph.constants, graph.states):
        places.update((value, (value, 0)) for value in values.values())
    for node in graph.nodes:
        views = node.op.view(node.operands[0].type) if is_free(node) else None
        if views is None:
            places.update((value, (value, 0)) for value in node.results)
            continue
        root, offset = places[node.operands[0]]
        places.update((value, (root, offset + view.offset)) for value, view in zip(node.results, views, strict=True))
    return places
