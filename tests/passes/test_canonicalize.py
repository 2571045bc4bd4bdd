import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.evaluate import run
from graphdnn.ir.payload import Payload
from graphdnn.passes.canonicalize import canonicalize, drop_dead, fold_constants, merge_equal
from tests.passes.graph_text import nodes, parsed

X = "x: f32[2x3x4]"
T = "%t = tanh(%x) : f32[2x3x4]"


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("identity(%t) : f32[2x3x4]", None),
        ('cast(%t) {dtype="float32"} : f32[2x3x4]', None),
        ("mul(%t, 1.0:f32) : f32[2x3x4]", None),
        ("mul(1.0:f32, %t) : f32[2x3x4]", None),
        ("div(%t, 1.0:f32) : f32[2x3x4]", None),
        ("sub(%t, 0.0:f32) : f32[2x3x4]", None),
        ("add(%t, -0.0:f32) : f32[2x3x4]", None),
        ("reshape(%t) {shape=(2, 3, 4)} : f32[2x3x4]", None),
        ("transpose(%t) {axes=(0, 1, 2)} : f32[2x3x4]", None),
        ("expand(%t) {shape=(2, 3, 4)} : f32[2x3x4]", None),
        ("slice(%t) {starts=(0, 0, 0), stops=(2, 3, 4), steps=(1, 1, 1)} : f32[2x3x4]", None),
        ("pad(%t) {padding=((0, 0), (0, 0), (0, 0))} : f32[2x3x4]", None),
        ("concat(%t) {axis=1} : f32[2x3x4]", None),
        ("div(%t, 4.0:f32) : f32[2x3x4]", "mul(%t, 0.25:f32) : f32[2x3x4]"),
        ("div(%t, -0.5:f32) : f32[2x3x4]", "mul(%t, -2.0:f32) : f32[2x3x4]"),
        ("pow(%t, 2.0:f32) : f32[2x3x4]", "square(%t) : f32[2x3x4]"),
        # what looks like nothing and is something
        ("add(%t, 0.0:f32) : f32[2x3x4]", "same"),
        ("sub(%t, -0.0:f32) : f32[2x3x4]", "same"),
        ("sub(0.0:f32, %t) : f32[2x3x4]", "same"),
        ("div(1.0:f32, %t) : f32[2x3x4]", "same"),
        ("div(%t, 3.0:f32) : f32[2x3x4]", "same"),
        ("div(%t, 1e-30:f32) : f32[2x3x4]", "same"),
        (f"div(%t, {2.0**-130!r}:f32) : f32[2x3x4]", "same"),  # 2 ** 130 is no number of float32
        ('cast(%t) {dtype="float16"} : f16[2x3x4]', "same"),
        ("expand(%t) {shape=(5, 2, 3, 4)} : f32[5x2x3x4]", "same"),
        ("transpose(%t) {axes=(1, 0, 2)} : f32[3x2x4]", "same"),
    ],
)
def test_one_node(line: str, left: str | None):
    graph = parsed(X, T, f"%y = {line}")
    done = nodes(canonicalize(graph).graph)
    wanted = nodes(graph) if left == "same" else [T, "return y = %t"]
    if left not in (None, "same"):
        wanted = [T, f"%y_0 = {left} from y", "return y = %y_0"]
    assert done == wanted


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (["%a = relu(%t) : f32[2x3x4]", "%y = relu(%a) : f32[2x3x4]"], ["%a = relu(%t) : f32[2x3x4]", "return y = %a"]),
        (["%a = neg(%t) : f32[2x3x4]", "%y = neg(%a) : f32[2x3x4]"], ["return y = %t"]),
        (
            ["%a = reshape(%t) {shape=(6, 4)} : f32[6x4]", "%y = unsqueeze(%a) {axes=(0,)} : f32[1x6x4]"],
            ["%a_0 = reshape(%t) {shape=(1, 6, 4)} : f32[1x6x4] from a, y", "return y = %a_0"],
        ),
        (
            ["%a = unsqueeze(%t) {axes=(1,)} : f32[2x1x3x4]", "%y = squeeze(%a) {axes=(1,)} : f32[2x3x4]"],
            ["return y = %t"],
        ),
        (
            ["%a = transpose(%t) {axes=(2, 0, 1)} : f32[4x2x3]", "%y = transpose(%a) {axes=(0, 2, 1)} : f32[4x3x2]"],
            ["%a_0 = transpose(%t) {axes=(2, 1, 0)} : f32[4x3x2] from a, y", "return y = %a_0"],
        ),
        (
            ["%a = transpose(%t) {axes=(2, 0, 1)} : f32[4x2x3]", "%y = transpose(%a) {axes=(1, 2, 0)} : f32[2x3x4]"],
            ["return y = %t"],
        ),
        (
            ["%a = unsqueeze(%t) {axes=(1,)} : f32[2x1x3x4]", "%y = transpose(%a) {axes=(1, 0, 2, 3)} : f32[1x2x3x4]"],
            ["%a_0 = reshape(%t) {shape=(1, 2, 3, 4)} : f32[1x2x3x4] from a, y", "return y = %a_0"],
        ),
        (
            ['%a = cast(%t) {dtype="float64"} : f64[2x3x4]', '%y = cast(%a) {dtype="float16"} : f16[2x3x4]'],
            ['%a_0 = cast(%t) {dtype="float16"} : f16[2x3x4] from a, y', "return y = %a_0"],
        ),
        (['%a = cast(%t) {dtype="float16"} : f16[2x3x4]', '%y = cast(%a) {dtype="float32"} : f32[2x3x4]'], "same"),
        (
            [
                '%i = cast(%t) {dtype="int32"} : i32[2x3x4]',
                '%a = cast(%i) {dtype="float32"} : f32[2x3x4]',  # which does not hold every int32
                '%y = cast(%a) {dtype="float64"} : f64[2x3x4]',
            ],
            "same",
        ),
    ],
)
def test_two_nodes(lines: list[str], left):
    graph = parsed(X, T, *lines)
    wanted = nodes(graph) if left == "same" else [T, *left]
    assert nodes(canonicalize(graph).graph) == wanted


def test_the_first_of_two_stays_for_those_who_read_it():
    graph = parsed(
        X,
        "%a = transpose(%x) {axes=(2, 0, 1)} : f32[4x2x3]",
        "%b = transpose(%a) {axes=(1, 2, 0)} : f32[2x3x4]",
        "%c = exp(%a) : f32[4x2x3]",
        "%d = exp(%b) : f32[2x3x4]",
        "return c = %c",
        "return d = %d",
    )
    assert nodes(canonicalize(graph).graph)[0] == "%a = transpose(%x) {axes=(2, 0, 1)} : f32[4x2x3]"
    assert "%d = exp(%x) : f32[2x3x4]" in nodes(canonicalize(graph).graph)


def test_an_output_does_not_become_an_input():
    done = canonicalize(parsed(X, "%y = mul(%x, 1.0:f32) : f32[2x3x4]"))
    assert [n.name for n in done.graph.nodes] == ["y"]
    assert done.refusals[0].reason == "%y leaves the graph, and %x is not made in it"


def test_integers_add_zero():
    graph = parsed("x: i32[3]", "%t = neg(%x) : i32[3]", "%y = add(%t, 0:i32) : i32[3]")
    assert nodes(canonicalize(graph).graph)[-1] == "return y = %t"


def test_a_factor_that_widens_the_result_is_no_neutral_number():
    g = gd.GraphBuilder()
    x = g.tanh(g.input("x", (3,), gd.float16))
    one = g.constant(np.ones((1,), np.float32))
    tall = g.constant(np.ones((1, 1), np.float16))
    graph = g.build({"wide": g.mul(x, one), "tall": g.mul(x, tall), "same": g.mul(x, g.constant(np.float16(1)))})
    done = canonicalize(graph).graph
    assert [v.type for v in done.outputs.values()] == [v.type for v in graph.outputs.values()]
    assert [n.op.label for n in done.nodes] == ["tanh", "mul", "mul"]


def test_expansions_before_pointwise_ops_are_broadcasts():
    graph = parsed(
        "x: f32[2x3], b: f32[3]",
        "%e = expand(%b) {shape=(2, 3)} : f32[2x3]",
        "%y = add(%x, %e) : f32[2x3]",
        "%z = exp(%e) : f32[2x3]",
        "return y = %y",
        "return z = %z",
    )
    assert nodes(canonicalize(graph).graph)[:3] == [
        "%e = expand(%b) {shape=(2, 3)} : f32[2x3]",
        "%e_0 = add(%x, %b) : f32[2x3] from e, y",
        "%z = exp(%e) : f32[2x3]",
    ]


def test_dead_nodes_go():
    graph = parsed(X, "%a = exp(%x) : f32[2x3x4]", "%b = exp(%a) : f32[2x3x4]", T, "return t = %t")
    done = drop_dead(graph)
    assert nodes(done.graph) == [T, "return t = %t"]
    assert done.changes == ("a: nothing reads it", "b: nothing reads it")


def test_what_makes_a_state_next_is_not_dead():
    g = gd.GraphBuilder()
    x, s = g.input("x", (3,), gd.float32), g.state("s", (3,), gd.float32)
    g.exp(s, name="dead")
    graph = g.build({"y": g.tanh(x, name="y")}, {"s": g.add(s, g.neg(x, name="less"), name="next")})
    done = drop_dead(graph)
    assert [n.name for n in done.graph.nodes] == ["y", "less", "next"]
    assert done.changes == ("dead: nothing reads it",)


def test_one_node_for_one_computation_with_the_origins_of_both():
    graph = parsed(
        X,
        "%a = exp(%x) : f32[2x3x4]",
        "%b = exp(%x) : f32[2x3x4]",
        "%c = sin(%a) : f32[2x3x4]",
        "%d = sin(%b) : f32[2x3x4]",
        "%y = add(%c, %d) : f32[2x3x4]",
    )
    done = merge_equal(graph)
    assert nodes(done.graph) == [
        "%a = exp(%x) : f32[2x3x4] from a, b",
        "%c = sin(%a) : f32[2x3x4] from c, d",
        "%y = add(%c, %c) : f32[2x3x4]",
        "return y = %y",
    ]
    assert done.changes == ("b: computed once, as a", "d: computed once, as c")


def test_different_numbers_types_and_attributes_are_not_merged():
    lines = [
        "%a = mul(%x, 0.0:f32) : f32[2x3x4]",
        "%b = mul(%x, -0.0:f32) : f32[2x3x4]",
        "%c = leaky_relu(%x) : f32[2x3x4]",
        "%d = leaky_relu(%x) {parameters=(0.5,)} : f32[2x3x4]",
    ]
    lines[2] = "%c = leaky_relu(%x) {parameters=(0.01,)} : f32[2x3x4]"
    lines += [f"%{n} = select(%m, 1.0:f{bits}, 2.0:f{bits}) : f{bits}[3]" for n, bits in (("e", 32), ("f", 16))]
    graph = parsed(f"{X}, m: b8[3]", *lines, *(f"return {n} = %{n}" for n in "abcdef"))
    assert merge_equal(graph).graph is graph


def test_equal_constants_are_one_and_states_are_not():
    g = gd.GraphBuilder()
    x = g.input("x", (3,), gd.float32)
    one, two = (g.constant(np.arange(3, dtype=np.float32), name=n) for n in ("one", "two"))
    other = g.constant(np.arange(3, dtype=np.int32), name="other")
    first, second = (g.state(n, (3,), gd.float32) for n in ("first", "second"))
    a, b = g.add(x, one), g.add(x, two)
    graph = g.build(
        {"y": g.mul(a, b), "s": g.mul(g.add(first, x), g.add(second, x)), "o": g.add(other, 1)},
        {"first": a, "second": b},
    )
    done = merge_equal(graph)
    assert list(done.graph.constants) == ["one", "other"]
    assert list(done.graph.states) == ["first", "second"]
    assert done.changes == ("two: the same constant as one", "add_1: computed once, as add")
    assert sum(n.op.label == "add" for n in done.graph.nodes) == 4
    inputs = {"x": np.float32([1, 2, 3])}
    states = {"first": np.float32([5, 0, 0]), "second": np.float32([0, 7, 0])}
    for before, after in zip(run(graph, inputs, states=states), run(done.graph, inputs, states=states), strict=True):
        for name in before:
            np.testing.assert_array_equal(before[name], after[name])


def test_constants_that_differ_in_one_element_stay_two():
    """Among a thousand elements, wherever it is and however the arrays lie; those that are equal become one."""
    g = gd.GraphBuilder()
    a = np.random.default_rng(5).standard_normal((25, 40)).astype(np.float16)
    arrays = {"a": a, "same": np.asfortranarray(a), "other": a[::-1]}
    for place in (0, 1, 17, 500, 999):
        arrays[f"at {place}"] = np.where(np.arange(1000).reshape(25, 40) == place, 9, a)
    x = g.input("x", (25, 40), gd.float16)
    graph = g.build({f"y {n}": g.add(x, g.constant(array, name=n)) for n, array in arrays.items()})
    assert sorted(merge_equal(graph).graph.constants) == sorted(n for n in arrays if n != "same")


def test_constants_without_data_equal_those_with_it_by_digest():
    array = np.arange(8, dtype=np.float32)
    g = gd.GraphBuilder()
    x = g.input("x", (8,), gd.float32)
    graph = g.build({"y": g.mul(g.add(x, g.constant(array, name="here")), g.constant(array + 1, name="there"))})
    digest = graph.payloads["here"].digest
    payloads = {"here": graph.payloads["here"], "there": Payload(graph.constants["there"].type, digest=digest)}
    mixed = gd.Graph("mixed", graph.nodes, graph.inputs, graph.constants, payloads, graph.outputs)
    assert merge_equal(mixed).changes == ("there: the same constant as here",)


def test_a_constant_of_no_axes_can_be_sampled():
    g = gd.GraphBuilder()
    x = g.input("x", (3,), gd.float32)
    two, three = (g.constant(np.float32(n), name=str(n)) for n in (2, 3))
    again = g.constant(np.float32(2), name="again")
    graph = g.build({"y": g.mul(g.add(g.mul(x, two), three), again)})
    assert list(merge_equal(graph).graph.constants) == ["2", "3"]


def test_constants_are_computed_when_asked_for():
    g = gd.GraphBuilder()
    x = g.input("x", (2, 3), gd.float32)
    w = g.constant(np.float16([[1, 2, 3], [4, 5, 6]]), name="w")
    wide = g.mul(g.cast(g.transpose(w, (1, 0)), gd.float32), 0.1)
    low, high = g.split(wide, (1, 2), axis=0)
    graph = g.build(
        {"y": g.add(g.matmul(x, wide), g.reduce_sum(high, axes=0)), "low": g.mul(g.reduce_sum(x, axes=1), low)}
    )
    done = canonicalize(graph)
    assert not any(n.op.label in ("transpose", "cast", "split") for n in done.graph.nodes)
    assert all(not p.has_data or p._array is None for n, p in done.graph.payloads.items() if n != "w")
    inputs = {"x": np.float32([[1, -2, 3], [0.5, 4, -1]])}
    before, after = gd.evaluate(graph, inputs), gd.evaluate(done.graph, inputs)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_long_and_wide_computations_of_constants():
    g = gd.GraphBuilder()
    c = g.constant(np.ones(3, np.float32))
    for _ in range(1200):
        c = g.neg(c)
    for _ in range(64):
        c = g.add(c, c)
    done = canonicalize(g.build({"y": g.mul(g.input("x", (3,), gd.float32), c)})).graph
    (payload,) = done.payloads.values()
    assert payload.has_data
    assert len(payload.digest) == 64
    np.testing.assert_array_equal(payload.array(), np.full(3, 2.0**64, np.float32))


def test_constants_need_no_data_to_be_folded():
    graph = parsed(
        "x: f32[2x3]",
        f"constant %w: f32[3x2] sha256:{'ab' * 32}",
        "%t = transpose(%w) {axes=(1, 0)} : f32[2x3]",
        "%y = add(%x, %t) : f32[2x3]",
    )
    done = fold_constants(graph).graph
    assert [n.name for n in done.nodes] == ["y"]
    (payload,) = done.payloads.values()
    assert not payload.has_data
    assert payload.digest not in ("ab" * 32, "")


def test_what_grows_is_not_stored():
    g = gd.GraphBuilder()
    x = g.input("x", (200, 200), gd.float32)
    row = g.constant(np.arange(200, dtype=np.float32))
    graph = g.build({"y": g.add(x, g.exp(g.expand(row, (200, 200)))), "z": g.add(x, g.pad(g.exp(row), [(0, 0)]))})
    labels = [n.op.label for n in canonicalize(graph).graph.nodes]
    assert labels == ["expand", "exp", "add", "add"]


def test_an_output_stays_a_node():
    g = gd.GraphBuilder()
    y = g.exp(g.constant(np.arange(3, dtype=np.float32)))
    graph = g.build({"y": y, "x": g.relu(g.input("x", (3,), gd.float32))})
    assert fold_constants(graph).graph is graph


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32, gd.float64])
def test_exact_to_the_last_bit(dtype, rng: np.random.Generator):
    """Zeros with their sign, infinities, NaN and the smallest numbers included."""
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-7, -3e4, 1.0], np.float64)
    x = np.concatenate([special, rng.normal(size=57)]).astype(dtype.numpy)
    g = gd.GraphBuilder()
    t = g.identity(g.input("x", x.shape, dtype))
    spelled = {
        "one": g.mul(t, 1),
        "zero": g.sub(t, 0),
        "added": g.add(t, 0),
        "minus": g.add(t, -0.0),
        "quarter": g.div(t, 4),
        "third": g.div(t, 3),
        "eightfold": g.div(t, 0.125),
        "relu": g.relu(g.relu(t)),
        "neg": g.neg(g.neg(t)),
        "square": g.pow(t, 2),
        "wide": g.cast(g.cast(t, gd.float64), dtype),
    }
    graph = g.build({name: g.abs(v) if name == "square" else v for name, v in spelled.items()} | {"t": g.abs(t)})
    done = canonicalize(graph)
    assert len(done.graph.nodes) < len(graph.nodes) - 4
    before, after = gd.evaluate(graph, {"x": x}), gd.evaluate(done.graph, {"x": x})
    for name, array in before.items():
        np.testing.assert_array_equal(np.signbit(after[name]), np.signbit(array), name)
        np.testing.assert_array_equal(after[name].astype(np.float64), array.astype(np.float64), name)
