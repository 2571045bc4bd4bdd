import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.ir.ops.linear import MatMul
from graphdnn.ir.ops.pointwise import Cast, Pointwise
from graphdnn.passes.pattern import Is, Match, Number, Var, aligns_as_numpy, fn, is_number, matches, one_of
from tests.passes.graph_text import parsed

SILU = fn("mul", Var("x"), fn("sigmoid", Var("x")))


def root(graph: gd.Graph) -> gd.Node:
    return graph.nodes[-1]


def match(pattern, root: gd.Node, graph: gd.Graph) -> Match | Decline:
    """The first match at `root` that swallows nothing, or a Decline that says why there is none."""
    declined = Decline(Code.PATTERN, f"{root} is not made as the pattern says")
    for answer in matches(pattern, root, graph):
        if answer.escape is None:
            return answer
        if declined.code == Code.PATTERN:
            declined = answer.escape
    return declined


def found(pattern, graph: gd.Graph) -> Match:
    answer = match(pattern, root(graph), graph)
    assert isinstance(answer, Match), answer
    return answer


def refused(pattern, graph: gd.Graph, node: str | None = None) -> Decline:
    answer = match(pattern, graph.node(node) if node else root(graph), graph)
    assert isinstance(answer, Decline)
    return answer


def test_a_match_says_what_stood_where():
    graph = parsed("x: f32[2x3]", "%s = sigmoid(%x) : f32[2x3]", "%y = mul(%x, %s) : f32[2x3]")
    answer = found(SILU, graph)
    assert answer["x"] is graph.inputs["x"]
    assert [n.name for n in answer.nodes] == ["s", "y"]
    assert answer.root.name == "y"
    assert answer.origins == ("s", "y")


def test_a_name_is_one_value():
    graph = parsed("x: f32[2x3], z: f32[2x3]", "%s = sigmoid(%z) : f32[2x3]", "%y = mul(%x, %s) : f32[2x3]")
    assert refused(SILU, graph).code == Code.PATTERN


def test_operands_of_a_commutative_function_stand_in_either_order():
    graph = parsed("x: f32[2x3]", "%s = sigmoid(%x) : f32[2x3]", "%y = mul(%s, %x) : f32[2x3]")
    assert found(SILU, graph)["x"] is graph.inputs["x"]
    less = parsed("x: f32[2x3]", "%s = sigmoid(%x) : f32[2x3]", "%y = sub(%s, %x) : f32[2x3]")
    assert refused(fn("sub", Var("x"), fn("sigmoid", Var("x"))), less).code == Code.PATTERN


def test_one_value_as_both_operands():
    graph = parsed("x: f32[2x3]", "%s = tanh(%x) : f32[2x3]", "%y = mul(%s, %s) : f32[2x3]")
    assert found(fn("mul", Var("a"), Var("a")), graph)["a"] is graph.node("s").result
    assert found(fn("mul", Var("a"), Var("b")), graph)["b"] is graph.node("s").result


def test_a_value_read_outside_is_not_swallowed():
    graph = parsed(
        "x: f32[2x3]",
        "%s = sigmoid(%x) : f32[2x3]",
        "%t = tanh(%s) : f32[2x3]",
        "%y = mul(%x, %s) : f32[2x3]",
        "return y = %y",
        "return t = %t",
    )
    answer = refused(SILU, graph, "y")
    assert answer.code == Code.ESCAPE
    assert answer.reason == "%s is needed outside the match, by tanh %t"


def test_an_output_is_not_swallowed():
    graph = parsed(
        "x: f32[2x3]", "%s = sigmoid(%x) : f32[2x3]", "%y = mul(%x, %s) : f32[2x3]", "return y = %y", "return gate = %s"
    )
    assert refused(SILU, graph).reason == "%s is needed outside the match: it is output gate"


def test_a_next_state_is_not_swallowed():
    g = gd.GraphBuilder()
    x, memory = g.input("x", (3,), gd.float32), g.state("memory", (3,), gd.float32)
    gate = g.sigmoid(x, name="s")
    graph = g.build({"y": g.add(g.mul(x, gate), memory)}, {"memory": gate})
    assert refused(SILU, graph, "mul").reason == "%s is needed outside the match: it is the next value of state memory"


def test_a_shared_node_is_bypassed():
    graph = parsed(
        "x: f32[2x3]", "%s = sigmoid(%x) : f32[2x3]", "%y = mul(%x, %s) : f32[2x3]", "return y = %y", "return gate = %s"
    )
    assert found(fn("mul", Var("x"), fn("sigmoid", Var("x"), shared=True)), graph).root.name == "y"


def test_choices_are_tried_again_when_what_follows_does_not_fit():
    graph = parsed("x: f32[2x3]", "%n = neg(%x) : f32[2x3]", "%e = exp(%n) : f32[2x3]", "%y = mul(%n, %e) : f32[2x3]")
    either = one_of(fn("neg", Var("a")), Var("a"))
    answer = found(fn("mul", either, fn("exp", Var("a"))), graph)
    assert answer["a"] is graph.node("n").result
    assert len(list(matches(fn("mul", either, Var("b")), root(graph), graph))) == 3


def test_numbers_are_immediates_or_constants_of_one_element():
    g = gd.GraphBuilder()
    x = g.input("x", (3,), gd.float32)
    graph = g.build({"y": g.mul(g.add(x, 2), g.constant(np.full((1,), 0.5, np.float32)))})
    pattern = fn("mul", fn("add", Var("x"), Number(2.0)), Number(name="c"))
    assert found(pattern, graph).numbers == {"c": 0.5}
    assert refused(fn("mul", fn("add", Var("x"), Number(3.0)), Number()), graph).code == Code.PATTERN


def test_a_constant_without_data_is_no_number():
    graph = parsed("x: f32[3]", f"constant %c: f32[1] sha256:{'0' * 64}", "%y = mul(%x, %c) : f32[3]")
    assert refused(fn("mul", Var("x"), Number()), graph).code == Code.PATTERN
    assert "x" in found(fn("mul", Var("x"), Var("c")), graph)


@pytest.mark.parametrize(
    ("given", "wanted", "dtype", "equal"),
    [
        (0.7071067811865476, 2**-0.5, gd.float32, True),
        (0.70710678, 2**-0.5, gd.float32, True),
        (0.70710678, 2**-0.5, gd.float64, False),
        (0.7071, 2**-0.5, gd.float32, False),
        (float(np.float16(2**-0.5)), 2**-0.5, gd.float16, True),
        (float(np.float16(2**-0.5)), 2**-0.5, gd.float32, False),
        (0.0, 0.0, gd.float32, True),
        (1e-30, 0.0, gd.float32, False),
        (2.0000008, 2.0, gd.float32, False),
        (0.4999999, 0.5, gd.float16, False),
        (1 / 768, np.float32(1 / 768).item(), gd.float32, True),
    ],
)
def test_a_number_is_equal_as_written_in_its_type(given, wanted, dtype, equal):
    assert is_number(given, wanted, dtype) is equal


def test_bias_is_an_addition_where_it_broadcasts_like_one():
    g = gd.GraphBuilder()
    x, b, c = g.input("x", (2, 3, 5), gd.float32), g.input("b", (5,), gd.float32), g.input("c", (3,), gd.float32)
    graph = g.build({"last": g.bias(x, b, axis=2), "middle": g.bias(x, c, axis=1)})
    last, middle = graph.nodes
    assert aligns_as_numpy(last)
    assert not aligns_as_numpy(middle)
    assert match(fn("add", Var("x"), Var("b")), last, graph)
    assert not match(fn("add", Var("x"), Var("b")), middle, graph)


def test_conditions_and_open_operands():
    g = gd.GraphBuilder()
    a, b = g.input("a", (2, 3), gd.float32), g.input("b", (3, 5), gd.float32)
    graph = g.build({"y": g.cast(g.matmul(a, b), gd.float16)})
    product = Is(MatMul, name="product")
    assert found(Is(Cast, (product,)), graph).node("product").operands == (a, b)
    assert not match(Is(Cast, (product,), lambda node: node.result.type.dtype == gd.float32), root(graph), graph)
    assert not match(Is(Cast, (product, Var("none"))), root(graph), graph)
    assert not match(Is(Pointwise), root(graph), graph)
