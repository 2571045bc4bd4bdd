"""Every sample of every op, compiled for the device and compared with the float64 definition."""

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.evaluate import run
from tests.ir.samples import SAMPLES, Sample
from tests.numbers import TOLERANCE, narrowest, relative_error, rows_of

pytestmark = pytest.mark.gpu


def family(graph: gd.Graph) -> str:
    """File of ir/ops that declares the op that a sample is about: the last one that is not pointwise, if any."""
    homes = [type(n.op).__module__.rsplit(".", 1)[1] for n in graph.nodes]
    return next((h for h in reversed(homes) if h not in ("pointwise", "movement")), homes[-1])


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_sample_runs_and_agrees(
    sample: Sample, rng: np.random.Generator, record_error: Callable[[str, str, float, float], None]
) -> None:
    graph = sample.graph(rng)
    inputs = sample.inputs(graph, rng)
    exe = gd.compile(graph, target="cuda")
    found = exe(inputs)
    outputs, updates = run(graph, inputs, gd.float64)
    limit = TOLERANCE[narrowest(graph)]
    for name, expected in outputs.items():
        assert found[name].dtype == graph.outputs[name].type.dtype.numpy
        error = relative_error(found[name], expected, **{"scale": 1e-3, **rows_of(graph, name, inputs)})
        record_error(family(graph), narrowest(graph), error, limit)
        assert error <= limit, name
    for name, expected in updates.items():
        assert relative_error(exe.state[name].numpy(), expected) <= limit, name
