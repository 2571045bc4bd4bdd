"""Channel padding: where it pays by what engines say, with the same numbers, in one copy with the change of layout."""

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.graph import Graph
from graphdnn.ir.ops.linear import Conv
from graphdnn.ir.ops.movement import Convert, Pad
from graphdnn.ir.region import Region
from graphdnn.ir.types import channels_last
from graphdnn.passes.fold import fold
from graphdnn.passes.layout.assign import assign_layouts
from graphdnn.passes.pad import MOST_CHANNELS, pad_channels

H200 = gd.Target.named("h200")
FOURS = {4: 10.0, 8: 30.0}


def paying(by_channels: dict[int, float], copy: float = 1.0) -> Callable[[Region], float | None]:
    """Engines whose convolutions cost this by channels, others 100, and everything else `copy`."""

    def ask(region: Region) -> float | None:
        (node,) = region.nodes
        assert all(v.type.strides is not None for v in (*node.operands, *node.results))
        if not isinstance(node.op, Conv):
            return copy
        assert all(v.type.is_channels_last for v in (*node.operands, *node.results))
        return by_channels.get(node.operands[0].type.shape[1], 100.0)

    return ask


def first(
    channels: int = 3,
    dtype: gd.DType = gd.float16,
    batch: int = 2,
    strides: tuple[int, ...] | None = None,
    groups: int = 1,
) -> Graph:
    """A network's first convolution: 6 filters of 3x5 on images of 9x7."""
    rng = np.random.default_rng(channels)
    g = gd.GraphBuilder()
    x = g.input("x", (batch, channels, 9, 7), dtype, strides=strides)
    w = g.constant(rng.standard_normal((6, channels // groups, 3, 5)).astype(dtype.numpy), name="w")
    return g.build({"y": g.relu(g.conv(x, w, padding=(1, 2), stride=2, groups=groups, name="stem"))})


def pads(graph: Graph) -> list[tuple[int, ...]]:
    """Channels before and after of each pad."""
    nodes = (n for n in graph.nodes if isinstance(n.op, Pad))
    return [(n.operands[0].type.shape[1], n.result.type.shape[1]) for n in nodes]


def read_by_convolutions(graph: Graph) -> list[int]:
    return [n.operands[0].type.shape[1] for n in graph.nodes if isinstance(n.op, Conv)]


def test_the_image_and_the_weights_get_zero_channels() -> None:
    done = pad_channels(first(), paying(FOURS))
    pad, conv, _ = done.graph.nodes
    assert (pad.op, pad.origins) == (Pad(padding=((0, 0), (0, 1), (0, 0), (0, 0))), ())
    assert (conv.name, conv.origins, conv.operands[0]) == ("stem", ("stem",), pad.result)
    (constant,) = done.graph.constants.values()
    array = done.graph.payloads[constant.name].array()
    assert array.shape == (6, 4, 3, 5)
    assert np.array_equal(array[:, :3], first().payloads["w"].array())
    assert not array[:, 3].any()
    assert done.changes == (
        "stem: x is padded with zeros from 3 to 4 channels, in the copy that turns it channels-last: 11.0 us are "
        "estimated instead of 101.0",
    )


def test_an_image_that_a_pass_made_is_called_after_the_users_node() -> None:
    g = gd.GraphBuilder()
    vectors = [g.constant(np.full(3, v, np.float32)) for v in (0.5, 2.0, 3.0, 4.0)]
    x = g.batch_norm(g.input("x", (2, 3, 9, 7), gd.float16), *vectors, name="norm")
    w = g.constant(np.ones((6, 3, 3, 5), np.float16))
    folded = fold(g.build({"y": g.conv(x, w, name="stem")})).graph
    assert "norm" not in [n.name for n in folded.nodes]
    (change,) = pad_channels(folded, paying(FOURS)).changes
    assert change.startswith("stem: norm is padded with zeros from 3 to 4 channels")


def test_weights_are_not_computed_before_somebody_asks() -> None:
    graph = gd.Graph.from_json(first().to_json())
    hashed = {n: type(p)(p.type, digest=p.digest) for n, p in graph.payloads.items()}
    without = Graph(graph.name, graph.nodes, graph.inputs, graph.constants, hashed, graph.outputs)
    done = pad_channels(without, paying(FOURS)).graph
    (payload,) = done.payloads.values()
    assert not payload.has_data
    assert len(payload.digest) == 64


@pytest.mark.parametrize("channels", [1, 2, 3, 5, 7, 12, 23, 25, 31])
@pytest.mark.parametrize("wide", [4, 8])
def test_what_costs_least_is_taken(channels: int, wide: int) -> None:
    target = -(-channels // wide) * wide
    done = pad_channels(first(channels), paying({target: 10.0})).graph
    assert read_by_convolutions(done) == [target]
    assert pads(done) == ([(channels, target)] if target > channels else [])


def test_a_gain_that_the_copy_eats_is_none() -> None:
    graph = first(strides=channels_last((2, 3, 9, 7)))
    assert pads(pad_channels(graph, paying({3: 11.5, 4: 10.0}, copy=1.0)).graph) == [(3, 4)]
    done = pad_channels(graph, paying({3: 11.5, 4: 10.0}, copy=2.0))
    assert done.graph is graph
    assert done.changes == ()


def test_a_conversion_that_is_needed_anyway_counts() -> None:
    """Row-major the image is copied with or without zeros, however much that is."""
    assert pads(pad_channels(first(), paying({3: 11.5, 4: 10.0}, copy=50.0)).graph) == [(3, 4)]


@pytest.mark.parametrize("wide", [4, 8])
def test_equal_prices_pad_nothing(wide: int) -> None:
    prices = {3: 100.0, 4: 200.0, 8: 200.0} | {wide: 100.0}
    assert pads(pad_channels(first(), paying(prices, copy=1.0)).graph) == []


def test_a_conversion_that_others_need_too_is_not_saved() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 3, 8, 8), gd.float16)
    w = g.constant(np.ones((3, 3, 3, 3), np.float16))
    graph = g.build({"y": g.add(g.conv(x, w, padding=1), x)})
    assert pads(pad_channels(graph, paying({3: 11.5, 4: 10.0}, copy=2.0)).graph) == []
    assert pads(pad_channels(graph, paying({3: 11.5, 4: 10.0}, copy=1.0)).graph) == [(3, 4)]


@pytest.mark.parametrize("answers", [{4: None}, {3: None, 4: None, 8: None}])
def test_what_nobody_takes_is_not_made(answers: dict[int, float | None]) -> None:
    def ask(region: Region) -> float | None:
        node = region.nodes[0]
        return answers.get(node.operands[0].type.shape[1], 5.0) if isinstance(node.op, Conv) else 1.0

    graph = first()
    assert pad_channels(graph, ask).graph is graph


def test_what_only_padding_makes_possible_is_made() -> None:
    def ask(region: Region) -> float | None:
        node = region.nodes[0]
        return None if isinstance(node.op, Conv) and node.operands[0].type.shape[1] % 8 else 5.0

    assert read_by_convolutions(pad_channels(first(), ask).graph) == [8]


def variable_weights() -> Graph:
    g = gd.GraphBuilder()
    x, w = g.input("x", (2, 3, 9, 7), gd.float16), g.input("w", (6, 3, 3, 5), gd.float16)
    return g.build({"y": g.conv(x, w)})


def three_spatial_axes() -> Graph:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 3, 5, 6, 7), gd.float16)
    return g.build({"y": g.conv(x, g.constant(np.ones((6, 3, 3, 3, 3), np.float16)))})


@pytest.mark.parametrize(
    "graph",
    [
        first(dtype=gd.float32),
        first(8),
        first(16),
        first(MOST_CHANNELS + 1),
        first(6, groups=2),
        variable_weights(),
        three_spatial_axes(),
    ],
    ids=["float32", "eight", "sixteen", "many", "groups", "variable weights", "three axes"],
)
def test_what_is_left_alone(graph: Graph) -> None:
    asked: list[Region] = []
    done = pad_channels(graph, lambda region: asked.append(region) or 1.0)
    assert done.graph is graph
    assert asked == []


def test_one_copy_for_all_convolutions_of_an_image() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 3, 8, 8), gd.bfloat16)
    ys = [g.conv(x, g.constant(np.ones((n, 3, n, n), gd.bfloat16.numpy)), padding=n // 2, name=f"c{n}") for n in (3, 5)]
    graph = g.build({f"y{i}": y for i, y in enumerate(ys)})
    done = pad_channels(graph, paying(FOURS))
    assert pads(done.graph) == [(3, 4)]
    assert read_by_convolutions(done.graph) == [4, 4]
    assert done.changes[0].startswith("c3, c5: x is padded")


@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16], ids=str)
@pytest.mark.parametrize("channels", [1, 3, 5, 7, 23])
def test_the_numbers_stay(channels: int, dtype: gd.DType, rng: np.random.Generator) -> None:
    graph = first(channels, dtype, batch=3)
    best = -(-channels // 4) * 4
    padded = pad_channels(graph, paying({best: 1.0})).graph
    assert pads(padded)[0][0] == channels
    x = rng.standard_normal((3, channels, 9, 7)).astype(dtype.numpy)
    for done in (padded, assign_layouts(padded).graph):
        before, after = (gd.evaluate(g, {"x": x}, dtype=gd.float64)["y"] for g in (graph, done))
        np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-12 * np.abs(before).max())


def test_a_nan_stays_where_it_is() -> None:
    x = np.zeros((2, 3, 9, 7), np.float16)
    x[1, 2, 0, 0] = np.nan
    graph = first()
    before, after = (gd.evaluate(g, {"x": x})["y"] for g in (graph, pad_channels(graph, paying(FOURS)).graph))
    assert np.array_equal(np.isnan(before), np.isnan(after))
    assert 0 < np.isnan(after).sum() < after.size


def test_a_second_application_changes_nothing() -> None:
    once = pad_channels(first(), paying(FOURS)).graph
    assert pad_channels(once, paying(FOURS)).graph is once


def test_the_layout_is_changed_by_the_pad() -> None:
    laid = assign_layouts(pad_channels(first(), paying(FOURS)).graph).graph
    (pad,) = (n for n in laid.nodes if isinstance(n.op, Pad))
    assert pad.operands[0] is laid.inputs["x"]
    assert pad.operands[0].type.is_row_major
    assert pad.result.type.is_channels_last
    converted = [n.operands[0].name for n in laid.nodes if isinstance(n.op, Convert)]
    assert converted == ["relu"]


def stem(batch: int, size: int, dtype: gd.DType = gd.float16) -> Graph:
    g = gd.GraphBuilder()
    x = g.input("x", (batch, 3, size, size), dtype)
    y = g.conv(x, g.constant(np.zeros((64, 3, 7, 7), dtype.numpy)), stride=2, padding=3, name="stem")
    y = g.relu(g.bias(y, g.constant(np.zeros(64, dtype.numpy)), axis=1))
    return g.build({"y": y}, strides={"y": channels_last(y.type.shape)})


@pytest.mark.parametrize("batch", [8, 32, 256])
def test_on_an_h200_a_first_convolution_reads_four_channels(batch: int) -> None:
    report = gd.compile(stem(batch, 224), target=H200).report
    pad, conv = report.regions
    assert (pad.pattern, pad.engine, pad.nodes, pad.kernels) == ("pad", "nvrtc", (), 1)
    assert conv.pattern == "conv+bias+relu"
    options = gd.CompileOptions(disabled_passes=("pad",))
    before = gd.compile(stem(batch, 224), target=H200, options=options).report
    assert [r.pattern for r in before.regions] == ["convert", "conv+bias+relu"]
    assert sum(r.estimated_us for r in report.regions) < 0.95 * sum(r.estimated_us for r in before.regions)


@pytest.mark.parametrize(("dtype", "target"), [(gd.float32, H200), (gd.float16, "cpu")], ids=["float32", "cpu"])
def test_elsewhere_three_channels_stay(dtype: gd.DType, target: gd.Target | str) -> None:
    report = gd.compile(stem(8, 32, dtype), target=target).report
    assert "pad" not in [r.pattern for r in report.regions]
