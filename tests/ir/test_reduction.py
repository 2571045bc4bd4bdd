"""Reductions against PyTorch: numbers, types, NaN, and what is refused."""

import numpy as np
import pytest
import torch

import graphdnn as gd
from tests.ir.single import array, evaluated, inferred, tensor, torch_type

TORCH = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}
NUMBERS = (gd.float64, gd.float32, gd.float16, gd.bfloat16, gd.int64, gd.int32, gd.int8, gd.uint8, gd.bool)
SHAPES = [
    ((3, 5, 7), (0,)),
    ((3, 5, 7), (1, 2)),
    ((1, 63, 2), (1,)),
    ((129,), (0,)),
    ((4, 1, 33), (0, 2)),
    ((65, 23), (1,)),
]


@pytest.mark.parametrize("fn", TORCH)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_definition(fn: str, keepdims: bool, shape: tuple[int, ...], axes: tuple[int, ...], dtype: type,
                    rng: np.random.Generator) -> None:  # fmt: skip
    x = rng.standard_normal(shape).astype(dtype)
    found = evaluated(lambda g, v: getattr(g, f"reduce_{fn}")(v, axes=axes, keepdims=keepdims), x)
    expected = array(TORCH[fn](tensor(x), dim=axes, keepdim=keepdims))
    np.testing.assert_allclose(found, expected, rtol=1e-12 if dtype == np.float64 else 1e-5, atol=1e-6)
    assert found.dtype == dtype


@pytest.mark.parametrize("fn", TORCH)
def test_no_axes_named_means_all(fn: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4, 5))
    found = evaluated(lambda g, v: getattr(g, f"reduce_{fn}")(v, axes=None), x)
    np.testing.assert_allclose(found, array(TORCH[fn](tensor(x), dim=(0, 1, 2))), rtol=1e-12)
    assert found.shape == ()


@pytest.mark.parametrize("fn", TORCH)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_all_axes_of_a_tensor_without_axes_are_none(fn: str, keepdims: bool, dtype: gd.DType) -> None:
    """The result is the element, in the type that a reduction of other tensors has."""

    def call(g: gd.GraphBuilder, v: gd.Value) -> gd.Value:
        made: gd.Value = getattr(g, f"reduce_{fn}")(v, axes=None, keepdims=keepdims, name="whole")
        return made

    x = np.asarray(3).astype(dtype.numpy)
    try:
        expected = TORCH[fn](tensor(x))
    except RuntimeError:
        with pytest.raises(gd.GraphError, match=r"whole: reduce_mean: .*cast"):
            evaluated(call, x)
        return
    found = evaluated(call, x)
    assert found.shape == ()
    assert found == array(expected)
    g = gd.GraphBuilder()
    graph = g.build({"y": call(g, g.input("x", (), dtype))})
    assert torch_type(graph.outputs["y"].type.dtype) == expected.dtype
    assert {name for n in graph.nodes for name in n.origins} == {"whole"}
    np.testing.assert_array_equal(gd.compile(graph, target="cpu")({"x": x})["y"], found)
    report = gd.compile(graph, target=gd.Target.named("h200")).report
    assert [name for r in report.regions for name in r.nodes] == ["whole"]


@pytest.mark.parametrize("fn", TORCH)
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_types_are_as_in_torch(fn: str, dtype: gd.DType) -> None:
    def call(g: gd.GraphBuilder, v: gd.Value) -> gd.Value:
        made: gd.Value = getattr(g, f"reduce_{fn}")(v, axes=1)
        return made

    try:
        expected = TORCH[fn](torch.ones((3, 4), dtype=torch_type(dtype)), dim=1).dtype
    except RuntimeError:
        with pytest.raises(gd.GraphError, match=f"reduce_{fn}: x is {dtype.text}.*cast"):
            inferred(call, ((3, 4), dtype))
        return
    assert torch_type(inferred(call, ((3, 4), dtype)).dtype) == expected


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.bool_])
def test_sums_of_integers_do_not_overflow(dtype: type) -> None:
    x = np.full((3, 300), np.iinfo(dtype).max if dtype != np.bool_ else True, dtype)
    found = evaluated(lambda g, v: g.reduce_sum(v, axes=1), x)
    np.testing.assert_array_equal(found, x.astype(np.int64).sum(axis=1))


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32], ids=str)
def test_sums_accumulate_wide(dtype: gd.DType) -> None:
    x = np.ones((2, 4099)).astype(dtype.numpy)
    found = evaluated(lambda g, v: g.reduce_sum(v, axes=1), x)
    assert (found == np.asarray(4099).astype(dtype.numpy)).all()
    assert (evaluated(lambda g, v: g.reduce_mean(v, axes=1), x) == 1).all()


@pytest.mark.parametrize("fn", ["max", "min", "sum", "mean"])
def test_nan_wins(fn: str) -> None:
    x = np.array([[1, np.nan, 3], [4, 5, 6]], np.float32)
    found = evaluated(lambda g, v: getattr(g, f"reduce_{fn}")(v, axes=1), x)
    assert np.isnan(found[0])
    assert found[1] == {"max": 6, "min": 4, "sum": 15, "mean": 5}[fn]


def test_axes_are_normalised() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 3, 4), gd.float32)
    graph = g.build({"a": g.reduce_sum(x, axes=(-1, 0)), "b": g.reduce_sum(x, axes=(0, 2))})
    assert graph.nodes[0].op == graph.nodes[1].op
    assert graph.outputs["a"].type.shape == (3,)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (3, r"reduce_mean: axis 3 is outside f32\[2x3x4\] of rank 3"),
        ((0, -3), r"reduce_mean: axes \(0, -3\) name one axis twice"),
        ((), r"reduce_mean: axes are empty; x is f32\[2x3x4\]"),
    ],
)
def test_wrong_axes_are_refused(axes: object, message: str) -> None:
    with pytest.raises(gd.GraphError, match=message):
        inferred(lambda g, v: g.reduce_mean(v, axes=axes), ((2, 3, 4), gd.float32))


def test_a_refusal_names_the_node() -> None:
    with pytest.raises(gd.GraphError, match="loss: axis 7"):
        inferred(lambda g, v: g.reduce_sum(v, axes=7, name="loss"), ((2,), gd.float32))
