"""What `evaluate` and `run` take as inputs and states."""

from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.evaluate import run


def counting(dtype: gd.DType = gd.float32) -> gd.Graph:
    g = gd.GraphBuilder("counting")
    x, s = g.input("x", (2, 3), dtype), g.state("s", (2, 3), dtype)
    return g.build({"y": s}, updates={"s": s + x * 0.5 if dtype.is_float else s + x})


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.ones((3, 2), np.float32), "has shape (3, 2); (2, 3) is needed"),
        (np.float32(1), "has shape (); (2, 3) is needed"),
        (np.ones((2, 3)), "is float64; float32 is needed"),
        (np.ones((2, 3), np.int32), "is int32; float32 is needed"),
        (np.ones((2, 3), np.complex64), ": data type complex64 is not one of"),
        ([[1.0] * 3] * 2, "is a list; a numpy array is needed"),
        (None, "is a NoneType; a numpy array is needed"),
    ],
)
@pytest.mark.parametrize("name", ["x", "s"])
def test_arrays_that_do_not_fit_are_named(name: str, given: Any, said: str) -> None:
    inputs, states = ({"x": given}, {}) if name == "x" else ({"x": X}, {"s": given})
    with pytest.raises(gd.GraphError) as caught:
        gd.evaluate(counting(), inputs, states=states)
    what = {"x": "input x", "s": "state s"}[name]
    assert str(caught.value).startswith(what)
    assert str(caught.value).removeprefix(what).lstrip().startswith(said)


@pytest.mark.parametrize("given", [3, [X], "s"])
def test_states_that_are_no_mapping_are_refused(given: Any) -> None:
    with pytest.raises(gd.GraphError, match=r"evaluate: states is a \w+; a mapping of names to arrays is needed"):
        gd.evaluate(counting(), {"x": X}, states=given)


@pytest.mark.parametrize("wide", [None, gd.float64])
@pytest.mark.parametrize("dtype", [gd.float16, gd.bfloat16, gd.float32, gd.int32])
def test_next_values_are_taken_again(dtype: gd.DType, wide: gd.DType | None) -> None:
    graph, states = counting(dtype), {}
    for step in range(3):
        outputs, states = run(graph, {"x": np.ones((2, 3), dtype.numpy)}, wide, states=states)
        np.testing.assert_array_equal(outputs["y"].astype(np.float64), step * (0.5 if dtype.is_float else 1))


def test_widened_integers_stay_what_they_are() -> None:
    with pytest.raises(gd.GraphError, match="state s is float64; int32 is needed"):
        gd.evaluate(counting(gd.int32), {"x": X.astype(np.int32)}, gd.float64, states={"s": np.ones((2, 3))})


@pytest.mark.parametrize("dtype", [gd.float64, gd.float32, gd.float16, gd.bfloat16], ids=str)
@pytest.mark.parametrize("is_constant", [False, True], ids=["input", "constant"])
def test_a_number_too_large_for_the_type_is_infinite_and_warns_of_nothing(dtype: gd.DType, is_constant: bool) -> None:
    array = np.array([1.0, -2.0, 0.0], dtype.numpy)
    g = gd.GraphBuilder()
    x = g.constant(array) if is_constant else g.input("x", (3,), dtype)
    graph = g.build({"y": x * 1e300})
    inputs = {} if is_constant else {"x": array}
    found = [gd.evaluate(graph, inputs)["y"], gd.compile(graph, target="cpu")(inputs)["y"]]
    expected = [1e300, -2e300, 0.0] if dtype == gd.float64 else [np.inf, -np.inf, np.nan]
    for y in found:
        np.testing.assert_array_equal(y.astype(np.float64), expected)
