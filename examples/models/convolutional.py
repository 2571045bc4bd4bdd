"""What convolutional networks are made of: layers as graph nodes, and layers in numpy that draw their parameters.

A network is one function of layers and an image, so that the builder, numpy and PyTorch can all run it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import graphdnn as gd

Array = npt.NDArray[Any]
Network = Callable[[Any, Any], Any]
"""layers, image -> result."""


class Layers(Protocol):
    """`conv`, `norm` and `name` are the layers' names in the network's state dict; convolutions keep the size of x over
    their stride, with zeros around it."""

    def conv_norm(
        self, x: Any, conv: str, norm: str, width: int, kernel: int, stride: int, groups: int = 1, eps: float = 1e-5
    ) -> Any:
        """Convolution without bias, and batch norm."""

    def conv(self, x: Any, name: str, width: int) -> Any:
        """1x1 convolution with bias."""

    def upsample(self, x: Any, name: str, width: int) -> Any:
        """2x2 transposed convolution of stride 2, with bias."""

    def linear(self, x: Any, name: str, width: int) -> Any:
        """x (N, C) times weights (width, C) transposed, and bias."""

    def mean(self, x: Any) -> Any:
        """(N, C, 1, 1) of (N, C, H, W)."""

    def flatten(self, x: Any) -> Any:
        """(N, C) of (N, C, 1, 1)."""

    def max_pool(self, x: Any, kernel: int, padding: int) -> Any:
        """Stride 2."""

    def relu(self, x: Any) -> Any: ...
    def hard_swish(self, x: Any) -> Any: ...
    def hard_sigmoid(self, x: Any) -> Any: ...
    def add(self, a: Any, b: Any) -> Any: ...
    def mul(self, a: Any, b: Any) -> Any: ...
    def concat(self, a: Any, b: Any) -> Any:
        """Channels of a, then those of b."""


def half_rounded(parameters: dict[str, Array]) -> dict[str, Array]:
    """Float32 numbers that float16 holds, so that networks of both types compute the same function."""
    return {name: array.astype(np.float16).astype(np.float32) for name, array in parameters.items()}


class BuilderLayers:
    """Layers as nodes of a graph, with parameters as constants."""

    def __init__(self, g: gd.GraphBuilder, parameters: dict[str, Array]) -> None:
        self.g = g
        self.parameters = parameters

    def constant(self, name: str, dtype: gd.DType | None = None) -> gd.Value:
        array = self.parameters[name]
        return self.g.constant(array if dtype is None else array.astype(dtype.numpy), name=name)

    def conv_norm(
        self,
        x: gd.Value,
        conv: str,
        norm: str,
        width: int,
        kernel: int,
        stride: int,
        groups: int = 1,
        eps: float = 1e-5,
    ) -> gd.Value:
        w = self.constant(f"{conv}.weight", x.type.dtype)
        y = self.g.conv(x, w, stride=stride, padding=kernel // 2, groups=groups, name=conv)
        parts = [self.constant(f"{norm}.{p}") for p in ("running_mean", "running_var", "weight", "bias")]
        return self.g.batch_norm(y, *parts, eps=eps, name=norm)

    def conv(self, x: gd.Value, name: str, width: int) -> gd.Value:
        return self.biased(self.g.conv(x, self.constant(f"{name}.weight", x.type.dtype), name=name), name)

    def upsample(self, x: gd.Value, name: str, width: int) -> gd.Value:
        w = self.constant(f"{name}.weight", x.type.dtype)
        return self.biased(self.g.conv_transpose(x, w, stride=2, name=name), name)

    def linear(self, x: gd.Value, name: str, width: int) -> gd.Value:
        w = self.g.constant(self.parameters[f"{name}.weight"].T.astype(x.type.dtype.numpy), name=f"{name}.weight")
        return self.biased(self.g.matmul(x, w, name=name), name)

    def biased(self, y: gd.Value, name: str) -> gd.Value:
        return self.g.bias(y, self.constant(f"{name}.bias", y.type.dtype), axis=1)

    def mean(self, x: gd.Value) -> gd.Value:
        return self.g.global_avg_pool(x)

    def flatten(self, x: gd.Value) -> gd.Value:
        return self.g.reshape(x, x.type.shape[:2])

    def max_pool(self, x: gd.Value, kernel: int, padding: int) -> gd.Value:
        return self.g.max_pool(x, kernel=kernel, stride=2, padding=padding)

    def relu(self, x: gd.Value) -> gd.Value:
        return self.g.relu(x)

    def hard_swish(self, x: gd.Value) -> gd.Value:
        return self.g.hard_swish(x)

    def hard_sigmoid(self, x: gd.Value) -> gd.Value:
        return self.g.hard_sigmoid(x)

    def add(self, a: gd.Value, b: gd.Value) -> gd.Value:
        return self.g.add(a, b)

    def mul(self, a: gd.Value, b: gd.Value) -> gd.Value:
        return self.g.mul(a, b)

    def concat(self, a: gd.Value, b: gd.Value) -> gd.Value:
        return self.g.concat([a, b], axis=1)


class Initializer:
    """Runs a network on one random batch in numpy and draws every parameter on the way.

    Batch-norm statistics are the batch's own times factors between 0.5 and 2, and affine parameters are random, so that
    a fold that does nothing is seen while every activation stays of moderate size.  Norms that `quiet` names are small,
    as the last one of a branch is in trained networks: the sum of many branches stays well conditioned.
    """

    def __init__(self, rng: np.random.Generator, quiet: Callable[[str], bool] = lambda norm: False) -> None:
        self.rng = rng
        self.quiet = quiet
        self.parameters: dict[str, Array] = {}

    def factor(self, size: int) -> Array:
        return (2.0 ** self.rng.uniform(-1, 1, size)).astype(np.float32)

    def drawn(self, name: str, shape: tuple[int, ...], gain: float) -> tuple[Array, Array]:
        """Weights of standard deviation `gain`, and a bias for each of `shape[0]` channels."""
        w = (self.rng.standard_normal(shape) * gain).astype(np.float32)
        b = self.rng.uniform(-0.1, 0.1, shape[0]).astype(np.float32)
        self.parameters.update({f"{name}.weight": w, f"{name}.bias": b})
        return w, b

    def conv_norm(
        self, x: Array, conv: str, norm: str, width: int, kernel: int, stride: int, groups: int = 1, eps: float = 1e-5
    ) -> Array:
        fan_in = x.shape[1] // groups * kernel * kernel
        shape = (width, x.shape[1] // groups, kernel, kernel)
        w = (self.rng.standard_normal(shape) * np.sqrt(2 / fan_in)).astype(np.float32)
        y = run_op(lambda g, a, b: g.conv(a, b, stride=stride, padding=kernel // 2, groups=groups), x, w)
        mean = y.mean(axis=(0, 2, 3)) * self.factor(width)
        var = y.var(axis=(0, 2, 3)) * self.factor(width)
        low, high = (0.1, 0.3) if self.quiet(norm) else (0.5, 1.5)
        scale = self.rng.uniform(low, high, width).astype(np.float32)
        shift = self.rng.uniform(-0.3, 0.3, width).astype(np.float32)
        drawn = {"running_mean": mean, "running_var": var, "weight": scale, "bias": shift}
        self.parameters[f"{conv}.weight"] = w
        self.parameters.update({f"{norm}.{k}": v.astype(np.float32) for k, v in drawn.items()})
        factor = scale / np.sqrt(var + eps)
        return y * column(factor) + column(shift - mean * factor)

    def conv(self, x: Array, name: str, width: int) -> Array:
        w, b = self.drawn(name, (width, x.shape[1], 1, 1), x.shape[1] ** -0.5)
        return run_op(lambda g, a, b: g.conv(a, b), x, w) + column(b)

    def upsample(self, x: Array, name: str, width: int) -> Array:
        w = (self.rng.standard_normal((x.shape[1], width, 2, 2)) * x.shape[1] ** -0.5).astype(np.float32)
        b = self.rng.uniform(-0.1, 0.1, width).astype(np.float32)
        self.parameters.update({f"{name}.weight": w, f"{name}.bias": b})
        return run_op(lambda g, a, b: g.conv_transpose(a, b, stride=2), x, w) + column(b)

    def linear(self, x: Array, name: str, width: int) -> Array:
        w, b = self.drawn(name, (width, x.shape[1]), x.shape[1] ** -0.5)
        return x @ w.T + b

    def mean(self, x: Array) -> Array:
        return x.mean(axis=(2, 3), keepdims=True)

    def flatten(self, x: Array) -> Array:
        return x.reshape(x.shape[:2])

    def max_pool(self, x: Array, kernel: int, padding: int) -> Array:
        return run_op(lambda g, a: g.max_pool(a, kernel=kernel, stride=2, padding=padding), x)

    def relu(self, x: Array) -> Array:
        return np.maximum(x, 0)

    def hard_swish(self, x: Array) -> Array:
        return x * self.hard_sigmoid(x)

    def hard_sigmoid(self, x: Array) -> Array:
        return np.clip(x / 6 + 0.5, 0, 1)

    def add(self, a: Array, b: Array) -> Array:
        return a + b

    def mul(self, a: Array, b: Array) -> Array:
        return a * b

    def concat(self, a: Array, b: Array) -> Array:
        return np.concatenate([a, b], axis=1)


def column(numbers: Array) -> Array:
    """One number a channel of an image."""
    return numbers.reshape(1, -1, 1, 1)


def run_op(apply: Callable[..., gd.Value], *arrays: Array) -> Array:
    """One op by its numpy definition."""
    g = gd.GraphBuilder("one")
    values = [g.input(f"x{i}", a.shape, gd.float32) for i, a in enumerate(arrays)]
    graph = g.build({"y": apply(g, *values)})
    return gd.evaluate(graph, {f"x{i}": a.astype(np.float32) for i, a in enumerate(arrays)})["y"]


def drawn_parameters(
    network: Network, shape: tuple[int, ...], seed: int, quiet: Callable[[str], bool] = lambda norm: False
) -> dict[str, Array]:
    """A network's parameters, float32, from one random batch of images of this shape."""
    rng = np.random.default_rng(seed)
    layers = Initializer(rng, quiet)
    network(layers, rng.standard_normal(shape).astype(np.float32))
    return layers.parameters


def build(
    network: Network,
    name: str,
    parameters: dict[str, Array],
    shape: tuple[int, ...],
    dtype: gd.DType,
    is_channels_last: bool = False,
) -> gd.Graph:
    """The graph of a network on an input "x", output "y"; `is_channels_last` declares images at both ends so."""
    g = gd.GraphBuilder(name)
    x = g.input("x", shape, dtype, strides=channels_last(shape) if is_channels_last else None)
    y = network(BuilderLayers(g, parameters), x)
    is_image = len(y.type.shape) == len(shape)
    return g.build({"y": y}, strides={"y": channels_last(y.type.shape)} if is_channels_last and is_image else None)


def channels_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of (N, C, H, W) stored as N, H, W, C."""
    _, c, h, w = shape
    return h * w * c, 1, w * c, c
