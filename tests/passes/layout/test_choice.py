"""Which images are channels-last: no choice costs less, by bytes on small graphs and by estimate behind residuals."""

import itertools

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines.choose import Selector
from graphdnn.engines.manifest import engines_for
from graphdnn.ir.graph import Graph, Node
from graphdnn.ir.ops.linear import Conv
from graphdnn.ir.ops.movement import Convert
from graphdnn.ir.types import DType, channels_last
from graphdnn.passes.layout.assign import assign_layouts
from graphdnn.passes.layout.choice import cover_us
from graphdnn.passes.layout.images import PENALTY, channels_last_nodes, least_converted_nodes, matters, may_join
from graphdnn.passes.rewrite import Ask
from graphdnn.report.model import CompileReport
from tests.planned import H200, h200_report


def small_images(rng: np.random.Generator) -> Graph:
    """A few ops on images that grow and shrink, with inputs and outputs in either layout."""
    g = gd.GraphBuilder()

    def image(name: str, shape: tuple[int, ...]) -> gd.Value:
        return g.input(name, shape, gd.float32, strides=channels_last(shape) if rng.random() < 0.3 else None)

    c = int(rng.integers(2, 6))
    pool = [image("a", (2, c, 6, 5)), image("b", (2, c, 1, 5))]
    for index in range(6):
        x = pool[int(rng.integers(len(pool)))]
        kind = rng.random()
        if kind < 0.25 or index == 3:
            channels = int(rng.integers(2, 6))
            w = g.constant(rng.standard_normal((channels, x.type.shape[1], 1, 1)).astype(np.float32))
            pool.append(g.conv(x, w))
        elif kind < 0.5:
            fitting = [v for v in pool if all(m in (1, n) for m, n in zip(v.type.shape, x.type.shape, strict=True))]
            pool.append(g.add(x, fitting[int(rng.integers(len(fitting)))]))
        elif kind < 0.6:
            pool.append(g.relu(x))
        elif kind < 0.75 and x.type.shape[2] > 3:
            pool.append(g.max_pool(x, kernel=(3, 1), stride=(3, 1)))
        elif kind < 0.85:
            pool.append(g.attention(x, x, x))
        else:
            pool.append(g.softmax(x, axis=3))
    outputs = {f"y{i}": v for i, v in enumerate(pool[-2:])}
    strides = {n: channels_last(v.type.shape) for n, v in outputs.items() if rng.random() < 0.4}
    return g.build(outputs, strides=strides)


def moved(graph: Graph, images: dict[Node, bool]) -> int:
    """Bytes converted when these nodes are channels-last, and what row-major convolutions cost."""
    done = assign_layouts(graph, images).graph
    total = sum(n.result.type.nbytes for n in done.nodes if isinstance(n.op, Convert))
    for node, is_last in images.items():
        x, y = node.operands[0].type, node.result.type
        if isinstance(node.op, Conv) and not is_last:
            total += PENALTY * (x.nbytes + y.nbytes)
        if node.op.label == "softmax" and is_last:
            total += x.nbytes
    return total


def parted(graph: Graph, images: dict[Node, bool]) -> int:
    """Values in memory that would not be there if their maker and their pointwise readers lay alike; half of those that
    others read as well."""
    total = 0
    for node, is_last in images.items():
        for value in (v for v in node.results if matters(v.type)):
            readers = graph.users.get(value, ())
            joining = [r for r in readers if r in images and may_join(node, r)]
            if any(images[r] != is_last for r in joining):
                whole = len(joining) == len(readers) and value not in graph.escaping
                total += value.type.nbytes if whole else value.type.nbytes // 2
    return total


def both(graph: Graph, images: dict[Node, bool]) -> int:
    return moved(graph, images) + parted(graph, images)


@pytest.mark.parametrize("case", range(40))
@pytest.mark.parametrize(("choose", "cost"), [(channels_last_nodes, both), (least_converted_nodes, moved)])
def test_no_other_choice_costs_less(choose, cost, case: int, rng: np.random.Generator) -> None:
    graph = small_images(rng)
    chosen = dict(choose(graph))
    sides = itertools.product((True, False), repeat=len(chosen))
    assert cost(graph, chosen) == min((cost(graph, dict(zip(chosen, s, strict=True))) for s in sides), default=0)


def least(graph: Graph) -> tuple[dict[Node, bool], int]:
    """The choice of the pass, and what the best one costs."""
    chosen = dict(channels_last_nodes(graph))
    sides = itertools.product((True, False), repeat=len(chosen))
    return chosen, min(both(graph, dict(zip(chosen, s, strict=True))) for s in sides)


def pointwise_weights(channels: int) -> np.ndarray:
    return np.ones((channels, channels, 1, 1), np.float32)


def test_what_an_attention_of_images_makes_is_row_major_whatever_it_reads() -> None:
    """It reads a pooled input, which is no choice as nothing convolves it; a softmax along rows is cheaper row-major,
    and its result is as many bytes to convert as the attention's."""
    g = gd.GraphBuilder()
    x = g.max_pool(g.input("a", (2, 3, 6, 5), gd.float32), kernel=(3, 1), stride=(3, 1))
    y = g.softmax(g.attention(x, x, x), axis=3, name="softmax")
    graph = g.build({"y": g.conv(y, g.constant(pointwise_weights(3)))}, strides={"y": channels_last((2, 3, 2, 5))})
    chosen, cost = least(graph)
    assert both(graph, chosen) == cost
    assert {n.name: last for n, last in chosen.items()} == {"softmax": False, "conv": True}


def test_what_an_attention_of_chosen_images_makes_is_row_major_too() -> None:
    g = gd.GraphBuilder()
    x = g.conv(g.input("a", (2, 3, 1, 5), gd.float32), g.constant(pointwise_weights(3)))
    y = g.softmax(g.attention(x, x, x), axis=3, name="softmax")
    graph = g.build({"y": g.conv(y, g.constant(pointwise_weights(3)))}, strides={"y": channels_last((2, 3, 1, 5))})
    chosen, cost = least(graph)
    assert both(graph, chosen) == cost
    assert not chosen[graph.producer[y]]


def test_an_image_that_leaves_channels_last_is_converted_once_for_its_readers_too() -> None:
    """The pooled image would be fewer bytes to convert, were the larger one not converted anyway."""
    g = gd.GraphBuilder()
    a = g.input("a", (2, 3, 6, 5), gd.float32)
    x = g.attention(a, a, a)
    y = g.conv(g.max_pool(x, kernel=(3, 1), stride=(3, 1)), g.constant(pointwise_weights(3)))
    strides = {n: channels_last(v.type.shape) for n, v in (("x", x), ("y", y))}
    graph = g.build({"x": x, "y": y}, strides=strides)
    chosen, cost = least(graph)
    assert both(graph, chosen) == cost == x.type.nbytes


def residual(*, kernel: int = 3, outputs: int = 1, dtype: DType = gd.float16) -> Graph:
    """A convolution whose result meets another image, everything row-major outside."""
    shape = (32, 64, 56, 56)
    g = gd.GraphBuilder()
    x, r = g.input("x", shape, dtype), g.input("r", shape, dtype)
    w = g.constant(np.ones((64, 64, kernel, kernel), dtype.numpy), name="w")
    c = g.bias(g.conv(x, w, padding=kernel // 2, name="c"), g.constant(np.ones(64, dtype.numpy)), axis=1, name="b")
    a = g.add(c, r, name="add")
    y = g.relu(a, name="relu")
    return g.build({"y": y, "a": a} if outputs == 2 else {"y": y})


def layout_refusals(report: CompileReport) -> list[tuple[tuple[str, ...], str]]:
    return [(r.nodes, r.reason) for p in report.passes if p.name == "layout" for r in p.refusals]


def test_work_behind_a_convolution_is_one_region_where_that_is_cheaper() -> None:
    """Three conversions at the edges instead of two and one between."""
    report = h200_report(residual())
    assert [r.pattern for r in report.regions] == ["convert", "convert", "conv+bias+add+relu", "convert"]
    assert layout_refusals(report) == []
    assert report.estimated_us < h200_report(residual(), disabled_passes=("fuse",)).estimated_us


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("dtype", [gd.float16, gd.float32], ids=str)
def test_a_residual_is_never_dearer_than_either_way(kernel: int, outputs: int, dtype: DType) -> None:
    graph = residual(kernel=kernel, outputs=outputs, dtype=dtype)
    report = h200_report(graph)
    whole = {"c", "b", "add", "relu"}
    largest = any(whole <= set(c.nodes) for c in report.candidates)
    assert largest == (not layout_refusals(report))
    if not largest:
        (nodes, reason), *_ = layout_refusals(report)
        assert set(nodes) <= whole
        assert "channels-last and the reader is not" in reason
    for images in (channels_last_nodes(graph), least_converted_nodes(graph)):
        us = cover_us(assign_layouts(graph, images).graph, asking(H200))
        assert us is not None
        assert report.estimated_us <= us * (1 + 1e-9)


def asking(target: gd.Target) -> Ask:
    """Prices of the engines for a described device."""
    return Selector(engines_for(target.kind), target, gd.CompileOptions().policy()).cheapest
