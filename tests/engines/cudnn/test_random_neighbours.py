"""The reference of products in TF32: operands rounded to 11 bits, to the nearest."""

import numpy as np

import graphdnn as gd
from tests.engines.cudnn.random_neighbours import rounding_operands


def to_nearest(x: np.ndarray) -> np.ndarray:
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.round(np.ldexp(mantissa, 11)), exponent - 11)


def test_operands_of_products_are_rounded(rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    a, b = g.input("a", (5, 40), gd.float32), g.input("b", (40, 7), gd.float32)
    graph = g.build({"y": g.relu(g.matmul(g.tanh(a), b))})
    arrays = {n: rng.standard_normal(v.type.shape).astype(np.float32) for n, v in graph.inputs.items()}
    found = gd.evaluate(rounding_operands(graph), arrays, dtype=gd.float64)["y"]
    rounded = to_nearest(np.tanh(arrays["a"].astype(np.float64))) @ to_nearest(arrays["b"].astype(np.float64))
    np.testing.assert_allclose(found, np.maximum(rounded, 0), rtol=1e-12, atol=1e-12)
    assert np.abs(found - gd.evaluate(graph, arrays, dtype=gd.float64)["y"]).max() > 1e-5
