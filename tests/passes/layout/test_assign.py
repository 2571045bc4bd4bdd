"""Layouts: strides everywhere, the same numbers, conversions only where they must be, and outputs that own memory."""

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.evaluate import run
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.linear import Conv
from graphdnn.ir.ops.movement import Convert
from graphdnn.ir.types import Array, TensorType, channels_last, row_major
from graphdnn.ir.views import is_free, resolve
from graphdnn.passes.layout.assign import assign_layouts
from tests.clock import least_seconds
from tests.passes.random_graphs import random_graph
from tests.processes import said_by_every_process


def laid(g: gd.GraphBuilder, **outputs: gd.Value) -> Graph:
    return assign_layouts(g.build(outputs)).graph


def converts(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if isinstance(n.op, Convert)]


def copies(graph: Graph) -> list[Node]:
    """Nodes that rename elements in the user's words and move them here."""
    return [n for n in graph.nodes if n.op.is_renaming and not is_free(n)]


def values(graph: Graph) -> list[Value]:
    sources = [*graph.inputs.values(), *graph.states.values(), *graph.constants.values()]
    return [*sources, *(v for n in graph.nodes for v in n.results)]


def arrays(graph: Graph, rng: np.random.Generator) -> dict[str, Array]:
    return {
        n: rng.uniform(-1, 1, v.type.shape).astype(v.type.dtype.numpy)
        if v.type.dtype.is_float
        else rng.integers(0, 2, v.type.shape).astype(v.type.dtype.numpy)
        for n, v in graph.inputs.items()
    }


def check_lawful(graph: Graph) -> None:
    """What the rest of the compiler relies on."""
    assert all(v.type.strides is not None for v in values(graph))
    for constant in graph.constants.values():
        payload = graph.payloads[constant.name]
        assert payload.array().shape == constant.type.shape
    roots = resolve(graph)
    owners: dict[Value, str] = {}
    leaving = [(f"output {n}", v, graph.output_type(n)) for n, v in graph.outputs.items()]
    leaving += [(f"update {n}", v, graph.states[n].type) for n, v in graph.updates.items()]
    for name, value, promised in leaving:
        root, offset = roots[value]
        assert value.type.layout == promised.with_strides(promised.layout).layout, name
        assert root in graph.producer, f"{name} lies in a source"
        assert offset == 0, name
        assert root.type.size == value.type.size, name
        assert owners.setdefault(root, name) == name, f"{name} shares memory with {owners[root]}"
    for node in converts(graph):
        assert node.origins == ()
        assert node.operands[0].type.layout != node.result.type.layout or node.result in graph.escaping
        assert node.operands[0] not in graph.constants.values() or node.result in graph.escaping


@pytest.mark.parametrize("case", range(40))
def test_random_graphs_keep_their_meaning_and_a_second_pass_changes_nothing(
    case: int, rng: np.random.Generator
) -> None:
    graph = random_graph(rng)
    once = assign_layouts(graph)
    check_lawful(once.graph)
    given = arrays(graph, rng)
    before, after = run(graph, given), run(once.graph, given)
    for old, new in zip(before, after, strict=True):
        assert old.keys() == new.keys()
        assert all(np.array_equal(old[name], new[name], equal_nan=True) for name in old)
    twice = assign_layouts(once.graph)
    assert twice.changes == ()
    assert [str(n.result_types) for n in twice.graph.nodes] == [str(n.result_types) for n in once.graph.nodes]


@pytest.mark.parametrize("case", range(20))
def test_random_image_graphs_keep_their_meaning(case: int, rng: np.random.Generator) -> None:
    graph = random_graph(rng, families=("unary", "binary", "conv", "pool", "movement", "reduction", "conv"))
    once = assign_layouts(graph).graph
    check_lawful(once)
    given = arrays(graph, rng)
    before, after = gd.evaluate(graph, given), gd.evaluate(once, given)
    assert all(np.array_equal(before[name], after[name], equal_nan=True) for name in before)
    assert assign_layouts(once).changes == ()


def weight(g: gd.GraphBuilder, *shape: int) -> gd.Value:
    return g.constant(np.ones(shape, np.float16))


def block(g: gd.GraphBuilder, x: gd.Value) -> gd.Value:
    c = x.type.shape[1]
    y = g.relu(g.bias(g.conv(x, weight(g, 5, c, 3, 3), padding=1), weight(g, 5), axis=1))
    return g.relu(g.add(g.conv(y, weight(g, c, 5, 3, 3), padding=1), x))


def test_the_inside_of_a_network_is_channels_last_with_one_conversion() -> None:
    g = gd.GraphBuilder()
    x = g.conv(g.input("x", (2, 3, 24, 20), gd.float16), weight(g, 7, 3, 3, 3), name="stem")
    x = g.max_pool(block(g, block(g, x)), kernel=3, stride=2)
    y = g.matmul(g.reshape(g.global_avg_pool(x), (2, 7)), weight(g, 7, 11))
    graph = laid(g, y=y)
    assert [n.operands[0].name for n in converts(graph)] == ["x"]
    assert copies(graph) == []
    images = [v for v in values(graph) if v.type.rank == 4 and v is not graph.inputs["x"]]
    assert all(v.type.is_channels_last for v in images)


def test_an_output_image_is_converted_once_for_all_who_want_it() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 8, 6, 7), gd.float16, strides=channels_last((2, 8, 6, 7)))
    y = g.conv(x, weight(g, 8, 8, 1, 1))
    graph = g.build({"y": g.relu(y)}, strides={"y": channels_last((2, 8, 6, 7))})
    assert converts(assign_layouts(graph).graph) == []
    assert len(converts(laid(g, y=g.relu(y)))) == 1


def test_a_pad_turns_what_it_copies() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 3, 6, 7), gd.float16)
    y = g.conv(g.pad(x, ((0, 0), (0, 5), (1, 1), (2, 0))), weight(g, 4, 8, 3, 3))
    graph = assign_layouts(g.build({"y": y}, strides={"y": channels_last(y.type.shape)})).graph
    assert converts(graph) == []
    assert graph.nodes[0].result.type.is_channels_last


def test_before_a_pad_nothing_is_converted() -> None:
    g = gd.GraphBuilder()
    x = g.relu(g.input("x", (2, 3, 6, 7), gd.float16))
    y = g.conv(g.pad(x, ((0, 0), (0, 5), (1, 1), (2, 0))), weight(g, 4, 8, 3, 3))
    graph = assign_layouts(g.build({"y": y}, strides={"y": channels_last(y.type.shape)})).graph
    assert converts(graph) == []
    assert [n.result.type.is_channels_last for n in graph.nodes] == [False, True, True]


def test_a_pad_that_no_convolution_reads_stays_in_its_operands_order() -> None:
    g = gd.GraphBuilder()
    x = g.relu(g.input("x", (2, 3, 6, 7), gd.float16))
    y = g.conv(x, weight(g, 4, 3, 3, 3))
    rows = g.input("rows", (5,), gd.int32)
    taken = {n: g.gather(g.pad(v, ((0, 0), (0, 0), (1, 1), (2, 0))), rows, axis=2) for n, v in (("a", x), ("b", y))}
    graph = laid(g, x=x, y=y, **taken)
    pads = [n for n in graph.nodes if n.op.label == "pad"]
    assert [n.operands[0].type.is_channels_last for n in pads] == [False, True]
    assert [n.result.type.is_channels_last for n in pads] == [False, True]


def test_constants_are_laid_out_without_a_node() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 5, 6, 7), gd.float32, strides=channels_last((2, 5, 6, 7)))
    data = np.arange(3 * 5 * 2 * 3, dtype=np.float32).reshape(3, 5, 2, 3)
    w = g.constant(data, name="w")
    graph = g.build({"y": g.conv(x, w)}, strides={"y": channels_last((2, 3, 5, 5))})
    done = assign_layouts(graph)
    assert converts(done.graph) == []
    (constant,) = done.graph.constants.values()
    assert constant.type.is_channels_last
    assert np.array_equal(done.graph.payloads[constant.name].array(), data)
    assert done.changes == ("conv: operand w is converted from row-major to channels-last, at compile time",)


def test_a_filter_that_is_an_input_is_converted() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 5, 6, 7), gd.float32, strides=channels_last((2, 5, 6, 7)))
    graph = laid(g, y=g.conv(x, g.input("w", (3, 5, 2, 3), gd.float32)))
    assert "w" in [n.operands[0].name for n in converts(graph)]


def test_skip_connections_and_upsampling_stay_channels_last() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 4, 8, 12), gd.float16, strides=channels_last((2, 4, 8, 12)))
    down = g.relu(g.conv(x, weight(g, 6, 4, 3, 3), padding=1))
    deep = g.relu(g.conv(g.max_pool(down, kernel=2), weight(g, 6, 6, 3, 3), padding=1))
    up = g.conv_transpose(deep, weight(g, 6, 6, 2, 2), stride=2)
    y = g.conv(g.concat([down, up], axis=1), weight(g, 3, 12, 1, 1))
    graph = assign_layouts(g.build({"y": y}, strides={"y": channels_last((2, 3, 8, 12))})).graph
    assert converts(graph) == []


def test_a_slice_of_channels_is_converted_for_a_convolution_and_read_in_place_by_pointwise_ops() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 8, 6, 7), gd.float16, strides=channels_last((2, 8, 6, 7)))
    left, right = g.split(x, (4, 4), axis=1)
    y = g.add(g.conv(left, weight(g, 4, 4, 1, 1)), right)
    graph = assign_layouts(g.build({"y": y}, strides={"y": channels_last((2, 4, 6, 7))})).graph
    assert [n.operands[0].name for n in converts(graph)] == [left.name]


def test_the_smaller_side_of_a_pool_is_converted() -> None:
    g = gd.GraphBuilder()
    x = g.max_pool(g.input("x", (2, 3, 12, 12), gd.float16), kernel=2, stride=2, name="pool")
    graph = laid(g, y=g.global_avg_pool(g.conv(x, weight(g, 5, 3, 3, 3))))
    assert [n.operands[0].name for n in converts(graph)] == ["pool"]


def test_three_spatial_axes() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 3, 4, 5, 6), gd.float16)
    graph = laid(g, y=g.conv(x, weight(g, 7, 3, 3, 3, 3)))
    conv = next(n for n in graph.nodes if isinstance(n.op, Conv))
    assert all(t.is_channels_last for t in (*conv.operand_types, *conv.result_types))
    assert len(converts(graph)) == 2


def test_a_graph_without_convolutions_keeps_the_order_of_its_inputs() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 5, 6, 7), gd.float16)
    assert converts(laid(g, y=g.max_pool(g.relu(x), kernel=2))) == []
    last = channels_last((2, 5, 6, 7))
    g = gd.GraphBuilder()
    x = g.input("x", (2, 5, 6, 7), gd.float16, strides=last)
    y = g.max_pool(g.relu(x), kernel=1)
    assert converts(assign_layouts(g.build({"y": y}, strides={"y": last})).graph) == []


def encoder(g: gd.GraphBuilder, kind: str) -> gd.Value:
    b, s, h, d = 3, 7, 2, 8
    x = g.input("x", (b, s, h * d), gd.float16)

    def heads(axes: tuple[int, ...]) -> gd.Value:
        y = g.matmul(x, weight(g, h * d, h * d))
        return g.transpose(g.reshape(y, (b, s, h, d)), axes)

    q, v = heads((0, 2, 1, 3)), heads((0, 2, 1, 3))
    if kind == "whole":
        o = g.attention(q, heads((0, 2, 1, 3)), v)
    else:
        o = g.matmul(g.softmax(g.matmul(q, heads((0, 2, 3, 1)))), v)
    return g.reshape(g.transpose(o, (0, 2, 1, 3)), (b, s, h * d))


def test_attention_reads_views_and_writes_what_its_reader_wants() -> None:
    g = gd.GraphBuilder()
    graph = laid(g, y=g.matmul(encoder(g, "whole"), weight(g, 16, 5)))
    assert converts(graph) == []
    assert copies(graph) == []


def test_products_of_heads_read_views_and_copy_once() -> None:
    g = gd.GraphBuilder()
    graph = laid(g, y=g.matmul(encoder(g, "spelled"), weight(g, 16, 5)))
    assert converts(graph) == []
    assert len(copies(graph)) == 1


def test_slices_of_one_projection_reach_attention_without_a_copy() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3, 7, 16), gd.float16)
    parts = g.split(g.matmul(x, weight(g, 16, 48)), (16, 16, 16), axis=-1)
    q, k, v = (g.transpose(g.reshape(p, (3, 7, 2, 8)), (0, 2, 1, 3)) for p in parts)
    graph = laid(
        g, o=g.matmul(g.reshape(g.transpose(g.attention(q, k, v), (0, 2, 1, 3)), (3, 7, 16)), weight(g, 16, 2))
    )
    assert converts(graph) == []
    assert copies(graph) == []


def test_attention_writes_the_declared_layout_of_its_output() -> None:
    g = gd.GraphBuilder()
    q, k, v = (g.transpose(g.input(n, (3, 7, 2, 8), gd.float16), (0, 2, 1, 3)) for n in "qkv")
    graph = laid(g, o=g.attention(q, k, v))
    assert converts(graph) == []
    assert graph.outputs["o"].type.is_row_major


@pytest.mark.parametrize(
    ("shape", "strides", "is_converted"),
    [
        ((5, 7), (7, 1), False),
        ((5, 7), (1, 5), False),
        ((5, 7), (1, 9), False),
        ((5, 7), (12, 1), False),
        ((5, 7), (14, 2), True),
        ((5, 7), (0, 1), True),
        ((4, 5, 7), (0, 7, 1), False),
        ((4, 5, 7), (7, 28, 1), False),
        ((5, 7, 4), (1, 20, 5), True),
    ],
)
def test_matmul_takes_matrices_with_one_dense_axis(
    shape: tuple[int, ...], strides: tuple[int, ...], is_converted: bool
) -> None:
    g = gd.GraphBuilder()
    a = g.input("a", shape, gd.float16, strides=strides)
    graph = laid(g, y=g.matmul(a, g.input("b", (shape[-1], 3), gd.float16)))
    assert [n.operands[0].name for n in converts(graph)] == ["a"] * is_converted


def test_int8_constants_are_laid_out_along_the_inner_axis_and_inputs_stay_as_they_are(rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    x, y = g.input("x", (3, 8, 16), gd.int8), g.input("y", (16, 12), gd.int8)
    w = g.constant(rng.integers(-9, 9, (3, 16, 12)).astype(np.int8), name="w")
    a = g.constant(rng.integers(-9, 9, (16, 12)).astype(np.int8), name="a")
    half = g.constant(rng.standard_normal((16, 12)).astype(np.float16), name="half")
    given = g.build(
        {
            "p": g.matmul(x, w, name="p"),
            "q": g.matmul(g.transpose(a, (1, 0)), y, name="q"),
            "r": g.matmul(g.cast(x, gd.float16), half, name="r"),
        }
    )
    graph = assign_layouts(given).graph
    operands = {n.name: [v.type.layout for v in n.operands] for n in graph.nodes}
    assert operands["p"] == [(128, 16, 1), (192, 1, 16)]
    assert operands["q"] == [(1, 12), (12, 1)]  # a view of a constant is none, until it is folded
    assert operands["r"][1] == (12, 1)
    assert not converts(graph)
    check_lawful(graph)
    inputs = arrays(given, rng)
    found, expected = gd.evaluate(graph, inputs), gd.evaluate(given, inputs)
    assert all(np.array_equal(found[n], expected[n]) for n in expected)


def test_attention_needs_dense_rows() -> None:
    g = gd.GraphBuilder()
    q, k = (g.input(n, (2, 3, 5, 8), gd.float16) for n in "qk")
    v = g.transpose(g.input("v", (2, 3, 8, 5), gd.float16), (0, 1, 3, 2))
    graph = laid(g, o=g.attention(q, k, v))
    assert [n.operands[0].name for n in converts(graph)] == [v.name]


def test_pointwise_results_follow_their_operands_and_norms_too() -> None:
    g = gd.GraphBuilder()
    x = g.transpose(g.input("x", (3, 7, 5), gd.float32), (0, 2, 1))
    y = g.softmax(g.relu(x), axis=1)
    graph = laid(g, y=g.transpose(y, (0, 2, 1)), z=g.reduce_sum(y, axes=0))
    assert len(converts(graph)) == 1
    assert graph.node("softmax").result.type.layout == (35, 1, 5)
    assert graph.node("reduce_sum").result.type.layout == (1, 5)


def test_a_pointwise_output_is_written_as_declared() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3, 5), gd.float32)
    graph = assign_layouts(g.build({"y": g.relu(x)}, strides={"y": (1, 4)})).graph
    assert converts(graph) == []
    assert graph.outputs["y"].type.layout == (1, 4)


def test_a_reshape_across_the_channels_is_a_copy_with_the_right_numbers(rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 3, 5, 7), gd.float32)
    w = g.constant(rng.standard_normal((4, 3, 3, 3)).astype(np.float32))
    graph = g.build({"y": g.reshape(g.relu(g.conv(x, w)), (2, 60))})
    done = assign_layouts(graph).graph
    check_lawful(done)
    given = arrays(graph, rng)
    assert np.array_equal(gd.evaluate(graph, given)["y"], gd.evaluate(done, given)["y"])


def test_a_pointwise_output_whose_memory_another_has_stays_as_declared_in_a_second_run() -> None:
    """The first run copies it; what it wrote itself is then no output any more."""
    g = gd.GraphBuilder()
    x = g.relu(g.transpose(g.input("x", (3, 7, 5), gd.float32), (0, 2, 1)))
    once = assign_layouts(g.build({"view": g.unsqueeze(x, 1), "whole": x}))
    twice = assign_layouts(once.graph)
    assert len(converts(once.graph)) == 1
    assert twice.changes == ()
    assert [n.result_types for n in twice.graph.nodes] == [n.result_types for n in once.graph.nodes]


def source(g: gd.GraphBuilder) -> gd.Value:
    return g.input("x", (3, 4), gd.float32)


def made(g: gd.GraphBuilder) -> gd.Value:
    return g.relu(source(g))


@pytest.mark.parametrize(
    ("outputs", "strides", "expected"),
    [
        (lambda g: {"a": made(g)}, {}, 0),
        (lambda g: {"a": source(g)}, {}, 1),
        (lambda g: {"a": g.constant(np.ones((3, 4), np.float32))}, {}, 1),
        (lambda g: {"a": g.reshape(source(g), (4, 3))}, {}, 1),
        (lambda g: {"a": g.reshape(made(g), (4, 3))}, {}, 0),
        (lambda g: {"a": g.transpose(made(g), (1, 0))}, {}, 1),
        (lambda g: {"a": g.transpose(made(g), (1, 0))}, {"a": (1, 4)}, 0),
        (lambda g: {"a": g.slice(made(g), [0, 0], [2, 4])}, {}, 1),
        (lambda g: {"a": g.slice(made(g), [1, 0], [3, 4])}, {}, 1),
        (lambda g: {"a": g.expand(made(g), (2, 3, 4))}, {}, 1),
        (lambda g: dict.fromkeys("ab", made(g)), {}, 1),
        (lambda g: dict.fromkeys("abc", made(g)), {"b": (1, 3)}, 2),
        (lambda g: dict(zip("ab", (v := made(g), g.reshape(v, (12,))), strict=True)), {}, 1),
        (lambda g: dict(zip("abc", g.split(made(g), (1, 1, 2), axis=1), strict=True)), {}, 3),
    ],
)
def test_outputs_own_their_memory(outputs: object, strides: dict[str, tuple[int, ...]], expected: int) -> None:
    g = gd.GraphBuilder()
    done = assign_layouts(g.build(outputs(g), strides=strides)).graph  # type: ignore[operator]
    check_lawful(done)
    assert len(converts(done)) == expected


def test_an_update_keeps_what_may_be_written_in_place_and_an_equal_output_gets_a_copy() -> None:
    g = gd.GraphBuilder()
    cache = g.state("cache", (2, 16, 3), gd.float16)
    new = g.write_slice(cache, g.input("x", (2, 1, 3), gd.float16), 4, axis=1)
    graph = assign_layouts(g.build({"all": new}, updates={"cache": new})).graph
    check_lawful(graph)
    assert graph.updates["cache"].name == new.name
    assert [n.operands[0].name for n in converts(graph)] == [new.name]


def test_a_state_handed_on_as_another_is_copied() -> None:
    g = gd.GraphBuilder()
    a, b = (g.state(n, (3, 4), gd.float32) for n in "ab")
    graph = assign_layouts(g.build({"y": g.add(a, b)}, updates={"a": b})).graph
    check_lawful(graph)
    assert len(converts(graph)) == 1


def test_wide_types_of_layouts_are_told_apart() -> None:
    last = TensorType((2, 3, 4, 5), gd.float32, channels_last((2, 3, 4, 5)))
    assert last.is_channels_last
    assert not last.is_row_major
    assert TensorType((2, 3, 4, 5), gd.float32, row_major((2, 3, 4, 5))).is_row_major


def tower(length: int) -> Graph:
    g = gd.GraphBuilder()
    x = g.input("x", (1, 4, 6, 6), gd.float16)
    for _ in range(length):
        x = block(g, x)
    return g.build({"y": x})


def test_time_grows_with_the_length() -> None:
    def assigned(length: int) -> Callable[[], None]:
        graph = tower(length)

        def run() -> None:
            assert len(converts(assign_layouts(graph).graph)) == 2

        return run

    small, large = (least_seconds(lambda n=n: assigned(n)) for n in (20, 80))
    assert large < 20 * small


SCRIPT = """
import numpy as np
from tests.passes.random_graphs import random_graph
from graphdnn.passes.layout.assign import assign_layouts
for seed in range(4):
    done = assign_layouts(random_graph(np.random.default_rng(seed))).graph
    print([(n.name, [str(t) for t in n.result_types]) for n in done.nodes])
"""


def test_every_process_lays_out_the_same() -> None:
    assert said_by_every_process(SCRIPT)
