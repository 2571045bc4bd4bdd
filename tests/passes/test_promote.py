import numpy as np
import pytest

import graphdnn as gd
from graphdnn.passes.promote import Promotion, promote, promotions
from tests.passes.graph_text import nodes


def test_a_product_of_two_types_gets_a_cast():
    g = gd.GraphBuilder()
    a, b = g.input("a", (2, 3), gd.float16), g.input("b", (3, 5), gd.float32)
    graph = g.build({"y": g.relu(g.matmul(a, b))})
    done = promote(graph)
    assert nodes(done.graph) == [
        '%matmul_0 = cast(%a) {dtype="float32"} : f32[2x3] from matmul',
        "%matmul = matmul(%matmul_0, %b) : f32[2x5]",
        "%relu = relu(%matmul) : f32[2x5]",
        "return y = %relu",
    ]
    assert done.changes == ("matmul: operand A cast from float16 to float32",)
    assert promotions(graph) == (Promotion("matmul", "A", gd.float16, gd.float32),)
    assert promote(done.graph).graph is done.graph


@pytest.mark.parametrize(
    ("before", "other", "after"),
    [
        (gd.float16, gd.bfloat16, gd.float32),
        (gd.bfloat16, gd.float32, gd.float32),
        (gd.float32, gd.float64, gd.float64),
    ],
)
def test_types_promote_as_in_pytorch(before, other, after, rng: np.random.Generator):
    g = gd.GraphBuilder()
    a, b = g.input("a", (3, 7), before), g.input("b", (7, 5), other)
    graph = g.build({"y": g.matmul(a, b)})
    done = promote(graph).graph
    assert {v.type.dtype for v in done.node("matmul").operands} == {after}
    assert {p.after for p in promotions(graph)} == {after}
    inputs = {n: rng.normal(size=v.type.shape).astype(v.type.dtype.numpy) for n, v in graph.inputs.items()}
    np.testing.assert_allclose(gd.evaluate(done, inputs)["y"], gd.evaluate(graph, inputs)["y"], rtol=1e-6, atol=1e-6)


def test_pointwise_ops_are_listed_and_left_as_they_are():
    g = gd.GraphBuilder()
    a, b = g.input("a", (2, 3), gd.float16), g.input("b", (3,), gd.float32)
    mask = g.input("mask", (2, 3), gd.bool)
    graph = g.build({"y": g.select(mask, g.add(a, b), g.mul(a, 2.0)), "z": g.less(a, b)})
    assert promote(graph).graph is graph
    assert promotions(graph) == (
        Promotion("add", "a", gd.float16, gd.float32),
        Promotion("select", "b", gd.float16, gd.float32),
        Promotion("less", "a", gd.float16, gd.float32),
    )


def test_parameters_and_indices_keep_their_types():
    g = gd.GraphBuilder()
    x, scale = g.input("x", (4, 6), gd.float16), g.input("scale", (6,), gd.float32)
    rows = g.gather(x, g.input("rows", (3,), gd.int32))
    graph = g.build({"y": g.rms_norm(x, scale), "rows": rows, "p": g.matmul(x, g.transpose(x, (1, 0)))})
    assert promotions(graph) == ()
    assert promote(graph).graph is graph


def test_casts_of_the_builder_are_listed_as_promotions_of_the_node_that_reads_them():
    g = gd.GraphBuilder()
    x, mask, count = g.input("x", (3,), gd.float16), g.input("mask", (3,), gd.bool), g.input("count", (3,), gd.int32)
    graph = g.build(
        {"y": g.mul(x, mask, name="masked"), "mean": g.div(count, 3, name="mean"), "z": g.cast(mask, "int8")}
    )
    assert promote(graph).graph is graph
    assert promotions(graph) == (
        Promotion("masked", "b", gd.bool, gd.float16),
        Promotion("mean", "a", gd.int32, gd.float32),
    )


def test_casts_of_the_builder_are_no_kernels_of_the_user():
    """Not fused, a product of two types is one kernel: it reads a bool an element and a half, and writes a half."""
    g = gd.GraphBuilder()
    graph = g.build({"y": g.input("x", (64,), gd.float16) * g.input("mask", (64,), gd.bool)})
    for again in (graph, gd.Graph.from_json(graph.to_json())):
        report = gd.compile(again, target="cpu").report
        assert (report.unfused_kernel_count, report.unfused_bytes) == (1, 64 * (2 + 1 + 2))
        assert {n for r in report.regions for n in r.nodes} == {"mul"}


def test_a_bias_of_attention_does_not_widen_it():
    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (1, 2, 5, 8), gd.float16) for n in "qkv")
    graph = g.build({"o": g.attention(q, k, v, bias=g.input("bias", (5, 5), gd.float32))})
    assert promotions(graph) == ()
    assert promote(graph).graph is graph


def test_variadic_operands_are_named_by_their_place():
    g = gd.GraphBuilder()
    parts = [g.input("a", (2, 3), gd.float32), g.input("b", (2, 1), gd.float16)]
    graph = g.build({"y": g.concat(parts, axis=1)})
    assert promotions(graph) == (Promotion("concat", "1", gd.float16, gd.float32),)
    assert [n.op.label for n in promote(graph).graph.nodes] == ["cast", "concat"]
