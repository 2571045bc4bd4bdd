"""A graph as networkx sees it: for drawing it, and for algorithms that are not worth writing again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphdnn.ir.graph import Graph


def to_networkx(graph: Graph) -> Any:
    """A networkx.MultiDiGraph; see Graph.to_networkx."""
    import networkx

    view = networkx.MultiDiGraph(name=graph.name)
    boundary = {"input": graph.inputs, "constant": graph.constants, "state": graph.states}
    makers = {}
    for kind, values in boundary.items():
        for name, value in values.items():
            makers[value] = (kind, name)
            view.add_node((kind, name), op=kind, type=str(value.type))
    for node in graph.nodes:
        key = ("node", node.name)
        view.add_node(key, op=node.op.label, type=", ".join(map(str, node.result_types)))
        for index, value in enumerate(node.operands):
            if value.literal is None:
                view.add_edge(makers[value], key, operand=index, value=value.name)
        makers.update((result, key) for result in node.results)
    for kind, values in {"output": graph.outputs, "update": graph.updates}.items():
        for name, value in values.items():
            view.add_node((kind, name), op=kind, type=str(value.type))
            view.add_edge(makers[value], (kind, name), operand=0, value=value.name)
    return view
