"""Regions of one op with layouts of our choosing, which is what kernels that move elements are asked about."""

from collections.abc import Sequence

from graphdnn.ir.op import OPS, Op
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, TensorType, dense_strides, row_major
from graphdnn.ir.writer import GraphWriter

Shape = tuple[int, ...]
LAST = (0, 2, 3, 1)


def dense(shape: Shape, dtype: DType, order: Sequence[int] | None = None) -> TensorType:
    """A dense tensor whose axes, outermost first, are `order`."""
    return TensorType(shape, dtype, row_major(shape) if order is None else dense_strides(shape, order))


def move(kind: str, *operands: TensorType, to: Sequence[TensorType] | None = None, **attributes: object) -> Region:
    """One node on inputs x0, x1, ...; results row-major unless `to` gives their types."""
    return moved(OPS[kind](**attributes), *operands, to=to)


def moved(op: Op, *operands: TensorType, to: Sequence[TensorType] | None = None) -> Region:
    writer = GraphWriter("g")
    inputs = [writer.input(f"x{i}", t) for i, t in enumerate(operands)]
    types = [t.with_strides(row_major(t.shape)) for t in op.infer(*operands)] if to is None else to
    results = writer.emit(op, inputs, types=types)
    graph = writer.finish({f"y{i}": v for i, v in enumerate(results)})
    return Region.of(graph, graph.nodes)


def convert(shape: Shape, dtype: DType, before: Sequence[int] | None, after: Sequence[int] | None) -> Region:
    """From one dense layout to another."""
    return move("convert", dense(shape, dtype, before), to=[dense(shape, dtype, after)])
