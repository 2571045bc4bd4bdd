import numpy as np
import pytest

import graphdnn as gd
from graphdnn.passes.rules.sinking import before_reshape, runs
from graphdnn.passes.sink import sink_views
from tests.passes.graph_text import nodes, parsed
from tests.passes.random_graphs import assert_close, assert_same_meaning, random_arrays, random_graph, results

PRODUCT = "%m = matmul(%x, %w) : f64[6x5]"
INPUTS = "x: f64[6x4], w: f64[4x5], b: f64[5], r: f64[2x3x5], p: f64[3x1], q: f64[2x1x1]"


def split(lines: list[str], *after: str) -> gd.Graph:
    """A product whose rows are split in two axes, and what follows."""
    return parsed(INPUTS, PRODUCT, *lines, *after)


ROWS = "%s = reshape(%m) {shape=(2, 3, 5)} : f64[2x3x5]"


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        ("relu(%s) : f64[2x3x5]", "relu(%m) : f64[6x5]"),
        ('cast(%s) {dtype="float32"} : f32[2x3x5]', 'cast(%m) {dtype="float32"} : f32[6x5]'),
        ("mul(%s, 2.0:f64) : f64[2x3x5]", "mul(%m, 2.0:f64) : f64[6x5]"),
        ("bias(%s, %b) {axis=2} : f64[2x3x5]", "bias(%m, %b) {axis=1} : f64[6x5]"),
        ("add(%b, %s) : f64[2x3x5]", "add(%b, %m) : f64[6x5]"),
        ("sub(%s, %r) : f64[2x3x5]", "sub(%m, %s_0) : f64[6x5]"),
        # what varies along a part of the rows, or makes the result larger, stays behind
        ("sub(%s, %p) : f64[2x3x5]", None),
        ("sub(%s, %q) : f64[2x3x5]", None),
    ],
)
def test_pointwise_ops_go_before_the_split(line, moved, rng):
    graph = split([ROWS], f"%y = {line}")
    done = sink_views(graph).graph
    if moved is None:
        assert done is graph
        return
    assert any(n.split(" = ")[1].startswith(moved) for n in nodes(done)[:-1]), nodes(done)
    assert done.producer[done.outputs["y"]].op.label == "reshape"
    assert done.nodes[1 if "%s_0" not in moved else 2].origins == ("y",)
    assert_same_meaning(graph, done, rng)
    assert sink_views(done).graph is done


def test_a_whole_epilogue_goes_before_the_split(rng):
    graph = split(
        [ROWS],
        "%c = bias(%s, %b) {axis=2} : f64[2x3x5]",
        "%d = mul(%c, 0.5:f64) : f64[2x3x5]",
        "%e = erf(%c) : f64[2x3x5]",
        "%f = mul(%d, %e) : f64[2x3x5]",
        "%y = add(%f, %r) : f64[2x3x5]",
    )
    done = sink_views(graph).graph
    assert [n.op.label for n in done.nodes if not n.op.is_renaming] == ["matmul", "bias", "mul", "erf", "mul", "add"]
    assert [n.op.label for n in done.nodes if n.op.is_renaming] == ["reshape", "reshape"]
    assert all(v.type.rank == 2 for n in done.nodes if not n.op.is_renaming for v in n.results)
    assert_same_meaning(graph, done, rng)


def test_a_residual_that_a_node_makes(rng):
    """Two reshapes do not chase each other: toward fewer axes only, and an island stays together."""
    g = gd.GraphBuilder()
    x, w = g.input("x", (6, 4), gd.float64), g.constant(rng.normal(size=(4, 5)))
    residual = g.layer_norm(g.input("r", (2, 3, 5), gd.float64))
    split = g.reshape(g.matmul(x, w), (2, 3, 5))
    graph = g.build({"y": g.add(split, residual), "alone": g.mul(split, g.sin(residual))})
    done = sink_views(graph).graph
    (add,) = (n for n in done.nodes if n.op.label == "add")
    (mul,) = (n for n in done.nodes if n.op.label == "mul")
    assert (add.result.type.shape, mul.result.type.shape) == ((6, 5), (2, 3, 5))
    assert_same_meaning(graph, done, rng)


def test_a_merge_before_a_sum_with_a_product_stays(rng):
    g = gd.GraphBuilder()
    product = g.matmul(g.input("x", (6, 4), gd.float64), g.constant(rng.normal(size=(4, 5))))
    merged = g.reshape(g.layer_norm(g.input("r", (2, 3, 5), gd.float64)), (6, 5))
    graph = g.build({"y": g.add(merged, product)})
    assert sink_views(graph).graph is graph


def test_channels_of_a_convolution(rng):
    g = gd.GraphBuilder()
    x, w = g.input("x", (2, 3, 5, 4), gd.float64), g.constant(rng.normal(size=(6, 3, 1, 1)))
    rows = g.reshape(g.conv(x, w), (2, 6, 20))
    graph = g.build({"y": g.relu(g.bias(rows, g.constant(rng.normal(size=6)), axis=1))})
    done = sink_views(graph).graph
    assert [n.op.label for n in done.nodes] == ["conv", "bias", "relu", "reshape"]
    assert done.nodes[1].op.axis == 1
    assert_same_meaning(graph, done, rng)


def test_a_reshape_of_an_input_stays():
    graph = parsed("x: f32[6x5]", "%s = reshape(%x) {shape=(2, 3, 5)} : f32[2x3x5]", "%y = relu(%s) : f32[2x3x5]")
    assert sink_views(graph).graph is graph


def test_a_reshape_that_others_read_stays_for_them(rng):
    graph = split([ROWS], "%y = relu(%s) : f64[2x3x5]", "return y = %y", "return s = %s")
    done = sink_views(graph).graph
    assert [n.op.label for n in done.nodes] == ["matmul", "reshape", "relu", "reshape"]
    assert_same_meaning(graph, done, rng)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((6, 5), (2, 3, 5), [((0,), (0, 1)), ((1,), (2,))]),
        ((4, 6), (6, 4), [((0, 1), (0, 1))]),
        ((2, 1, 3), (2, 3), [((0,), (0,)), ((1, 2), (1,))]),
        ((2, 3), (2, 3, 1, 1), [((0,), (0,)), ((1,), (1,)), ((), (2,)), ((), (3,))]),
        ((), (1, 1), [((), (0,)), ((), (1,))]),
    ],
)
def test_runs_of_axes(before, after, expected):
    assert [(tuple(a), tuple(b)) for a, b in runs(before, after)] == expected


def test_shapes_before_a_reshape(rng):
    """Against numpy: broadcasting and then reshaping back is what the shape says, or no shape would do."""
    shapes = [((6, 5), (2, 3, 5)), ((2, 3, 5), (6, 5)), ((4, 6), (2, 2, 6)), ((2, 12), (2, 3, 4)), ((3, 1, 4), (3, 4))]
    for before, after in shapes:
        for keep in np.ndindex(*(2,) * len(after)):
            shape = tuple(n if k else 1 for n, k in zip(after, keep, strict=True))
            moved = before_reshape(shape, before, after)
            array = rng.normal(size=shape)
            wanted = np.broadcast_to(array, after).reshape(before)
            if moved is not None:
                np.testing.assert_array_equal(np.broadcast_to(array.reshape(moved), before), wanted)


def test_random_graphs(seed):
    families = ("matmul", "movement", "binary", "unary", "conv", "norm")
    changed = 0
    for index in range(60):
        rng = np.random.default_rng([seed, index, 3])
        graph = random_graph(rng, families=families)
        arrays = random_arrays(graph, rng)
        done = sink_views(graph)
        assert_close(results(graph, arrays), results(done.graph, arrays))
        assert sink_views(done.graph).graph is done.graph
        changed += bool(done.changes)
    assert changed > 10
