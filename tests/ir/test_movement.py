"""Movement: each op against PyTorch's own, and what is refused."""

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.types import Array

Rng = np.random.Generator


def run(build, *arrays: Array) -> Array:
    """The output of `build(g, x0, x1, ...)` on these arrays, in their own types."""
    g = gd.GraphBuilder()
    values = [g.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    built = build(g, *values)
    outputs = built if isinstance(built, tuple) else (built,)
    graph = g.build({f"y{i}": v for i, v in enumerate(outputs)})
    found = gd.evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)})
    for name, value in graph.outputs.items():
        assert found[name].shape == value.type.shape
    return found["y0"] if isinstance(built, Value) else tuple(found.values())


def numbered(*shape: int, dtype: type = np.float32) -> Array:
    return np.arange(np.prod(shape), dtype=dtype).reshape(shape)


@pytest.mark.parametrize("shape", [(30,), (5, 6), (-1, 2), (3, -1, 1, 5), (1, 30, -1), (2, 3, 5)])
def test_reshape(shape: tuple[int, ...]) -> None:
    x = numbered(2, 3, 5)
    np.testing.assert_array_equal(run(lambda g, v: g.reshape(v, shape), x), torch.tensor(x).reshape(shape).numpy())


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 2, 3, 1), (0, 3, 1, 2), (-1, 1, 0, -2), (3, 2, 1, 0)])
def test_transpose(axes: tuple[int, ...]) -> None:
    x = numbered(2, 3, 5, 7)
    np.testing.assert_array_equal(run(lambda g, v: g.transpose(v, axes), x), torch.tensor(x).permute(axes).numpy())


@pytest.mark.parametrize(("x", "shape"), [((3, 1), (3, 4)), ((1, 3, 1), (2, -1, 5)), ((3,), (4, 2, 3)), ((), (2, 3))])
def test_expand(x: tuple[int, ...], shape: tuple[int, ...]) -> None:
    array = numbered(*x) if x else np.float32(3) * np.ones(())
    expected = torch.tensor(array).expand(shape).numpy()
    np.testing.assert_array_equal(run(lambda g, v: g.expand(v, shape), array.astype(np.float32)), expected)


def test_iota_ends_where_its_type_does() -> None:
    g = gd.GraphBuilder()
    last = gd.evaluate(g.build({"y": g.iota(128, dtype=gd.int8)}), {})["y"][-1]
    assert last == 127
    with pytest.raises(gd.GraphError, match="int8 does not hold 128"):
        g.iota(129, dtype=gd.int8)


def test_squeeze_and_unsqueeze() -> None:
    x = numbered(1, 3, 1, 5)
    t = torch.tensor(x)
    np.testing.assert_array_equal(run(lambda g, v: g.squeeze(v, -2), x), t.squeeze(2).numpy())
    np.testing.assert_array_equal(run(lambda g, v: g.squeeze(v, (0, 2)), x), t.squeeze((0, 2)).numpy())
    more = t.unsqueeze(0).unsqueeze(2).unsqueeze(-1).numpy()
    np.testing.assert_array_equal(run(lambda g, v: g.unsqueeze(v, (0, -1, 2)), x), more)


def test_pad_with_a_number_that_no_float_holds() -> None:
    y = run(lambda g, v: g.pad(v, ((1, 0),), value=2**53 + 1), numbered(2, dtype=np.int64))
    np.testing.assert_array_equal(y, [2**53 + 1, 0, 1])


def test_pad_of_a_scalar_is_itself() -> None:
    np.testing.assert_array_equal(run(lambda g, v: g.pad(v, (), value=7), np.float32(3)), np.float32(3))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat_and_split(axis: int, rng: Rng) -> None:
    sizes = (3, 1, 5)
    shapes = [tuple(n if a == axis % 3 else m for a, m in enumerate((4, 6, 2))) for n in sizes]
    xs = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    joined = run(lambda g, *v: g.concat(v, axis=axis), *xs)
    np.testing.assert_array_equal(joined, torch.cat([torch.tensor(x) for x in xs], axis).numpy())
    for part, x in zip(run(lambda g, v: g.split(v, sizes, axis=axis), joined), xs, strict=True):
        np.testing.assert_array_equal(part, x)
    thirds = run(lambda g, v: g.split(v, 3, axis=axis), joined)
    for part, expected in zip(thirds, torch.tensor(joined).chunk(3, axis), strict=True):
        np.testing.assert_array_equal(part, expected.numpy())


def test_concat_promotes() -> None:
    y = run(lambda g, a, b: g.concat((a, b), axis=0), numbered(2, dtype=np.float16), numbered(3, dtype=np.float32))
    assert y.dtype == np.float32
    np.testing.assert_array_equal(y, [0, 1, 0, 1, 2])


@pytest.mark.parametrize(
    ("starts", "stops", "steps"),
    [
        ((0, 0, 0), (7, 9, 5), None),
        ((1, -4, None), (-1, None, 3), None),
        ((6, 0, 2), (100, -2, 3), (2, 3, 1)),
        ((-100, 8, 0), (4, 9, 5), (3, 5, 4)),
    ],
)
def test_slice(starts: tuple, stops: tuple, steps: tuple | None) -> None:
    x = numbered(7, 9, 5)
    cuts = tuple(slice(*cut) for cut in zip(starts, stops, steps or (None,) * 3, strict=True))
    expected = torch.tensor(x)[cuts].numpy()
    np.testing.assert_array_equal(run(lambda g, v: g.slice(v, starts, stops, steps), x), expected)


def test_slice_of_some_axes() -> None:
    x = numbered(7, 9, 5)
    np.testing.assert_array_equal(
        run(lambda g, v: g.slice(v, (2, 1), (4, 9), (1, 3), axes=(-1, 1)), x), x[:, 1::3, 2:4]
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32, bool])
def test_pad(dtype: type) -> None:
    x = numbered(3, 4, dtype=np.int64).astype(dtype)
    y = run(lambda g, v: g.pad(v, ((1, 0), (2, 3)), value=1), x)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, torch.nn.functional.pad(torch.tensor(x), (2, 3, 1, 0), value=1).numpy())


def test_pad_with_infinity_keeps_it() -> None:
    y = run(lambda g, v: g.pad(v, ((0, 1),), value=float("-inf")), numbered(2, dtype=np.float16))
    np.testing.assert_array_equal(y, [0, 1, -np.inf])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_gather_is_take(axis: int, index: type, rng: Rng) -> None:
    """And as indexing in PyTorch, which counts negative indices from the end too."""
    x = rng.standard_normal((5, 7, 3)).astype(np.float32)
    n = x.shape[axis]
    indices = rng.integers(-n, n, (4, 2)).astype(index)
    y = run(lambda g, v, i: g.gather(v, i, axis=axis), x, indices)
    np.testing.assert_array_equal(y, np.take(x, indices, axis))
    where = (slice(None),) * (axis % 3) + (torch.tensor(indices, dtype=torch.int64),)
    np.testing.assert_array_equal(y, torch.tensor(x)[where].numpy())


def test_gather_is_an_embedding(rng: Rng) -> None:
    table, ids = rng.standard_normal((11, 6)).astype(np.float32), rng.integers(0, 11, (2, 5))
    expected = torch.nn.functional.embedding(torch.tensor(ids), torch.tensor(table)).numpy()
    np.testing.assert_array_equal(run(lambda g, v, i: g.gather(v, i), table, ids), expected)


def test_gather_holds_indices_inside() -> None:
    limits = np.iinfo(np.int64)
    indices = np.array([limits.min, -6, -5, -1, 0, 4, 5, limits.max])
    y = run(lambda g, v, i: g.gather(v, i), numbered(5), indices)
    np.testing.assert_array_equal(y, [0, 0, 0, 4, 0, 4, 4, 4])


@pytest.mark.parametrize(("start", "first"), [(-9, 0), (0, 0), (2, 2), (4, 4), (5, 4), (1000, 4)])
@pytest.mark.parametrize("dynamic", [None, np.int32, np.int64])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_write_slice(start: int, first: int, dynamic: type | None, shape: tuple[int, ...], rng: Rng) -> None:
    x, update = rng.standard_normal((3, 7, 2)), rng.standard_normal((3, 3, 2))
    expected = torch.slice_scatter(torch.tensor(x), torch.tensor(update), 1, first, first + 3).numpy()
    if dynamic is None:
        y = run(lambda g, a, b: g.write_slice(a, b, start, axis=1), x, update)
    else:
        y = run(lambda g, a, b, s: g.write_slice(a, b, s, axis=-2), x, update, np.full(shape, start, dynamic))
    np.testing.assert_array_equal(y, expected)


def test_write_slice_leaves_its_operand_alone() -> None:
    x = numbered(5)
    run(lambda g, a, b: g.write_slice(a, b, 1, axis=0), x, np.full(2, 9, np.float32))
    np.testing.assert_array_equal(x, np.arange(5))


def test_iota() -> None:
    g = gd.GraphBuilder()
    graph = g.build({"y": g.iota(300, dtype=gd.int64)})
    np.testing.assert_array_equal(gd.evaluate(graph, {})["y"], torch.arange(300).numpy())


def test_cache_appends_one_token(rng: Rng) -> None:
    from graphdnn.ir.evaluate import run as step

    g = gd.GraphBuilder()
    k = g.state("k", (1, 2, 4, 8), gd.float32)
    start = g.input("start", (), gd.int32)
    new = g.write_slice(k, g.input("token", (1, 2, 1, 8), gd.float32), start, axis=2)
    o = g.attention(g.input("q", (1, 2, 1, 8), gd.float32), new, new, kv_lengths=g.reshape(g.add(start, 1), (1,)))
    graph = g.build({"o": o}, {"k": new})
    tokens = rng.standard_normal((4, 1, 2, 1, 8)).astype(np.float32)
    q = rng.standard_normal((1, 2, 1, 8)).astype(np.float32)
    held = {"k": np.full((1, 2, 4, 8), np.nan, np.float32)}
    for i in range(4):
        given = {"q": q, "token": tokens[i], "start": np.int32(i).reshape(())}
        outputs, held = step(graph, given, states=held)
        keys = torch.tensor(np.concatenate(tokens[: i + 1], 2))
        expected = torch.nn.functional.scaled_dot_product_attention(torch.tensor(q), keys, keys)
        np.testing.assert_allclose(outputs["o"], expected.numpy(), rtol=1e-5, atol=1e-6)


REFUSED = {
    "reshape: x is f32[3x4] with 12 elements; shape (5, 2) needs 10": lambda g, x, y, i: g.reshape(x, (5, 2)),
    "reshape: shape (-1, -1) does not fit": lambda g, x, y, i: g.reshape(x, (-1, -1)),
    "reshape: shape (5, -1) does not fit 12": lambda g, x, y, i: g.reshape(x, (5, -1)),
    "reshape: shape is (1.5, 8)": lambda g, x, y, i: g.reshape(x, (1.5, 8)),
    "transpose: axes (0, 0) are no order": lambda g, x, y, i: g.transpose(x, (0, 0)),
    "transpose: axis 2 is outside": lambda g, x, y, i: g.transpose(x, (0, 2)),
    "expand: x is f32[3x4], which does not broadcast to shape (3, 8)": lambda g, x, y, i: g.expand(x, (3, 8)),
    "expand: shape (-1, 3, 4) has -1": lambda g, x, y, i: g.expand(x, (-1, 3, 4)),
    "squeeze: axes (1,) must be size-1": lambda g, x, y, i: g.squeeze(x, 1),
    "unsqueeze: axes (0, 0) name one axis twice": lambda g, x, y, i: g.unsqueeze(x, (0, 0)),
    "concat: operands differ at axis 0": lambda g, x, y, i: g.concat((x, y), axis=1),
    "concat: operands differ in rank": lambda g, x, y, i: g.concat((x, i), axis=0),
    "concat: types do not go together (float32 with int32)": lambda g, x, y, i: g.concat(
        (x, g.reshape(i, (1, 4))), axis=0
    ),
    "concat: there are no tensors": lambda g, x, y, i: g.concat((), axis=0),
    "split: sizes (2, 3) must be at least 1 each and add up to 4": lambda g, x, y, i: g.split(x, (2, 3), axis=1),
    "split: 5 equal parts": lambda g, x, y, i: g.split(x, 5, axis=1),
    "slice: 2:2:1 of axis 0 takes nothing": lambda g, x, y, i: g.slice(x, (2, 0), (2, 1)),
    "slice: steps are (-1, 1)": lambda g, x, y, i: g.slice(x, (2, 0), (0, 1), (-1, 1)),
    "slice: starts, stops and steps have 1, 1, 2 entries": lambda g, x, y, i: g.slice(x, (0,), (1,)),
    "pad: padding ((0, -1), (0, 0))": lambda g, x, y, i: g.pad(x, ((0, -1), (0, 0))),
    "pad: padding is ((0, 1, 2),)": lambda g, x, y, i: g.pad(x, ((0, 1, 2),)),
    "pad: value 0.5 is no int32": lambda g, x, y, i: g.pad(i, ((0, 1),), value=0.5),
    "gather: indices are f32[5x4]; int32 or int64": lambda g, x, y, i: g.gather(x, y),
    "write_slice: update is f32[5x4] and x is f32[3x4]": lambda g, x, y, i: g.write_slice(x, y, 0, axis=0),
    "write_slice: start is i32[4]; one int32": lambda g, x, y, i: g.write_slice(y, x, i, axis=0),
    "write_slice: start is 0.5; a whole number": lambda g, x, y, i: g.write_slice(y, x, 0.5, axis=0),
    "cast the update to float32": lambda g, x, y, i: g.write_slice(y, g.cast(x, gd.float16), 0, axis=0),
    "iota: int8 does not hold 299": lambda g, x, y, i: g.iota(300, dtype=gd.int8),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_say_what_was_found(message: str) -> None:
    g = gd.GraphBuilder()
    x, y, i = g.input("x", (3, 4), gd.float32), g.input("y", (5, 4), gd.float32), g.input("i", (4,), gd.int32)
    with pytest.raises(gd.GraphError) as raised:
        REFUSED[message](g, x, y, i)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
