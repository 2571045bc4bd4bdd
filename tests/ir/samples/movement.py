"""Samples of the ops that move or rename elements, and of a state that is written to."""

from __future__ import annotations

from collections.abc import Callable

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.movement import Convert
from graphdnn.ir.types import DType, TensorType, channels_last
from tests.ir.samples.sample import Sample, Stateful


def moved(
    name: str,
    shape: tuple[int, ...],
    build: Callable[[gd.GraphBuilder, Value], Value | tuple[Value, ...]],
    dtype: DType = gd.float32,
) -> Sample:
    """One op on an input x."""
    return Sample(f"{name}_{dtype}", lambda g, rng: build(g, g.input("x", shape, dtype)))


def concat(name: str, shapes: list[tuple[int, ...]], axis: int, *dtypes: DType) -> Sample:
    """Inputs joined along an axis."""

    def build(g: gd.GraphBuilder, rng: object) -> Value:
        given = dtypes * (len(shapes) if len(dtypes) == 1 else 1)
        xs = [g.input(f"x{i}", s, t) for i, (s, t) in enumerate(zip(shapes, given, strict=True))]
        return g.concat(xs, axis=axis)

    return Sample(f"concat_{name}_{'_'.join(map(str, dtypes))}", build)


def gather(name: str, x: tuple[int, ...], indices: tuple[int, ...], axis: int, dtype: DType, index: DType) -> Sample:
    """A look-up, with indices from twice before the start to twice past the end."""
    n = x[axis]
    return Sample(
        f"gather_{name}_{dtype}_{index}",
        lambda g, rng: g.gather(g.input("x", x, dtype), g.input("indices", indices, index), axis=axis),
        {"indices": (-2 * n, 2 * n)},
    )


def write(name: str, x: tuple[int, ...], extent: int, axis: int, dtype: DType, start: int | DType) -> Sample:
    """A window of `extent` along `axis` written into x, at a fixed start or at one that is read."""
    window = (*x[:axis], extent, *x[axis + 1 :])

    def build(g: gd.GraphBuilder, rng: object) -> Value:
        at = start if isinstance(start, int) else g.input("start", (), start)
        return g.write_slice(g.input("x", x, dtype), g.input("update", window, dtype), at, axis=axis)

    return Sample(f"write_slice_{name}_{dtype}", build, {"start": (-3, x[axis] + 3)})


def cache(dtype: DType) -> Sample:
    """One token's key and value appended to a cache, and attention over what it then holds."""

    def build(g: gd.GraphBuilder, rng: object) -> Stateful:
        b, hq, hkv, capacity, d = 2, 6, 2, 9, 8
        q = g.input("q", (b, hq, 1, d), dtype)
        k, v = (g.state(n, (b, hkv, capacity, d), dtype) for n in ("k_cache", "v_cache"))
        start = g.input("start", (1,), gd.int32)
        k_next = g.write_slice(k, g.input("k", (b, hkv, 1, d), dtype), start, axis=2, name="k_next")
        v_next = g.write_slice(v, g.input("v", (b, hkv, 1, d), dtype), start, axis=2, name="v_next")
        lengths = g.expand(g.add(start, 1), (b,))
        o = g.attention(q, k_next, v_next, kv_lengths=lengths)
        return Stateful({"o": o}, {"k_cache": k_next, "v_cache": v_next})

    return Sample(f"cache_append_{dtype}", build, {"start": (0, 8)})


def convert(g: gd.GraphBuilder, rng: object) -> Value:
    """What only the layout pass makes: x with its channels innermost."""
    x = g.input("x", (2, 3, 5, 4), gd.float16)
    laid_out = TensorType(x.type.shape, x.type.dtype, channels_last(x.type.shape))
    return g.relu(g._writer.emit(Convert(), (x,), types=[laid_out])[0])


def chain(g: gd.GraphBuilder, x: Value) -> Value:
    """Heads split off, reordered and joined again: views of views."""
    heads = g.transpose(g.reshape(x, (3, 5, 4, 2)), (0, 2, 1, 3))
    return g.reshape(g.transpose(g.slice(heads, (0, 1, 0, 0), (3, 4, 5, 2)), (0, 2, 1, 3)), (3, 5, 6))


SAMPLES = [
    moved("reshape", (4, 6, 5), lambda g, x: g.reshape(x, (8, -1))),
    moved("reshape_of_transposed", (4, 6, 5), lambda g, x: g.reshape(g.transpose(x, (1, 0, 2)), (24, 5)), gd.float16),
    moved("transpose", (2, 3, 5, 7), lambda g, x: g.transpose(x, (0, 2, 3, 1))),
    moved("transpose_to_channels_first", (2, 33, 5, 65), lambda g, x: g.transpose(x, (0, 3, 1, 2)), gd.float16),
    moved("transpose_matrix", (65, 33), lambda g, x: g.transpose(x, (1, 0)), gd.int8),
    moved("transpose_rank_five", (2, 3, 4, 5, 6), lambda g, x: g.transpose(x, (4, 1, 3, 0, 2)), gd.bfloat16),
    moved("expand", (3, 1, 5), lambda g, x: g.expand(x, (2, -1, 4, 5))),
    moved("expand_scalar", (), lambda g, x: g.expand(x, (3, 4)), gd.float64),
    moved("squeeze", (3, 1, 5, 1), lambda g, x: g.squeeze(x, (1, -1)), gd.float16),
    moved("unsqueeze", (3, 5), lambda g, x: g.unsqueeze(x, (0, -1))),
    moved("split_sizes", (3, 10, 4), lambda g, x: g.split(x, (2, 5, 3), axis=1), gd.float16),
    moved("split_sections", (3, 4, 9), lambda g, x: g.split(x, 3, axis=-1)),
    moved("slice", (7, 9, 5), lambda g, x: g.slice(x, (1, -6, None), (None, -1, 4), (2, 1, None))),
    moved("slice_of_axes", (7, 9, 5), lambda g, x: g.slice(x, (2,), (9,), (3,), axes=(-2,)), gd.bfloat16),
    moved("pad", (3, 5, 4), lambda g, x: g.pad(x, ((1, 0), (0, 0), (2, 3)), value=-1.5), gd.float16),
    moved("pad_integers", (3, 5), lambda g, x: g.pad(x, ((1, 2), (0, 3)), value=7), gd.int32),
    moved("pad_bools", (3, 5), lambda g, x: g.pad(x, ((1, 2), (0, 3)), value=1), gd.bool),
    moved("chain_of_views", (3, 5, 8), chain, gd.float16),
    concat("rows", [(2, 5), (3, 5), (1, 5)], 0, gd.float32),
    concat("channels", [(2, 3, 5, 4), (2, 7, 5, 4)], 1, gd.float16),
    concat("innermost", [(3, 1), (3, 6), (3, 3)], -1, gd.int32),
    concat("promoted", [(2, 3), (2, 4)], 1, gd.float16, gd.float32),
    concat("one", [(4, 3)], 0, gd.bool),
    gather("rows", (11, 6), (4, 3), 0, gd.float16, gd.int32),
    gather("columns", (5, 7, 3), (4,), 1, gd.float32, gd.int64),
    gather("one", (5, 7), (), 1, gd.bfloat16, gd.int32),
    gather("integers", (9, 2), (3, 2), 0, gd.int64, gd.int64),
    write("dynamic", (3, 7, 5), 2, 1, gd.float32, gd.int32),
    write("dynamic_long", (6, 4), 6, 0, gd.float16, gd.int64),
    write("fixed", (6, 9), 4, 1, gd.bfloat16, 3),
    write("fixed_beyond", (6, 9), 4, 1, gd.int32, 100),
    Sample("iota_int32", lambda g, rng: g.add(g.iota(9), g.input("x", (4, 9), gd.int32))),
    Sample("iota_int64", lambda g, rng: g.add(g.iota(129, dtype=gd.int64), g.input("x", (129,), gd.int64))),
    Sample("convert_to_channels_last", convert),
    cache(gd.float32),
    cache(gd.float16),
]
