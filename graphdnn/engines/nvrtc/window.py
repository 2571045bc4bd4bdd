"""What convolutions have in common: how x is fetched, and sizes and strides of operands as C++ constants."""

from __future__ import annotations

from collections.abc import Sequence

from graphdnn.engines.nvrtc.tiled import Read
from graphdnn.engines.nvrtc.tiling import Tiling, dense_vector
from graphdnn.ir.types import TensorType

Sizes = tuple[int, ...]


def three(values: Sizes, fill: int) -> tuple[int, int, int]:
    """Depth, height and width of a 2-D or 3-D convolution."""
    depth, height, width = (fill,) * (3 - len(values)) + tuple(values)
    return depth, height, width


def declared(stem: str, values: Sizes, suffixes: str = "DHW", kind: str = "int") -> str:
    """One C++ constant for each value: the stem and a suffix."""
    return f"constexpr {kind} {', '.join(f'{stem}{s} = {v}' for s, v in zip(suffixes, values, strict=True))};"


def input_read(x: TensorType, channels: int, tiling: Tiling) -> Read:
    """How x, with `channels` of them in a group, is fetched: along k where its channels are innermost."""
    if x.layout[1] != 1 or channels == 1:
        return Read(False, 1)
    others = (x.layout[0], *x.layout[2:], channels)
    width = dense_vector(1, others, channels, x.dtype.itemsize, tiling.share(0), tiling.most_fetched)
    return Read(True, width)


def operand_constants(
    x: TensorType, w: TensorType, channels: int, reads: tuple[Read, Read], filter_axes: str
) -> Sequence[str]:
    """Strides of both operands and how their tiles are fetched; `filter_axes` names the first two axes of w."""
    of_x, of_w = reads
    flags = {"CHANNELS_INNER": of_x.along_k, "A_ALONG_K": of_x.along_k, "B_ALONG_K": of_w.along_k}
    return [
        f"constexpr int CG = {channels}, VA = {of_x.vector}, VB = {of_w.vector};",
        *(f"constexpr bool {name} = {str(flag).lower()};" for name, flag in flags.items()),
        declared("X_", (*x.layout[:2], *three(x.layout[2:], 0)), "NCDHW", "Index"),
        declared("W_", (*w.layout[:2], *three(w.layout[2:], 0)), f"{filter_axes}DHW", "Index"),
    ]
