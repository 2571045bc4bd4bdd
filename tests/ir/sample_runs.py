"""A sample compiled for a target, run, and compared with the float64 definition."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import graphdnn as gd
from graphdnn.ir.evaluate import run
from tests.ir.samples import Sample
from tests.numbers import output_error, relative_error


def output_errors(sample: Sample, target: str, rng: np.random.Generator) -> Iterator[tuple[gd.Graph, str, float]]:
    """The graph, and each output's name and error; then the same of states that were updated."""
    graph = sample.graph(rng)
    inputs = sample.inputs(graph, rng)
    exe = gd.compile(graph, target=target)
    found = exe(inputs)
    outputs, updates = run(graph, inputs, gd.float64)
    for name, expected in outputs.items():
        assert found[name].dtype == graph.outputs[name].type.dtype.numpy
        yield graph, name, output_error(graph, name, found[name], expected, inputs)
    for name, expected in updates.items():
        state = exe.state[name]
        yield (
            graph,
            f"state {name}",
            relative_error(state if isinstance(state, np.ndarray) else state.numpy(), expected),
        )
