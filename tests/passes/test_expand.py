import numpy as np
import pytest

import graphdnn as gd
from graphdnn.errors import CompileError
from graphdnn.ir.op import OPS, Op, op
from graphdnn.passes.expand import expand
from tests.passes.graph_text import nodes, parsed
from tests.passes.random_graphs import assert_same_meaning


def nobody(region):
    return None


def but(*labels):
    """Engines that take every op but these."""
    return lambda region: None if region.nodes[0].op.label in labels else 1.0


def test_what_no_engine_takes_becomes_smaller_ops():
    graph = parsed("x: f32[2x3]", "%s = softmax(%x) {axis=1} : f32[2x3]", "%y = relu(%s) : f32[2x3]")
    done = expand(graph, but("softmax"))
    assert nodes(done.graph) == [
        "%s_0 = reduce_max(%x) {axes=(1,), keepdims=True} : f32[2x1] from s",
        "%s_1 = sub(%x, %s_0) : f32[2x3] from s",
        "%s_2 = exp(%s_1) : f32[2x3] from s",
        "%s_3 = reduce_sum(%s_2) {axes=(1,), keepdims=True} : f32[2x1] from s",
        "%s_4 = div(%s_2, %s_3) : f32[2x3] from s",
        "%y = relu(%s_4) : f32[2x3]",
        "return y = %y",
    ]
    assert done.changes == ("s: no engine takes softmax whole; now reduce_max, sub, exp, reduce_sum, div",)


def test_what_an_engine_takes_stays():
    graph = parsed("x: f32[2x3]", "%s = softmax(%x) {axis=1} : f32[2x3]", "%y = softmax(%s) {axis=0} : f32[2x3]")
    assert expand(graph, lambda region: 1.0).graph is graph
    done = expand(graph, lambda region: None if region.nodes[0].op.axis == 0 else 1.0).graph
    assert [n.op.label for n in done.nodes].count("softmax") == 1


def test_ops_that_are_not_composite_are_not_asked_about():
    asked = []
    graph = parsed("x: f32[2x3]", "%y = relu(%x) : f32[2x3]")
    assert expand(graph, asked.append).graph is graph
    assert asked == []


def test_several_results():
    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (1, 2, 5, 4), gd.float32) for n in "qkv")
    o, lse = g.attention(q, k, v, return_lse=True, causal="top_left", name="attention")
    graph = g.build({"o": g.sin(o), "lse": lse})
    done = expand(graph, but("attention"))
    assert "attention" not in [n.op.label for n in done.graph.nodes]
    assert {o for n in done.graph.nodes for o in n.origins} == {"attention", "sin"}
    inputs = {n: np.linspace(-1, 1, 40, dtype=np.float32).reshape(1, 2, 5, 4) ** (i + 1) for i, n in enumerate("qkv")}
    before, after = gd.evaluate(graph, inputs), gd.evaluate(done.graph, inputs)
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [gd.float32, gd.float64])
def test_all_norms(dtype, rng):
    g = gd.GraphBuilder()
    x, c = g.input("x", (3, 6, 5, 7), dtype), [g.constant(rng.uniform(0.5, 2, 6).astype(dtype.numpy)) for _ in range(4)]
    last = g.constant(rng.uniform(0.5, 2, 7).astype(dtype.numpy))
    graph = g.build(
        {
            "batch": g.batch_norm(x, *c),
            "layer": g.layer_norm(x, last),
            "rms": g.rms_norm(x, last),
            "instance": g.instance_norm(x, *c[:2]),
            "group": g.group_norm(x, *c[:2], groups=3),
        }
    )
    done = expand(graph, nobody).graph
    assert not any("norm" in n.op.label for n in done.nodes)
    # factors computed from float32 constants are float32 constants
    assert_same_meaning(graph, done, rng, 1e-6 if dtype == gd.float32 else 1e-12)


def test_masks_of_several_attentions_are_one_constant(rng):
    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (1, 2, 5, 4), gd.float64) for n in "qkv")
    y = g.attention(q, k, g.attention(q, k, v, causal="top_left"), causal="top_left")
    graph = g.build({"y": y})
    done = expand(graph, nobody).graph
    assert [v.type.dtype for v in done.constants.values()] == [gd.bool]
    assert not any(n.op.label in ("iota", "less_equal") for n in done.nodes)
    assert_same_meaning(graph, done, rng)


def test_an_op_that_expands_into_itself_is_reported():
    @op("endless")
    class Endless(Op):
        def infer(self, x):
            return (x,)

        def reference(self, x):
            return (x,)

        def expand(self, make, x):
            return (make(Endless(), x),)

    try:
        g = gd.GraphBuilder()
        graph = g.build({"y": g._add(Endless(), g.input("x", (3,), gd.float32), name=None)[0]})
        with pytest.raises(CompileError, match="expansions are more than 16 deep"):
            expand(graph, nobody)
    finally:
        del OPS["endless"]


def test_expansions_within_expansions():
    @op("outer")
    class Outer(Op):
        def infer(self, x):
            return (x,)

        def reference(self, x):
            return (x,)

        def expand(self, make, x):
            return (make(OPS["softmax"](axis=0), x),)

    try:
        g = gd.GraphBuilder()
        graph = g.build({"y": g._add(Outer(), g.input("x", (3,), gd.float32), name="outer")[0]})
        done = expand(graph, nobody)
        assert len(done.changes) == 2
        assert all(n.origins == ("outer",) for n in done.graph.nodes)
        assert [n.op.label for n in expand(graph, but("outer")).graph.nodes] == ["softmax"]
    finally:
        del OPS["outer"]


@pytest.mark.parametrize("given", [True, False])
def test_float64_norms_with_float32_parameters_stay_float64(given: bool, rng):
    """Statistics that are float32 are exact numbers; what is computed of them is not rounded to float32."""
    g = gd.GraphBuilder()
    x = g.input("x", (3, 6, 5, 7), gd.float64)

    def numbers(name, size=6):
        array = rng.uniform(0.5, 2, size).astype(np.float32)
        return g.input(name, (size,), gd.float32) if given else g.constant(array, name=name)

    graph = g.build(
        {
            "batch": g.batch_norm(x, *(numbers(n) for n in ("mean", "var", "scale", "bias"))),
            "layer": g.layer_norm(x, numbers("row", 7), numbers("shift", 7)),
            "instance": g.instance_norm(x, numbers("is"), numbers("ib")),
            "group": g.group_norm(x, numbers("gs"), numbers("gb"), groups=3),
        }
    )
    inputs = {n: rng.uniform(0.5, 2, v.type.shape).astype(v.type.dtype.numpy) for n, v in graph.inputs.items()}
    before, after = gd.evaluate(graph, inputs), gd.evaluate(expand(graph, nobody).graph, inputs)
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=0, atol=1e-13)
