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


def is_part_of(graph: Graph, value: Value, whole: Value) -> bool:
    """Whether every element of `value` lies in memory where an element of `whole` does, as far as strides tell.

    Both are taken as boxes: each axis of the one has to lie along an axis of the other.
    """
    places = resolve(graph)
    (root, offset), (other, start) = places[value], places[whole]
    if root is not other or value.type.dtype != whole.type.dtype:
        return False
    axes = sorted(
        ((s, n) for n, s in zip(whole.type.shape, whole.type.layout, strict=True) if n > 1 and s), reverse=True
    )
    if any(outer <= sum((n - 1) * s for s, n in axes[i:]) for i, (outer, _) in enumerate(axes[:-1], 1)):
        return False  # its rows overlap, and an address has no one place in it
    first, rest = [], offset - start
    for stride, _ in axes:
        first.append(rest // stride)
        rest -= first[-1] * stride
    last = list(first)
    for n, stride in zip(value.type.shape, value.type.layout, strict=True):
        along = next((i for i, (s, m) in enumerate(axes) if stride % s == 0 and stride < s * m), None)
        if n > 1 and stride and along is None:
            return False
        if n > 1 and stride and along is not None:
            last[along] += (n - 1) * (stride // axes[along][0])
    return rest == 0 and all(lo >= 0 and hi < n for lo, hi, (_, n) in zip(first, last, axes, strict=True))


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
