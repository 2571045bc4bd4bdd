import math
from functools import partial

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.passes.canonicalize import canonicalize
from graphdnn.passes.raise_ops import raise_ops as raise_with
from tests.passes.random_graphs import assert_same_meaning

raise_ops = partial(raise_with, ask=lambda region: 1.0)
"""With engines that take every op whole."""

ROOT_2, ROOT_2_PI = math.sqrt(2), math.sqrt(2 / math.pi)

GELU = {
    "x/2 * (1 + erf(x / r))": lambda g, x: g.mul(g.mul(x, 0.5), g.add(1, g.erf(g.div(x, ROOT_2)))),
    "x * (1/2 * (1 + erf(x r)))": lambda g, x: x * (0.5 * (g.erf(x * math.sqrt(0.5)) + 1)),
    "(x * (1 + erf)) / 2": lambda g, x: x * (1 + g.erf(x / ROOT_2)) / 2,
    "x * (1 - erf of minus x) / 2": lambda g, x: x * (1 - g.erf(-x / ROOT_2)) / 2,
    "x / 2 * (1 - erf of minus x)": lambda g, x: x / 2 * (1 - g.erf(-(x * math.sqrt(0.5)))),
    "x * ((1 - erf of minus x) / 2)": lambda g, x: x * ((1 - g.erf(x / -ROOT_2)) * 0.5),
    "x * (1/2 + erf / 2)": lambda g, x: x * (g.erf(x * 0.70710678118654752) * 0.5 + 0.5),
}
GELU_TANH = {
    "pow": lambda g, x: 0.5 * x * (1 + g.tanh(ROOT_2_PI * (x + 0.044715 * g.pow(x, 3)))),
    "x * x * x": lambda g, x: x * (0.5 * (1 + g.tanh((x + x * x * x * 0.044715) * ROOT_2_PI))),
    "factor first": lambda g, x: 0.5 * x * (1 + g.tanh(ROOT_2_PI * (x + 0.044715 * x * x * x))),
    "factored": lambda g, x: 0.5 * x * (1 + g.tanh(x * ROOT_2_PI * (1 + 0.044715 * x * x))),
    "factored, with a square": lambda g, x: 0.5 * (x * (1 + g.tanh(ROOT_2_PI * (x * (1 + 0.044715 * g.square(x)))))),
}
OTHER = {
    "silu": lambda g, x: x * g.sigmoid(x),
    "silu ": lambda g, x: x / (1 + g.exp(-x)),
    "silu  ": lambda g, x: x * (1 / (1 + g.exp(x * -1.0))),
    "sigmoid": lambda g, x: 1 / (1 + g.exp(-x)),
    "sigmoid ": lambda g, x: g.reciprocal(g.exp(0.0 - x) + 1),
    "swish": lambda g, x: x * g.sigmoid(1.702 * x),
    "hard_sigmoid": lambda g, x: g.clip(x + 3, min=0, max=6) / 6,
    "hard_sigmoid ": lambda g, x: g.clip(x / 6 + 0.5, min=0, max=1),
    "hard_swish": lambda g, x: x * g.clip(x + 3, min=0, max=6) / 6,
    "hard_swish ": lambda g, x: x * (g.minimum(g.relu(x + 3), 6) * (1 / 6)),
    "hard_swish  ": lambda g, x: x * (g.minimum(g.maximum(x + 3, 0), 6) / 6),
    "hard_swish   ": lambda g, x: x / 6 * g.clip(x + 3, min=0, max=6),
    "relu": lambda g, x: g.maximum(x, 0),
    "relu ": lambda g, x: g.clip(x, min=0),
}
ACTIVATIONS = [
    *((f"gelu: {name}", "gelu", spell) for name, spell in GELU.items()),
    *((f"gelu_tanh: {name}", "gelu_tanh", spell) for name, spell in GELU_TANH.items()),
    *((name, name.strip(), spell) for name, spell in OTHER.items()),
]


def one_input(spell, shape=(3, 5), dtype=gd.float64) -> gd.Graph:
    """A graph in which other nodes stand around the spelling."""
    g = gd.GraphBuilder()
    x = g.sin(g.input("x", shape, dtype))
    return g.build({"y": g.cos(spell(g, x))})


def middle(graph: gd.Graph) -> list[str]:
    """Ops without the first and the last."""
    assert graph.nodes[0].op.label == "sin"
    assert graph.nodes[-1].op.label == "cos"
    return [n.op.label for n in graph.nodes[1:-1]]


def reasons(graph: gd.Graph, rule: str) -> list[str]:
    return [r.reason for r in raise_ops(graph).refusals if r.rule == rule]


@pytest.mark.parametrize(("label", "spell"), [a[1:] for a in ACTIVATIONS], ids=[a[0] for a in ACTIVATIONS])
@pytest.mark.parametrize("canonical", [False, True])
def test_activations(label, spell, canonical, rng):
    graph = one_input(spell)
    before = canonicalize(graph).graph if canonical else graph
    done = raise_ops(before)
    assert middle(done.graph) == [label]
    assert done.graph.nodes[1].origins == tuple(n.name for n in graph.nodes[1:-1])
    assert_same_meaning(graph, done.graph, rng)
    assert raise_ops(done.graph).graph is done.graph


def test_integers_have_no_hard_sigmoid():
    g = gd.GraphBuilder()
    x = g.input("x", (3, 5), gd.int32)
    sixth = g.div(g.clip(x + 3, min=0, max=6), 6, rounding_mode="trunc")
    graph = g.build({"y": sixth, "relu": g.neg(g.maximum(x, 0))})
    assert [n.op.label for n in raise_ops(graph).graph.nodes] == ["add", "clip", "div", "relu", "neg"]


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32])
def test_numbers_of_narrow_types(dtype):
    """A constant 0.7071 of a narrow type is what 1 / sqrt 2 is there."""

    def spell(g, x):
        root = g.constant(np.asarray(math.sqrt(0.5)).astype(dtype.numpy))
        return x * (0.5 * (g.erf(x * root) + 1))

    assert middle(raise_ops(one_input(spell, dtype=dtype)).graph) == ["gelu"]


@pytest.mark.parametrize(
    ("spell", "rule", "reason"),
    [
        (lambda g, x: 0.5 * x * (1 + g.erf(x / 1.41)), "gelu", "1.41 stands where the definition has 1.41421"),
        (
            lambda g, x: 0.5 * x * (1 - g.erf(x / ROOT_2)),
            "gelu",
            "1.4142135623730951 stands where the definition has -",
        ),
        (lambda g, x: 0.4 * x * (1 + g.erf(x / ROOT_2)), "gelu", "0.4 stands where the definition has 0.5"),
        (
            lambda g, x: 0.5 * x * (1 + g.tanh(ROOT_2_PI * (x + 0.05 * g.pow(x, 3)))),
            "gelu in the tanh form",
            "0.05 stands where the definition has 0.044715",
        ),
        (lambda g, x: x / (2 + g.exp(-x)), "silu", "2.0 stands where the definition has 1.0"),
        (lambda g, x: g.clip(x + 3, min=0, max=6) / 5, "hard sigmoid", "5.0 stands where the definition has 6.0"),
    ],
)
def test_other_numbers_are_refused(spell, rule, reason):
    graph = one_input(spell)
    assert raise_ops(graph).graph is graph
    assert any(r.startswith(reason) for r in reasons(graph, rule)), reasons(graph, rule)


def test_the_gate_of_the_other_side_stays():
    graph = one_input(lambda g, x: x * (1 + g.erf(-(x / ROOT_2))) / 2)
    assert raise_ops(graph).graph is graph


def test_a_value_needed_outside_is_refused():
    g = gd.GraphBuilder()
    x = g.input("x", (3, 5), gd.float32)
    gate = g.sigmoid(x, name="gate")
    graph = g.build({"y": g.mul(x, gate), "gate": gate})
    assert raise_ops(graph).graph is graph
    assert reasons(graph, "silu") == ["%gate is needed outside the match: it is output gate"]


def test_half_of_x_may_be_read_elsewhere(rng):
    g = gd.GraphBuilder()
    x = g.input("x", (3, 5), gd.float64)
    graph = g.build({n: GELU["x/2 * (1 + erf(x / r))"](g, x) for n in "ab"} | {"c": GELU_TANH["pow"](g, x)})
    done = raise_ops(canonicalize(graph).graph).graph
    assert [n.op.label for n in done.nodes] == ["gelu", "gelu_tanh"]
    assert_same_meaning(graph, done, rng)


# softmax


INVERSES = {
    "x / s": lambda g, x, s: x / s,
    "x * reciprocal(s)": lambda g, x, s: x * g.reciprocal(s),
    "x * (1 / s)": lambda g, x, s: x * (1 / s),
    "x * s ** -1": lambda g, x, s: x * g.pow(s, -1),
}


def softmax(g, x, axis=-1, peak_axis=None, keepdims=True, subtract=True, inverse="x / s"):
    if subtract:
        x = x - g.reduce_max(x, axes=axis if peak_axis is None else peak_axis, keepdims=True)
    powers = g.exp(x)
    total = g.reduce_sum(powers, axes=axis, keepdims=keepdims)
    return INVERSES[inverse](g, powers, total)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("subtract", [True, False])
@pytest.mark.parametrize("inverse", INVERSES)
def test_softmax(axis, subtract, inverse, rng):
    graph = one_input(lambda g, x: softmax(g, x, axis, subtract=subtract, inverse=inverse), (3, 5, 7))
    done = raise_ops(graph).graph
    assert middle(done) == ["softmax"]
    assert done.nodes[1].op.axis == axis
    assert_same_meaning(graph, done, rng)


def test_softmax_with_axes_put_back_by_a_reshape(rng):
    def spell(g, x):
        powers = g.exp(x - g.unsqueeze(g.reduce_max(x, axes=1), 1))
        return powers / g.reshape(g.reduce_sum(powers, axes=1), (3, 1, 7))

    graph = one_input(spell, (3, 5, 7))
    assert middle(raise_ops(graph).graph) == ["softmax"]
    assert_same_meaning(graph, raise_ops(graph).graph, rng)


def test_another_maximum_is_just_a_difference(rng):
    graph = one_input(lambda g, x: softmax(g, x, 1, peak_axis=2), (3, 5, 7))
    done = raise_ops(graph).graph
    assert middle(done) == ["reduce_max", "sub", "softmax"]
    assert_same_meaning(graph, done, rng)


@pytest.mark.parametrize(
    ("spell", "reason"),
    [
        (lambda g, x: softmax(g, x, (1, 2)), "the sum %reduce_sum is over axes (1, 2); softmax has one axis"),
        (
            lambda g, x: softmax(g, x, 1, keepdims=False, subtract=False),
            "%reduce_sum has shape (5, 5); (5, 1, 5) is needed, with the reduced axes kept",
        ),
    ],
)
def test_what_is_no_softmax(spell, reason, rng):
    graph = one_input(spell, (5, 5, 5))
    assert "softmax" not in middle(raise_ops(graph).graph)
    assert reasons(graph, "softmax") == [reason]
    assert_same_meaning(graph, raise_ops(graph).graph, rng)


# norms


def layer_norm(g, x, axes=-1, mean_axes=None, eps=0.1, square="mul", root="div", scale=None, bias=None):
    centred = x - g.reduce_mean(x, axes=axes if mean_axes is None else mean_axes, keepdims=True)
    squares = {"mul": lambda: centred * centred, "square": lambda: g.square(centred), "pow": lambda: g.pow(centred, 2)}
    y = over_root(g, centred, g.reduce_mean(squares[square](), axes=axes, keepdims=True) + eps, root)
    y = y if scale is None else y * scale
    return y if bias is None else y + bias


def over_root(g, x, power, root):
    match root:
        case "div":
            return x / g.sqrt(power)
        case "rsqrt":
            return g.rsqrt(power) * x
        case "inverse":
            return x * g.reciprocal(g.sqrt(power))
        case "one over":
            return x * (1 / g.sqrt(power))
        case "pow":
            return x * g.pow(power, -0.5)
    return x / g.pow(power, 0.5)


ROOTS = ("div", "rsqrt", "inverse", "one over", "pow", "div pow")


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("square", ["mul", "square", "pow"])
@pytest.mark.parametrize("axes", [(2,), (1, 2)])
def test_layer_norm(root, square, axes, rng):
    graph = one_input(lambda g, x: layer_norm(g, x, axes, square=square, root=root), (3, 5, 7))
    done = raise_ops(graph).graph
    assert middle(done) == ["layer_norm"]
    assert (done.nodes[1].op.axes, done.nodes[1].op.eps) == (axes, 0.1)
    assert_same_meaning(graph, done, rng)


@pytest.mark.parametrize("given", [("scale",), ("bias",), ("scale", "bias")])
@pytest.mark.parametrize("shape", [(7,), (1, 7), (1, 1, 7)])
@pytest.mark.parametrize("how", ["add", "bias op"])
def test_parameters_of_a_layer_norm(given, shape, how, rng):
    def spell(g, x):
        given_values = {n: g.constant(rng.normal(size=shape)) for n in given}
        y = layer_norm(g, x, scale=given_values.get("scale"))
        if "bias" not in given:
            return y
        b = given_values["bias"]
        return y + b if how == "add" or len(shape) > 1 else g.bias(y, b, axis=2)

    graph = one_input(spell, (3, 5, 7))
    done = canonicalize(raise_ops(graph).graph).graph
    assert middle(done) == ["layer_norm"]
    assert done.nodes[1].op.affine == given
    assert [v.type.shape for v in done.nodes[1].operands[1:]] == [(7,)] * len(given)
    assert_same_meaning(graph, done, rng)


@pytest.mark.parametrize("root", ROOTS)
def test_rms_norm(root, rng):
    def spell(g, x):
        power = g.reduce_mean(g.square(x), axes=-1, keepdims=True)
        return over_root(g, x, power + 0.1, root) * g.constant(rng.normal(size=7))

    graph = one_input(spell, (3, 5, 7))
    done = raise_ops(graph).graph
    assert middle(done) == ["rms_norm"]
    assert (done.nodes[1].op.eps, done.nodes[1].op.affine) == (0.1, ("scale",))
    assert_same_meaning(graph, done, rng)


def test_a_mean_as_a_sum_divided(rng):
    def spell(g, x):
        centred = x - g.reduce_sum(x, axes=-1, keepdims=True) / 7
        return centred / g.sqrt(g.reduce_sum(g.square(centred), axes=-1, keepdims=True) * (1 / 7) + 0.1)

    graph = one_input(spell, (3, 5, 7))
    assert middle(raise_ops(graph).graph) == ["layer_norm"]
    assert_same_meaning(graph, raise_ops(graph).graph, rng)


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16])
@pytest.mark.parametrize("weight_last", [True, False])
def test_llamas_rms_norm(dtype, weight_last, rng):
    """Computed in float32 between casts; the weight is multiplied before the cast back, or after it."""
    g = gd.GraphBuilder()
    x = g.input("x", (3, 5, 24), dtype)
    weight = g.constant(rng.normal(size=24).astype(dtype.numpy))
    wide = g.cast(x, gd.float32)
    y = wide * g.rsqrt(g.reduce_mean(g.pow(wide, 2), axes=-1, keepdims=True) + 1e-5)
    y = weight * g.cast(y, dtype) if weight_last else g.cast(g.cast(weight, gd.float32) * y, dtype)
    graph = g.build({"y": y})
    done = canonicalize(raise_ops(graph).graph).graph
    assert [n.op.label for n in done.nodes] == ["rms_norm"]
    assert done.nodes[0].op.affine == ("scale",)
    assert set(done.nodes[0].origins) == {
        n.name for n in graph.nodes if n.op.label != "cast" or n.operands[0] is not weight
    }
    assert_same_meaning(graph, done, rng, 2**-7 if dtype == gd.bfloat16 else 2**-10)


def test_case_n6_the_scale_makes_the_result_larger():
    """Layer norm spelled out of x (1, 1) with a scale of shape (2,): the result is (1, 2)."""
    g = gd.GraphBuilder()
    x, scale = g.input("x", (1, 1), gd.float32), g.input("scale", (2,), gd.float32)
    graph = g.build({"y": layer_norm(g, x, scale=scale)})
    done = raise_ops(graph)
    assert done.graph.outputs["y"].type.shape == (1, 2)
    assert [n.op.label for n in done.graph.nodes] == ["layer_norm", "mul"]
    assert [r.reason for r in done.refusals] == ["%scale is f32[2]; shape (1,), that of the normalized axes, is needed"]
    y = gd.evaluate(done.graph, {"x": np.float32([[3]]), "scale": np.float32([1, 2])})["y"]
    np.testing.assert_array_equal(y, [[0, 0]])


def test_case_n7_eps_is_kept():
    x = np.float32([[0.9, 1.1], [-0.1, 0.1]])
    graph = one_input(lambda g, x: layer_norm(g, x, eps=0.1), (2, 2), gd.float32)
    done = raise_ops(graph).graph
    assert done.nodes[1].op.eps == 0.1
    g = gd.GraphBuilder()
    graph = g.build({"y": layer_norm(g, g.input("x", (2, 2), gd.float32), eps=0.1)})
    y = gd.evaluate(raise_ops(graph).graph, {"x": x})["y"]
    np.testing.assert_allclose(y, np.float32([[-1, 1], [-1, 1]]) * (0.1 / math.sqrt(0.01 + 0.1)), rtol=1e-5)


def test_case_n7_the_middle_axis_is_no_layer_norm(rng):
    graph = one_input(lambda g, x: layer_norm(g, x, 1), (2, 3, 4))
    done = raise_ops(graph)
    assert "layer_norm" not in middle(done.graph)
    assert reasons(graph, "layer norm") == ["the mean is over axes (1,) of f64[2x3x4]; the last axes are needed"]
    assert_same_meaning(graph, done.graph, rng)


@pytest.mark.parametrize(
    ("spell", "rule", "reason"),
    [
        (
            lambda g, x: layer_norm(g, x, 2, mean_axes=1),
            "layer norm",
            "the mean is over axes (1,) and the variance over axes (2,)",
        ),
        (lambda g, x: layer_norm(g, x, eps=-0.1), "layer norm", "eps is -0.1; a number that is not negative is needed"),
        (
            lambda g, x: layer_norm(g, x, (1, 2), scale=g.constant(np.ones(5))),
            "parameters of a norm",
            "%constant is f64[5]; shape (5, 5), that of the normalized axes, is needed",
        ),
    ],
)
def test_what_is_no_layer_norm(spell, rule, reason, rng):
    graph = one_input(spell, (5, 5, 5))
    assert reason in reasons(graph, rule)
    assert "layer_norm" not in middle(raise_ops(graph).graph) or rule == "parameters of a norm"
    if "eps" not in reason:
        assert_same_meaning(graph, raise_ops(graph).graph, rng)


def test_a_mean_that_is_also_an_output_is_refused():
    g = gd.GraphBuilder()
    x = g.input("x", (3, 5), gd.float32)
    mean = g.reduce_mean(x, axes=-1, keepdims=True, name="mean")
    centred = x - mean
    y = centred / g.sqrt(g.reduce_mean(centred * centred, axes=-1, keepdims=True) + 1e-5)
    graph = g.build({"y": y, "mean": mean})
    assert reasons(graph, "layer norm") == ["%mean is needed outside the match: it is output mean"]


def test_a_residual_is_no_parameter():
    """Neither a tensor like x, nor one that would make the result wider than float16."""
    g = gd.GraphBuilder()
    x, residual = (g.input(n, (1, 5, 7), gd.float16) for n in ("x", "residual"))
    wide = g.input("wide", (7,), gd.float32)
    graph = g.build(
        {
            "y": g.layer_norm(x) + residual,
            "one": g.layer_norm(g.sin(x)) + g.input("r", (1, 5, 7), gd.float16),
            "wide": g.layer_norm(g.cos(x)) * wide,
        }
    )
    done = raise_ops(graph)
    assert done.graph is graph
    assert [r.reason for r in done.refusals] == [
        "%wide is float32, which makes the result float32; a norm keeps float16, the type of its x"
    ]
