"""MobileNetV3-large, with torchvision's names of its parameters: inverted residuals of depthwise convolutions with
squeeze-and-excitation, ReLU in the first blocks and hard swish in the later ones."""

from __future__ import annotations

from typing import Any

import graphdnn as gd

from . import convolutional
from .convolutional import Array, Layers

BLOCKS = (
    (3, 16, 16, False, "relu", 1),
    (3, 64, 24, False, "relu", 2),
    (3, 72, 24, False, "relu", 1),
    (5, 72, 40, True, "relu", 2),
    (5, 120, 40, True, "relu", 1),
    (5, 120, 40, True, "relu", 1),
    (3, 240, 80, False, "hard_swish", 2),
    (3, 200, 80, False, "hard_swish", 1),
    (3, 184, 80, False, "hard_swish", 1),
    (3, 184, 80, False, "hard_swish", 1),
    (3, 480, 112, True, "hard_swish", 1),
    (3, 672, 112, True, "hard_swish", 1),
    (5, 672, 160, True, "hard_swish", 2),
    (5, 960, 160, True, "hard_swish", 1),
    (5, 960, 160, True, "hard_swish", 1),
)
"""Kernel, expanded and final width, squeeze-and-excitation or not, activation and stride of each inverted residual."""
STEM, LAST, HIDDEN, CLASSES = 16, 960, 1280, 1000
EPSILON = 1e-3


def in_eights(width: float) -> int:
    """The nearest multiple of 8 that is not below nine tenths of `width`."""
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * width else rounded + 8


def mobilenet_v3_large(layers: Layers, x: Any) -> Any:
    """Logits of images (N, 3, H, W)."""

    def conv(x: Any, prefix: str, width: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Any:
        return layers.conv_norm(x, f"{prefix}.0", f"{prefix}.1", width, kernel, stride, groups, EPSILON)

    def excited(x: Any, prefix: str, width: int) -> Any:
        squeezed = layers.relu(layers.conv(layers.mean(x), f"{prefix}.fc1", in_eights(width // 4)))
        return layers.mul(layers.hard_sigmoid(layers.conv(squeezed, f"{prefix}.fc2", width)), x)

    x, before = layers.hard_swish(conv(x, "features.0", STEM, 3, 2)), STEM
    for number, (kernel, wide, width, has_excitation, activation, stride) in enumerate(BLOCKS, start=1):
        parts = (f"features.{number}.block.{i}" for i in range(4))
        activate = getattr(layers, activation)
        y = x if wide == before else activate(conv(x, next(parts), wide))
        y = activate(conv(y, next(parts), wide, kernel, stride, wide))
        if has_excitation:
            y = excited(y, next(parts), wide)
        y = conv(y, next(parts), width)
        x, before = layers.add(y, x) if stride == 1 and width == before else y, width
    x = layers.hard_swish(conv(x, f"features.{len(BLOCKS) + 1}", LAST))
    hidden = layers.hard_swish(layers.linear(layers.flatten(layers.mean(x)), "classifier.0", HIDDEN))
    return layers.linear(hidden, "classifier.3", CLASSES)


def random_parameters(seed: int, images: int = 4, size: int = 128) -> dict[str, Array]:
    """Parameters under torchvision's names, float32, from one random batch."""
    return convolutional.drawn_parameters(mobilenet_v3_large, (images, 3, size, size), seed)


def build(
    parameters: dict[str, Array], batch: int, dtype: gd.DType, size: int = 224, is_channels_last: bool = False
) -> gd.Graph:
    """The graph: input "x" (batch, 3, size, size), output "y" (batch, 1000)."""
    shape = (batch, 3, size, size)
    return convolutional.build(mobilenet_v3_large, "mobilenet_v3", parameters, shape, dtype, is_channels_last)
