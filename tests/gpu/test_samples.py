"""Every sample of every op, compiled for the device and compared with the float64 definition."""

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from tests.ir.sample_runs import output_errors
from tests.ir.samples import SAMPLES, Sample
from tests.numbers import TOLERANCE, narrowest

pytestmark = pytest.mark.gpu


def family(graph: gd.Graph) -> str:
    """File of ir/ops that declares the op that a sample is about: the last one that is not pointwise, if any."""
    homes = [type(n.op).__module__.rsplit(".", 1)[1] for n in graph.nodes]
    return next((h for h in reversed(homes) if h not in ("pointwise", "movement")), homes[-1])


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_sample_runs_and_agrees(
    sample: Sample, rng: np.random.Generator, record_error: Callable[[str, str, float, float], None]
) -> None:
    for graph, name, error in output_errors(sample, "cuda", rng):
        limit = TOLERANCE[narrowest(graph)]
        if name in graph.outputs:
            record_error(family(graph), narrowest(graph), error, limit)
        assert error <= limit, name
