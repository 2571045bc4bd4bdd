"""ResNet-50 v1.5 written once against a small set of layers, so that the builder, numpy and PyTorch can all run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import graphdnn as gd

Array = npt.NDArray[Any]
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks and first stride of each stage."""
EXPANSION = 4
CLASSES = 1000


class Layers(Protocol):
    """What ResNet-50 is made of; `name` is the layer's name in torchvision's state dict."""

    def conv_norm(self, x: Any, conv: str, norm: str, width: int, kernel: int, stride: int) -> Any: ...
    def relu(self, x: Any) -> Any: ...
    def add(self, a: Any, b: Any) -> Any: ...
    def max_pool(self, x: Any) -> Any: ...
    def classify(self, x: Any, name: str) -> Any: ...


def resnet50(layers: Layers, x: Any) -> Any:
    """Logits of images (N, 3, H, W): stem, sixteen bottlenecks with the stride on their 3x3 conv, mean, linear."""
    x = layers.max_pool(layers.relu(layers.conv_norm(x, "conv1", "bn1", 64, 7, 2)))
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
    return layers.classify(x, "fc")


class BuilderLayers:
    """Layers as nodes of a graph, with parameters as constants."""

    def __init__(self, g: gd.GraphBuilder, parameters: dict[str, Array]) -> None:
        self.g = g
        self.parameters = parameters

    def constant(self, name: str, dtype: gd.DType | None = None) -> gd.Value:
        array = self.parameters[name]
        return self.g.constant(array if dtype is None else array.astype(dtype.numpy), name=name)

    def conv_norm(self, x: gd.Value, conv: str, norm: str, width: int, kernel: int, stride: int) -> gd.Value:
        w = self.constant(f"{conv}.weight", x.type.dtype)
        y = self.g.conv(x, w, stride=stride, padding=kernel // 2, name=conv)
        parts = [self.constant(f"{norm}.{p}") for p in ("running_mean", "running_var", "weight", "bias")]
        return self.g.batch_norm(y, *parts, name=norm)

    def relu(self, x: gd.Value) -> gd.Value:
        return self.g.relu(x)

    def add(self, a: gd.Value, b: gd.Value) -> gd.Value:
        return self.g.add(a, b)

    def max_pool(self, x: gd.Value) -> gd.Value:
        return self.g.max_pool(x, kernel=3, stride=2, padding=1)

    def classify(self, x: gd.Value, name: str) -> gd.Value:
        pooled = self.g.reshape(self.g.global_avg_pool(x), x.type.shape[:2])
        w = self.g.constant(self.parameters[f"{name}.weight"].T.astype(x.type.dtype.numpy), name=f"{name}.weight")
        return self.g.bias(self.g.matmul(pooled, w, name=name), self.constant(f"{name}.bias", x.type.dtype), axis=-1)


class Initializer:
    """Runs the network on one random batch in numpy and draws every parameter on the way.

    Batch-norm statistics are the batch's own times factors between 0.5 and 2, and affine parameters are random, so that
    a fold that does nothing is seen while every activation stays of moderate size.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.parameters: dict[str, Array] = {}

    def factor(self, size: int) -> Array:
        return (2.0 ** self.rng.uniform(-1, 1, size)).astype(np.float32)

    def conv_norm(self, x: Array, conv: str, norm: str, width: int, kernel: int, stride: int) -> Array:
        fan_in = x.shape[1] * kernel * kernel
        shape = (width, x.shape[1], kernel, kernel)
        w = (self.rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)
        y = run_op(lambda g, a, b: g.conv(a, b, stride=stride, padding=kernel // 2), x, w)
        mean = y.mean(axis=(0, 2, 3)) * self.factor(width)
        var = y.var(axis=(0, 2, 3)) * self.factor(width)
        # A block's last norm is small, as in trained networks: the sum of many branches stays well conditioned.
        low, high = (0.1, 0.3) if norm.endswith("bn3") else (0.5, 1.5)
        scale = self.rng.uniform(low, high, width).astype(np.float32)
        shift = self.rng.uniform(-0.3, 0.3, width).astype(np.float32)
        drawn = {"running_mean": mean, "running_var": var, "weight": scale, "bias": shift}
        self.parameters[f"{conv}.weight"] = w
        self.parameters.update({f"{norm}.{k}": v.astype(np.float32) for k, v in drawn.items()})
        factor = scale / np.sqrt(var + 1e-5)
        return y * factor.reshape(1, -1, 1, 1) + (shift - mean * factor).reshape(1, -1, 1, 1)

    def relu(self, x: Array) -> Array:
        return np.maximum(x, 0)

    def add(self, a: Array, b: Array) -> Array:
        return a + b

    def max_pool(self, x: Array) -> Array:
        return run_op(lambda g, a: g.max_pool(a, kernel=3, stride=2, padding=1), x)

    def classify(self, x: Array, name: str) -> Array:
        w = (self.rng.standard_normal((CLASSES, x.shape[1])) / np.sqrt(x.shape[1])).astype(np.float32)
        b = self.rng.uniform(-0.1, 0.1, CLASSES).astype(np.float32)
        self.parameters.update({f"{name}.weight": w, f"{name}.bias": b})
        return x.mean(axis=(2, 3)) @ w.T + b


def run_op(apply: Callable[..., gd.Value], *arrays: Array) -> Array:
    """One op by its numpy definition."""
    g = gd.GraphBuilder("one")
    values = [g.input(f"x{i}", a.shape, gd.float32) for i, a in enumerate(arrays)]
    graph = g.build({"y": apply(g, *values)})
    return gd.evaluate(graph, {f"x{i}": a.astype(np.float32) for i, a in enumerate(arrays)})["y"]


def random_parameters(seed: int, images: int = 2, size: int = 64) -> dict[str, Array]:
    """Parameters under torchvision's names, float32, from one random batch."""
    rng = np.random.default_rng(seed)
    layers = Initializer(rng)
    resnet50(layers, rng.standard_normal((images, 3, size, size)).astype(np.float32))
    return layers.parameters


def build(parameters: dict[str, Array], batch: int, dtype: gd.DType, size: int = 224) -> gd.Graph:
    """The graph: input "x" (batch, 3, size, size), output "logits" (batch, 1000)."""
    g = gd.GraphBuilder("resnet50")
    x = g.input("x", (batch, 3, size, size), dtype)
    return g.build({"logits": resnet50(BuilderLayers(g, parameters), x)})
