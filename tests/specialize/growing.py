"""Graphs made longer as padding would make them, and what may stand in the padding."""

from __future__ import annotations

import dataclasses

import numpy as np

import graphdnn as gd
from graphdnn.errors import GraphError
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.movement import Expand, Iota, Reshape, Slice, Split
from graphdnn.ir.types import Array, TensorType
from graphdnn.ir.writer import GraphWriter
from tests.ir.samples import SAMPLES


def garbage(shape: tuple[int, ...], dtype: gd.DType, rng: np.random.Generator) -> Array:
    """What padding may hold: NaN as floats, large numbers of either sign as integers."""
    if dtype.is_float:
        return np.full(shape, np.nan, dtype.numpy)
    low, high = (0, 1) if dtype.kind == "bool" else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
    return rng.integers(low, high, shape, endpoint=True, dtype=np.int64).astype(dtype.numpy)


def grown_op(op: Op, before: list[TensorType], after: list[TensorType], rng: np.random.Generator) -> Op:
    """The op with the extents that it spells out made longer, so that it may still fit."""
    match op:
        case Reshape():
            if not op.shape:
                return op
            axis = int(rng.integers(len(op.shape)))
            extent = after[0].size * op.shape[axis] // before[0].size
            return Reshape(shape=(*op.shape[:axis], extent, *op.shape[axis + 1 :]))
        case Expand():
            tail = after[0].shape
            shape = [m if m > 1 else n for n, m in zip(op.shape[len(op.shape) - len(tail) :], tail, strict=True)]
            return Expand(shape=(*op.shape[: len(op.shape) - len(tail)], *shape))
        case Split():
            more = after[0].shape[op.axis] - before[0].shape[op.axis]
            place = int(rng.integers(len(op.sizes)))
            sizes = tuple(n + (more if i == place else 0) for i, n in enumerate(op.sizes))
            return dataclasses.replace(op, sizes=sizes)
        case Slice():
            more = [m - n for n, m in zip(before[0].shape, after[0].shape, strict=True)]
            moved = rng.integers(2)  # as a slice from the end would
            starts = tuple(s + (d if moved else 0) for s, d in zip(op.starts, more, strict=True))
            return dataclasses.replace(
                op, starts=starts, stops=tuple(s + d for s, d in zip(op.stops, more, strict=True))
            )
        case Iota():
            return dataclasses.replace(op, size=op.size + int(rng.integers(3)))
    return op


def grown_graph(graph: Graph, rng: np.random.Generator) -> Graph | None:
    """The graph on longer inputs; None where those do not fit together."""
    writer = GraphWriter(graph.name)
    new: dict[Value, Value] = {}
    for name, value in graph.inputs.items():
        shape = tuple(n + int(rng.integers(1, 4)) * int(rng.integers(3) == 0) for n in value.type.shape)
        new[value] = writer.input(name, TensorType(shape, value.type.dtype))
    for name, value in graph.constants.items():
        new[value] = writer.constant(graph.payloads[name], name)
    try:
        for node in graph.nodes:
            operands = [v if v.literal is not None else new[v] for v in node.operands]
            op = grown_op(node.op, list(node.operand_types), [v.type for v in operands], rng)
            new.update(zip(node.results, writer.emit(op, operands, name=node.name), strict=True))
        return writer.finish({n: new[v] for n, v in graph.outputs.items()})
    except GraphError:
        return None


def corner(array: Array, shape: tuple[int, ...]) -> Array:
    return array[tuple(map(slice, shape))]


PADDED = [s for s in SAMPLES if not s.name.startswith(("cache_append", "convert"))]
"""Samples without a state and without what only a pass makes."""
