"""U-Net with batch norms and zero padding, whole and as one level of it, under the names that it has in PyTorch."""

from __future__ import annotations

from typing import Any

import graphdnn as gd

from . import convolutional
from .convolutional import Array, Layers

WIDTHS = (64, 128, 256, 512, 1024)
"""Channels of each level, from the image down."""
CLASSES = 2
BLOCK_WIDTHS = (128, 256)


def twice(layers: Layers, x: Any, prefix: str, width: int) -> Any:
    """Two 3x3 convolutions, each with batch norm and ReLU."""
    for conv, norm in ((0, 1), (3, 4)):
        x = layers.relu(layers.conv_norm(x, f"{prefix}.{conv}", f"{prefix}.{norm}", width, 3, 1))
    return x


def levels(layers: Layers, x: Any, widths: tuple[int, ...]) -> Any:
    """Down by pooling to the last width, and up again by transposed convolutions, beside what each level kept."""
    kept = [twice(layers, x, "inc", widths[0])]
    for number, width in enumerate(widths[1:], start=1):
        kept.append(twice(layers, layers.max_pool(kept[-1], 2, 0), f"down{number}", width))
    x = kept.pop()
    for number, width in enumerate(reversed(widths[:-1]), start=1):
        risen = layers.upsample(x, f"up{number}.up", width)
        x = twice(layers, layers.concat(kept.pop(), risen), f"up{number}.conv", width)
    return x


def u_net(layers: Layers, x: Any) -> Any:
    """Logits (N, 2, H, W) of images (N, 3, H, W), H and W multiples of 16."""
    return layers.conv(levels(layers, x, WIDTHS), "outc", CLASSES)


def u_net_block(layers: Layers, x: Any) -> Any:
    """One level: two convolutions at 128 channels, two at 256 on half the size, and back."""
    return levels(layers, x, BLOCK_WIDTHS)


def random_parameters(seed: int, images: int = 2, size: int = 32) -> dict[str, Array]:
    """The whole network's parameters, float32, from one random batch."""
    return convolutional.drawn_parameters(u_net, (images, 3, size, size), seed)


def random_block_parameters(seed: int, images: int = 2, size: int = 16) -> dict[str, Array]:
    """One level's parameters, float32, from one random batch of 128 channels."""
    return convolutional.drawn_parameters(u_net_block, (images, BLOCK_WIDTHS[0], size, size), seed)


def build(
    parameters: dict[str, Array], batch: int, dtype: gd.DType, size: int = 256, is_channels_last: bool = False
) -> gd.Graph:
    """The whole network's graph: input "x" (batch, 3, size, size), output "y" (batch, 2, size, size)."""
    return convolutional.build(u_net, "u_net", parameters, (batch, 3, size, size), dtype, is_channels_last)


def build_block(
    parameters: dict[str, Array], batch: int, dtype: gd.DType, size: int = 128, is_channels_last: bool = False
) -> gd.Graph:
    """One level's graph: input "x" (batch, 128, size, size), output "y" of the same shape."""
    shape = (batch, BLOCK_WIDTHS[0], size, size)
    return convolutional.build(u_net_block, "u_net_block", parameters, shape, dtype, is_channels_last)
