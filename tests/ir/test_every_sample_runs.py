"""Every sample of every op on the CPU target, states among them, against the float64 definition."""

import numpy as np
import pytest

import graphdnn as gd
from tests.ir.sample_runs import output_errors
from tests.ir.samples import SAMPLES, Sample
from tests.numbers import TOLERANCE, narrowest, relative_error, rows_of


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_sample_runs_and_agrees(sample: Sample, rng: np.random.Generator) -> None:
    for graph, name, error in output_errors(sample, "cpu", rng):
        assert error <= TOLERANCE[narrowest(graph)], name


def test_errors_are_measured_row_by_row(rng: np.random.Generator) -> None:
    """A row that is half wrong does not hide behind one with a high peak."""
    g = gd.GraphBuilder()
    graph = g.build({"y": g.softmax(g.input("x", (2, 512), gd.float16))})
    x = np.zeros((2, 512), np.float16)
    x[0, 0] = 20
    wanted = gd.evaluate(graph, {"x": x}, gd.float64)["y"]
    wrong = wanted * np.array([[1], [1.5]])
    assert relative_error(wrong, wanted) <= TOLERANCE["float16"]
    assert relative_error(wrong, wanted, **rows_of(graph, "y", {"x": x})) > 100 * TOLERANCE["float16"]
