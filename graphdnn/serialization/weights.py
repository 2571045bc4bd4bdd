"""Constants as sections: the elements in the order in which they lie in memory, once for all graphs that hold them."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import replace

import numpy as np

from graphdnn.errors import GraphError, SavedFileError
from graphdnn.ir.document import assemble, dump, read_model
from graphdnn.ir.graph import Graph
from graphdnn.ir.payload import Payload
from graphdnn.ir.types import Array, TensorType
from graphdnn.serialization.container import Bytes, digest
from graphdnn.serialization.records import LONGEST

PREFIX = "constant."
"""A section's name is this and the SHA-256 of its bytes, which is what the documents call the constant by."""


def document(graph: Graph, sections: MutableMapping[str, Bytes]) -> bytes:
    """The graph's JSON document; constants that do not stand in it are added to the sections."""
    model = read_model(dump(graph))
    constants = []
    for constant in model.constants:
        payload = graph.payloads[constant.name]
        if constant.data is None and payload.has_data:
            content = in_memory(payload.array(), payload.type).data
            name = digest(content)
            sections[PREFIX + name] = content
            constant = constant.model_copy(update={"sha256": name})
        constants.append(constant)
    return model.model_copy(update={"constants": constants}).model_dump_json(exclude_none=True).encode()


def graph_of(who: str, content: bytes, sections: Mapping[str, Array], used: set[str]) -> Graph:
    """The graph of a document with the constants that the sections have; names of those go into `used`.

    Raises SavedFileError for a wrong document.
    """
    if len(content) > LONGEST:
        raise SavedFileError(f"{who}: it has {len(content)} bytes of JSON; at most {LONGEST} are read")
    try:
        model = read_model(content.decode())
        graph = assemble(model, {}, {})
    except (GraphError, UnicodeDecodeError) as error:
        raise SavedFileError(f"{who}: {error}") from None
    payloads = dict(graph.payloads)
    for constant in model.constants:
        held = sections.get(PREFIX + constant.sha256)
        if constant.data is None and held is not None:
            used.add(PREFIX + constant.sha256)
            type = payloads[constant.name].type
            if len(held) != type.nbytes:
                raise SavedFileError(
                    f"{who}: constant {constant.name} is {type} of {type.nbytes} bytes; its section has {len(held)}"
                )
            payloads[constant.name] = Payload(type, from_memory(held, type))
    return replace(graph, payloads=payloads)


def in_memory(array: Array, type: TensorType) -> Array:
    """The bytes of an array, its axes ordered as the type's strides order them."""
    return np.ascontiguousarray(array.transpose(axes(type))).reshape(-1).view(np.uint8)


def from_memory(content: Array, type: TensorType) -> Array:
    """The array, in logical axes, whose bytes `in_memory` gave; it is a view of them."""
    order = axes(type)
    lying = content.view(type.dtype.numpy).reshape([type.shape[axis] for axis in order])
    return lying.transpose(np.argsort(order))


def axes(type: TensorType) -> list[int]:
    """The axes, outermost in memory first; row-major where strides leave gaps or repeat elements."""
    if not type.is_dense:
        return list(range(type.rank))
    return sorted(range(type.rank), key=lambda axis: (-type.layout[axis], axis))
