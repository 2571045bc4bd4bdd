"""What values hold that are computed from constants alone, such as a mask that somebody builds from positions."""

from __future__ import annotations

from collections.abc import Mapping

from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.payload import Compute, Payload
from graphdnn.ir.types import Array

LARGEST_KNOWN = 1 << 26
"""Most elements of a value whose numbers are computed to be looked at, 64 MiB of bools."""


def known_array(value: Value, graph: Graph) -> Array | None:
    """The numbers of a value that follows from constants alone.

    None where an input or a state goes in, data of a constant is not here, or there are more than LARGEST_KNOWN.
    """
    payload = known_payload(value, graph) if value.type.size <= LARGEST_KNOWN else None
    return payload.array() if payload is not None and payload.has_data else None


def known_payload(value: Value, graph: Graph) -> Payload | None:
    """A promise to compute `value` from constants; None where it depends on an input or a state, or is a number.

    A list of what waits and no recursion: chains may be thousands of nodes long.
    """
    known: dict[Value, Payload | None] = {}
    waiting = [value]
    while waiting:
        last = waiting[-1]
        node = graph.producer.get(last)
        if node is None:
            known[waiting.pop()] = graph.payloads[last.name] if graph.constants.get(last.name) is last else None
            continue
        tensors = [v for v in node.operands if v.literal is None]
        before = [v for v in tensors if v not in known]
        if any(known.get(v, v) is None for v in tensors):
            known[waiting.pop()] = None
        elif before:
            waiting.extend(before)
        else:
            parts = tuple(part for v in node.operands if (part := operand_part(v, known)) is not None)
            compute = Compute(node.op, parts, node.operand_types, node.results.index(last))
            known[waiting.pop()] = Payload(last.type, compute=compute)
    return known[value]


def operand_part(value: Value, known: Mapping[Value, Payload | None]) -> Payload | float | None:
    return known[value] if value.literal is None else value.literal
