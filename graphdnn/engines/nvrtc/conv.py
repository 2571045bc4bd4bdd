"""Last-resort convolution: any types, layouts, strides, padding, dilation and groups, as a matrix product.

Rows of the product are places of the result, its columns output channels, k the taps of the filter.  Nothing is
unrolled in memory: a tile's elements are fetched from where they lie, and zeros where the window hangs over the edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from graphdnn.engines.nvrtc.indexing import split_index
from graphdnn.engines.nvrtc.recipe import Anchored, parameter_names
from graphdnn.engines.nvrtc.tiled import Contraction, Read, but_in_ieee_float32, tiled_family
from graphdnn.engines.nvrtc.tiling import Product, Tiling, dense_vector
from graphdnn.engines.nvrtc.window import declared, input_read, operand_constants, three
from graphdnn.ir.ops.linear import Conv
from graphdnn.ir.region import Region
from graphdnn.ir.types import TensorType, promote, row_major

TAP_INSTRUCTIONS = 16
"""What finding a group's tap and address takes, and whether it lies inside.  35 float32 convolutions of ResNet-50 and
U-Net took what is estimated with it within 7 % in the median."""


def product_of(parts: Anchored) -> Product:
    """The product that one convolution is; groups are its batch."""
    x, w = parts.anchor.operand_types
    batch, channels, *places = parts.anchor.result.type.shape
    groups = conv_op(parts).groups
    return Product((groups,), batch * prod(places), channels // groups, prod(w.shape[1:]), promote(x.dtype, w.dtype))


def conv_op(parts: Anchored) -> Conv:
    op = parts.anchor.op
    assert isinstance(op, Conv)
    return op


def contraction(region: Region, parts: Anchored) -> Contraction:
    """A convolution as a tiled product."""
    x, w = parts.anchor.operands
    product = product_of(parts)
    parameter = parameter_names(region)
    batch, _, *places = parts.anchor.result.type.shape
    names = [f"at{axis}" for axis in range(2 + len(places))]

    def reads(tiling: Tiling) -> tuple[Read, Read]:
        return operand_reads(parts, product, tiling)

    def head(tiling: Tiling) -> Sequence[str]:
        return [*window_constants(parts), *operand_constants(x.type, w.type, w.type.shape[1], reads(tiling), "KC")]

    def place(block: str) -> Sequence[str]:
        return [
            f"const Index group = {block};",
            f"const TA* a = {parameter[x]} + group * CG * X_C;",
            f"const TB* b = {parameter[w]} + group * N * W_K;",
        ]

    return Contraction(
        product=product,
        reads=reads,
        head=head,
        fetch="conv_fetch.cu",
        instructions=TAP_INSTRUCTIONS,
        place=place,
        names=names,
        axis=1,
        rows=split_index("m", (batch, *places), [names[0], *names[2:]], "Index"),
        columns=["const Index at1 = group * N + n;"],
        reach=2 * max(x.type.extent, w.type.extent),
        grouped=product.batch[0] > 1,
    )


def window_constants(parts: Anchored) -> list[str]:
    """Extents, steps, dilations and paddings of the window, as C++ constants."""
    op = conv_op(parts)
    x, w = parts.anchor.operand_types
    return [
        declared("X", three(x.shape[2:], 1)),
        declared("K", three(w.shape[2:], 1)),
        declared("O", three(parts.anchor.result.type.shape[2:], 1)),
        declared("STEP_", three(op.stride, 1)),
        declared("DILATE_", three(op.dilation, 1)),
        declared("PAD_", three(tuple(lo for lo, _ in op.padding), 0)),
    ]


def operand_reads(parts: Anchored, product: Product, tiling: Tiling) -> tuple[Read, Read]:
    """How x and w are fetched."""
    x, w = parts.anchor.operand_types
    of_x = input_read(x, w.shape[1], tiling)
    return of_x, filter_read(w, product, tiling, of_x.along_k)


def filter_read(w: TensorType, product: Product, tiling: Tiling, channels_inner: bool) -> Read:
    """How w is fetched: along k where its taps lie as k counts them, else along the output channels if these are dense.

    With `channels_inner` k counts the channels of one tap before the next tap, else the taps of one channel.
    """
    group_step = product.n * w.layout[0]
    size, share, most = w.dtype.itemsize, tiling.share(1), tiling.most_fetched
    if channels_inner and w.layout[1] == 1:
        return Read(True, dense_vector(1, (w.layout[0], *w.layout[2:], group_step), w.shape[1], size, share, most))
    if not channels_inner and w.layout[1:] == row_major(w.shape)[1:]:
        return Read(True, dense_vector(1, (w.layout[0], group_step), product.k, size, share, most))
    if w.layout[0] == 1:
        return Read(False, dense_vector(1, (*w.layout[1:], group_step), product.n, size, share, most))
    return Read(True, 1)


FAMILY = tiled_family("conv", Conv, contraction, but_in_ieee_float32)
