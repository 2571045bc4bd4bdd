"""The description of a region as one cuBLASLt call, checked by running it with column-major meaning in numpy."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.cublaslt.axes import MOST_CALLS
from graphdnn.engines.cublaslt.problem import Problem, Start, describe
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import row_major
from tests.engines.cublaslt.emulator import run
from tests.engines.cublaslt.product import (
    TAILS,
    Strided,
    behind,
    draw,
    expected,
    memory_of,
    nothing,
    packed,
    product,
    relu,
    residual,
    scale_of,
    times,
    vector,
)

SIZES = (1, 3, 5, 7, 23, 33, 63, 65, 127, 129, 300)


def problem_of(region: Region) -> Problem:
    found = describe(region)
    assert isinstance(found, Problem), str(found)
    return found


def check(region: Region, rng: np.random.Generator) -> Problem:
    """Runs the description and compares with the definition, gaps of the output included."""
    problem = problem_of(region)
    inputs = draw(region, rng)
    memory = memory_of(region, inputs)
    run(problem, memory)
    (y,) = region.outputs
    right = expected(region, inputs)
    found = y.type.strided(memory[-1]).astype(np.float64)
    error = np.abs(found - right).max() / scale_of(region, inputs, right)
    assert (
        error <= {"float64": 1e-12, "float32": 1e-6, "int32": 0, "float16": 2e-3, "bfloat16": 1.6e-2}[y.type.dtype.name]
    )
    y.type.strided(memory[-1])[...] = np.nan if y.type.dtype.is_float else 99
    rest = memory[-1].astype(np.float64)
    assert np.isnan(rest).all() if y.type.dtype.is_float else (rest == 99).all()
    return problem


def stored(rng: np.random.Generator, batch: tuple[int, ...], rows: int, columns: int) -> Strided:
    """A matrix by rows or by columns, with or without gaps."""
    by_columns = bool(rng.integers(2))
    inner, outer = (rows, columns) if by_columns else (columns, rows)
    ld = inner + int(rng.choice([0, 0, 1, 5]))
    step = ld * outer + int(rng.choice([0, 0, 3]))
    strides: list[int] = []
    for n in reversed(batch):
        strides.insert(0, step)
        step *= n
    return Strided((*batch, rows, columns), (*strides, *((1, ld) if by_columns else (ld, 1))))


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32, gd.float64], ids=str)
def test_every_epilogue_of_every_type(tail: str, dtype: gd.DType, rng: np.random.Generator) -> None:
    check(product(Strided((7, 23)), Strided((23, 5)), dtype, TAILS[tail]), rng)


@pytest.mark.parametrize("tail", ["alone", "bias", "residual", "bias residual gelu"])
def test_sizes(tail: str, rng: np.random.Generator) -> None:
    for m, n, k in zip(SIZES, rng.permutation(SIZES), rng.permutation(SIZES), strict=True):
        check(product(Strided((m, k)), Strided((k, n)), gd.float32, TAILS[tail]), rng)
    for m, n, k in itertools.product((1, 2), (1, 3), (1, 5)):
        check(product(Strided((m, k)), Strided((k, n)), gd.float32, TAILS[tail]), rng)


def test_random_strides(rng: np.random.Generator) -> None:
    """Operands by rows and by columns, gaps, batches that repeat, and whatever is added."""
    batches: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((), ()),
        ((3,), (3,)),
        ((3,), ()),
        ((), (3,)),
        ((1,), (4,)),
        ((2, 3), (2, 3)),
        ((2, 3), ()),
        ((1, 1), (2, 3)),
    ]
    names = list(TAILS)
    for _ in range(300):
        batch_a, batch_b = batches[rng.integers(len(batches))]
        m, n, k = (int(x) for x in rng.choice([1, 2, 3, 5, 8, 13, 17], 3))
        a, b = stored(rng, batch_a, m, k), stored(rng, batch_b, k, n)
        check(product(a, b, gd.float32, TAILS[names[rng.integers(len(names))]]), rng)


def test_a_result_by_columns_takes_its_bias_along_rows(rng: np.random.Generator) -> None:
    problem = check(product(Strided((7, 23)), Strided((23, 5)), gd.float32, vector(-2), strides=(1, 9)), rng)
    assert (problem.m, problem.n, problem.d.ld, problem.epilogue) == (7, 5, 9, "BIAS")
    assert problem.a.index == 0


def test_a_result_by_rows_is_the_transpose(rng: np.random.Generator) -> None:
    problem = check(product(Strided((7, 23)), Strided((23, 5)), gd.float32, vector(-1)), rng)
    assert (problem.m, problem.n, problem.a.index, problem.b.index) == (5, 7, 1, 0)


def test_gaps_in_the_result_stay(rng: np.random.Generator) -> None:
    check(product(Strided((3, 7, 5)), Strided((3, 5, 4)), tail=relu, strides=(7 * 6 + 5, 6, 1)), rng)
    check(product(Strided((3, 7, 5)), Strided((3, 5, 4)), tail=relu, strides=(4 * 9, 1, 9)), rng)


def test_batch_axes_with_one_right_operand_become_rows(rng: np.random.Generator) -> None:
    problem = check(product(Strided((4, 3, 7, 5)), Strided((5, 6)), tail=TAILS["bias relu"]), rng)
    assert (problem.batch, problem.n) == (1, 4 * 3 * 7)


def test_batch_axes_with_one_left_operand_become_columns(rng: np.random.Generator) -> None:
    b = Strided((3, 5, 6), (30, 1, 5))
    problem = check(product(Strided((7, 5)), b, strides=(42, 1, 7)), rng)
    assert (problem.batch, problem.n) == (1, 18)


def test_batch_axes_merge(rng: np.random.Generator) -> None:
    problem = check(product(Strided((4, 3, 7, 5)), Strided((4, 3, 5, 6))), rng)
    assert problem.batch == 12
    interleaved = Strided((2, 3, 7, 5), (3 * 35, 35, 5, 1))
    heads = Strided((2, 3, 5, 6), (3 * 30, 30, 6, 1))
    result = (3 * 42, 42, 6, 1)
    assert check(product(interleaved, heads, strides=result), rng).batch == 6


def test_batch_axes_in_another_order_of_memory_merge(rng: np.random.Generator) -> None:
    a = Strided((2, 3, 7, 5), (35, 70, 5, 1))
    b = Strided((2, 3, 5, 6), (30, 60, 6, 1))
    assert check(product(a, b, strides=(42, 84, 6, 1)), rng).batch == 6


def test_heads_inside_a_row_take_a_call_each_sequence(rng: np.random.Generator) -> None:
    problem = check(product(packed(2, 3, 7, 5), packed(2, 3, 7, 5, by_columns=True)), rng)
    assert (problem.batch, problem.calls, problem.a.batch_stride) == (3, 2, 5)
    assert problem.starts == (Start(), Start(7 * 45, 7 * 45, 3 * 49, 3 * 49))


def test_more_sequences_than_heads_take_a_call_each_head(rng: np.random.Generator) -> None:
    problem = check(product(packed(4, 3, 7, 5), packed(4, 3, 7, 5, by_columns=True), tail=times(0.5)), rng)
    assert (problem.batch, problem.calls, problem.a.batch_stride) == (4, 3, 7 * 45)


def test_heads_that_are_written_side_by_side(rng: np.random.Generator) -> None:
    weights, values = Strided((2, 3, 7, 7)), packed(2, 3, 7, 5)
    problem = check(product(weights, values, strides=(7 * 15, 5, 15, 1)), rng)
    assert (problem.batch, problem.calls) == (3, 2)


def test_query_heads_that_share_keys_become_rows_where_they_lie_as_such(rng: np.random.Generator) -> None:
    """Two sequences, three groups of four query heads, each with keys of its own, which are slices of rows."""
    keys = Strided((2, 3, 1, 5, 7), (7 * 45, 5, 5, 1, 45))
    dense = check(product(Strided((2, 3, 4, 7, 5)), keys), rng)
    assert (dense.batch, dense.n, dense.calls) == (3, 4 * 7, 2)
    sliced = check(product(Strided((2, 3, 4, 7, 5), (7 * 60, 20, 5, 60, 1)), keys), rng)
    assert (sliced.batch, sliced.n, sliced.calls) == (4, 7, 6)


def test_operands_that_repeat_along_different_axes(rng: np.random.Generator) -> None:
    problem = check(product(Strided((4, 1, 7, 5)), Strided((1, 3, 5, 6))), rng)
    assert (problem.batch, problem.calls) == (4, 3)


def scattered(rng: np.random.Generator, batch: tuple[int, ...], rows: int, columns: int) -> Strided:
    """A matrix by rows or by columns for each batch entry; the batch axes lie in any order, within a matrix's rows or
    outside, with gaps."""
    inner, outer = (rows, columns) if rng.integers(2) else (columns, rows)
    strides = dict.fromkeys(range(len(batch)), 0)
    order = [int(x) for x in rng.permutation(len(batch))]
    inside = int(rng.integers(len(batch) + 1))
    step = inner
    for axis in order[:inside]:
        strides[axis], step = step, step * batch[axis]
    ld = step + int(rng.choice([0, 0, 3]))
    step = ld * outer + int(rng.choice([0, 0, 5]))
    for axis in order[inside:]:
        strides[axis], step = step, step * batch[axis]
    last = (1, ld) if inner == rows and (inner != columns or rng.integers(2)) else (ld, 1)
    return Strided((*batch, rows, columns), (*strides.values(), *last))


def thinned(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with some axes of size 1, along which a tensor repeats."""
    return tuple(n if rng.integers(3) else 1 for n in shape)


def test_batch_axes_anyhow(rng: np.random.Generator) -> None:
    """Three batch axes, each tensor repeating along any of them and lying as it likes."""
    calls = set()
    for _ in range(400):
        batch = tuple(int(x) for x in rng.choice([1, 2, 3], 3))
        m, n, k = (int(x) for x in rng.choice([1, 2, 3, 5], 3))
        batches = thinned(rng, batch), thinned(rng, batch)
        whole = tuple(np.broadcast_shapes(*batches))
        a, b = scattered(rng, batches[0], m, k), scattered(rng, batches[1], k, n)
        d = scattered(rng, whole, m, n).strides
        assert d is not None
        by_columns = d[-2] == 1 and d[-1] != 1
        vector_shape = (*thinned(rng, whole), *((m, 1) if by_columns else (1, n)))
        full_shape = (*thinned(rng, whole), m, n)
        tails = (
            nothing,
            relu,
            residual(d),
            lambda g, y, new, s=vector_shape: g.add(y, new("bias", s)),
            lambda g, y, new, s=full_shape: g.sub(y, new("c", s)),
        )
        tail = tails[int(rng.integers(len(tails) if not by_columns else 4))]
        calls.add(check(product(a, b, gd.float32, tail, strides=d), rng).calls)
    assert {1, 2, 3} <= calls


def test_too_many_calls_are_declined_with_the_strides_that_make_them_fewer() -> None:
    many = MOST_CALLS + 1
    heads, other = packed(many, many, 2, 3), Strided((many, many, 3, 4))
    found = describe(product(heads, other))
    assert isinstance(found, Decline)
    assert (found.code, f"makes {many} calls" in found.reason) == (Code.LAYOUT, True), found.reason
    assert found.fix is not None
    assert (found.fix.target, found.fix.attribute, found.fix.before) == ("a", "strides", str(heads.strides))
    assert found.fix.after == str(row_major(heads.shape))
    assert problem_of(product(Strided(heads.shape), other)).calls == 1
    assert problem_of(product(packed(many, MOST_CALLS, 2, 3), Strided((many, MOST_CALLS, 3, 4)))).calls == MOST_CALLS


def test_a_fix_names_all_tensors_that_must_change() -> None:
    many = MOST_CALLS + 1
    found = describe(product(packed(many, many, 4, 3), packed(many, many, 4, 3, by_columns=True)))
    assert isinstance(found, Decline)
    assert found.fix is not None
    assert (found.fix.target, found.fix.attribute) == ("a and b", "strides")
    g = gd.GraphBuilder("square")
    sliced = packed(many, many, 4, 4)
    x = g.input("x", sliced.shape, gd.float32, strides=sliced.strides)
    graph = g.build({"y": g.matmul(x, x)})
    twice = describe(Region.of(graph, graph.nodes))
    assert isinstance(twice, Decline)
    assert twice.fix is not None
    assert (twice.fix.target, twice.fix.after) == ("x", str(row_major(sliced.shape)))
    crossed = describe(product(Strided((many, 1, 2, 3)), Strided((1, many, 3, 2))))
    assert isinstance(crossed, Decline)
    assert crossed.fix is None, "no strides make one operand repeat along two axes as along one"


@pytest.mark.parametrize(("depth", "dtype", "bytes"), [(8, gd.float16, 16), (6, gd.float16, 4), (5, gd.float16, 2)])
def test_calls_start_where_loads_are_no_wider_than_said(depth: int, dtype: gd.DType, bytes: int) -> None:
    region = product(packed(4, 3, 8, depth), packed(4, 3, 8, depth, by_columns=True), dtype)
    assert problem_of(region).alignment == bytes


def test_one_batch_entry_of_heads(rng: np.random.Generator) -> None:
    heads = Strided((1, 3, 7, 5), (7 * 15, 5, 15, 1))
    problem = check(product(heads, Strided((1, 3, 5, 6))), rng)
    assert (problem.batch, problem.b.batch_stride, problem.b.ld) == (3, 5, 15)


def test_a_bias_for_each_batch_entry(rng: np.random.Generator) -> None:
    problem = check(
        product(
            Strided((3, 7, 5)), Strided((3, 5, 4)), tail=lambda g, y, new: g.relu(g.add(y, new("bias", (3, 1, 4))))
        ),
        rng,
    )
    assert problem.bias is not None
    assert problem.bias.batch_stride == 4


def test_a_residual_that_repeats_over_the_batch(rng: np.random.Generator) -> None:
    problem = check(
        product(Strided((3, 7, 5)), Strided((3, 5, 4)), tail=lambda g, y, new: g.add(y, new("c", (7, 4)))), rng
    )
    assert (problem.c.batch_stride, problem.beta) == (0, 1)


def test_a_residual_with_strides_of_its_own(rng: np.random.Generator) -> None:
    problem = check(product(Strided((7, 5)), Strided((5, 4)), tail=residual((11, 1))), rng)
    assert (problem.c.ld, problem.d.ld) == (11, 4)


def test_one_tensor_in_several_places(rng: np.random.Generator) -> None:
    def same_twice(g: gd.GraphBuilder, y: Value, new: Callable[..., Value]) -> Value:
        c = new("c", y.type.shape)
        return g.add(g.sub(y, c), c)

    found = describe(product(Strided((5, 5)), Strided((5, 5)), tail=same_twice))
    assert isinstance(found, Decline), "two matrices are one too many, even when they are the same"
    g = gd.GraphBuilder("square")
    x = g.input("a", (5, 5), gd.float32)
    graph = g.build({"y": g.add(g.matmul(x, x), x)})
    region = Region.of(graph, graph.nodes)
    problem = problem_of(region)
    array = rng.standard_normal((5, 5)).astype(np.float32)
    memory = memory_of(region, {"a": array})
    run(problem, memory)
    np.testing.assert_allclose(memory[-1].reshape(5, 5), array @ array + array, rtol=1e-5, atol=1e-5)


def test_float_outputs_of_halves(rng: np.random.Generator) -> None:
    problem = check(
        product(Strided((7, 24)), Strided((24, 5)), gd.float16, lambda g, y, new: g.cast(y, gd.float32)), rng
    )
    assert problem.d.dtype == gd.float32


def test_a_single_row_or_column_gets_a_leading_dimension_for_wide_loads() -> None:
    problem = problem_of(product(Strided((1, 23)), Strided((23, 5)), gd.float16))
    assert (problem.b.columns, problem.b.ld % 8) == (1, 0)
    assert (problem.d.columns, problem.d.ld % 8) == (1, 0)


def test_of_two_ways_to_store_a_matrix_the_one_for_wide_loads_is_told() -> None:
    problem = problem_of(product(Strided((33, 1)), Strided((1, 40)), gd.float16))
    assert (problem.b.rows, problem.b.ld, problem.transpose_b) == (33, 40, True)


DECLINES: dict[str, tuple[Region, Code]] = {
    "gelu in the erf form": (product(Strided((7, 5)), Strided((5, 4)), tail=lambda g, y, new: g.gelu(y)), Code.OP),
    "bias along the other axis": (product(Strided((7, 5)), Strided((5, 4)), tail=vector(-2)), Code.BROADCAST),
    "a scalar tensor": (
        product(Strided((7, 5)), Strided((5, 4)), tail=lambda g, y, new: g.add(y, new("c", (1,)))),
        Code.BROADCAST,
    ),
    "residual by columns": (product(Strided((7, 5)), Strided((5, 4)), tail=residual((1, 7))), Code.LAYOUT),
    "scaled bias": (product(Strided((7, 5)), Strided((5, 4)), tail=behind(vector(-1), times(2.0))), Code.PATTERN),
    "after the activation": (product(Strided((7, 5)), Strided((5, 4)), tail=behind(relu, residual())), Code.PATTERN),
    "two activations": (product(Strided((7, 5)), Strided((5, 4)), tail=behind(relu, TAILS["gelu"])), Code.PATTERN),
    "rounding in the middle": (
        product(
            Strided((7, 5)), Strided((5, 4)), tail=lambda g, y, new: g.relu(g.cast(g.cast(y, gd.float16), gd.float32))
        ),
        Code.PATTERN,
    ),
    "a larger result": (
        product(Strided((7, 5)), Strided((5, 4)), tail=lambda g, y, new: g.add(y, new("c", (3, 7, 4)))),
        Code.BROADCAST,
    ),
    "times zero": (product(Strided((7, 5)), Strided((5, 4)), tail=times(0.0)), Code.ATTRIBUTE),
    "times its own": (product(Strided((7, 5)), Strided((5, 4)), tail=lambda g, y, new: g.mul(y, y)), Code.PATTERN),
    "times a tensor": (
        product(Strided((7, 5)), Strided((5, 4)), tail=lambda g, y, new: g.mul(y, new("c", (7, 4)))),
        Code.OP,
    ),
    "a number added": (product(Strided((7, 5)), Strided((5, 4)), tail=lambda g, y, new: g.add(y, 1.0)), Code.OP),
    "work before": (
        product(
            Strided((7, 5)),
            Strided((5, 4)),
            tail=lambda g, y, new: g.add(g.matmul(new("x", (7, 4)), new("w", (4, 4))), y),
        ),
        Code.PATTERN,
    ),
    "rows that repeat": (product(Strided((7, 5), (0, 1)), Strided((5, 4))), Code.LAYOUT),
    "no contiguous axis": (product(Strided((7, 5), (10, 2)), Strided((5, 4))), Code.LAYOUT),
    "a result without a contiguous axis": (product(Strided((7, 5)), Strided((5, 4)), strides=(8, 2)), Code.LAYOUT),
    "an operand with overlaps": (product(Strided((7, 5), (2, 1)), Strided((5, 4))), Code.LAYOUT),
    "a reduction behind": (product(Strided((7, 5)), Strided((5, 4)), tail=lambda g, y, new: g.softmax(y)), Code.OP),
}


@pytest.mark.parametrize("name", DECLINES)
def test_declines(name: str) -> None:
    region, code = DECLINES[name]
    found = describe(region)
    assert isinstance(found, Decline), f"accepted as {found}"
    assert (found.code, bool(found.reason)) == (code, True), found.reason


def test_a_prologue_and_a_second_output_are_declined() -> None:
    g = gd.GraphBuilder("both")
    x, w = g.input("x", (7, 5), gd.float32), g.input("w", (5, 4), gd.float32)
    y = g.matmul(g.relu(x), w)
    graph = g.build({"y": g.relu(y), "z": y})
    before = describe(Region.of(graph, graph.nodes))
    assert isinstance(before, Decline)
    assert (before.code, "relu" in before.reason) == (Code.PATTERN, True)
    escaping = describe(Region.of(graph, graph.nodes[1:]))
    assert isinstance(escaping, Decline)
    assert (escaping.code, "%matmul" in escaping.reason) == (Code.ESCAPE, True)


def test_products_of_whole_numbers_are_exact(rng: np.random.Generator) -> None:
    region = product(Strided((8, 16)), Strided((16, 4), (1, 16)), gd.int8)
    problem = check(region, rng)
    assert (problem.transpose_a, problem.transpose_b, problem.d.dtype) == (True, False, gd.int32)
