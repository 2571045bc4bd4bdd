"""A region as a cuDNN operation graph: tensors with ids of their own, operations by the rules of each family.

Whether cuDNN takes the region is support.py's question; here it has been answered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from graphdnn.answer import Decline
from graphdnn.engines.cudnn.errors import attempt, unimportable
from graphdnn.engines.cudnn.frames import Description, Frame
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, TensorType, aligned_strides

Handle = Any
"""A tensor of the frontend."""

Rule = Callable[["Emitter", Node], tuple[Handle, ...]]
"""Adds one node's operations and returns the tensors of its results."""

RULES: dict[type[Op], Rule] = {}
"""The rule by class of op, filled by `@rule` as graphdnn.engines.cudnn.rules is imported."""

DATA_TYPES: dict[str, str] = {
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BFLOAT16",
    "float64": "DOUBLE",
    "int8": "INT8",
    "uint8": "UINT8",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOLEAN",
}
"""The frontend's name of each data type."""

NAME_LENGTH = 64
"""Characters of a pattern by which cuDNN's log names an operation graph."""

PRODUCTS: tuple[type[Op], ...] = (Conv, ConvTranspose, MatMul)
"""Ops whose operands the matrix units read."""


def rule(*kinds: type[Op]) -> Callable[[Rule], Rule]:
    """Registers a rule for classes of ops."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


@dataclass(frozen=True)
class Lowering:
    """An operation graph and which address goes to which tensor: (id of the tensor, index into the addresses)."""

    graph: Any
    bindings: tuple[tuple[int, int], ...]
    """The region's inputs, then its outputs; an input told in two ways, or standing in two places, is bound twice."""


@dataclass
class Emitter:
    """The operation graph in the making."""

    cudnn: Any
    graph: Any
    region: Region
    frame: Frame
    handles: dict[Value, Handle] = field(default_factory=dict)
    bindings: list[tuple[int, int]] = field(default_factory=list)
    told: dict[Value, Description] = field(default_factory=dict)
    """Descriptions of results that are not the frame's, set by rules."""
    _inputs: dict[tuple[Value, Description, int], Handle] = field(default_factory=dict)
    _uids: int = 0

    def uid(self) -> int:
        """A tensor id that is not taken; the same for the same region, since rules run in the region's order."""
        self._uids += 1
        return self._uids

    def dtype(self, dtype: DType) -> Any:
        return getattr(self.cudnn.data_type, DATA_TYPES[dtype.name])

    def read(self, node: Node, index: int, description: Description) -> Handle:
        """The tensor of an operand: of one computed here as it is, of an input told as `description`.

        An input that stands in two places of a node has a tensor for each: cuDNN's attention reads a misaligned address
        where k and v are one tensor, its layer norm has no address for a bias that is the scale.
        """
        value = node.operands[index]
        if value in self.handles:
            return self.handles[value]
        key = (value, description, node.operands[:index].count(value))
        if key not in self._inputs:
            uid = self.uid()
            self._inputs[key] = self.graph.tensor(
                dim=list(description.dims),
                stride=list(description.strides),
                data_type=self.dtype(value.type.dtype),
                name=value.name,
                uid=uid,
            )
            self.bindings.append((uid, self.region.inputs.index(value)))
        return self._inputs[key]

    def whole(self, node: Node, index: int) -> Handle:
        """The tensor of an operand that has the frame's axes itself."""
        type = node.operands[index].type
        return self.read(node, index, self.place(type, type.shape, type.shape))

    def scalar(self, number: bool | int | float, rank: int = 4) -> Handle:
        """A number as a tensor whose value the graph object holds, in float32: nothing to bind, nothing to outlive."""
        made = self.graph.tensor_scalar(float(number), self.cudnn.scalar_type.RUNTIME_PARAM)
        return made.set_dim([1] * rank).set_stride([1] * rank).set_uid(self.uid())

    def place(self, type: TensorType, shape: tuple[int, ...], full: tuple[int, ...]) -> Description:
        """A tensor in the region's frame, its axes aligned as `shape` says."""
        found = self.frame.describe(shape, aligned_strides(type, shape), full)
        if found is None:
            raise ValueError(f"{type} cannot be told to cuDNN against shape {full}")
        return found

    def operand(self, node: Node, index: int) -> Handle:
        """An operand of a pointwise node, aligned with the result; an immediate becomes a scalar."""
        assert isinstance(node.op, Elementwise)
        value, full = node.operands[index], node.result.type.shape
        if value.literal is not None:
            return self.scalar(value.literal, self.rank(node))
        shape = node.op.aligned(index, value.type.shape, len(full))
        return self.read(node, index, self.place(value.type, shape, full))

    def rank(self, node: Node) -> int:
        """Number of axes in which the node's result is told."""
        type = node.result.type
        return len(self.place(type, type.shape, type.shape).dims)

    def narrow(self, node: Node) -> None:
        """Gives what a convolution or a matrix product reads the type it has in the graph.

        cuDNN feeds its matrix units from intermediates of the inputs' type only; all others are float32.
        """
        for value in node.results:
            users = self.region.graph.users.get(value, ())
            if any(isinstance(u.op, PRODUCTS) and u in self.region.nodes for u in users):
                self.handles[value].set_data_type(self.dtype(value.type.dtype))

    def finish(self) -> None:
        """Marks the region's outputs, with their types, layouts and ids."""
        for index, value in enumerate(self.region.outputs, len(self.region.inputs)):
            handle, uid = self.handles[value], self.uid()
            told = self.output(value)
            handle.set_output(True).set_data_type(self.dtype(value.type.dtype))
            handle.set_dim(list(told.dims)).set_stride(list(told.strides)).set_uid(uid)
            self.bindings.append((uid, index))

    def output(self, value: Value) -> Description:
        """How a result is told, by its rule's own word or by the frame."""
        return self.told.get(value) or self.place(value.type, value.type.shape, value.type.shape)


def lower(region: Region, frame: Frame, **context: Any) -> Lowering | Decline:
    """The region's operation graph, validated and built.

    `context` goes to the frontend's graph: `handle` on a device; `sm_version` or `device_property` without one.
    """
    import graphdnn.engines.cudnn.rules  # noqa: F401  declares the rules

    try:
        import cudnn
    except ImportError as error:
        return unimportable(error)
    return attempt(lambda: _lowered(cudnn, region, frame, context), region.pattern)


def _lowered(cudnn: Any, region: Region, frame: Frame, context: dict[str, Any]) -> Lowering:
    graph = cudnn.pygraph(
        name=region.pattern[:NAME_LENGTH],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        **context,
    )
    emit = Emitter(cudnn, graph, region, frame)
    for node in region.nodes:
        results = RULES[type(node.op)](emit, node)
        emit.handles.update(zip(node.results, results, strict=True))
        emit.narrow(node)
    emit.finish()
    graph.validate()
    graph.build_operation_graph()
    return Lowering(graph, tuple(emit.bindings))
