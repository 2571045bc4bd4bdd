import numpy as np
import pytest

import graphdnn as gd
from graphdnn.passes.canonicalize import canonicalize
from graphdnn.passes.fold import fold
from tests.numbers import TOLERANCE
from tests.passes.random_graphs import assert_same_meaning

EXTENT = {
    "conv": (3, 4, 6, 5),
    "conv_transpose": (3, 4, 6, 5),
    "matmul": (9, 4),
    "grouped": (3, 4, 6, 5),
    "grouped transpose": (3, 4, 6, 5),
    "conv 3-D": (2, 4, 3, 5, 4),
}
CHANNELS = 6


def linear(g, kind, x, rng, dtype=gd.float64):
    """A linear op with constant weights that makes six channels out of x's four."""

    def weights(*shape):
        return g.constant(rng.normal(size=shape).astype(dtype.numpy), name="w")

    match kind:
        case "conv":
            return g.conv(x, weights(6, 4, 3, 3), padding=1, name="linear")
        case "conv 3-D":
            return g.conv(x, weights(6, 4, 1, 3, 3), name="linear")
        case "grouped":
            return g.conv(x, weights(6, 2, 3, 3), groups=2, name="linear")
        case "conv_transpose":
            return g.conv_transpose(x, weights(4, 6, 2, 2), stride=2, name="linear")
        case "grouped transpose":
            return g.conv_transpose(x, weights(4, 3, 2, 2), stride=2, groups=2, name="linear")
    return g.matmul(x, weights(4, 6), name="linear")


def vectors(g, rng, dtype=gd.float64):
    """mean, var, scale, bias"""
    arrays = [rng.normal(size=6), rng.uniform(0.5, 2, 6), rng.uniform(0.5, 2, 6), rng.normal(size=6)]
    return [g.constant(a.astype(dtype.numpy)) for a in arrays]


def labels(graph):
    return [n.op.label for n in graph.nodes]


@pytest.mark.parametrize("kind", EXTENT)
@pytest.mark.parametrize("before", ["", "bias", "add", "bias, add"])
def test_batch_norm_into_weights(kind, before, rng):
    g = gd.GraphBuilder()
    x = g.input("x", EXTENT[kind], gd.float64)
    y = linear(g, kind, x, rng)
    if "bias" in before:
        y = g.bias(y, g.constant(rng.normal(size=6)), axis=1)
    if "add" in before:
        y = g.add(g.constant(rng.normal(size=(1, 6, *(1,) * (y.type.rank - 2)))), y)
    graph = g.build({"y": g.relu(g.batch_norm(y, *vectors(g, rng), name="bn"))})
    done = fold(graph)
    assert labels(done.graph) == [labels(graph)[0], "bias", "relu"]
    assert done.graph.nodes[0].origins == ("linear", "bn")
    assert done.graph.nodes[1].origins == tuple(n.name for n in graph.nodes[1:-1])
    assert done.changes == ("linear: batch norm bn folded into its weights",)
    assert done.refusals == ()
    assert_same_meaning(graph, done.graph, rng)
    assert fold(done.graph).graph is done.graph


@pytest.mark.parametrize("kind", EXTENT)
@pytest.mark.parametrize("factor", ["number", "vector", "one entry"])
def test_products_into_weights(kind, factor, rng):
    g = gd.GraphBuilder()
    x = g.input("x", EXTENT[kind], gd.float64)
    y = linear(g, kind, x, rng)
    y = g.bias(y, g.constant(rng.normal(size=6)), axis=1)
    shape = (1, 6, *(1,) * (y.type.rank - 2))
    scale = {"number": 0.3, "vector": g.constant(rng.normal(size=shape)), "one entry": g.constant(rng.normal(size=1))}
    graph = g.build({"y": g.relu(g.mul(scale[factor], y, name="product"))})
    done = fold(graph)
    assert labels(done.graph) == [labels(graph)[0], "bias", "relu"]
    assert done.changes == ("linear: product product folded into its weights",)
    assert_same_meaning(graph, done.graph, rng)


def test_channels_of_a_product_of_matrices_are_last(rng):
    """(3, 6, 4) by (4, 6): batch norm's channels are the rows, a factor along the last axis the columns."""
    g = gd.GraphBuilder()
    y = g.matmul(g.input("x", (3, 6, 4), gd.float64), g.constant(rng.normal(size=(4, 6))))
    rows = g.batch_norm(y, *vectors(g, rng))
    columns = g.mul(
        g.matmul(g.input("z", (3, 5, 4), gd.float64), g.constant(rng.normal(size=(4, 6)))),
        g.constant(rng.normal(size=6)),
    )
    graph = g.build({"rows": rows, "columns": columns})
    done = fold(graph).graph
    assert sorted(labels(done)) == ["add", "matmul", "matmul", "mul"]
    assert done.producer[done.outputs["columns"]].op.label == "matmul"
    assert_same_meaning(graph, done, rng)


def test_a_chain_of_norms_and_products(rng):
    g = gd.GraphBuilder()
    y = linear(g, "conv", g.input("x", EXTENT["conv"], gd.float64), rng)
    y = g.batch_norm(g.mul(g.batch_norm(y, *vectors(g, rng)), 0.5) + 0.25, *vectors(g, rng))
    graph = g.build({"y": y})
    done = fold(graph)
    assert labels(done.graph) == ["conv", "bias"]
    assert len(done.changes) == 3
    assert_same_meaning(graph, done.graph, rng)


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32])
def test_weights_are_rounded_once(dtype, rng):
    g = gd.GraphBuilder()
    y = linear(g, "conv", g.input("x", EXTENT["conv"], dtype), rng, dtype)
    mean, var, scale, bias = vectors(g, rng, gd.float32)
    graph = g.build({"y": g.batch_norm(y, mean, var, scale, bias, eps=1e-3)})
    done = fold(graph).graph
    conv, shift = done.nodes
    assert [n.result.type.dtype for n in done.nodes] == [dtype] * 2
    assert all(v.type.dtype == dtype for v in (conv.operands[1], shift.operands[1]))
    m, v, s, b = (graph.payloads[x.name].array().astype(np.float64) for x in (mean, var, scale, bias))
    factor = s / np.sqrt(v + 1e-3)
    wanted = graph.payloads["w"].array().astype(np.float64) * factor[:, None, None, None]
    ulp = {gd.float16: 2**-11, gd.bfloat16: 2**-8, gd.float32: 2**-24}[dtype]
    subnormal = 2**-25 if dtype == gd.float16 else 0
    error = np.abs(done.payloads[conv.operands[1].name].array().astype(np.float64) - wanted)
    assert (error <= np.abs(wanted) * (ulp + 2**-22) + subnormal).all()
    wanted = b - m * factor
    error = np.abs(done.payloads[shift.operands[1].name].array().astype(np.float64) - wanted)
    assert (error <= np.abs(wanted) * ulp + 2**-21).all()


def test_folding_needs_no_data():
    digest = "sha256:" + "ab" * 32
    graph = gd.parse(
        f"""graph g(x: f16[3x4x6x5]) {{
          constant %w: f16[6x4x3x3] {digest}
          constant %mean: f32[6] {digest}
          constant %var: f32[6] {digest}
          constant %scale: f32[6] {digest}
          constant %bias: f32[6] {digest}
          %c = conv(%x, %w) {{stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1)}} : f16[3x6x6x5]
          %n = batch_norm(%c, %mean, %var, %scale, %bias) {{eps=1e-05}} : f16[3x6x6x5]
          return y = %n
        }}"""
    )
    done = fold(graph).graph
    assert labels(done) == ["conv", "bias"]
    assert len({p.digest for p in done.payloads.values()}) == 2
    assert not any(p.has_data for p in done.payloads.values())


def test_case_n4_a_constant_of_full_size_is_no_bias():
    w = np.float32([2, 3]).reshape(2, 1, 1, 1)
    x = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    g = gd.GraphBuilder()
    y = g.conv(g.input("x", x.shape, gd.float32), g.constant(w), groups=2)
    y = g.add(y, g.constant(x / 10))
    graph = g.build(
        {
            "y": y,
            "scaled": g.mul(
                g.add(g.conv(g.input("z", x.shape, gd.float32), g.constant(w), groups=2), g.constant(x / 10)), 2.0
            ),
        }
    )
    done = fold(canonicalize(graph).graph).graph
    assert labels(done) == labels(graph)
    values = gd.evaluate(done, {"x": x, "z": x})
    np.testing.assert_allclose(values["y"].ravel(), [0, 2.1, 4.2, 6.3, 12.4, 15.5, 18.6, 21.7], rtol=1e-6)
    np.testing.assert_allclose(values["scaled"], 2 * values["y"], rtol=1e-6)


def test_case_n11_statistics_that_are_inputs():
    """conv 3->4 and batch norm whose running mean is an input: it is read anew at each run."""
    rng = np.random.default_rng(11)
    g = gd.GraphBuilder()
    x, mean = g.input("x", (2, 3, 5, 5), gd.float32), g.input("mean", (4,), gd.float32)
    w = g.constant(rng.normal(size=(4, 3, 3, 3)).astype(np.float32))
    rest = [g.constant(rng.uniform(0.5, 2, 4).astype(np.float32)) for _ in range(3)]
    graph = g.build({"y": g.batch_norm(g.conv(x, w, name="conv"), mean, *rest, name="bn")})
    done = fold(graph)
    assert [r.reason for r in done.refusals] == ["the mean %mean of batch_norm %bn is no constant"]
    assert "batch_norm" not in labels(done.graph)
    array = rng.normal(size=(2, 3, 5, 5)).astype(np.float32)
    for offset in (0, 5):
        inputs = {"x": array, "mean": np.float32([0, 1, 2, 3]) + offset}
        before, after = (gd.evaluate(n, inputs)["y"] for n in (graph, done.graph))
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-5 * np.abs(before).max())


def test_case_n11_one_conv_used_by_two_batch_norms(rng):
    g = gd.GraphBuilder()
    y = linear(g, "conv", g.input("x", EXTENT["conv"], gd.float64), rng)
    one, two = (g.batch_norm(y, *vectors(g, rng), name=n) for n in ("one", "two"))
    graph = g.build({"one": g.relu(one), "two": two})
    done = fold(graph)
    assert sorted(labels(done.graph)) == ["add", "add", "conv", "mul", "mul", "relu"]
    assert {r.reason for r in done.refusals} == {
        "%linear is needed as it is, by batch_norm %two",
        "%linear is needed as it is, by batch_norm %one",
    }
    assert done.graph.payloads["w"] is graph.payloads["w"]
    assert_same_meaning(graph, done.graph, rng)


def test_weights_shared_by_two_convs(rng):
    g = gd.GraphBuilder()
    w = g.constant(rng.normal(size=(6, 4, 3, 3)))
    x, z = (g.input(n, EXTENT["conv"], gd.float64) for n in "xz")
    graph = g.build({"y": g.batch_norm(g.conv(x, w), *vectors(g, rng)), "z": g.conv(z, w)})
    done = fold(graph).graph
    assert len(done.constants) == 3
    assert_same_meaning(graph, done, rng)


@pytest.mark.parametrize(
    ("spell", "reason"),
    [
        (lambda g, y, bn: {"y": bn(y), "conv": y}, "%linear is needed as it is: it is output conv"),
        (lambda g, y, bn: {"y": bn(y), "relu": g.relu(y)}, "%linear is needed as it is, by relu %relu"),
    ],
)
def test_results_that_are_needed_as_they_are(spell, reason, rng):
    g = gd.GraphBuilder()
    y = linear(g, "conv", g.input("x", EXTENT["conv"], gd.float64), rng)
    graph = g.build(spell(g, y, lambda y: g.batch_norm(y, *vectors(g, rng))))
    done = fold(graph)
    assert [r.reason for r in done.refusals] == [reason]
    assert_same_meaning(graph, done.graph, rng)


def test_weights_that_are_inputs(rng):
    g = gd.GraphBuilder()
    y = g.conv(g.input("x", EXTENT["conv"], gd.float64), g.input("w", (6, 4, 3, 3), gd.float64), name="conv")
    graph = g.build(
        {
            "y": g.batch_norm(y, *vectors(g, rng)),
            "z": g.mul(g.matmul(*(g.input(n, (4, 4), gd.float64) for n in "ab")), 0.5),
        }
    )
    done = fold(graph)
    assert [r.reason for r in done.refusals] == ["the weights %w of conv %conv are no constant"]
    assert labels(done.graph) == ["conv", "mul", "add", "matmul", "mul"]
    assert_same_meaning(graph, done.graph, rng)


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32])
def test_a_batch_norm_alone_is_a_multiply_add(dtype, rng):
    """The factors are float32, and the result is rounded once; statistics may be inputs of other types.

    Of float32 the mean is subtracted first.
    """
    g = gd.GraphBuilder()
    x = g.input("x", (3, 6, 5, 7), dtype)
    mean, var, scale, bias = (
        g.input(n, (6,), t)
        for n, t in (("mean", gd.float32), ("var", gd.float32), ("scale", dtype), ("bias", gd.float32))
    )
    fixed = g.batch_norm(x, *vectors(g, rng, gd.float32))
    graph = g.build({"open": g.batch_norm(x, mean, var, scale, bias), "fixed": fixed})
    done = fold(graph).graph
    steps = ["sub", "mul", "add"] if dtype == gd.float32 else ["mul", "add", "cast"]
    assert [n.op.label for n in done.nodes if "batch_norm_1" not in n.origins] == steps
    wide = {n.result.type.dtype for n in done.nodes if n.op.label in ("mul", "add", "rsqrt", "sub")}
    assert wide == {gd.float32}
    views = [n for n in done.nodes if n.op.is_renaming]
    assert len(views) == 4
    assert {v for n in views for v in n.operands} <= set(done.inputs.values())
    inputs = {n: rng.uniform(0.5, 2, v.type.shape).astype(v.type.dtype.numpy) for n, v in graph.inputs.items()}
    before, after = gd.evaluate(graph, inputs), gd.evaluate(done, inputs)
    for name, array in before.items():
        limit = {gd.float16: 2**-10, gd.bfloat16: 2**-7, gd.float32: 1e-6}[dtype]
        assert np.abs(after[name].astype(np.float64) - array).max() <= limit * np.abs(array.astype(np.float64)).max()


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("wide", [gd.float32, gd.float64], ids=str)
@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32, gd.float64], ids=str)
def test_a_mean_of_many_deviations_leaves_no_error_of_its_size(dtype, wide, known, rng):
    g = gd.GraphBuilder()
    x = rng.normal(1000, 0.5, (3, 6, 5)).astype(dtype.numpy)
    numbers = {"mean": 1000 + rng.normal(size=6), "var": rng.uniform(0.2, 0.3, 6), "scale": np.ones(6)}
    arrays = {n: a.astype(wide.numpy) for n, a in {**numbers, "bias": rng.normal(size=6)}.items()}
    given = [g.constant(a) if known else g.input(n, (6,), wide) for n, a in arrays.items()]
    graph = g.build({"y": g.batch_norm(g.input("x", x.shape, dtype), *given)})
    inputs = {"x": x} if known else {"x": x, **arrays}
    right = gd.evaluate(graph, inputs, gd.float64)["y"]
    found = gd.evaluate(fold(graph).graph, inputs)["y"].astype(np.float64)
    assert np.abs(found - right).max() <= TOLERANCE[dtype.name] * max(1, np.abs(right).max())


@pytest.mark.parametrize("kind", EXTENT)
@pytest.mark.parametrize(("factor", "size"), [(1e-6, 100.0), (3e6, 1e-3), (np.inf, 1.0)])
@pytest.mark.parametrize("how", ["product", "batch norm"])
def test_weights_are_not_led_out_of_their_range(kind, factor, size, how, rng):
    g = gd.GraphBuilder()
    x = g.input("x", EXTENT[kind], gd.float16)
    y = linear(g, kind, x, rng, gd.float16)
    if how == "product":
        y = g.mul(y, factor)
    elif y.type.rank > 2 and np.isfinite(factor):
        zero, one = (g.constant(np.full(CHANNELS, n, np.float32)) for n in (0, 1))
        y = g.batch_norm(y, zero, one, g.constant(np.full(CHANNELS, factor, np.float32)), zero, eps=0.0)
    graph = canonicalize(g.build({"y": y})).graph
    inputs = {"x": (rng.normal(size=EXTENT[kind]) * size).astype(np.float16)}
    done = fold(graph)
    wanted, found = (gd.evaluate(each, inputs)["y"].astype(np.float64) for each in (graph, done.graph))
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(finite, np.isfinite(found))
    np.testing.assert_allclose(found[finite], wanted[finite], rtol=2e-3, atol=1e-7)
    if len(graph.nodes) > 1:
        assert "float16 is exact between" in done.refusals[0].reason


def test_a_channel_of_zeros_folds(rng):
    g = gd.GraphBuilder()
    y = g.mul(linear(g, "conv", g.input("x", (3, 4, 6, 5), gd.float16), rng, gd.float16), 0.0)
    assert [n.op.label for n in fold(g.build({"y": y})).graph.nodes] == ["conv"]
