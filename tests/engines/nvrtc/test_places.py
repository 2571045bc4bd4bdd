"""Places: where values lie in an index space, with numpy's own indexing as the oracle."""

from collections.abc import Callable

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Policy, Support
from graphdnn.engines.nvrtc import pointwise
from graphdnn.engines.nvrtc.compile import compile_cubin
from graphdnn.engines.nvrtc.demand import MOST_PARTS
from graphdnn.engines.nvrtc.engine import NvrtcEngine
from graphdnn.engines.nvrtc.group import Access
from graphdnn.engines.nvrtc.places import Cut, Grid, Place, Run, covers, operand_place, reshaped
from graphdnn.engines.nvrtc.pointwise import in_place, plan_walk, pointwise_work
from graphdnn.ir.graph import Value
from graphdnn.ir.types import Array, row_major
from graphdnn.target import Target
from tests.engines.cudnn.layouts import whole
from tests.engines.nvrtc.moving_regions import MOVING, Moving

H200 = Target.named("h200")


def at(*axes: tuple[int, ...]) -> Place:
    return tuple(Run(a) for a in axes)


def test_alignment_from_the_right() -> None:
    assert Grid.of((3, 5, 6, 7)).aligned((5, 1, 7)) == at((1,), (), (3,))
    assert Grid.of((5, 7)).aligned((1, 5, 7)) == at((), (0,), (1,))
    assert Grid.of((3, 5, 7)).aligned((5, 6)) is None
    assert Grid.of((5, 7)).aligned((2, 5, 7)) is None
    assert Grid.of((5, 6)).cut(Cut(1, 3)).aligned((1, 5, 6)) == at((), (0,), (1, 2))


def test_a_cut_splits_one_axis() -> None:
    grid = Grid.of((5, 24, 7)).cut(Cut(1, 6)).cut(Cut(2, 2))
    assert grid.extents == (5, 4, 3, 2, 7)
    assert grid.shape == (5, 24, 7)


def test_a_bias_lies_along_its_axis() -> None:
    g = gd.GraphBuilder()
    graph = g.build({"y": g.bias(g.input("x", (2, 3, 5), gd.float32), g.input("b", (3,), gd.float32), axis=1)})
    space = (2, 3, 5)
    assert operand_place(graph.nodes[0], 1, 0, at((0,), (1,), (2,)), space) == at((1,))
    assert operand_place(graph.nodes[0], 1, 0, at((), (2,), (3,)), space) == at((2,))


def test_places_follow_reshapes() -> None:
    space = (2, 3, 4, 5)
    plain = at((0,), (1,), (2,), (3,))
    assert reshaped(plain, space, (2, 12, 5), space) == at((0,), (1, 2), (3,))
    assert reshaped(at((0,), (1, 2), (3,)), (2, 12, 5), (2, 3, 1, 4, 5), space) == at((0,), (1,), (), (2,), (3,))
    assert reshaped(at((0,), (1, 2), (3,)), (2, 12, 5), (2, 4, 3, 5), space) is None
    assert reshaped(at((0,)), (24,), (4, 6), (24,)) == Cut(0, 6)
    assert reshaped(at((0,), (1,)), (4, 9), (6, 6), (4, 9)) is None
    half = (Run((0,)), Run((1,), 2))
    assert reshaped(half, (3, 8), (3, 1, 8), (3, 4)) == (Run((0,)), Run(), Run((1,), 2))
    assert reshaped(half, (3, 8), (24,), (3, 4)) is None


def test_a_value_is_covered_where_each_element_has_its_place() -> None:
    assert covers(at((0,), ()), (4, 1), (4, 5))
    assert covers((Run((0,), -2),), (2,), (4,))
    assert not covers((Run((0,), 1),), (5,), (4,))
    assert not covers((Run((0,), 0, 2),), (8,), (4,))
    assert not covers((Run((), 3),), (8,), (4,))


Moves = Callable[[gd.GraphBuilder, Value], Value]


@pytest.mark.parametrize(
    "move",
    [
        lambda g, x: g.transpose(x, (2, 0, 1)),
        lambda g, x: g.slice(x, [1, 0, 3], [4, 6, 10], steps=[1, 2, 3], axes=[0, 1, 2]),
        lambda g, x: g.split(x, [3, 4, 5], axis=2)[1],
        lambda g, x: g.reshape(x, (4, 3, 2, 12)),
        lambda g, x: g.reshape(x, (24, 12)),
        lambda g, x: g.unsqueeze(x, [0, 2]),
        lambda g, x: g.transpose(g.reshape(g.slice(x, [1], [3], axes=[0]), (2, 6, 3, 4)), (0, 2, 1, 3)),
        lambda g, x: g.squeeze(g.slice(x, [5], [6], axes=[1]), [1]),
    ],
)
def test_strides_read_what_numpy_reads(move: Moves) -> None:
    """A view of numbered elements, found by strides, offset and bounds of the one load."""
    g = gd.GraphBuilder()
    graph = g.build({"y": g.identity(move(g, g.input("x", (4, 6, 12), gd.float32)))})
    found = pointwise_work(whole(graph, row_major))
    assert not isinstance(found, Decline)
    ((load, _),) = found.demand.loads.items()
    assert not load.bounds
    numbers: Array = np.arange(4 * 6 * 12, dtype=np.float32)
    read = np.lib.stride_tricks.as_strided(
        numbers[load.offset :], found.grid.extents, [4 * s for s in load.strides], writeable=False
    )
    expected = gd.evaluate(graph, {"x": numbers.reshape(4, 6, 12)})["y"]
    np.testing.assert_array_equal(read.ravel(), expected.ravel())


def rotated(dim: int, heads: int = 3) -> gd.Graph:
    g = gd.GraphBuilder()
    x, table = g.input("x", (2, heads, 5, dim), gd.float16), g.input("t", (5, dim), gd.float16)
    first, second = g.split(x, [dim // 2, dim - dim // 2], axis=-1)
    return g.build({"y": x + g.concat([-second, first], axis=-1) * table})


@pytest.mark.parametrize(("dim", "width"), [(128, 8), (16, 8), (24, 4), (12, 2), (66, 1), (7, 1)])
def test_no_vector_lies_across_a_boundary(dim: int, width: int) -> None:
    assert plan_walk(whole(rotated(dim), row_major), H200).width == width


@pytest.mark.parametrize(
    ("strides", "offset", "is_vector"),
    [((24, 1), 0, True), ((24, 1), 16, True), ((24, 1), 4, False), ((12, 1), 0, False), ((8, 2), 0, False)],
)
def test_vectors_begin_at_multiples_of_their_width(strides: tuple[int, int], offset: int, is_vector: bool) -> None:
    """Of the first element and of each row; that the tensor itself does is looked at when the kernel runs."""
    x = gd.GraphBuilder().input("x", (5, 64), gd.float16)
    assert Access("p0", x, strides, offset).is_vector(axis=1, width=8) is is_vector


@pytest.mark.parametrize("axis", [0, 1])
def test_boundaries_of_outer_axes_leave_vectors_whole(axis: int) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3, 5, 16), gd.float16)
    walk = plan_walk(whole(g.build({"y": g.concat([g.neg(x), x], axis=axis)}), row_major), H200)
    assert walk.width == 8
    assert len(walk.space.extents) == 2 + (axis == 1)


def test_what_is_read_elsewhere_is_not_written_over() -> None:
    for dim in range(8, 136, 8):  # many, since an order of places would be that of their hashes
        region = whole(rotated(dim), row_major)
        assert in_place(region, plan_walk(region, H200)) == ()  # x is read at other places than it is written
    g = gd.GraphBuilder()
    x, y = g.input("x", (4, 8), gd.float32), g.input("y", (4, 4), gd.float32)
    region = whole(g.build({"y": x + g.concat([y, y], axis=1)}), row_major)
    assert [region.inputs[i].name for i, _ in in_place(region, plan_walk(region, H200))] == ["x"]


def test_a_tensor_within_the_space_is_not_written_over() -> None:
    """It lies as the output does, and other places still read it."""
    g = gd.GraphBuilder()
    x = g.input("x", (4, 8), gd.float32)
    region = whole(g.build({"y": g.neg(g.slice(x, [0], [8], axes=[1])) + g.slice(x, [0], [8], axes=[1])}), row_major)
    assert in_place(region, plan_walk(region, H200)) == ((0, 0),)
    region = whole(g.build({"y": g.pad(g.neg(x), ((0, 2), (0, 0)))}), row_major)
    assert in_place(region, plan_walk(region, H200)) == ()


def declined(build: Callable[[gd.GraphBuilder], Value]) -> Decline:
    g = gd.GraphBuilder()
    answer = NvrtcEngine().supports(whole(g.build({"y": build(g)}), row_major), H200, Policy())
    assert isinstance(answer, Decline), answer
    return answer


def test_refusals_have_their_reason() -> None:
    def crossed(g: gd.GraphBuilder) -> Value:
        heads = g.reshape(g.neg(g.input("x", (3, 5, 8), gd.float32)), (3, 5, 4, 2))
        return g.neg(g.slice(heads, [0], [3], axes=[2]))

    answer = declined(crossed)
    assert answer.code == Code.PATTERN
    assert "takes (3, 5, 8) to (3, 5, 4, 2)" in answer.reason

    def many(g: gd.GraphBuilder) -> Value:
        return g.relu(g.concat([g.input(f"x{i}", (3,), gd.float32) for i in range(MOST_PARTS + 1)], axis=0))

    answer = declined(many)
    assert answer.code == Code.SIZE
    assert "joins 9 tensors" in answer.reason

    def gathered(g: gd.GraphBuilder) -> Value:
        return g.relu(g.gather(g.input("x", (3, 4), gd.float32), g.input("i", (5,), gd.int32)))

    assert declined(gathered).code == Code.PATTERN


@pytest.mark.parametrize("case", MOVING[::7], ids=str)
def test_kernels_with_movement_compile(case: Moving) -> None:
    compiled(case, "sm_80")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("case", MOVING, ids=str)
def test_all_kernels_with_movement_compile(case: Moving, arch: str) -> None:
    compiled(case, arch)


def compiled(case: Moving, arch: str) -> None:
    (kernel,) = pointwise.FAMILY.generate(case.region(), H200).kernels
    cubin = compile_cubin(kernel.source, arch)
    assert isinstance(cubin, bytes), cubin


def test_movement_alone_stays_with_the_kernels_that_move() -> None:
    g = gd.GraphBuilder()
    xs = [g.input(n, (4, 8), gd.float16) for n in "ab"]
    answer = NvrtcEngine().supports(whole(g.build({"y": g.concat(xs, axis=0)}), row_major), H200, Policy())
    assert isinstance(answer, Support)
    assert answer.notes[0].startswith("move_")
