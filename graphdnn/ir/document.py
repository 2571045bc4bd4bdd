"""Graphs as JSON documents: a schema version, small constants inline, large ones by content hash in a file beside it.

A document may come from anywhere: pydantic checks its form, `Assembly` what it says; both answer with a GraphError
that names the field.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from graphdnn.errors import GraphError
from graphdnn.files import AtomicFile, path_of, path_to_write
from graphdnn.ir.arguments import check_arrays, text_of
from graphdnn.ir.assembly import Assembly, attribute_hints, checked_literal, checked_op, checked_type
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.op import OPS
from graphdnn.ir.payload import DIGEST_SHOWN, Payload, content_digest
from graphdnn.ir.tensorfile import distinct, read_tensors, write_tensors
from graphdnn.ir.types import Array, TensorType
from graphdnn.spelling import named, quoted
from graphdnn.strict_json import Record

VERSION = 1
INLINE_BYTES = 1024
"""Constants up to this size stand in the document itself."""

DEEPEST = 4
"""Tuples within tuples that an attribute may have; what is nested deeper is of no attribute's type."""

NONFINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
"""How floats that JSON lacks are written."""


class TypeModel(Record):
    """A tensor type; strides in elements, or absent."""

    dtype: str
    shape: list[int]
    strides: list[int] | None = None


class ValueModel(Record):
    """An input, a state or a node's result."""

    name: str
    type: TypeModel


class ConstantModel(Record):
    """A constant: SHA-256 over type and content, and the elements in row-major order as base64 where it is small."""

    name: str
    type: TypeModel
    sha256: str
    data: str | None = None


class LiteralModel(Record):
    """A Python number among a node's operands."""

    literal: bool | int | float | str
    dtype: str


class NodeModel(Record):
    """One application of an op; absent origins are the node itself."""

    name: str
    op: str
    attributes: dict[str, Any]
    operands: list[str | LiteralModel]
    results: list[ValueModel]
    origins: list[str] | None = None


class OutputModel(Record):
    """An output: whose value it is, and declared strides in elements."""

    value: str
    strides: list[int] | None = None


class GraphModel(Record):
    """A whole document."""

    format: Literal["graphdnn"]
    version: int
    name: str
    inputs: list[ValueModel]
    states: list[ValueModel]
    constants: list[ConstantModel]
    nodes: list[NodeModel]
    outputs: dict[str, OutputModel]
    updates: dict[str, str]


def dump(graph: Graph) -> str:
    """The JSON document of a graph.  Needs the data of no constant; has that of small ones which are at hand."""
    model = GraphModel(
        format="graphdnn",
        version=VERSION,
        name=graph.name,
        inputs=[value_model(v) for v in graph.inputs.values()],
        states=[value_model(v) for v in graph.states.values()],
        constants=[constant_model(n, graph.payloads[n]) for n in graph.constants],
        nodes=[node_model(n) for n in graph.nodes],
        outputs={
            n: OutputModel(value=v.name, strides=listed(graph.output_strides.get(n))) for n, v in graph.outputs.items()
        },
        updates={n: v.name for n, v in graph.updates.items()},
    )
    return model.model_dump_json(exclude_none=True, indent=1) + "\n"


def listed(entries: tuple[int, ...] | None) -> list[int] | None:
    return None if entries is None else list(entries)


def type_model(type: TensorType) -> TypeModel:
    return TypeModel(dtype=type.dtype.name, shape=list(type.shape), strides=listed(type.strides))


def value_model(value: Value) -> ValueModel:
    return ValueModel(name=value.name, type=type_model(value.type))


def constant_model(name: str, payload: Payload) -> ConstantModel:
    type = type_model(payload.type)
    if payload.type.nbytes > INLINE_BYTES or not payload.has_data:
        return ConstantModel(name=name, type=type, sha256=payload.digest)
    array = payload.array()
    data = base64.b64encode(array.tobytes()).decode()
    return ConstantModel(name=name, type=type, sha256=content_digest(array), data=data)


def node_model(node: Node) -> NodeModel:
    return NodeModel(
        name=node.name,
        op=node.op.kind,
        attributes={n: as_json(v) for n, v in node.op.attributes().items()},
        operands=[
            v.name if v.literal is None else LiteralModel(literal=as_json(v.literal), dtype=v.type.dtype.name)
            for v in node.operands
        ],
        results=[value_model(v) for v in node.results],
        origins=None if node.origins == (node.name,) else list(node.origins),
    )


def as_json(value: Any) -> Any:
    """Tuples as lists, and floats that JSON lacks by name."""
    if isinstance(value, tuple):
        return [as_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value


def load(text: str, constants: Mapping[str, Array] | None = None) -> Graph:
    """The graph of a document.  `constants` gives arrays, by name, of constants that are not inline.

    A constant without data is fine for planning and explaining.  Raises GraphError naming the first wrong field.
    """
    if constants is not None:
        check_arrays("from_json", "constants", constants)
    return assemble(read_model(text_of("from_json", text)), constants or {}, {})


def read_model(text: str) -> GraphModel:
    try:
        content = json.loads(text, object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"document: it is no JSON ({error})") from None
    if not isinstance(content, dict):
        raise GraphError(f"document: it is a JSON {type(content).__name__}; an object is needed")
    version = content.get("version")
    if type(version) is int and version != VERSION:
        raise GraphError(f"document: version is {quoted(version)}; this graphdnn reads version {VERSION}")
    try:
        return GraphModel.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(named(str(part)) for part in first["loc"]) or "the document"
        raise GraphError(f"document: {where}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None
    except RecursionError:
        raise GraphError("document: it is nested too deeply to be a graph") from None


def assemble(model: GraphModel, by_name: Mapping[str, Array], by_digest: Mapping[str, Array]) -> Graph:
    """The graph that a well-formed document describes."""
    made = Assembly(model.name)
    for index, part in enumerate(model.inputs):
        made.input(part.name, read_type(f"inputs.{index}.type", part.type))
    for index, part in enumerate(model.states):
        made.state(part.name, read_type(f"states.{index}.type", part.type))
    for index, constant in enumerate(model.constants):
        type = read_type(f"constants.{index}.type", constant.type)
        array = by_name.get(constant.name, by_digest.get(constant.sha256))
        if constant.data is not None:
            array = decoded(f"constants.{index}.data", constant.data, type)
        made.constant(constant.name, type, constant.sha256, array)
    unknown = [name for name in by_name if name not in made.writer.constants]
    if unknown:
        raise GraphError(
            f"document: {named(unknown[0])} is given as a constant, but the document has none of that name"
        )
    for index, node in enumerate(model.nodes):
        assemble_node(made, f"nodes.{index}", node)
    outputs = {n: made.value(f"output {named(n)}", o.value) for n, o in model.outputs.items()}
    updates = {n: made.value(f"update of {named(n)}", v) for n, v in model.updates.items()}
    strides: dict[str, tuple[int, ...]] = {}
    for name, output in model.outputs.items():
        if output.strides is not None:
            value = outputs[name].type
            declared = checked_type(f"outputs.{named(name)}.strides", value.dtype.name, value.shape, output.strides)
            strides[name] = declared.layout
    return made.finish(outputs, updates, strides)


def assemble_node(made: Assembly, where: str, node: NodeModel) -> None:
    who = f"{where} ({named(node.name)})"
    op = checked_op(who, node.op, read_attributes(node.op, node.attributes))
    operands = [
        made.value(f"{where}.operands.{i} (of {named(node.name)})", v)
        if isinstance(v, str)
        else checked_literal(
            f"{where}.operands.{i} (of {named(node.name)})", NONFINITE.get(str(v.literal), v.literal), v.dtype
        )
        for i, v in enumerate(node.operands)
    ]
    results = [(r.name, read_type(f"{where}.results.{i}.type", r.type)) for i, r in enumerate(node.results)]
    made.node(node.name, op, operands, results, None if node.origins is None else tuple(node.origins))


def read_type(who: str, type: TypeModel) -> TensorType:
    return checked_type(who, type.dtype, type.shape, type.strides)


def read_attributes(kind: str, attributes: Mapping[str, Any]) -> dict[str, object]:
    """Lists as tuples, and the names of non-finite numbers as numbers wherever the op does not want a string."""
    hints = attribute_hints(kind) if kind in OPS else {}
    return {n: from_json(v, "str" in str(hints.get(n))) for n, v in attributes.items()}


def from_json(value: Any, strings: bool, depth: int = DEEPEST) -> object:
    if isinstance(value, list) and depth:
        return tuple(from_json(v, strings, depth - 1) for v in value)
    if isinstance(value, str) and not strings:
        return NONFINITE.get(value, value)
    return value


def decoded(who: str, data: str, type: TensorType) -> Array:
    """An inline constant's array.  Raises GraphError unless it has exactly its type's bytes."""
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise GraphError(f"document: {who}: it is no base64 ({error})") from None
    if len(content) != type.nbytes:
        raise GraphError(f"document: {who}: it has {len(content)} bytes; {type} has {type.nbytes}")
    return np.frombuffer(content, np.uint8).view(type.dtype.numpy).reshape(type.shape)


def tensors_path(path: str | Path) -> Path:
    """Where the large constants of a document at `path` stand."""
    return Path(path).with_suffix(".safetensors")


def save(graph: Graph, path: str | Path) -> None:
    """Writes the document, and beside it the constants over 1 KiB; both appear whole, the document last.

    Links are followed.  Raises GraphError for what is no path of a file, and where something is that is no regular
    file; nothing is written then.
    """
    given = path_of("save: path", path, GraphError)
    if given.suffix == ".safetensors":
        raise GraphError(f"save: {given.name} is where the constants would stand; give the document another suffix")
    place = path_to_write("save: path", given, GraphError)
    model = read_model(dump(graph))
    arrays: dict[str, Array] = {}
    constants: list[ConstantModel] = []
    for constant in model.constants:
        payload = graph.payloads[constant.name]
        if payload.type.nbytes > INLINE_BYTES and payload.has_data:
            digest = content_digest(payload.array())
            arrays[digest] = payload.array()
            constant = constant.model_copy(update={"sha256": digest})
        constants.append(constant)
    if arrays:
        write_tensors(path_to_write("save: the constants' path", tensors_path(given), GraphError), arrays)
    whole = model.model_copy(update={"constants": constants})
    with AtomicFile(place) as file:
        file.write((whole.model_dump_json(exclude_none=True, indent=1) + "\n").encode())


def read(path: str | Path) -> Graph:
    """Reads what `save` wrote.  Without the file of constants the graph can be planned and explained, not run.

    Raises GraphError for what is no path of a file, naming the file and the field of the document, or the tensor, that
    is wrong.
    """
    place = path_of("load: path", path, GraphError)
    if place.exists() and not place.is_file():
        raise GraphError(f"{place}: it is no regular file; a graph's document is needed")
    try:
        return read_files(place, tensors_path(place))
    except GraphError as error:
        raise GraphError(f"{place}: {error}") from None


def read_files(place: Path, beside: Path) -> Graph:
    """The graph of a document, and of the file beside it that holds its large constants."""
    try:
        text = place.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise GraphError(f"it is no UTF-8 text ({error})") from None
    model = read_model(text)
    wanted = [c for c in model.constants if c.data is None]
    arrays = read_tensors(beside) if wanted and beside.exists() else None
    if arrays is None:
        return assemble(model, {}, {})
    for constant in wanted:
        if constant.sha256 not in arrays:
            raise GraphError(
                f"{beside.name}: constant {constant.name} ({constant.sha256[:DIGEST_SHOWN]}) is missing from it"
            )
    return assemble(model, {}, arrays)
