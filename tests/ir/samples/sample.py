"""What a sample is, and how random inputs for it are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

import graphdnn as gd
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.types import Array, TensorType


@dataclass(frozen=True)
class Stateful:
    """Outputs and next values of states, by name."""

    outputs: Mapping[str, Value]
    updates: Mapping[str, Value]


Built = Value | tuple[Value, ...] | Mapping[str, Value] | Stateful


@dataclass(frozen=True)
class Sample:
    """A small graph that shows one op at work.

    `build` makes the graph and returns its output, outputs, or outputs by name; `ranges` bounds the random elements of
    inputs, by name, where an op is not defined everywhere (indices, logarithms, variances).
    """

    name: str
    build: Callable[[gd.GraphBuilder, np.random.Generator], Built]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def graph(self, rng: np.random.Generator) -> Graph:
        """The sample's graph; constants in it are drawn from `rng`."""
        builder = gd.GraphBuilder(self.name)
        built = self.build(builder, rng)
        if isinstance(built, Value):
            return builder.build({"y": built})
        if isinstance(built, tuple):
            return builder.build({f"y{i}": v for i, v in enumerate(built)})
        if isinstance(built, Stateful):
            return builder.build(built.outputs, built.updates)
        return builder.build(dict(built))

    def inputs(self, graph: Graph, rng: np.random.Generator) -> dict[str, Array]:
        """Fresh random arrays for every input."""
        return {name: draw(v.type, rng, *self.ranges.get(name, ())) for name, v in graph.inputs.items()}

    def __str__(self) -> str:
        return self.name


def draw(type: TensorType, rng: np.random.Generator, low: float | None = None, high: float | None = None) -> Array:
    """A random array of that type: between `low` and `high` where given, normal floats and small integers elsewhere."""
    if type.dtype.kind == "bool":
        return rng.integers(0, 2, type.shape).astype(bool)
    if low is not None and high is not None:
        real = rng.uniform(low, high, type.shape)
        whole = rng.integers(int(low), int(high), type.shape, endpoint=True)
    else:
        real = rng.standard_normal(type.shape)
        whole = rng.integers(0 if type.dtype.kind == "uint" else -9, 9, type.shape, endpoint=True)
    return np.asarray(real if type.dtype.is_float else whole).astype(type.dtype.numpy)
