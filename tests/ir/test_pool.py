"""Pooling against PyTorch: swept windows, divisors, ceil mode, NaN, and what is refused."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional

import graphdnn as gd
from tests.ir.single import array, evaluated, inferred, tensor

WINDOWS = [
    {"kernel": k, "stride": s, "padding": p}
    for k, s, p in itertools.product([1, 2, 3, (3, 2)], [None, 1, 2, (3, 2)], [0, 1, (1, 0)])
    if min(np.broadcast_to(k, 2) // 2 - np.broadcast_to(p, 2)) >= 0
]
VOLUMES = [
    {"kernel": (2, 3, 2), "stride": 2, "padding": (1, 1, 0)},
    {"kernel": 3, "stride": (1, 2, 3), "padding": 1},
    {"kernel": (1, 2, 3), "stride": None, "padding": 0},
]


def theirs(attributes: dict[str, object]) -> dict[str, object]:
    """The same attributes in PyTorch's spelling."""
    return {{"kernel": "kernel_size"}.get(k, k): v for k, v in attributes.items()}


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("dilation", [1, 2, (2, 1)])
def test_max_pool(window: dict[str, object], ceil_mode: bool, dilation: object, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 8, 11)) - 5
    attributes = {**window, "dilation": dilation, "ceil_mode": ceil_mode}
    found = evaluated(lambda g, v: g.max_pool(v, **attributes), x)
    np.testing.assert_array_equal(found, array(functional.max_pool2d(tensor(x), **theirs(attributes))))


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
def test_avg_pool(
    window: dict[str, object], ceil_mode: bool, count_include_pad: bool, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((2, 3, 8, 11))
    attributes = {**window, "ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
    found = evaluated(lambda g, v: g.avg_pool(v, **attributes), x)
    np.testing.assert_allclose(
        found, array(functional.avg_pool2d(tensor(x), **theirs(attributes))), rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("window", VOLUMES, ids=str)
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_volumes(window: dict[str, object], ceil_mode: bool, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 3, 5, 6, 7))
    attributes = {**window, "ceil_mode": ceil_mode}
    found = evaluated(lambda g, v: g.max_pool(v, **attributes), x)
    np.testing.assert_array_equal(found, array(functional.max_pool3d(tensor(x), **theirs(attributes))))
    for counted in (True, False):
        found = evaluated(lambda g, v, c=counted: g.avg_pool(v, **attributes, count_include_pad=c), x)
        expected = functional.avg_pool3d(tensor(x), **theirs(attributes), count_include_pad=counted)
        np.testing.assert_allclose(found, array(expected), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size", range(3, 12))
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 1), (3, 2, 1), (3, 3, 1), (3, 5, 0), (2, 3, 1)])
def test_ceil_mode_drops_windows_that_begin_behind(size: int, kernel: int, stride: int, padding: int) -> None:
    x = torch.arange(2.0 * size * (size + 1)).reshape(1, 2, size, size + 1) - 7
    attributes = {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": True}
    for ours, torchs in (("max_pool", functional.max_pool2d), ("avg_pool", functional.avg_pool2d)):
        found = evaluated(lambda g, v, method=ours: getattr(g, method)(v, **attributes), array(x))
        np.testing.assert_allclose(found, array(torchs(x, **theirs(attributes))), rtol=1e-6)


def test_uneven_padding_is_padding_the_larger_side_and_cutting(rng: np.random.Generator) -> None:
    x = rng.standard_normal((1, 2, 6, 5))
    found = evaluated(lambda g, v: g.max_pool(v, kernel=3, stride=1, padding=((1, 0), (0, 1))), x)
    padded = functional.pad(tensor(x), (0, 1, 1, 0), value=-np.inf)
    np.testing.assert_array_equal(found, array(functional.max_pool2d(padded, 3, 1)))
    found = evaluated(lambda g, v: g.avg_pool(v, kernel=3, stride=1, padding=((1, 0), (0, 1))), x)
    np.testing.assert_allclose(
        found, array(functional.avg_pool2d(functional.pad(tensor(x), (0, 1, 1, 0)), 3, 1)), rtol=1e-12
    )


def test_nan_wins_and_padding_never_does() -> None:
    x = np.full((1, 1, 4, 5), -np.inf, np.float32)
    x[0, 0, 1, 2] = np.nan
    found = evaluated(lambda g, v: g.max_pool(v, kernel=3, stride=1, padding=1), x)
    np.testing.assert_array_equal(found, array(functional.max_pool2d(tensor(x), 3, 1, 1)))
    assert np.isnan(found).sum() == 9
    assert (found[~np.isnan(found)] == -np.inf).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_integers(dtype: type, rng: np.random.Generator) -> None:
    x = rng.integers(0 if dtype == np.uint8 else -90, 90, (2, 3, 7, 6)).astype(dtype)
    found = evaluated(lambda g, v: g.max_pool(v, kernel=3, stride=2, padding=1), x)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, array(functional.max_pool2d(tensor(x.astype(np.float64)), 3, 2, 1)))


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 5, 7, 3), (1, 3, 2, 4, 5)])
def test_global_pooling(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    x = rng.standard_normal(shape)
    spatial, ones = tuple(range(2, len(shape))), (1,) * (len(shape) - 2)
    found = evaluated(lambda g, v: g.global_avg_pool(v), x)
    assert found.shape == (*shape[:2], *ones)
    np.testing.assert_allclose(found, array(tensor(x).mean(spatial, keepdim=True)), rtol=1e-12)
    np.testing.assert_array_equal(evaluated(lambda g, v: g.global_max_pool(v), x), x.max(spatial, keepdims=True))


def test_averages_of_halves_accumulate_wide() -> None:
    x = np.full((1, 1, 64, 64), 3001, np.float16)
    assert (evaluated(lambda g, v: g.avg_pool(v, kernel=64), x) == x[0, 0, 0, 0]).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g, v: g.max_pool(v, kernel=3, padding=2), r"max_pool: padding \(2, 2\) of spatial axis 0 is more"),
        (lambda g, v: g.avg_pool(v, kernel=(3, 2), padding=(1, 2)), r"avg_pool: padding \(2, 2\) of spatial axis 1"),
        (lambda g, v: g.max_pool(v, kernel=9), r"max_pool: kernel \(9, 9\) .* does not fit: x is f32\[1x2x5x6\]"),
        (lambda g, v: g.max_pool(v, kernel=0), r"max_pool: kernel is \(0, 0\); every entry must be at least 1"),
        (lambda g, v: g.max_pool(v, kernel=(2, 2, 2)), r"max_pool: kernel is \(2, 2, 2\)"),
        (lambda g, v: g.avg_pool(v, kernel=2, stride=0, name="p"), r"p: avg_pool: stride is \(0, 0\)"),
        (lambda g, v: g.avg_pool(g.cast(v, gd.int32), kernel=2), r"avg_pool: x is i32\[1x2x5x6\]; a float type"),
        (lambda g, v: g.max_pool(g.cast(v, gd.bool), kernel=2), r"max_pool: x is b8\[1x2x5x6\]; a number type"),
        (lambda g, v: g.max_pool(g.reduce_sum(v, axes=0), kernel=2), r"max_pool: kernel is \(2,\)|x is f32"),
        (lambda g, v: g.global_avg_pool(g.reduce_sum(v, axes=(0, 1))), r"global_avg_pool: x is f32\[5x6\]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(call: object, message: str) -> None:
    with pytest.raises(gd.GraphError, match=message):
        inferred(call, ((1, 2, 5, 6), gd.float32))  # type: ignore[arg-type]


@pytest.mark.parametrize(("padding", "extent"), [((1, 0), 3), ((0, 1), 2)])
def test_with_uneven_padding_the_last_window_begins_in_x_or_the_padding_before_it(
    padding: tuple[int, int], extent: int
) -> None:
    """Windows of 2 begin 2 apart, so that a third one of 4 elements begins at the last of them or behind it."""
    x = np.arange(1.0, 5).reshape(1, 1, 1, 4)
    found = evaluated(lambda g, v: g.max_pool(v, kernel=(1, 2), stride=2, padding=((0, 0), padding), ceil_mode=True), x)
    np.testing.assert_array_equal(found.ravel(), [1, 3, 4] if extent == 3 else [2, 4])
