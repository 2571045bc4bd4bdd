"""Convolution and matrix product against PyTorch: swept shapes, types, and what is refused."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

import graphdnn as gd
from tests.ir.single import array, evaluated, inferred, tensor, torch_type

PRODUCTS = [
    ((5, 7), (7, 3)), ((1, 63), (63, 1)), ((33, 65), (65, 23)), ((4, 5, 7), (7, 3)), ((3, 1, 5, 7), (2, 7, 4)),
    ((5, 7), (3, 7, 2)), ((2, 3, 129, 1), (2, 3, 1, 5)),
]  # fmt: skip
CONVS = [
    {"stride": s, "padding": p, "dilation": d, "groups": g}
    for s, p, d, g in itertools.product([1, 2, (3, 2)], [0, 1, (2, 1)], [1, (2, 1)], [1, 2])
]


@pytest.mark.parametrize(("a", "b"), PRODUCTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_matmul(a: tuple[int, ...], b: tuple[int, ...], dtype: type, rng: np.random.Generator) -> None:
    x, y = rng.standard_normal(a).astype(dtype), rng.standard_normal(b).astype(dtype)
    found = evaluated(lambda g, *v: g.matmul(*v), x, y)
    expected = array(tensor(x.astype(np.float64)) @ tensor(y.astype(np.float64)))
    assert found.dtype == dtype
    assert np.max(np.abs(found - expected)) <= (1e-12 if dtype == np.float64 else 1e-6) * np.max(np.abs(x) @ np.abs(y))


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16], ids=str)
def test_halves_accumulate_wide(dtype: gd.DType) -> None:
    x = np.ones((1, 4099)).astype(dtype.numpy)
    found = evaluated(lambda g, *v: g.matmul(*v), x, x.reshape(-1, 1).copy())
    assert found[0, 0] == np.asarray(4099).astype(dtype.numpy)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_integers_do_not_overflow(dtype: type) -> None:
    x = np.full((2, 300), np.iinfo(dtype).max if dtype != np.int32 else 1000, dtype)
    found = evaluated(lambda g, *v: g.matmul(*v), x, x.T.copy())
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, x.astype(np.int64) @ x.T.astype(np.int64))


@pytest.mark.parametrize(
    ("a", "b"), list(itertools.product((gd.float64, gd.float32, gd.float16, gd.bfloat16), repeat=2)), ids=str
)
def test_float_types_are_promoted_as_in_torch(a: gd.DType, b: gd.DType) -> None:
    expected = torch.result_type(torch.ones(2, dtype=torch_type(a)), torch.ones(2, dtype=torch_type(b)))
    assert torch_type(inferred(lambda g, *v: g.matmul(*v), ((2, 3), a), ((3, 4), b)).dtype) == expected
    found = inferred(lambda g, *v: g.conv(*v), ((1, 2, 3, 4), a), ((5, 2, 1, 1), b))
    assert torch_type(found.dtype) == expected


@pytest.mark.parametrize("dtype", [gd.int8, gd.uint8, gd.int32, gd.int64], ids=str)
def test_integer_types(dtype: gd.DType) -> None:
    expected = gd.int32 if dtype.bits < 32 else dtype
    assert inferred(lambda g, *v: g.matmul(*v), ((2, 3), dtype), ((3, 4), dtype)).dtype == expected
    assert inferred(lambda g, *v: g.conv(*v), ((1, 2, 3, 4), dtype), ((5, 2, 1, 1), dtype)).dtype == expected


@pytest.mark.parametrize("attributes", CONVS, ids=str)
def test_conv(attributes: dict[str, object], rng: np.random.Generator) -> None:
    groups = int(attributes["groups"])  # type: ignore[call-overload]
    x, w = rng.standard_normal((2, 6, 9, 11)), rng.standard_normal((4, 6 // groups, 3, 2))
    found = evaluated(lambda g, *v: g.conv(*v, **attributes), x, w)
    np.testing.assert_allclose(
        found, array(functional.conv2d(tensor(x), tensor(w), **attributes)), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize(
    ("n", "c", "k", "size"), [(1, 1, 1, 1), (3, 5, 7, 6), (4, 23, 3, 5), (1, 33, 31, 7), (2, 24, 25, 3)]
)
@pytest.mark.parametrize("filter", [1, (1, 3), 3])
def test_conv_over_odd_extents(n: int, c: int, k: int, size: int, filter: object, rng: np.random.Generator) -> None:
    extents = tuple(np.broadcast_to(filter, 2))
    x, w = rng.standard_normal((n, c, size, size + 2)), rng.standard_normal((k, c, *extents))
    found = evaluated(lambda g, *v: g.conv(*v, padding=1), x, w)
    np.testing.assert_allclose(found, array(functional.conv2d(tensor(x), tensor(w), padding=1)), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("groups", [1, 3])
def test_conv_over_volumes(groups: int, rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((2, 3, 5, 6, 7)), rng.standard_normal((6, 3 // groups, 2, 3, 1))
    attributes = {"stride": (1, 2, 1), "padding": (1, 0, 2), "dilation": (2, 1, 1), "groups": groups}
    found = evaluated(lambda g, *v: g.conv(*v, **attributes), x, w)
    np.testing.assert_allclose(
        found, array(functional.conv3d(tensor(x), tensor(w), **attributes)), rtol=1e-9, atol=1e-12
    )


def test_depthwise(rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((2, 5, 7, 6)), rng.standard_normal((5, 1, 3, 3))
    found = evaluated(lambda g, *v: g.conv(*v, groups=5, padding=1), x, w)
    np.testing.assert_allclose(
        found, array(functional.conv2d(tensor(x), tensor(w), groups=5, padding=1)), rtol=1e-9, atol=1e-12
    )


def test_uneven_padding(rng: np.random.Generator) -> None:
    x, w = rng.standard_normal((2, 3, 7, 6)), rng.standard_normal((4, 3, 3, 3))
    found = evaluated(lambda g, *v: g.conv(*v, padding=((2, 0), (0, 1))), x, w)
    expected = functional.conv2d(functional.pad(tensor(x), (0, 1, 2, 0)), tensor(w))
    np.testing.assert_allclose(found, array(expected), rtol=1e-9, atol=1e-12)


X, W = ((2, 6, 7, 8), gd.float32), ((4, 6, 3, 3), gd.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, x, w: g.conv(x, w, groups=4), r"conv: groups=4 does not divide the channels: x is f32\[2x6x7x8\]"),
        (lambda g, x, w: g.conv(x, w, groups=2), r"conv: x has 6 channels, but w and groups=2 need 12"),
        (lambda g, x, w: g.conv(x, w, dilation=4), r"conv: the kernel does not fit: x is f32\[2x6x7x8\]"),
        (lambda g, x, w: g.conv(x, w, padding=-1), r"conv: padding is \(\(-1, -1\), \(-1, -1\)\)"),
        (lambda g, x, w: g.conv(x, w, stride=(1, 2, 3)), r"conv: stride is \(1, 2, 3\); a whole number or 2 of them"),
        (lambda g, x, w: g.conv(x, w, padding=((1, 2),)), r"conv: padding is \(\(1, 2\),\)"),
        (lambda g, x, w: g.conv(x, w, padding="same"),
         r"conv: padding is 'same'; a whole number, or 2 whole numbers or \(lo, hi\) pairs of such are needed"),
        (lambda g, x, w: g.conv(x, w, padding=(1, "a")), r"conv: padding is \(1, 'a'\); a whole number, or 2"),
        (lambda g, x, w: g.conv(x, w, padding=((1, 2), (0.5, 2))), r"padding is \(\(1, 2\), \(0.5, 2\)\); a whole"),
        (lambda g, x, w: g.conv(x, w, padding=1 << 127), r"conv: padding is .*; whole numbers of 128 bits are needed"),
        (lambda g, x, w: g.conv(x, w, stride="2"), r"conv: stride is '2'; a whole number or 2 of them are needed"),
        (lambda g, x, w: g.conv(x, w, dilation=(1, (1, 2))), r"dilation is \(1, \(1, 2\)\); a sequence of whole"),
        (lambda g, x, w: g.conv(x, w, stride=0, name="stem"), r"stem: conv: stride is \(0, 0\)"),
        (lambda g, x, w: g.matmul(x, w), r"matmul: inner extents differ: A is f32\[2x6x7x8\], B is f32\[4x6x3x3\]"),
        (lambda g, x, w: g.matmul(g.reduce_sum(x, axes=(0, 1, 2)), w), r"matmul: operands need at least two axes"),
        (lambda g, x, w: g.conv(x, g.cast(w, gd.int32)), r"conv: types do not go together \(float32 with int32\)"),
        (lambda g, x, w: g.matmul(x, g.cast(w, gd.bool)), "inner extents differ"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(call: object, message: str) -> None:
    with pytest.raises(gd.GraphError, match=message):
        inferred(call, X, W)  # type: ignore[arg-type]


def test_batch_axes_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(gd.GraphError, match=r"matmul: batch axes do not broadcast at axis 0: 2 against 3"):
        inferred(lambda g, *v: g.matmul(*v), ((2, 4, 5), gd.float32), ((3, 5, 6), gd.float32))


def test_bool_products_are_refused() -> None:
    with pytest.raises(gd.GraphError, match="matmul: operands are bool; cast them"):
        inferred(lambda g, *v: g.matmul(*v), ((4, 5), gd.bool), ((5, 6), gd.bool))
