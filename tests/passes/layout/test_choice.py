"""Which images are channels-last: no choice costs less, by bytes on small graphs and by estimate behind residuals."""

import itertools

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.engines.choose import Selector
from graphdnn.engines.manifest import engines_for
from graphdnn.ir.graph import Graph, Node
from graphdnn.ir.ops.linear import Conv
from graphdnn.ir.ops.movement import Convert, Pad
from graphdnn.ir.types import DType, channels_last
from graphdnn.ir.views import is_free
from graphdnn.passes.layout.assign import assign_layouts
from graphdnn.passes.layout.choice import cover_us
from graphdnn.passes.layout.images import channels_last_nodes, least_converted_nodes
from graphdnn.passes.layout.network import COPIED, PENALTY, may_join, reduces_rows
from graphdnn.passes.layout.rules import fits, matters
from graphdnn.passes.rewrite import Ask
from graphdnn.report.model import CompileReport
from tests.passes.random_graphs import random_graph
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
        elif kind < 0.45:
            fitting = [v for v in pool if all(m in (1, n) for m, n in zip(v.type.shape, x.type.shape, strict=True))]
            pool.append(g.add(x, fitting[int(rng.integers(len(fitting)))]))
        elif kind < 0.55:
            pool.append(g.relu(x))
        elif kind < 0.65 and x.type.shape[2] > 3:
            pool.append(g.max_pool(x, kernel=(3, 1), stride=(3, 1)))
        elif kind < 0.75:
            pool.append(g.attention(x, x, x))
        elif kind < 0.8:
            pool.append(g.pad(x, ((0, 0), (1, 0), (0, 0), (0, 1))))
        elif kind < 0.9:
            axis = int(rng.integers(4))
            pool += g.split(x, (1, x.type.shape[axis] - 1), axis=axis) if x.type.shape[axis] > 1 else ()
        else:
            pool.append(g.softmax(x, axis=3))
    outputs = {f"y{i}": v for i, v in enumerate(pool[-2:])}
    strides = {n: channels_last(v.type.shape) for n, v in outputs.items() if rng.random() < 0.4}
    return g.build(outputs, strides=strides)


def moved(graph: Graph, images: dict[Node, bool]) -> int:
    """Bytes converted and copied when these nodes are channels-last, and what row-major convolutions cost."""
    done = assign_layouts(graph, images).graph
    copied = (n for n in done.nodes if isinstance(n.op, Convert) or (n.op.is_renaming and not is_free(n)))
    total = sum(v.type.nbytes for n in copied for v in n.results)
    for node, is_last in images.items():
        x, y = node.operands[0].type, node.result.type
        if isinstance(node.op, Conv) and not is_last:
            total += PENALTY * (x.nbytes + y.nbytes)
        if reduces_rows(node) and is_last:
            total += x.nbytes
        if isinstance(node.op, Pad) and matters(x):
            total += COPIED * (not fits(done.node(node.name).operands[0].type, is_last, dense=False))
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


CHOICES = [(channels_last_nodes, both), (least_converted_nodes, moved)]


@pytest.mark.parametrize("case", range(40))
@pytest.mark.parametrize(("choose", "cost"), CHOICES)
def test_no_other_choice_costs_less(choose, cost, case: int, rng: np.random.Generator) -> None:
    check_no_other_costs_less(small_images(rng), choose, cost)


@pytest.mark.parametrize("case", range(40))
@pytest.mark.parametrize(("choose", "cost"), CHOICES)
def test_no_other_choice_costs_less_in_graphs_of_all_kinds(choose, cost, case: int, rng: np.random.Generator) -> None:
    """With views of images, ops outside on them, and several outputs in one's memory."""
    families = ("unary", "binary", "conv", "conv", "pool", "movement", "movement", "reduction")
    check_no_other_costs_less(random_graph(rng, steps=9, families=families), choose, cost)


def check_no_other_costs_less(graph: Graph, choose, cost) -> None:
    chosen = dict(choose(graph))
    sides = itertools.product((True, False), repeat=len(chosen) if len(chosen) < 8 else 0)
    others = (cost(graph, dict(zip(chosen, s, strict=True))) for s in sides if len(s) == len(chosen))
    assert cost(graph, chosen) == min(others, default=cost(graph, chosen))


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


def padded_and_split(g: gd.GraphBuilder, x: gd.Value) -> dict[str, gd.Value]:
    """A part with gaps, which a convolution copies whatever its order, and a pad that turns what it copies."""
    part = g.split(g.pad(x, ((1, 0), (0, 0), (0, 0), (0, 0))), (1, 6), axis=1)[1]
    return {"y": pointwise_conv(g, part, 3), "z": g.avg_pool(part, kernel=2, stride=1)}


def viewed(g: gd.GraphBuilder, x: gd.Value) -> dict[str, gd.Value]:
    """A view that leaves row-major beside another reader that is."""
    y = pointwise_conv(g, x, 3)
    return {"y": g.unsqueeze(g.max_pool(y, kernel=2, stride=1), 2), "z": g.avg_pool(y, kernel=2, stride=1)}


def part_of_an_image(g: gd.GraphBuilder, x: gd.Value) -> dict[str, gd.Value]:
    """A part is copied to leave, whatever its order, so that it is no reason to turn the whole."""
    y = pointwise_conv(g, x, 3)
    return {"y": g.split(y, (1, 5), axis=2)[1], "z": g.mul(y, 2.0)}


def two_in_one_memory(g: gd.GraphBuilder, x: gd.Value) -> dict[str, gd.Value]:
    """Of two outputs in one memory one is copied, whatever their order."""
    y = pointwise_conv(g, x, 3)
    z = g.relu(y)
    return {"y": g.unsqueeze(z, 2), "z": z, "w": pointwise_conv(g, y, 2)}


@pytest.mark.parametrize("build", [padded_and_split, viewed, part_of_an_image, two_in_one_memory])
@pytest.mark.parametrize(("choose", "cost"), CHOICES)
def test_what_is_copied_in_any_case_decides_nothing(build, choose, cost) -> None:
    g = gd.GraphBuilder()
    check_no_other_costs_less(g.build(build(g, g.input("x", (2, 7, 6, 5), gd.float32))), choose, cost)


def pointwise_conv(g: gd.GraphBuilder, x: gd.Value, channels: int) -> gd.Value:
    return g.conv(x, g.constant(np.ones((channels, x.type.shape[1], 1, 1), np.float32)))


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
