"""What may be padded: over all samples, what the proof accepts is right whatever lies in the padding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.op import OPS
from graphdnn.ir.ops.pointwise import Pointwise
from graphdnn.specialize.proof import prove
from graphdnn.specialize.rules import RULES, SIZED
from tests.ir.samples import Sample
from tests.numbers import relative_error
from tests.specialize.growing import PADDED, corner, garbage, grown_graph

TRIES = 8
"""Random growths of each sample's inputs."""


@pytest.mark.parametrize("sample", PADDED, ids=str)
def test_what_is_accepted_is_right_whatever_the_padding_holds(sample: Sample, rng: np.random.Generator) -> None:
    graph = sample.graph(rng)
    inputs = sample.inputs(graph, rng)
    expected = gd.evaluate(graph, inputs, gd.float64)
    for _ in range(TRIES):
        padded = grown_graph(graph, rng)
        if padded is None or prove(graph, padded, {}) is not None:
            continue
        longer = {n: garbage(v.type.shape, v.type.dtype, rng) for n, v in padded.inputs.items()}
        for name, array in inputs.items():
            longer[name][tuple(map(slice, array.shape))] = array
        found = gd.evaluate(padded, longer, gd.float64)
        for name, wanted in expected.items():
            assert relative_error(corner(found[name], wanted.shape), wanted) < 1e-9


def test_every_op_has_a_rule() -> None:
    assert {op.kind for op in RULES} == set(OPS) - {"convert"}
    assert set(SIZED) <= set(RULES)


def graphs(
    build: Callable[..., Value], exact: dict[str, tuple[int, ...]], padded: dict[str, tuple[int, ...]], dtype: gd.DType
) -> tuple[Graph, Graph]:
    made = []
    for shapes in (exact, padded):
        g = gd.GraphBuilder("case")
        made.append(g.build({"y": build(g, *(g.input(n, s, dtype) for n, s in shapes.items()))}))
    return made[0], made[1]


def answer(build: Callable[..., Value], exact: tuple[int, ...], padded: tuple[int, ...]) -> str | None:
    found = prove(*graphs(build, {"x": exact}, {"x": padded}, gd.float32), {})
    return None if found is None else found.reason


def heads(g: gd.GraphBuilder, x: Value) -> Value:
    b, s, h = x.type.shape
    return g.reshape(g.transpose(g.reshape(x, (b, s, 2, h // 2)), (0, 2, 1, 3)), (b * 2, s, h // 2))


def tokens(g: gd.GraphBuilder, x: Value) -> Value:
    return g.reshape(x, (x.type.shape[0] * x.type.shape[1], -1))


HARMLESS = {
    "relu": (lambda g, x: g.relu(x), (3, 5), (4, 8)),
    "softmax along the other axis": (lambda g, x: g.softmax(x, axis=1), (3, 5), (4, 5)),
    "batch joined with what lies inside": (tokens, (3, 5, 4), (7, 5, 4)),
    "heads split off, batch and heads joined": (heads, (3, 5, 4), (8, 5, 4)),
    "heads split off, sequence longer": (heads, (3, 5, 4), (3, 9, 4)),
    "rows of a matmul": (lambda g, x: g.matmul(x, g.constant(np.ones((5, 2), np.float32))), (3, 5), (4, 5)),
    "convolution of more images": (
        lambda g, x: g.conv(x, g.constant(np.ones((2, 3, 3, 3), np.float32)), padding=1),
        (1, 3, 5, 5),
        (4, 3, 5, 5),
    ),
    "windows that end with the image": (
        lambda g, x: g.conv(x, g.constant(np.ones((2, 3, 2, 2), np.float32)), stride=2),
        (1, 3, 6, 4),
        (1, 3, 9, 8),
    ),
    "windows of a pooling that end before the image": (
        lambda g, x: g.avg_pool(g.max_pool(x, kernel=2), kernel=1, count_include_pad=False),
        (1, 3, 5, 4),
        (1, 3, 6, 8),
    ),
    "windows of a transposed convolution side by side": (
        lambda g, x: g.conv_transpose(x, g.constant(np.ones((3, 2, 2, 2), np.float32)), stride=2),
        (1, 3, 5, 5),
        (1, 3, 8, 6),
    ),
    "positions": (lambda g, x: g.add(g.cast(g.iota(x.type.shape[1]), gd.float32), x), (3, 5), (3, 8)),
    "the first rows of a table": (
        lambda g, x: g.add(x, g.constant(np.arange(99, dtype=np.float32)[: x.type.shape[0]].reshape(-1, 1))),
        (3, 5),
        (4, 5),
    ),
    "all but the last": (lambda g, x: g.slice(x, (0,), (-1,), axes=(1,)), (3, 5), (3, 8)),
    "something before it": (
        lambda g, x: g.concat([g.constant(np.ones((3, 1), np.float32)), x], axis=1),
        (3, 5),
        (3, 8),
    ),
    "one row repeated": (lambda g, x: g.expand(x, (6, 5)), (1, 5), (1, 5)),
}

HARMFUL = {
    "mean over the batch": (lambda g, x: g.reduce_mean(x, axes=0, name="m"), (3, 5), (4, 5), "reduce_mean %m"),
    "sum over the batch": (lambda g, x: g.reduce_sum(x, axes=(0, 1), name="s"), (3, 5), (4, 5), "reduce_sum %s"),
    "softmax along it": (lambda g, x: g.softmax(x, axis=0, name="s"), (3, 5), (4, 5), "softmax %s"),
    "contraction": (lambda g, x: g.matmul(g.transpose(x, (1, 0)), x, name="p"), (3, 5), (4, 5), "matmul %p sums over"),
    "norm over it": (lambda g, x: g.layer_norm(x, axes=-1, name="n"), (3, 5), (3, 8), "layer_norm %n"),
    "batch norm's channel groups": (
        lambda g, x: g.group_norm(
            x, *(g.constant(np.ones(x.type.shape[1], np.float32)) for _ in range(2)), groups=2, name="n"
        ),
        (1, 4, 3),
        (1, 6, 3),
        "group_norm %n",
    ),
    "image border": (
        lambda g, x: g.conv(x, g.constant(np.ones((2, 3, 3, 3), np.float32)), padding=1, name="c"),
        (1, 3, 5, 5),
        (1, 3, 5, 8),
        "conv %c computes across axis 3 of its x",
    ),
    "border of a pooling": (
        lambda g, x: g.max_pool(x, kernel=2, padding=1, name="p"),
        (1, 3, 4, 4),
        (1, 3, 6, 4),
        "max_pool %p computes across axis 2 of its x",
    ),
    "the last window of a pooling": (
        lambda g, x: g.avg_pool(x, kernel=2, ceil_mode=True, name="p"),
        (1, 3, 4, 5),
        (1, 3, 4, 6),
        "avg_pool %p computes across axis 3 of its x",
    ),
    "overlapping windows of a transposed convolution": (
        lambda g, x: g.conv_transpose(x, g.constant(np.ones((3, 2, 3, 3), np.float32)), stride=2, name="c"),
        (1, 3, 5, 5),
        (1, 3, 5, 8),
        "conv_transpose %c computes across axis 3 of its x",
    ),
    "longer windows of a transposed convolution": (
        lambda g, x: g.conv_transpose(g.constant(np.ones((1, 3, 5, 5), np.float32)), x, stride=4, name="c"),
        (3, 2, 2, 2),
        (3, 2, 3, 2),
        "conv_transpose %c computes across axis 2 of its w",
    ),
    "sequence joined to the batch": (
        tokens,
        (3, 5, 4),
        (3, 8, 4),
        "reshape %reshape joins to the axis before it axis 1",
    ),
    "cut into rows": (lambda g, x: g.reshape(x, (-1, 2), name="r"), (2, 5), (2, 8), "reshape %r"),
    "cut into halves": (lambda g, x: g.reshape(x, (2, -1), name="r"), (6,), (8,), "reshape %r divides axis 0"),
    "the last": (lambda g, x: g.slice(x, (-1,), (None,), axes=(0,), name="l"), (3, 5), (4, 5), "starts of slice %l"),
    "halves": (lambda g, x: g.add(*g.split(x, 2, axis=0, name="h")), (4, 5), (8, 5), "split %h divides axis 0"),
    "something behind it": (
        lambda g, x: g.concat([x, g.constant(np.ones((1, 5), np.float32))], axis=0, name="j"),
        (3, 5),
        (4, 5),
        "concat %j puts more behind axis 0",
    ),
    "padding behind it": (lambda g, x: g.pad(x, ((0, 1), (0, 0)), name="p"), (3, 5), (4, 5), "pad %p puts more behind"),
    "look-up along it": (
        lambda g, x: g.gather(x, g.constant(np.array([0, -1], np.int32)), axis=0, name="t"),
        (3, 5),
        (4, 5),
        "gather %t looks up along axis 0",
    ),
    "written into": (
        lambda g, x: g.write_slice(x, g.constant(np.ones((2, 5), np.float32)), 9, axis=0, name="w"),
        (3, 5),
        (4, 5),
        "write_slice %w writes into axis 0",
    ),
    "a scale by the extent": (lambda g, x: g.mul(x, 1 / x.type.shape[0], name="m"), (3, 5), (4, 5), "mul %m"),
    "a scale by the extent, as a constant": (
        lambda g, x: g.mul(x, g.constant(np.float32(1 / x.type.shape[0]), name="c"), name="m"),
        (3, 5),
        (4, 5),
        "constant %c has another content",
    ),
    "an attribute by the extent": (
        lambda g, x: g.clip(x, min=0.0, max=float(x.type.shape[0]), name="c"),
        (3, 5),
        (4, 5),
        "parameters of clip %c",
    ),
    "another graph": (lambda g, x: g.relu(x) if x.type.shape[0] == 3 else g.tanh(x), (3, 5), (4, 5), "relu %relu"),
    "more of a graph": (
        lambda g, x: g.relu(x) if x.type.shape[0] == 3 else g.tanh(g.relu(x)),
        (3, 5),
        (4, 5),
        "1 node for",
    ),
    "one row repeated": (lambda g, x: g.add(x, g.constant(np.ones((4, 5), np.float32))), (1, 5), (4, 5), "repeats"),
    "one row chosen from": (
        lambda g, x: g.select(g.constant(np.ones((4, 1), bool)), x, 0.0, name="c"),
        (1, 5),
        (4, 5),
        "select %c repeats operand 1",
    ),
    "one row expanded": (lambda g, x: g.expand(x, (4, 5), name="e"), (1, 5), (4, 5), "expand %e repeats"),
    "keys": (
        lambda g, x: g.attention(x, x, x, name="a"),
        (2, 1, 5, 8),
        (2, 1, 8, 8),
        "attention %a attends along axis 2 of its k",
    ),
    "keys behind a causal mask, which NaN passes": (
        lambda g, x: g.attention(x, x, x, causal="top_left", name="a"),
        (2, 1, 5, 8),
        (2, 1, 8, 8),
        "attention %a",
    ),
    "features of a head": (
        lambda g, x: g.attention(x, x, x, scale=1.0, name="a"),
        (2, 1, 5, 4),
        (2, 1, 5, 8),
        "attention %a computes across axis 3 of its q",
    ),
    "heads": (lambda g, x: g.attention(x, x, x, name="a"), (2, 1, 5, 8), (2, 2, 5, 8), "attention %a computes across"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_padding_that_changes_nothing_is_accepted(name: str) -> None:
    assert answer(*HARMLESS[name]) is None


@pytest.mark.parametrize("name", HARMFUL)
def test_padding_that_changes_a_result_is_refused_by_the_name_of_the_node(name: str) -> None:
    build, exact, padded, said = HARMFUL[name]
    reason = answer(build, exact, padded)
    assert reason is not None
    assert said in reason
    assert "\n" not in reason


def test_an_op_that_no_rule_is_known_for_is_never_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(RULES, Pointwise)
    reason = answer(lambda g, x: g.relu(x, name="r"), (3, 5), (4, 5))
    assert reason is not None
    assert "%r" in reason
    assert "it is not known which elements it computes from which" in reason


def test_outputs_of_other_names_are_told() -> None:
    made = []
    for rows, name in ((3, "short"), (4, "long")):
        g = gd.GraphBuilder("case")
        made.append(g.build({name: g.relu(g.input("x", (rows, 5), gd.float32))}))
    found = prove(made[0], made[1], {})
    assert found is not None
    assert found.reason == "the outputs are ['short'] for the exact shapes and ['long'] for the padded"


def test_one_row_and_many_do_not_become_equally_many() -> None:
    """Exact, the one row is repeated five times; padded to eight rows each, it would meet the first row only."""
    exact, padded = graphs(
        lambda g, x, y: g.add(x, y, name="a"), {"x": (1, 4), "y": (5, 4)}, {"x": (8, 4), "y": (8, 4)}, gd.float32
    )
    found = prove(exact, padded, {})
    assert found is not None
    assert "add %a repeats operand 0 along axis 0" in found.reason


def masked(fill: float, fn: str = "sum", bound: str = "n") -> Callable[..., Value]:
    """A reduction over positions below a length."""

    def build(g: gd.GraphBuilder, x: Value, n: Value) -> Value:
        b, s, _ = x.type.shape
        limits = {"n": n, "least": g.minimum(n, g.add(n, 1)), "more": g.add(n, 1)}[bound]
        live = g.less(g.reshape(g.iota(s), (1, s, 1)), g.reshape(limits, (b, 1, 1)))
        kept = g.cast(g.select(live, x, fill), gd.float16)
        if fn == "softmax":
            return g.softmax(kept, axis=1, name="r")
        return getattr(g, f"reduce_{fn}")(kept, axes=1, name="r")  # type: ignore[no-any-return]

    return build


def with_length(build: Callable[..., Value], s: int, padded: int, limit: int) -> str | None:
    made = []
    for extent in (s, padded):
        g = gd.GraphBuilder("case")
        made.append(g.build({"y": build(g, g.input("x", (2, extent, 4), gd.float32), g.input("n", (2,), gd.int32))}))
    found = prove(made[0], made[1], {"n": limit})
    return None if found is None else found.reason


def test_a_sum_over_positions_below_the_length_may_be_padded() -> None:
    assert with_length(masked(0.0), 5, 8, 5) is None
    assert with_length(masked(0.0, bound="least"), 5, 8, 5) is None


@pytest.mark.parametrize("fn", ["max", "softmax"])
def test_what_minus_infinity_takes_no_part_in_may_be_padded(fn: str) -> None:
    assert with_length(masked(-np.inf, fn), 5, 8, 5) is None


@pytest.mark.parametrize(
    "build",
    [
        masked(1.0),
        masked(0.0, "max"),
        masked(0.0, bound="more"),
        masked(-np.inf),
        masked(-np.inf, "min"),
        masked(np.inf, "max"),
        masked(0.0, "softmax"),
        masked(-np.inf, "softmax", bound="more"),
    ],
)
def test_nothing_is_padded_for_another_mask(build: Callable[..., Value]) -> None:
    reason = with_length(build, 5, 8, 5)
    assert reason is not None
    assert "%r computes across axis 1" in reason


@pytest.mark.parametrize(("is_other_masked", "is_accepted"), [(True, True), (False, False)])
def test_a_choice_of_two_ends_where_both_do(is_other_masked: bool, is_accepted: bool) -> None:
    def build(g: gd.GraphBuilder, x: Value, n: Value) -> Value:
        b, s, _ = x.type.shape
        live = g.less(g.reshape(g.iota(s), (1, s, 1)), g.reshape(n, (b, 1, 1)))
        other = g.select(live, g.exp(x), 0.0) if is_other_masked else g.exp(x)
        return g.reduce_sum(g.select(g.less(x, 0.5), g.select(live, x, 0.0), other), axes=1, name="r")

    assert (with_length(build, 5, 8, 5) is None) == is_accepted


def test_a_length_that_reaches_into_the_padding_is_no_mask() -> None:
    assert with_length(masked(0.0), 5, 8, 6) is not None


def attending(causal: str | None, *lengths: str) -> Callable[..., Value]:
    def build(g: gd.GraphBuilder, x: Value, n: Value) -> Value:
        q = g.reshape(x, (2, 1, x.type.shape[1], 4))
        return g.attention(q, q, q, causal=causal, name="a", **dict.fromkeys(lengths, n))  # type: ignore[call-overload]

    return build


def test_attention_up_to_the_filled_in_length_may_be_padded() -> None:
    assert with_length(attending(None, "kv_lengths"), 5, 8, 5) is None
    assert with_length(attending("top_left", "kv_lengths"), 5, 8, 5) is None
    assert with_length(attending("bottom_right", "kv_lengths", "q_lengths"), 5, 8, 5) is None


def test_bottom_right_needs_to_know_where_the_queries_end() -> None:
    reason = with_length(attending("bottom_right", "kv_lengths"), 5, 8, 5)
    assert reason is not None
    assert "attention %a counts from the end of axis 2 of its q" in reason


def test_lengths_of_the_callers_own_are_no_proof() -> None:
    assert with_length(attending(None, "kv_lengths"), 5, 8, 8) is not None


def test_samples_of_all_ops_are_padded_somehow(rng: np.random.Generator) -> None:
    """Else the law above would compare nothing."""
    accepted: set[str] = set()
    for sample in PADDED:
        graph = sample.graph(rng)
        kinds = {n.op.kind for n in graph.nodes}
        for _ in range(0 if kinds <= accepted else 20 * TRIES):
            padded = grown_graph(graph, rng)
            shapes = [] if padded is None else [v.type.shape for v in padded.inputs.values()]
            if padded is None or shapes == [v.type.shape for v in graph.inputs.values()]:
                continue
            if prove(graph, padded, {}) is None:
                accepted |= kinds
    assert accepted == set(OPS) - {"convert"}
