"""Convolution and matrix product."""

from __future__ import annotations

from collections.abc import Iterator

from graphdnn.engines.cudnn.frames import Frame, Ints, Matrix
from graphdnn.engines.cudnn.lower import Emitter, Handle, rule
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.linear import Conv, MatMul


@rule(Conv)
def conv(emit: Emitter, node: Node) -> tuple[Handle, ...]:
    """The groups follow from the channels of x and w."""
    op = node.op
    assert isinstance(op, Conv)
    x, w = (emit.whole(node, index) for index in range(2))
    return (
        emit.graph.conv_fprop(
            image=x,
            weight=w,
            pre_padding=[lo for lo, _ in op.padding],
            post_padding=[hi for _, hi in op.padding],
            stride=list(op.stride),
            dilation=list(op.dilation),
            name=node.name,
        ),
    )


@rule(MatMul)
def matmul(emit: Emitter, node: Node) -> tuple[Handle, ...]:
    """Both operands in the region's frame, their batch axes against the result's."""
    a, b = (
        emit.read(node, index, emit.place(value.type, shape, full))
        for index, (value, shape, full) in enumerate(factors(node, emit.frame))
    )
    return (emit.graph.matmul(A=a, B=b, name=node.name),)


def factors(node: Node, frame: Frame) -> Iterator[tuple[Value, Ints, Ints]]:
    """A and B, each with its shape and the shape its batch axes broadcast to; B is one matrix where A's rows fold."""
    batch = node.result.type.shape[:-2]
    folds = isinstance(frame, Matrix) and frame.rows
    for index, value in enumerate(node.operands):
        own = value.type.shape
        lead = () if folds and index == 1 else batch
        shape = (*(1,) * (len(lead) - len(own) + 2), *own) if lead else own[-2:]
        yield value, shape, (*lead, *own[-2:])
