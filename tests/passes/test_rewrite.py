from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.errors import CompileError
from graphdnn.ir.ops.pointwise import Cast, Pointwise
from graphdnn.passes.pattern import Is, Var, fn
from graphdnn.passes.rewrite import Refusal, Rule, rewrite
from tests.clock import least_seconds
from tests.passes.graph_text import nodes, parsed

X = Var("x")


def becomes(function: str):
    return lambda make, found: make(Pointwise(fn=function), found["x"])


SILU = Rule("silu", "raised", fn("mul", X, fn("sigmoid", X)), becomes("silu"))


def test_the_root_is_replaced_and_what_nothing_reads_is_gone():
    graph = parsed(
        "x: f32[2x3]", "%s = sigmoid(%x) : f32[2x3]", "%m = mul(%x, %s) : f32[2x3]", "%r = relu(%m) : f32[2x3]"
    )
    done = rewrite(graph, [SILU])
    assert nodes(done.graph) == ["%s_0 = silu(%x) : f32[2x3] from s, m", "%r = relu(%s_0) : f32[2x3]", "return y = %r"]
    assert done.changes == ("s, m: raised",)
    assert done.refusals == ()


def test_nothing_to_do_gives_the_same_graph():
    graph = parsed("x: f32[2x3]", "%y = tanh(%x) : f32[2x3]")
    assert rewrite(graph, [SILU]).graph is graph


def test_the_larger_of_two_matches_wins_and_the_earlier_rule_at_one_node():
    graph = parsed("x: f32[3]", "%a = neg(%x) : f32[3]", "%b = neg(%a) : f32[3]", "%c = exp(%b) : f32[3]")
    pair = Rule("pair", "pair", fn("exp", fn("neg", X)), becomes("sin"))
    other = Rule("other", "other", fn("exp", X), becomes("cos"))
    inner = Rule("inner", "inner", fn("neg", fn("neg", X)), becomes("abs"))
    assert rewrite(graph, [other, pair]).changes == ("c: other",)
    done = rewrite(graph, [inner, pair, other])
    assert done.changes == ("b, c: pair",)
    assert nodes(done.graph)[:2] == ["%a = neg(%x) : f32[3]", "%b_0 = sin(%a) : f32[3] from b, c"]


def test_near_misses_are_reported_once_with_their_reason():
    graph = parsed(
        "x: f32[3]", "%s = sigmoid(%x) : f32[3]", "%m = mul(%x, %s) : f32[3]", "return y = %m", "return gate = %s"
    )
    done = rewrite(graph, [SILU])
    assert done.graph is graph
    assert done.refusals == (Refusal("silu", ("s", "m"), "%s is needed outside the match: it is output gate"),)


def test_an_objection_is_a_refusal_and_what_does_not_fit_is_none():
    graph = parsed("x: f32[3]", "%a = abs(%x) : f32[3]")
    no = Decline(Code.ATTRIBUTE, "it is too early")
    objects = Rule("a", "a", fn("abs", X), becomes("relu"), where=lambda found: no)
    unfit = Rule("b", "b", fn("abs", X), becomes("relu"), fits=lambda found: False)
    assert rewrite(graph, [objects, unfit]).refusals == (Refusal("a", ("a",), "it is too early"),)


def test_a_sentence_of_its_own():
    graph = parsed("x: f32[3]", "%a = abs(%x) : f32[3]")
    rule = Rule("a", lambda found: f"{found.root.name} was here", fn("abs", X), becomes("relu"))
    assert rewrite(graph, [rule]).changes == ("a was here",)


def test_rules_that_undo_each_other_are_named():
    graph = parsed("x: f32[3]", "%a = sin(%x) : f32[3]")
    rules = [Rule("there", "", fn("sin", X), becomes("cos")), Rule("back", "", fn("cos", X), becomes("sin"))]
    with pytest.raises(CompileError, match=r"the rules (there|back) still change it after 200 sweeps"):
        rewrite(graph, rules)


def test_a_rule_that_changes_the_type_is_named():
    graph = parsed("x: f32[3]", "%a = sin(%x) : f32[3]")
    rule = Rule("halves", "", fn("sin", X), lambda make, found: make(Cast(dtype="float16"), found["x"]))
    with pytest.raises(CompileError, match=r"rule halves made f16\[3\] of sin %a, which is f32\[3\]"):
        rewrite(graph, [rule])


def test_a_chain_settles_within_few_sweeps():
    g = gd.GraphBuilder()
    x = g.input("x", (3,), gd.float32)
    for _ in range(500):
        x = g.relu(x)
    rule = Rule("once", "once", fn("relu", fn("relu", X)), becomes("relu"))
    done = rewrite(g.build({"y": x}), [rule])
    assert len(done.graph.nodes) == 1
    assert done.graph.nodes[0].origins == ("relu", *(f"relu_{i}" for i in range(1, 500)))


def test_states_and_updates_are_carried_over():
    g = gd.GraphBuilder()
    x, memory = g.input("x", (3,), gd.float32), g.state("memory", (3,), gd.float32)
    total = g.add(memory, g.mul(x, g.sigmoid(x)))
    done = rewrite(g.build({"y": g.relu(total)}, {"memory": total}), [SILU])
    assert done.graph.updates["memory"] is done.graph.node("add").result
    assert done.graph.node("add").operands[0] is done.graph.states["memory"]


def test_time_grows_with_the_number_of_nodes():
    def rewritten(count: int) -> Callable[[], None]:
        g = gd.GraphBuilder()
        x = g.input("x", (3,), gd.float32)
        for _ in range(count):
            x = g.mul(x, g.sigmoid(x))
        graph = g.build({"y": x})

        def run() -> None:
            assert len(rewrite(graph, [SILU]).graph.nodes) == count

        return run

    rewritten(50)()
    small, large = (least_seconds(lambda n=n: rewritten(n)) for n in (300, 2400))
    assert large / small < 8 * 3


def test_equal_results_before_and_after(rng: np.random.Generator):
    graph = parsed("x: f32[2x3]", "%s = sigmoid(%x) : f32[2x3]", "%y = mul(%x, %s) : f32[2x3]")
    x = rng.normal(size=(2, 3)).astype(np.float32)
    before, after = (gd.evaluate(g, {"x": x}, gd.float64)["y"] for g in (graph, rewrite(graph, [SILU]).graph))
    np.testing.assert_allclose(after, before, rtol=1e-14)
    assert Is(Pointwise) == Is(Pointwise)
