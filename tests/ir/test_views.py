"""Views: where values lie, with numpy's own strided arrays as the oracle."""

import itertools

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.movement import Expand, Reshape, Slice, Split, Squeeze, Transpose, Unsqueeze, reshaped_strides
from graphdnn.ir.types import TensorType, channels_last, dense_strides
from graphdnn.ir.views import is_free, is_part_of, resolve
from graphdnn.ir.writer import GraphWriter
from tests.ir.samples import SAMPLES, Sample

ITEM = 8


def memory(extent: int) -> np.ndarray:
    """Elements that tell where they lie."""
    return np.arange(extent, dtype=np.int64)


def strided(
    type: TensorType, buffer: np.ndarray, offset: int = 0, strides: tuple[int, ...] | None = None
) -> np.ndarray:
    steps = tuple(s * ITEM for s in (type.layout if strides is None else strides))
    return np.lib.stride_tricks.as_strided(buffer[offset:], type.shape, steps, writeable=False)


def factorings(n: int, rank: int) -> list[tuple[int, ...]]:
    """All shapes of that rank with n elements."""
    if rank == 1:
        return [(n,)]
    return [(d, *rest) for d in range(1, n + 1) if n % d == 0 for rest in factorings(n // d, rank - 1)]


LAYOUTS = [
    ((2, 3, 4), (12, 4, 1)),
    ((2, 3, 4), (1, 2, 6)),
    ((2, 3, 4), (12, 1, 3)),
    ((2, 3, 4), (24, 8, 2)),
    ((2, 3, 4), (16, 5, 1)),
    ((2, 3, 4), (0, 4, 1)),
    ((2, 3, 4), (4, 0, 1)),
    ((1, 6, 4), (77, 4, 1)),
    ((6, 1, 4), (8, 99, 2)),
    ((24,), (3,)),
    ((1, 24, 1), (5, 1, 7)),
]


@pytest.mark.parametrize(("shape", "strides"), LAYOUTS)
def test_reshaped_strides_are_numpys(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """numpy refuses to set the shape of an array in place exactly where no strides do it."""
    type = TensorType(shape, gd.int64, strides)
    x = strided(type, memory(type.extent))
    for rank in (1, 2, 3, 4):
        for wanted in factorings(24, rank):
            found = reshaped_strides(shape, type.layout, wanted)
            y = x.reshape(wanted)
            shares = np.shares_memory(x, y)
            assert (found is not None) == shares, f"{type} as {wanted}"
            if found is not None:
                again = strided(TensorType(wanted, gd.int64), memory(type.extent), strides=found)
                np.testing.assert_array_equal(again, y)


OPS: list[Op] = [
    Reshape(shape=(6, 4)),
    Reshape(shape=(2, 12)),
    Reshape(shape=(2, 1, 3, 2, 2, 1)),
    Transpose(axes=(2, 0, 1)),
    Expand(shape=(5, 2, 3, 4)),
    Unsqueeze(axes=(0, 2, 4)),
    Split(sizes=(1, 2), axis=1),
    Split(sizes=(1, 1, 2), axis=2),
    Slice(starts=(1, 0, 1), stops=(2, 3, 4), steps=(1, 2, 1)),
    Slice(starts=(0, 1, 0), stops=(2, 3, 4), steps=(1, 1, 3)),
]


@pytest.mark.parametrize("op", OPS, ids=str)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_views_read_what_the_definition_gives(op: Op, order: tuple[int, ...]) -> None:
    type = TensorType((2, 3, 4), gd.int64, dense_strides((2, 3, 4), order))
    buffer = memory(type.size)
    x = strided(type, buffer)
    views = op.view(type)
    assert op.is_renaming
    if views is None:
        assert isinstance(op, Reshape)
        assert not np.shares_memory(x.reshape(op.shape), x)
        return
    for view, result, array in zip(views, op.infer(type), op.reference(x), strict=True):
        np.testing.assert_array_equal(strided(result, buffer, view.offset, view.strides), array)


def test_squeeze_and_scalar_expand() -> None:
    type = TensorType((1, 3, 1), gd.int64, (9, 2, 5))
    (view,) = Squeeze(axes=(0, 2)).view(type) or ()
    assert view.strides == (2,)
    (view,) = Expand(shape=(4, 3)).view(TensorType((), gd.int64)) or ()
    assert view.strides == (0, 0)
    (view,) = Expand(shape=(4, 3, 5)).view(type) or ()
    assert view.strides == (0, 2, 0)


def laid_out(graph: Graph) -> Graph:
    """Each node in the strides of its view where it has one, and row-major elsewhere."""
    writer = GraphWriter(graph.name)
    writer.inputs.update(graph.inputs)
    new: dict[Value, Value] = {}
    for node in graph.nodes:
        operands = [new.get(v, v) for v in node.operands]
        types = node.op.infer(*(v.type for v in operands))
        views = node.op.view(operands[0].type) if operands else None
        strides = [v.strides for v in views] if views else [t.layout for t in types]
        decided = [t.with_strides(s) for t, s in zip(types, strides, strict=True)]
        new.update(zip(node.results, writer.emit(node.op, operands, types=decided), strict=True))
    return writer.finish({n: new[v] for n, v in graph.outputs.items()})


def test_resolve_follows_views_of_views() -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (2, 6, 5), gd.int64, strides=(30, 1, 6))
    first, second = g.split(x, (2, 4), axis=1)
    y = g.transpose(g.slice(second, (1, 1, 0), (2, 4, 5), (1, 1, 2)), (2, 1, 0))
    copied = g.reshape(x, (12, 5))
    doubled = g.add(first, first)
    z = g.expand(g.squeeze(g.slice(doubled, (0, 0, 2), (2, 1, 3)), 1), (3, 2, 1))
    graph = laid_out(g.build({"y": y, "copied": copied, "z": z}))
    places = resolve(graph)
    buffer = memory(60)
    for name in ("y",):
        root, offset = places[graph.outputs[name]]
        assert root is graph.inputs["x"]
        array = strided(graph.inputs["x"].type, buffer)
        expected = gd.evaluate(graph, {"x": array})[name]
        np.testing.assert_array_equal(strided(graph.outputs[name].type, buffer, offset), expected)
    assert places[graph.outputs["copied"]] == (graph.outputs["copied"], 0)
    root, offset = places[graph.outputs["z"]]
    assert root.name == "add"
    assert offset == 2
    assert [n.op.label for n in graph.nodes if not is_free(n)] == ["reshape", "add"]


def test_a_view_in_other_strides_is_not_free() -> None:
    writer = GraphWriter("g")
    x = writer.input("x", TensorType((2, 3, 5, 4), gd.float32))
    op = Transpose(axes=(0, 2, 3, 1))
    (view,) = op.view(x.type) or ()
    (inferred,) = op.infer(x.type)
    (free,) = writer.emit(op, (x,), types=[inferred.with_strides(view.strides)])
    (moved,) = writer.emit(op, (x,), types=[inferred])
    graph = writer.finish({"free": free, "moved": moved})
    assert [is_free(n) for n in graph.nodes] == [True, False]
    assert resolve(graph)[free] == (x, 0)
    assert resolve(graph)[moved] == (moved, 0)


def test_strides_of_single_elements_do_not_matter() -> None:
    writer = GraphWriter("g")
    x = writer.input("x", TensorType((4, 1, 3), gd.float32, (3, 99, 1)))
    (y,) = writer.emit(Reshape(shape=(1, 4, 3, 1)), (x,), types=[TensorType((1, 4, 3, 1), gd.float32, (7, 3, 1, 55))])
    assert is_free(writer.finish({"y": y}).nodes[0])


def test_an_expanded_number_is_no_view() -> None:
    writer = GraphWriter("g")
    x = writer.input("x", TensorType((3,), gd.float32))
    (y,) = writer.emit(Expand(shape=(3,)), (Value("1.0", TensorType((), gd.float32), 1.0),))
    (z,) = writer.emit(Transpose(axes=(0,)), (x,))
    graph = writer.finish({"y": y, "z": z})
    assert [is_free(n) for n in graph.nodes] == [False, True]


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_value_has_a_place(sample: Sample, rng: np.random.Generator) -> None:
    graph = sample.graph(rng)
    places = resolve(graph)
    for node in graph.nodes:
        for value in node.results:
            root, offset = places[value]
            assert offset >= 0
            assert offset + value.type.extent <= root.type.extent
            assert root is value or is_free(node)


def test_what_lies_within_another_view() -> None:
    """As many ways as there are through small tensors, against sets of addresses."""
    buffer = 6 * 8
    writer = GraphWriter("g")
    x = writer.input("x", TensorType((buffer,), gd.float32))
    (rows,) = writer.emit(Reshape(shape=(6, 8)), (x,), types=[TensorType((6, 8), gd.float32, (8, 1))])
    values = [x, rows]
    for r0, r1, rs, c0, c1, cs in itertools.product((0, 2), (3, 6), (1, 2), (0, 3), (4, 8), (1, 3)):
        op = Slice(starts=(r0, c0), stops=(r1, c1), steps=(rs, cs))
        shape = op.infer(rows.type)[0].shape
        values += writer.emit(op, (rows,), types=[TensorType(shape, gd.float32, (8 * rs, cs))])
    graph = writer.finish({f"y{i}": v for i, v in enumerate(values) if v is not x})
    places = resolve(graph)
    held = {v: set(strided(v.type, memory(buffer), places[v][1]).ravel().tolist()) for v in values}
    for a, b in itertools.product(values, repeat=2):
        told = is_part_of(graph, a, b)
        assert not told or held[a] <= held[b]
        if b is rows:
            assert told or a is x
    assert is_part_of(graph, values[5], values[5])


def test_channels_last_reads_as_rows_of_channels() -> None:
    type = TensorType((2, 5, 3, 4), gd.float16, channels_last((2, 5, 3, 4)))
    (rows,) = Transpose(axes=(0, 2, 3, 1)).view(type) or ()
    assert reshaped_strides((2, 3, 4, 5), rows.strides, (24, 5)) == (5, 1)


@pytest.mark.parametrize("number", range(4))
def test_dense_is_each_place_once(number: int, seed: int) -> None:
    """Against every element's place; some strides span as much memory as there are elements and miss some of it."""
    rng = np.random.default_rng([seed, number])
    found = set()
    for _ in range(500):
        shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(0, 4)))
        type = TensorType(shape, gd.int8, tuple(int(s) for s in rng.integers(0, 5, len(shape))))
        places = sorted(sum(i * s for i, s in zip(at, type.layout, strict=True)) for at in np.ndindex(shape))
        is_dense = places == list(range(type.extent))
        assert type.is_dense == is_dense, type
        found.add((is_dense, type.extent == type.size))
    assert found == {(True, True), (False, True), (False, False)}
