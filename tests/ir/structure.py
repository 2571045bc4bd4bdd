"""Whether two graphs are the same in everything that is written down."""

from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.region import Region


def outline(graph: Graph) -> dict[str, object]:
    """Names, types, attributes, wiring, origins and declared layouts of a graph, comparable with ==."""

    def described(value: Value) -> tuple[object, ...]:
        return (value.name if value.literal is None else repr(value.literal), value.type)

    return {
        "name": graph.name,
        "inputs": {n: described(v) for n, v in graph.inputs.items()},
        "states": {n: described(v) for n, v in graph.states.items()},
        "constants": {n: (described(v), graph.payloads[n].digest) for n, v in graph.constants.items()},
        "nodes": [
            (n.name, repr(n.op), [described(v) for v in n.operands], [described(v) for v in n.results], n.origins)
            for n in graph.nodes
        ],
        "outputs": {n: described(v) for n, v in graph.outputs.items()},
        "updates": {n: described(v) for n, v in graph.updates.items()},
        "strides": dict(graph.output_strides),
        "order": [list(part) for part in (graph.inputs, graph.states, graph.constants, graph.outputs, graph.updates)],
        "key": Region.of(graph, graph.nodes).key,
    }
