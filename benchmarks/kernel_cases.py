"""Which single kernels are measured: each as a graph of ours and as the same function in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import graphdnn as gd
from benchmarks.comparison import strides_of

ONLY_NVRTC = ("cudnn", "cublaslt")
ONLY_CUBLASLT = ("cudnn", "nvrtc")


@dataclass(frozen=True)
class Case:
    """One kernel.  `ours` and `theirs` take the inputs and the parameters by name, which are constants to both.

    `disabled` are engines not to ask; images are channels-last where `channels_in` and `channels_out` say so.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtype: gd.DType
    ours: Callable[..., gd.Value]
    theirs: Callable[..., torch.Tensor]
    parameter_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    disabled: tuple[str, ...] = ()
    channels_in: bool = False
    channels_out: bool = False

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Random parameters: matrices and kernels with variance 1 / fan-in, vectors around 1."""
        rng = np.random.default_rng(0)
        made = {}
        for name, shape in self.parameter_shapes.items():
            drawn = rng.standard_normal(shape)
            drawn = 1 + 0.1 * drawn if len(shape) == 1 else drawn / np.sqrt(np.prod(shape[1:]))
            made[name] = drawn.astype(self.dtype.numpy)
        return made

    def graph(self) -> gd.Graph:
        """Inputs "x0", "x1", ..., output "y"."""
        g = gd.GraphBuilder("kernel")
        inputs = [
            g.input(f"x{i}", shape, self.dtype, strides=strides_of(shape, self.channels_in))
            for i, shape in enumerate(self.shapes)
        ]
        y = self.ours(g, *inputs, **{name: g.constant(a, name=name) for name, a in self.parameters.items()})
        strides = strides_of(y.type.shape, self.channels_out)
        return g.build({"y": y}, strides={} if strides is None else {"y": strides})


def depthwise(batch: int, channels: int, size: int, kernel: int, stride: int = 1, relu: bool = False) -> Case:
    """Depthwise convolution with bias, and a ReLU where asked, float16 channels-last."""

    def ours(g: gd.GraphBuilder, x: gd.Value, w: gd.Value, b: gd.Value) -> gd.Value:
        y = g.bias(g.conv(x, w, stride=stride, padding=kernel // 2, groups=channels), b, axis=1)
        return g.relu(y) if relu else y

    def theirs(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = functional.conv2d(x, w, b, stride=stride, padding=kernel // 2, groups=channels)
        return functional.relu(y) if relu else y

    shapes = {"w": (channels, 1, kernel, kernel), "b": (channels,)}
    return Case(((batch, channels, size, size),), gd.float16, ours, theirs, shapes, channels_in=True, channels_out=True)


def square_product(extent: int, disabled: tuple[str, ...]) -> Case:
    """Float32 matrix product without TF32."""
    shape = (extent, extent)
    return Case((shape, shape), gd.float32, lambda g, a, b: g.matmul(a, b), torch.mm, disabled=disabled)


def channels_last(shape: tuple[int, ...]) -> Case:
    """An image batch from NCHW to NHWC."""
    return Case(
        (shape,), gd.float16, lambda g, x: x, lambda x: x.clone(memory_format=torch.channels_last), channels_out=True
    )


def convolution(batch: int, channels: int, size: int, disabled: tuple[str, ...]) -> Case:
    """A 3x3 convolution, float16 channels-last."""
    return Case(
        ((batch, channels, size, size),),
        gd.float16,
        lambda g, x, w: g.conv(x, w, padding=1),
        lambda x, w: functional.conv2d(x, w, padding=1),
        {"w": (channels, channels, 3, 3)},
        disabled,
        channels_in=True,
        channels_out=True,
    )


def layer_norm() -> Case:
    return Case(
        ((8192, 4096),),
        gd.bfloat16,
        lambda g, x, scale, shift: g.layer_norm(x, scale, shift),
        lambda x, scale, shift: functional.layer_norm(x, x.shape[-1:], scale, shift),
        {"scale": (4096,), "shift": (4096,)},
    )


def rms_norm() -> Case:
    return Case(
        ((8192, 4096),),
        gd.bfloat16,
        lambda g, x, scale: g.rms_norm(x, scale),
        lambda x, scale: functional.rms_norm(x, x.shape[-1:], scale, 1e-5),
        {"scale": (4096,)},
    )


def max_pool() -> Case:
    """The pooling behind ResNet's first convolution."""
    return Case(
        ((32, 64, 112, 112),),
        gd.float16,
        lambda g, x: g.max_pool(x, kernel=3, stride=2, padding=1),
        lambda x: functional.max_pool2d(x, 3, 2, 1),
        channels_in=True,
        channels_out=True,
    )


def global_average_pool() -> Case:
    """The mean before ResNet's classifier."""
    return Case(
        ((32, 2048, 7, 7),),
        gd.float16,
        lambda g, x: g.global_avg_pool(x),
        lambda x: functional.adaptive_avg_pool2d(x, 1),
        channels_in=True,
        channels_out=True,
    )


def softmax() -> Case:
    return Case(((16384, 4096),), gd.float16, lambda g, x: g.softmax(x, axis=-1), lambda x: torch.softmax(x, dim=-1))


def add_relu() -> Case:
    """Two operands of 64 MiB."""
    return Case(((8192, 4096), (8192, 4096)), gd.float16, lambda g, a, b: g.relu(a + b), lambda a, b: torch.relu(a + b))


CASES: dict[str, Callable[[], Case]] = {
    "add relu 64 MiB f16": add_relu,
    "softmax 16384x4096 f16": softmax,
    "layer norm 8192x4096 bf16": layer_norm,
    "rms norm 8192x4096 bf16": rms_norm,
    "to channels-last 32x64x56x56 f16": lambda: channels_last((32, 64, 56, 56)),
    "to channels-last 32x3x224x224 f16": lambda: channels_last((32, 3, 224, 224)),
    "max pool 3x3 s2 32x64x112x112 f16": max_pool,
    "global average pool 32x2048x7x7 f16": global_average_pool,
    "depthwise 7x7 64x384x14x14 f16": lambda: depthwise(64, 384, 14, 7),
    "depthwise 7x7 64x96x56x56 f16": lambda: depthwise(64, 96, 56, 7),
    "depthwise 5x5 32x240x28x28 relu f16": lambda: depthwise(32, 240, 28, 5, relu=True),
    "depthwise 3x3 s2 32x64x112x112 relu f16": lambda: depthwise(32, 64, 112, 3, stride=2, relu=True),
    "depthwise 5x5 32x960x7x7 relu f16": lambda: depthwise(32, 960, 7, 5, relu=True),
    "matmul 1024 f32 nvrtc": lambda: square_product(1024, ONLY_NVRTC),
    "matmul 1024 f32 cublaslt": lambda: square_product(1024, ONLY_CUBLASLT),
    "matmul 4096 f32 nvrtc": lambda: square_product(4096, ONLY_NVRTC),
    "matmul 4096 f32 cublaslt": lambda: square_product(4096, ONLY_CUBLASLT),
    "conv 3x3 32x64x56x56 f16 nvrtc": lambda: convolution(32, 64, 56, ONLY_NVRTC),
    "conv 3x3 32x256x14x14 f16 nvrtc": lambda: convolution(32, 256, 14, ONLY_NVRTC),
}
