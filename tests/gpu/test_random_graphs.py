"""Random graphs of all op families run on the device, whatever engines take, and agree with the definition."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.evaluate import run
from tests.numbers import relative_error
from tests.passes.random_graphs import random_arrays, random_graph

pytestmark = pytest.mark.gpu

LOOSE = {"float32": 1e-4, "float16": 1e-2}
"""Limits for chains of some twenty nodes, each rounded to its type, with cancellation between them."""


@pytest.mark.parametrize("number", range(40))
@pytest.mark.parametrize("dtype", [gd.float32, gd.float16], ids=str)
def test_a_random_graph_runs_and_agrees(dtype: gd.DType, number: int, rng: np.random.Generator) -> None:
    graph = random_graph(rng, dtype=dtype)
    inputs, states = random_arrays(graph, rng)
    exe = gd.compile(graph, target="cuda")
    for name, array in states.items():
        exe.state[name] = array
    found = exe(inputs)
    outputs, updates = run(graph, inputs, gd.float64, states=states)
    scale = max((float(np.abs(a).max()) for a in outputs.values()), default=1.0)
    for name, expected in outputs.items():
        assert relative_error(found[name], expected, scale) <= LOOSE[dtype.name], name
    for name, expected in updates.items():
        assert relative_error(exe.state[name].numpy(), expected, scale) <= LOOSE[dtype.name], name
