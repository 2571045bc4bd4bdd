"""Softmax against PyTorch and scipy: numbers, extremes, and what is refused."""

import numpy as np
import pytest
import scipy.special
import torch

import graphdnn as gd
from tests.ir.single import array, evaluated, inferred, tensor

SHAPES = [((3, 5, 7), -1), ((3, 5, 7), 0), ((3, 5, 7), 1), ((1, 63), 1), ((300,), 0), ((4, 1), 1), ((2, 65, 3), -2)]


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_definition(shape: tuple[int, ...], axis: int, rng: np.random.Generator) -> None:
    x = 5 * rng.standard_normal(shape)
    found = evaluated(lambda g, v: g.softmax(v, axis=axis), x)
    np.testing.assert_allclose(found, array(torch.softmax(tensor(x), dim=axis)), rtol=1e-12)
    np.testing.assert_allclose(found, scipy.special.softmax(x, axis=axis), rtol=1e-12)


@pytest.mark.parametrize("dtype", [gd.float32, gd.float16, gd.bfloat16], ids=str)
def test_narrow_types(dtype: gd.DType, rng: np.random.Generator) -> None:
    x = (5 * rng.standard_normal((4, 129))).astype(dtype.numpy)
    found = evaluated(lambda g, v: g.softmax(v), x)
    expected = scipy.special.softmax(x.astype(np.float64), axis=-1)
    limit = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype.name]
    assert found.dtype == dtype.numpy
    assert np.max(np.abs(found.astype(np.float64) - expected)) <= limit * expected.max()


def test_large_elements_do_not_overflow() -> None:
    x = np.array([[1e4, 1e4 - 1, -1e4], [-6e4, -6e4, -6e4]], np.float32)
    found = evaluated(lambda g, v: g.softmax(v), x)
    np.testing.assert_allclose(found, array(torch.softmax(tensor(x), dim=-1)), rtol=1e-6)


@pytest.mark.parametrize("row", [[np.inf, 1.0], [np.nan, 1.0], [-np.inf, -np.inf], [-np.inf, 2.0]])
def test_extremes_are_as_in_torch(row: list[float]) -> None:
    x = np.array([row], np.float32)
    np.testing.assert_array_equal(evaluated(lambda g, v: g.softmax(v), x), array(torch.softmax(tensor(x), dim=-1)))


def test_integers_are_refused() -> None:
    with pytest.raises(gd.GraphError, match=r"softmax: x is i32\[2x3\]; a float type is needed"):
        inferred(lambda g, v: g.softmax(v), ((2, 3), gd.int32))


def test_foreign_axis_is_refused() -> None:
    with pytest.raises(gd.GraphError, match=r"softmax: axis 2 is outside f32\[2x3\] of rank 2"):
        inferred(lambda g, v: g.softmax(v, axis=2), ((2, 3), gd.float32))
