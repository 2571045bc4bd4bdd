"""What a builder takes and refuses, apart from single ops: arrays, numbers, operators."""

import numpy as np
import pytest

import graphdnn as gd

BIG_ENDIAN = np.arange(6, dtype=">f4").reshape(2, 3)


def test_constants_are_plain_arrays_in_native_order(tmp_path) -> None:
    wanted = BIG_ENDIAN.astype(np.float32)
    for array in (
        BIG_ENDIAN,
        wanted.view(np.matrix),
        np.asfortranarray(wanted),
        np.ma.masked_array(wanted, wanted > 2),
    ):
        g = gd.GraphBuilder()
        graph = g.build({"y": g.identity(g.constant(array, name="c"))})
        graph.save(str(tmp_path / "c.json"))
        by_name = gd.parse(str(graph), {"c": array if type(array) is np.ndarray else wanted})
        for again in (graph, gd.Graph.from_json(graph.to_json()), gd.Graph.load(str(tmp_path / "c.json")), by_name):
            stored = again.payloads["c"].array()
            assert type(stored) is np.ndarray
            assert stored.dtype.isnative
            np.testing.assert_array_equal(stored, wanted)


@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize("fn", ["add", "less", "maximum"])
def test_a_number_outside_the_other_operands_type_is_refused(name: str, fn: str) -> None:
    g, dtype = gd.GraphBuilder(), gd.DType
    x = g.iota(3, dtype=getattr(gd, name))
    limits = np.iinfo(name)
    assert isinstance(x.type.dtype, dtype)
    for number in (limits.min, limits.max):
        getattr(g, fn)(x, int(number))
    for number in (limits.min - 1, limits.max + 1):
        with pytest.raises(gd.GraphError, match=f"{fn}: {number} is outside {name}"):
            getattr(g, fn)(x, int(number))


def test_a_number_that_no_float_holds_is_refused() -> None:
    g = gd.GraphBuilder()
    with pytest.raises(gd.GraphError, match="too large for a floating-point number"):
        g.add(g.input("x", (3,), gd.float32), 10**400)


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), np.float16(0.5)])
def test_numpy_numbers_are_numbers(number: np.floating) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3,), gd.float16)
    for y in (number * x, x * number, g.mul(x, number)):
        assert y.type == x.type
    assert [str(n.operands[i]) for n, i in zip(g.build({"y": y}).nodes, (0, 1, 1), strict=True)] == ["0.5"] * 3


@pytest.mark.parametrize("operate", [lambda a, x: a + x, lambda a, x: x + a, lambda a, x: a @ x, lambda a, x: x @ a])
def test_arrays_beside_values_are_refused(operate) -> None:
    g = gd.GraphBuilder()
    x = g.input("x", (3, 3), gd.float32)
    with pytest.raises(gd.GraphError, match="is a ndarray; a value of this builder is needed"):
        operate(np.ones((3, 3), np.float32), x)
    assert g.build({"x": x}).nodes == ()
