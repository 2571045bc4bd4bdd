"""ResNet-50 v1.5, with torchvision's names of its parameters."""

from __future__ import annotations

from typing import Any

import graphdnn as gd

from . import convolutional
from .convolutional import Array, Layers

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks and first stride of each stage."""
EXPANSION = 4
CLASSES = 1000


def resnet50(layers: Layers, x: Any) -> Any:
    """Logits of images (N, 3, H, W): stem, sixteen bottlenecks with the stride on their 3x3 conv, mean, linear."""
    x = layers.max_pool(layers.relu(layers.conv_norm(x, "conv1", "bn1", 64, 7, 2)), 3, 1)
    for stage, (width, blocks, first_stride) in enumerate(STAGES, start=1):
        for block in range(blocks):
            prefix = f"layer{stage}.{block}"
            stride = first_stride if block == 0 else 1
            y = layers.relu(layers.conv_norm(x, f"{prefix}.conv1", f"{prefix}.bn1", width, 1, 1))
            y = layers.relu(layers.conv_norm(y, f"{prefix}.conv2", f"{prefix}.bn2", width, 3, stride))
            y = layers.conv_norm(y, f"{prefix}.conv3", f"{prefix}.bn3", width * EXPANSION, 1, 1)
            if block == 0:
                shortcut = f"{prefix}.downsample"
                x = layers.conv_norm(x, f"{shortcut}.0", f"{shortcut}.1", width * EXPANSION, 1, stride)
            x = layers.relu(layers.add(y, x))
    return layers.linear(layers.flatten(layers.mean(x)), "fc", CLASSES)


def random_parameters(seed: int, images: int = 2, size: int = 64) -> dict[str, Array]:
    """Parameters under torchvision's names, float32, from one random batch."""
    shape = (images, 3, size, size)
    return convolutional.drawn_parameters(resnet50, shape, seed, quiet=lambda norm: norm.endswith("bn3"))


def build(
    parameters: dict[str, Array], batch: int, dtype: gd.DType, size: int = 224, is_channels_last: bool = False
) -> gd.Graph:
    """The graph: input "x" (batch, 3, size, size), output "y" (batch, 1000)."""
    return convolutional.build(resnet50, "resnet50", parameters, (batch, 3, size, size), dtype, is_channels_last)
