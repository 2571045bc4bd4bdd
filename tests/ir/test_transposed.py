"""Transposed convolution against PyTorch's, and as the gradient of the convolution that it is named after."""

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.ir.types import Array
from tests.ir.expansion import expanded

Rng = np.random.Generator


def graph_of(x: tuple[int, ...], w: tuple[int, ...], dtype: gd.DType = gd.float64, **attributes: object) -> gd.Graph:
    g = gd.GraphBuilder()
    return g.build({"y": g.conv_transpose(g.input("x", x, dtype), g.input("w", w, dtype), **attributes)})


def in_torch(x: Array, w: Array, **attributes: object) -> Array:
    function = torch.nn.functional.conv_transpose2d if x.ndim == 4 else torch.nn.functional.conv_transpose3d
    return function(torch.tensor(x), torch.tensor(w), **attributes).numpy()


SWEEP = [
    (stride, padding, output_padding, dilation, groups, kernel)
    for stride in (1, 2, 3)
    for padding in (0, 1)
    for output_padding in (0, 1)
    for dilation in (1, 2)
    for groups in (1, 3)
    for kernel in ((1, 1), (3, 2), (2, 2))
    if output_padding < max(stride, dilation)
]


@pytest.mark.parametrize(("stride", "padding", "output_padding", "dilation", "groups", "kernel"), SWEEP)
def test_agrees_with_torch(stride, padding, output_padding, dilation, groups, kernel, rng: Rng) -> None:
    x, w = rng.standard_normal((2, 6, 5, 7)), rng.standard_normal((6, 4, *kernel))
    attributes = {"stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation}
    found = gd.evaluate(graph_of(x.shape, w.shape, groups=groups, **attributes), {"x": x, "w": w})["y"]
    np.testing.assert_allclose(found, in_torch(x, w, groups=groups, **attributes), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [1, 3, 23, 33])
def test_sizes_and_unequal_attributes(size: int, rng: Rng) -> None:
    x, w = rng.standard_normal((3, size, 7, 5)), rng.standard_normal((size, 5, 4, 3))
    attributes = {"stride": (3, 2), "padding": (2, 1), "output_padding": (1, 0), "dilation": (1, 2)}
    found = gd.evaluate(graph_of(x.shape, w.shape, **attributes), {"x": x, "w": w})["y"]
    np.testing.assert_allclose(found, in_torch(x, w, **attributes), rtol=0, atol=1e-11)


def test_three_axes(rng: Rng) -> None:
    x, w = rng.standard_normal((2, 4, 3, 5, 2)), rng.standard_normal((4, 3, 2, 3, 1))
    attributes = {"stride": (2, 1, 3), "padding": (1, 0, 0), "output_padding": (1, 0, 2), "groups": 2}
    found = gd.evaluate(graph_of(x.shape, w.shape, **attributes), {"x": x, "w": w})["y"]
    np.testing.assert_allclose(found, in_torch(x, w, **attributes), rtol=0, atol=1e-12)


def test_uneven_padding_cuts_each_end(rng: Rng) -> None:
    x, w = rng.standard_normal((1, 2, 5, 6)), rng.standard_normal((2, 3, 3, 3))
    whole = in_torch(x, w, stride=2)
    found = gd.evaluate(graph_of(x.shape, w.shape, stride=2, padding=((0, 2), (3, 1))), {"x": x, "w": w})["y"]
    np.testing.assert_allclose(found, whole[:, :, :-2, 3:-1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "limit"), [(gd.float32, 1e-5), (gd.float16, 2e-3), (gd.bfloat16, 1.6e-2)])
def test_precision(dtype: gd.DType, limit: float, rng: Rng) -> None:
    x, w = (rng.standard_normal(s).astype(dtype.numpy) for s in ((2, 64, 5, 7), (64, 3, 3, 3)))
    graph = graph_of(x.shape, w.shape, dtype, stride=2)
    found = gd.evaluate(graph, {"x": x, "w": w})["y"]
    expected = in_torch(x.astype(np.float64), w.astype(np.float64), stride=2)
    assert found.dtype == dtype.numpy
    assert np.abs(found.astype(np.float64) - expected).max() <= limit * np.abs(expected).max()


def test_integers_are_summed_without_overflow(rng: Rng) -> None:
    x, w = (rng.integers(-128, 128, s).astype(np.int8) for s in ((2, 65, 3, 4), (65, 2, 3, 3)))
    found = gd.evaluate(graph_of(x.shape, w.shape, gd.int8), {"x": x, "w": w})["y"]
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, in_torch(x.astype(np.float64), w.astype(np.float64)))


@pytest.mark.parametrize(
    ("x", "w", "attributes", "smaller"),
    [
        ((2, 7, 5, 3), (7, 4, 2, 2), {"stride": 2}, True),
        ((2, 3, 5, 4), (3, 5, 3, 1), {"stride": (3, 1), "dilation": (1, 4)}, True),
        ((1, 3, 2, 4, 5), (3, 2, 1, 2, 3), {"stride": (1, 2, 3)}, True),
        ((2, 7, 5, 3), (7, 4, 2, 2), {"stride": 2, "padding": 1}, False),
        ((2, 7, 5, 3), (7, 4, 2, 2), {"stride": 2, "output_padding": 1}, False),
        ((2, 6, 5, 3), (6, 4, 2, 2), {"stride": 2, "groups": 2}, False),
        ((2, 7, 5, 3), (7, 4, 2, 2), {"stride": 2, "dilation": 2}, False),
        ((2, 7, 5, 3), (7, 4, 2, 3), {"stride": 2}, False),
    ],
)
def test_expansion_is_one_product_where_windows_tile(x, w, attributes, smaller: bool, rng: Rng) -> None:
    graph = graph_of(x, w, **attributes)
    other = expanded(graph)
    labels = [n.op.label for n in other.nodes]
    assert ("matmul" in labels) == smaller
    assert ("conv_transpose" in labels) != smaller
    inputs = {"x": rng.standard_normal(x), "w": rng.standard_normal(w)}
    found, expected = (gd.evaluate(g, inputs)["y"] for g in (other, graph))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_flops_count_each_product_once() -> None:
    graph = graph_of((2, 6, 5, 7), (6, 4, 3, 2), groups=3)
    assert graph.nodes[0].flops == 2 * (2 * 6 * 5 * 7) * (4 * 3 * 2)


@pytest.mark.parametrize(
    ("x", "w", "attributes", "message"),
    [
        ((2, 6, 5, 7), (5, 4, 3, 3), {}, "x has 6 channels and w takes 5"),
        ((2, 6, 5), (6, 4, 3), {}, "need four axes each, or five: x is f64[2x6x5]"),
        ((2, 6, 5, 7), (6, 4, 3, 3), {"groups": 4}, "groups=4 does not divide"),
        ((2, 6, 5, 7), (6, 4, 3, 3), {"output_padding": 1}, "output_padding is (1, 1)"),
        ((2, 6, 5, 7), (6, 4, 3, 3), {"padding": 7}, "leaves nothing"),
        ((2, 6, 5, 7), (6, 4, 3, 3), {"stride": 0}, "stride is (0, 0)"),
    ],
)
def test_refusals(x, w, attributes, message: str) -> None:
    with pytest.raises(gd.GraphError, match="conv_transpose") as raised:
        graph_of(x, w, **attributes)
    assert message in str(raised.value)
