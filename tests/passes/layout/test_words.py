"""What the layout pass says of a conversion: of what, from where to where, for whom, and why where nothing turns."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.types import channels_last
from graphdnn.passes.fold import fold
from graphdnn.passes.layout.assign import assign_layouts

APART = "which needs memory of its own, apart from"


def source(g: gd.GraphBuilder) -> gd.Value:
    return g.input("x", (4, 6), gd.float32)


def twice(g: gd.GraphBuilder) -> dict[str, gd.Value]:
    y = g.relu(source(g), name="act")
    return {"y": y, "z": y}


LEAVING = {
    "an input": (lambda g: {"y": source(g)}, f"x is copied for output y, {APART} input x: 96 bytes"),
    "a view of an input": (
        lambda g: {"y": g.reshape(source(g), (24,), name="flat")},
        f"flat is copied for output y, {APART} input x: 96 bytes",
    ),
    "a part": (
        lambda g: {"y": g.slice(g.relu(source(g), name="act"), (0, 0), (2, 6), name="top")},
        f"top is copied for output y, {APART} the rest of act: 48 bytes",
    ),
    "what leaves already": (twice, f"act is copied for output z, {APART} output y: 96 bytes"),
    "a constant": (
        lambda g: {"y": g.constant(np.ones((4, 6), np.float32))},
        f"a constant is copied for output y, {APART} the constant: 96 bytes",
    ),
}


@pytest.mark.parametrize("kind", LEAVING)
def test_a_copy_of_what_leaves_says_why(kind: str) -> None:
    build, expected = LEAVING[kind]
    g = gd.GraphBuilder()
    assert assign_layouts(g.build(build(g))).changes == (expected,)


def test_a_copy_for_a_state_says_why() -> None:
    g = gd.GraphBuilder()
    k = g.state("k", (4, 6), gd.float32)
    graph = g.build({"y": g.relu(k)}, updates={"k": source(g)})
    assert assign_layouts(graph).changes == (f"x is copied for the next value of state k, {APART} input x: 96 bytes",)


def normalized(channels: int) -> gd.Graph:
    """A convolution and a batch norm that is folded into its weights, row-major at the edges."""
    g = gd.GraphBuilder()
    w = g.constant(np.ones((channels, 5, 2, 3), np.float32), name="w")
    vectors = [g.constant(np.full(channels, v, np.float32)) for v in (0.5, 2.0, 3.0, 4.0)]
    y = g.batch_norm(g.conv(g.input("x", (2, 5, 6, 7), gd.float32), w, name="conv"), *vectors, name="norm")
    return g.build({"y": g.relu(y, name="act")})


def test_a_conversion_says_for_whom_and_no_constant_that_a_pass_made_is_named() -> None:
    assert assign_layouts(fold(normalized(3)).graph).changes == (
        "x is converted from row-major to channels-last for conv, norm: 1680 bytes",
        "conv, norm: operand w is converted from row-major to channels-last, at compile time",
        "act is converted from channels-last to row-major for output y: 600 bytes",
    )


def test_strides_without_a_name_are_told_as_they_are() -> None:
    g = gd.GraphBuilder()
    w = g.constant(np.ones((64, 32), np.int8), name="w")
    graph = g.build({"y": g.matmul(g.input("x", (16, 64), gd.int8), w, name="product")})
    assert assign_layouts(graph).changes == (
        "product: operand B is converted from row-major to strides (1, 64), at compile time",
    )


def test_a_value_that_a_pass_made_is_called_after_the_users_node() -> None:
    """The multiply-add that a batch norm becomes has a name of its own."""
    g = gd.GraphBuilder()
    x = g.input("x", (2, 3, 6, 7), gd.float32, strides=channels_last((2, 3, 6, 7)))
    vectors = [g.constant(np.full(3, v, np.float32)) for v in (0.5, 2.0, 3.0, 4.0)]
    folded = fold(g.build({"y": g.batch_norm(x, *vectors, name="norm")})).graph
    assert "norm" not in [n.name for n in folded.nodes]
    laid = assign_layouts(folded, dict.fromkeys(folded.nodes, True))
    assert "norm is converted from channels-last to row-major for output y: 1008 bytes" in laid.changes
