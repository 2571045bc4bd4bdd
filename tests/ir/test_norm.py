"""Norms against PyTorch: numbers over odd shapes, types, large means, and what is refused."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import graphdnn as gd
from graphdnn.ir.types import Array
from tests.ir.expansion import expanded
from tests.ir.single import array, evaluated, inferred, tensor

IMAGES = [(3, 5, 4, 2), (1, 7, 3, 5), (4, 6, 1, 9), (2, 12, 7), (2, 4, 3, 2, 5)]
ROWS = [((5, 33), 1), ((3, 1, 65), 1), ((2, 3, 4, 7), 2), ((4, 129), 1), ((63,), 1), ((7, 1), 1), ((2, 5, 300), 1)]


def parameters(rng: np.random.Generator, shape: tuple[int, ...], count: int) -> list[Array]:
    return [rng.standard_normal(shape) for _ in range(count)]


@pytest.mark.parametrize("shape", [*IMAGES, (5, 3)])
@pytest.mark.parametrize("eps", [1e-5, 0.1])
def test_batch_norm(shape: tuple[int, ...], eps: float, rng: np.random.Generator) -> None:
    x, (mean, scale, bias) = rng.standard_normal(shape), parameters(rng, (shape[1],), 3)
    var = rng.uniform(0.1, 3, shape[1])
    found = evaluated(lambda g, *v: g.batch_norm(*v, eps=eps), x, mean, var, scale, bias)
    expected = functional.batch_norm(*map(tensor, (x, mean, var, scale, bias)), training=False, eps=eps)
    np.testing.assert_allclose(found, array(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("shape", "trailing"), ROWS)
@pytest.mark.parametrize("eps", [1e-5, 0.1])
@pytest.mark.parametrize("affine", [(True, True), (True, False), (False, True), (False, False)])
def test_layer_norm(shape: tuple[int, ...], trailing: int, eps: float, affine: tuple[bool, bool],
                    rng: np.random.Generator) -> None:  # fmt: skip
    extents, axes = shape[-trailing:], tuple(range(-trailing, 0))
    x, given = rng.standard_normal(shape), parameters(rng, extents, 2)
    used = [p for p, wanted in zip(given, affine, strict=True) if wanted]

    def call(g: gd.GraphBuilder, x: gd.Value, *values: gd.Value) -> gd.Value:
        rest = list(values)
        scale, bias = (rest.pop(0) if wanted else None for wanted in affine)
        return g.layer_norm(x, scale, bias, axes=axes, eps=eps)

    scale, bias = (tensor(p) if wanted else None for p, wanted in zip(given, affine, strict=True))
    expected = functional.layer_norm(tensor(x), extents, scale, bias, eps)
    np.testing.assert_allclose(evaluated(call, x, *used), array(expected), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (1, 2), (2,), (0, 1, 2)])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_norms_over_any_axes(axes: tuple[int, ...], norm: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 4, 5))
    extents = tuple(x.shape[a] for a in axes)
    scale = rng.standard_normal(extents)
    others = tuple(a for a in range(3) if a not in axes)
    moved = tensor(x.transpose(*others, *axes))
    if norm == "layer":
        expected = functional.layer_norm(moved, extents, tensor(scale), None, 1e-5)
        found = evaluated(lambda g, x, s: g.layer_norm(x, s, axes=axes), x, scale)
    else:
        expected = functional.rms_norm(moved, extents, tensor(scale), 1e-5)
        found = evaluated(lambda g, x, s: g.rms_norm(x, s, axes=axes), x, scale)
    np.testing.assert_allclose(found.transpose(*others, *axes), array(expected), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("shape", "trailing"), ROWS)
@pytest.mark.parametrize("scaled", [True, False])
def test_rms_norm(shape: tuple[int, ...], trailing: int, scaled: bool, rng: np.random.Generator) -> None:
    extents, axes = shape[-trailing:], tuple(range(-trailing, 0))
    x, (scale,) = rng.standard_normal(shape), parameters(rng, extents, 1)
    found = evaluated(lambda g, x, *s: g.rms_norm(x, *s, axes=axes, eps=1e-3), x, *([scale] if scaled else []))
    expected = functional.rms_norm(tensor(x), extents, tensor(scale) if scaled else None, 1e-3)
    np.testing.assert_allclose(found, array(expected), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shape", IMAGES)
def test_instance_norm(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x, (scale, bias) = rng.standard_normal(shape), parameters(rng, (shape[1],), 2)
    found = evaluated(lambda g, *v: g.instance_norm(*v, eps=1e-3), x, scale, bias)
    expected = functional.instance_norm(tensor(x), weight=tensor(scale), bias=tensor(bias), eps=1e-3)
    np.testing.assert_allclose(found, array(expected), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 6, 5, 4), 3), ((2, 6, 5, 4), 6), ((1, 8, 7), 1), ((3, 8), 2), ((1, 4, 3, 2, 5), 2)]
)
def test_group_norm(shape: tuple[int, ...], groups: int, rng: np.random.Generator) -> None:
    x, (scale, bias) = rng.standard_normal(shape), parameters(rng, (shape[1],), 2)
    found = evaluated(lambda g, *v: g.group_norm(*v, groups=groups, eps=1e-3), x, scale, bias)
    expected = functional.group_norm(tensor(x), groups, tensor(scale), tensor(bias), 1e-3)
    np.testing.assert_allclose(found, array(expected), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32], ids=str)
def test_a_large_mean_does_not_eat_the_variance(dtype: gd.DType, rng: np.random.Generator) -> None:
    x = (1000 + rng.integers(-8, 9, (3, 129)) * (8 if dtype == gd.bfloat16 else 1)).astype(dtype.numpy)
    found = evaluated(lambda g, v: g.layer_norm(v), x).astype(np.float64)
    expected = array(functional.layer_norm(tensor(x.astype(np.float64)), (129,)))
    limit = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype.name]
    assert np.max(np.abs(found - expected)) <= limit * np.max(np.abs(expected))


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32, gd.float64], ids=str)
@pytest.mark.parametrize("other", [gd.float16, gd.float32, gd.float64], ids=str)
def test_the_result_has_the_type_of_x(dtype: gd.DType, other: gd.DType) -> None:
    x, rows, channels = ((2, 4, 3), dtype), ((3,), other), ((4,), other)
    assert inferred(lambda g, *v: g.layer_norm(*v), x, rows, rows).dtype == dtype
    assert inferred(lambda g, *v: g.rms_norm(*v), x, rows).dtype == dtype
    assert inferred(lambda g, *v: g.batch_norm(*v), x, *[channels] * 4).dtype == dtype
    assert inferred(lambda g, *v: g.instance_norm(*v), x, channels, channels).dtype == dtype
    assert inferred(lambda g, *v: g.group_norm(*v, groups=2), x, channels, channels).dtype == dtype


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, x, p: g.layer_norm(x, p), r"layer_norm: scale is f32\[4\], but x is f32\[2x4x3\], so shape \(3,\)"),
        (lambda g, x, p: g.layer_norm(x, None, p), r"layer_norm: bias is f32\[4\]"),
        (lambda g, x, p: g.layer_norm(x, axes=5), r"layer_norm: axis 5 is outside f32\[2x4x3\] of rank 3"),
        (lambda g, x, p: g.layer_norm(x, axes=()), "layer_norm: axes are empty"),
        (lambda g, x, p: g.layer_norm(x, eps=-1), "layer_norm: eps is -1.0"),
        (lambda g, x, p: g.layer_norm(x, eps=float("nan")), "layer_norm: eps is nan"),
        (lambda g, x, p: g.layer_norm(x, eps=float("inf")), "layer_norm: eps is inf"),
        (lambda g, x, p: g.group_norm(x, p, p, groups=0), "group_norm: groups=0 does not divide"),
        (lambda g, x, p: g.group_norm(x, p, p, groups=-2), "group_norm: groups=-2 does not divide"),
        (lambda g, x, p: g.instance_norm(g.reduce_sum(x, axes=2), p, p), r"instance_norm: x is f32\[2x4\]; batch"),
        (lambda g, x, p: g.rms_norm(x, p, name="first"), r"first: rms_norm: scale is f32\[4\]"),
        (lambda g, x, p: g.group_norm(x, p, p, groups=3), r"group_norm: groups=3 does not divide the channels"),
        (lambda g, x, p: g.instance_norm(p, p, p), r"instance_norm: x is f32\[4\]; batch, channels"),
        (lambda g, x, p: g.batch_norm(p, p, p, p, p), r"batch_norm: x is f32\[4\]; a batch axis and a channel axis"),
        (lambda g, x, p: g.batch_norm(x, p, p, p, x), r"batch_norm: bias is f32\[2x4x3\], but x is .* shape \(4,\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(call: object, message: str) -> None:
    with pytest.raises(gd.GraphError, match=message):
        inferred(call, ((2, 4, 3), gd.float32), ((4,), gd.float32))  # type: ignore[arg-type]


@pytest.mark.parametrize("affine", ['("bias",)', '("scale", "scale")', '("bias", "scale")'])
def test_a_written_norm_has_the_parameters_that_it_knows(affine: str) -> None:
    g = gd.GraphBuilder()
    x, p = g.input("x", (2, 3), gd.float32), g.input("p", (3,), gd.float32)
    text = str(g.build({"y": g.rms_norm(x, p)}))
    with pytest.raises(gd.GraphError, match="rms_norm: affine is "):
        gd.parse(text.replace('("scale",)', affine))


NORMS = {
    "layer_norm": lambda g, x, *p: g.layer_norm(x, axes=(2, 3)),
    "instance_norm": lambda g, x, mean, var, scale, bias: g.instance_norm(x, scale, bias),
    "group_norm": lambda g, x, mean, var, scale, bias: g.group_norm(x, scale, bias, groups=2),
    "batch_norm": lambda g, *v: g.batch_norm(*v),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("wide", [gd.float32, gd.float64], ids=str)
def test_an_expansion_keeps_a_small_deviation_from_a_large_mean(
    norm: str, wide: gd.DType, rng: np.random.Generator
) -> None:
    x = rng.normal(3000, 0.3, (2, 4, 9, 7)).astype(np.float32)
    numbers = (3000.1 + rng.normal(size=4) / 9, rng.uniform(0.05, 0.1, 4), np.ones(4), rng.normal(size=4))
    arrays = (x, *(n.astype(wide.numpy) for n in numbers))
    g = gd.GraphBuilder()
    operands = [g.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    graph = g.build({"y": NORMS[norm](g, *operands)})
    inputs = {f"x{i}": a for i, a in enumerate(arrays)}
    right = gd.evaluate(graph, inputs, gd.float64)["y"]
    assert np.abs(gd.evaluate(expanded(graph), inputs)["y"] - right).max() <= 1e-5 * np.abs(right).max()


def test_integers_are_refused() -> None:
    with pytest.raises(gd.GraphError, match=r"layer_norm: x is i32\[2x3\]; a float type is needed"):
        inferred(lambda g, v: g.layer_norm(v), ((2, 3), gd.int32))


def test_statistics_of_the_halves_are_float32() -> None:
    x = np.full((1, 4099), 60000, np.float16)
    x[0, ::2] = 59968
    found = evaluated(lambda g, v: g.layer_norm(v), x).astype(np.float64)
    expected = array(functional.layer_norm(torch.from_numpy(x.astype(np.float64)), (4099,)))
    assert np.max(np.abs(found - expected)) < 2e-3
