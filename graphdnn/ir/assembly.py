"""Rebuilding a graph from a written form (text or document): names to values, attributes to ops, every claim checked.

What is written may come from anywhere, so nothing is trusted: whatever is wrong becomes a GraphError that names it.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from math import prod
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

import graphdnn.ir.ops  # noqa: F401  (declares every op)
from graphdnn.errors import GraphError
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.op import OPS, Op
from graphdnn.ir.payload import DIGEST_SHOWN, Payload, content_digest
from graphdnn.ir.types import BY_TEXT, DTYPES, LARGEST_RANK, LARGEST_SIZE, WHOLE, Array, DType, TensorType, as_dtype
from graphdnn.ir.writer import GraphWriter, checked_name, checked_output_name
from graphdnn.spelling import named, quoted

DIGEST_LENGTH = 64
"""Hexadecimal digits of a SHA-256."""


def checked_type(who: str, dtype: str, shape: Sequence[int], strides: Sequence[int] | None) -> TensorType:
    """A tensor type from its written parts; `dtype` is a name or its short form.  Raises GraphError naming `who`."""
    known = DTYPES.get(dtype) or BY_TEXT.get(dtype)
    if known is None:
        raise GraphError(f"{who}: data type {quoted(dtype)} is not one of {', '.join(DTYPES)}")
    if len(shape) > LARGEST_RANK:
        raise GraphError(f"{who}: shape has {len(shape)} axes; at most {LARGEST_RANK} are possible")
    if min(shape, default=1) < 1 or prod(shape) > LARGEST_SIZE:
        raise GraphError(
            f"{who}: shape is {quoted(tuple(shape))}; extents must be at least 1 and their product at most 2**48"
        )
    if strides is None:
        return TensorType(tuple(shape), known)
    if len(strides) != len(shape) or min(strides, default=0) < 0 or max(strides, default=0) > LARGEST_SIZE:
        raise GraphError(
            f"{who}: strides are {quoted(tuple(strides))}; {len(shape)} numbers from 0 to 2**48 are needed for "
            f"{tuple(shape)}"
        )
    return TensorType(tuple(shape), known, tuple(strides))


def checked_literal(who: str, number: object, dtype: str) -> Value:
    """An immediate from its written parts.  Raises GraphError where the type cannot hold the number."""
    type = checked_type(who, dtype, (), None)
    literal = number_of(type.dtype, number)
    if literal is None:
        raise GraphError(f"{who}: {quoted(number)} is no number of type {type.dtype}")
    return Value(repr(literal), type, literal)


def number_of(dtype: DType, written: object) -> bool | int | float | None:
    """The number of that type that is written; None where the type holds no such number."""
    if isinstance(written, bool):
        return written if dtype.kind == "bool" else None
    if isinstance(written, float):
        return written if dtype.is_float else None
    if not isinstance(written, int):
        return None
    if dtype.is_float:
        return float(written) if abs(written) < 2**53 else None
    return written if dtype.is_integer and dtype.holds(written) else None


@cache
def attribute_hints(kind: str) -> dict[str, Any]:
    """Declared types of an op's attributes by name."""
    cls = OPS[kind]
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in fields(cls)}  # type: ignore[arg-type]


def conforms(value: object, hint: Any) -> bool:
    """Whether an attribute's value is of its declared type: numbers, str, None, tuples and unions of these.

    Whole numbers have 128 bits.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin in (types.UnionType, Union):
        return any(conforms(value, arg) for arg in args)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        inner = [args[0]] * len(value) if args[1:] == (...,) else list(args)
        return len(inner) == len(value) and all(map(conforms, value, inner))
    if hint is float:
        return isinstance(value, float) or conforms(value, int)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and value in WHOLE
    return isinstance(value, hint) if isinstance(hint, type) else value is None


def checked_op(who: str, kind: str, attributes: Mapping[str, object]) -> Op:
    """The op of that kind with these attributes.  Raises GraphError naming the attribute that is wrong."""
    cls = OPS.get(kind)
    if cls is None:
        raise GraphError(f"{who}: there is no op {quoted(kind)}")
    hints = attribute_hints(kind)
    for name, value in attributes.items():
        if name not in hints:
            raise GraphError(f"{who}: {kind} has no attribute {quoted(name)}; it has {', '.join(hints) or 'none'}")
        if not conforms(value, hints[name]):
            raise GraphError(
                f"{who}: attribute {name} of {kind} is {quoted(value)}, which is not of type {type_text(hints[name])}"
            )
    required = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]  # type: ignore[arg-type]
    for name in required:
        if name not in attributes:
            raise GraphError(f"{who}: attribute {name} of {kind} is missing")
    return cls(**attributes)


def type_text(hint: Any) -> str:
    """An attribute's type as Python writes it."""
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


class Assembly:
    """Collects what is written, in order, and checks each piece against what came before."""

    def __init__(self, name: str) -> None:
        self.writer = GraphWriter(checked_name("graph", name))
        self.values: dict[str, Value] = {}
        self.nodes: set[str] = set()

    def input(self, name: str, type: TensorType) -> None:
        self.writer.inputs[name] = self._define(f"input {named(checked_name('an input', name))}", Value(name, type))

    def state(self, name: str, type: TensorType) -> None:
        self.writer.states[name] = self._define(f"state {named(checked_name('a state', name))}", Value(name, type))

    def constant(self, name: str, type: TensorType, digest: str, array: Array | None) -> None:
        """A constant by content hash, with its data where that is at hand."""
        who = f"constant {named(checked_name('a constant', name))}"
        if len(digest) != DIGEST_LENGTH or set(digest) - set("0123456789abcdef"):
            raise GraphError(f"{who}: {quoted(digest)} is no SHA-256 in hexadecimal")
        if array is not None:
            check_content(who, type, digest, array)
        self.writer.constants[name] = self._define(who, Value(name, type))
        self.writer.payloads[name] = Payload(type, array, digest, name=name)

    def value(self, who: str, name: str) -> Value:
        """The value of that name, which must have been made before."""
        if name not in self.values:
            raise GraphError(
                f"{who}: %{named(name)} is not made before it; nodes stand in topological order, without cycles"
            )
        return self.values[name]

    def node(
        self,
        name: str,
        op: Op,
        operands: Sequence[Value],
        results: Sequence[tuple[str, TensorType]],
        origins: tuple[str, ...] | None,
    ) -> None:
        """One application of an op; `origins` of None are the node itself."""
        who = f"node {named(checked_name('a node', name))}"
        for result, _ in results:
            checked_name(f"a result of {who}", result)
        for origin in origins or ():
            checked_name(f"an origin of {who}", origin)
        if name in self.nodes:
            raise GraphError(f"{who}: two nodes have this name")
        values = tuple(Value(n, t) for n, t in results)
        node = Node(name, op, tuple(operands), values, (name,) if origins is None else origins)
        found = [(t.shape, t.dtype) for t in inferred(who, node)]
        if found != [(t.shape, t.dtype) for _, t in results]:
            gives = ", ".join(str(TensorType(*t)) for t in found)
            raise GraphError(
                f"{who}: results are written as {', '.join(str(t) for _, t in results)}; {op} gives {gives}"
            )
        for value in values:
            self._define(who, value)
        self.nodes.add(name)
        self.writer.adopt(node)

    def finish(
        self, outputs: Mapping[str, Value], updates: Mapping[str, Value], output_strides: Mapping[str, tuple[int, ...]]
    ) -> Graph:
        """The verified graph."""
        for name in outputs:
            checked_output_name(name)
        return self.writer.finish(outputs, updates, output_strides)

    def _define(self, who: str, value: Value) -> Value:
        if value.name in self.values:
            raise GraphError(f"{who}: two values are named {named(value.name)}")
        self.values[value.name] = value
        return value


def inferred(who: str, node: Node) -> tuple[TensorType, ...]:
    """Types that the op gives.  Whatever it stumbles over is a GraphError, since written attributes are unchecked."""
    try:
        return node.inferred
    except GraphError as error:
        raise GraphError(f"{who}: {error}") from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise GraphError(
            f"{who}: {quoted(node.op)} does not take these {len(node.operands)} operands ({quoted(error)})"
        ) from None


def check_content(who: str, type: TensorType, digest: str, array: Array) -> None:
    """Raises GraphError where an array is not the one that a constant's type and hash describe."""
    if not isinstance(array, np.ndarray | np.generic):
        raise GraphError(f"{who}: its data is a {array.__class__.__name__}; a numpy array is needed")
    dtype: DType = as_dtype(array.dtype)
    if tuple(array.shape) != type.shape or dtype != type.dtype:
        raise GraphError(f"{who}: its data is {TensorType(array.shape, dtype)}; {type.with_strides(None)} is needed")
    if content_digest(array) != digest:
        raise GraphError(f"{who}: its data has another content than the hash {digest[:DIGEST_SHOWN]} says")
