"""Right behaviour over time, the part that needs no device (case T5): strides of axes of extent 1 say nothing."""

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.region import Region
from graphdnn.ir.types import TensorType
from tests.cases import graphs
from tests.numbers import TOLERANCE, relative_error
from tests.planned import answers, h200_report

EQUAL = [
    ((63, 1, 3, 3), (9, 1, 3, 1), (9, 9, 3, 1)),
    ((63, 1, 3, 3), (9, 7777, 3, 1), (9, 1, 3, 1)),
    ((16, 1), (1, 1), (1, 16)),
    ((1, 16), (1, 1), (16, 1)),
    ((4, 3, 1, 1), (3, 1, 1, 1), (3, 1, 3, 3)),
]
"""A shape, and two ways to give the strides of one and the same memory."""


@pytest.mark.parametrize(("shape", "first", "second"), EQUAL)
def test_types_with_the_same_memory_have_one_layout(
    shape: tuple[int, ...], first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    assert TensorType(shape, gd.float16, first).layout == TensorType(shape, gd.float16, second).layout


def test_an_axis_of_extent_1_steps_over_all_that_is_inside_it() -> None:
    assert TensorType((1, 3, 4, 5), gd.float16, (7, 1, 15, 3)).layout == (60, 1, 15, 3)
    assert TensorType((2, 1, 3), gd.float16, (3, 9, 1)).layout == (3, 3, 1)


def test_other_strides_of_longer_axes_are_another_layout() -> None:
    rows, columns = (
        TensorType((4, 3, 1, 1), gd.float16, (3, 1, 1, 1)),
        TensorType((4, 3, 1, 1), gd.float16, (1, 4, 1, 1)),
    )
    assert rows.layout != columns.layout


def keyed(strides: tuple[int, ...]) -> str:
    graph = graphs.strided_conv((1, 3, 8, 8), (4, 3, 1, 1), strides)
    return Region.of(graph, graph.nodes).key


def test_regions_that_differ_in_free_strides_only_share_a_key() -> None:
    assert keyed((3, 1, 1, 1)) == keyed((3, 1, 3, 3))
    assert keyed((3, 1, 1, 1)) != keyed((1, 4, 1, 1))


def test_free_strides_change_no_plan() -> None:
    one, other = (h200_report(graphs.strided_conv((1, 3, 8, 8), (4, 3, 1, 1), s)) for s in ((3, 1, 1, 1), (3, 1, 3, 3)))
    assert one.regions == other.regions
    assert not [r for r in one.regions if r.pattern == "convert" and r.read_bytes == 4 * 3 * 2]


@pytest.mark.parametrize("build", graphs.STRIDED.values(), ids=graphs.STRIDED)
def test_the_plan_takes_each_as_it_lies(build: Callable[[], gd.Graph]) -> None:
    """Neither filter nor factor is copied, and cuDNN declines none of them for its layout."""
    graph = build()
    report = h200_report(graph)
    (node,) = graph.nodes
    (answer,) = answers(report, "cudnn", node.name)
    assert answer.verdict in ("chosen", "slower"), answer.reason
    copied = {r.read_bytes for r in report.regions if r.pattern == "convert"}
    assert graph.inputs["w" if "w" in graph.inputs else "a"].type.nbytes not in copied


@pytest.mark.parametrize("build", graphs.STRIDED.values(), ids=graphs.STRIDED)
def test_arrays_with_any_free_strides_are_read_right(build: Callable[[], gd.Graph], rng: np.random.Generator) -> None:
    graph = build()
    exe = gd.compile(graph, target="cpu")
    inputs = {n: rng.standard_normal(v.type.shape).astype(np.float16) for n, v in graph.inputs.items()}
    expected = gd.evaluate(graph, inputs, gd.float64)["y"]
    odd = {
        n: np.lib.stride_tricks.as_strided(
            a, a.shape, tuple(1234 if extent == 1 else s for extent, s in zip(a.shape, a.strides, strict=True))
        )
        for n, a in inputs.items()
    }
    for given in (inputs, odd):
        assert relative_error(exe(given)["y"], expected) <= TOLERANCE["float16"]
