"""Transposed convolution, which to cuDNN is the gradient of a convolution with respect to its input."""

from __future__ import annotations

from graphdnn.engines.cudnn.lower import Emitter, Handle, rule
from graphdnn.ir.graph import Node
from graphdnn.ir.ops.transposed import ConvTranspose


@rule(ConvTranspose)
def conv_transpose(emit: Emitter, node: Node) -> tuple[Handle, ...]:
    """x is the gradient of the forward convolution's result, and our result the gradient of its input.

    The result's extents are given: output padding is what tells apart the inputs that one result may come from.
    """
    op = node.op
    assert isinstance(op, ConvTranspose)
    x, w = (emit.whole(node, index) for index in range(2))
    made = emit.graph.conv_dgrad(
        loss=x,
        filter=w,
        pre_padding=[lo for lo, _ in op.padding],
        post_padding=[hi - extra for (_, hi), extra in zip(op.padding, op.output_padding, strict=True)],
        stride=list(op.stride),
        dilation=list(op.dilation),
        name=node.name,
    )
    told = emit.output(node.result)
    return (made.set_dim(list(told.dims)).set_stride(list(told.strides)),)
