"""What jitted functions refuse: other arguments than one mapping, copies, and builds that wait in a circle."""

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.graph import Value

X = np.ones((2, 3), np.float32)


def relu(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
    return {"y": g.relu(x)}


def test_a_jitted_function_is_neither_pickled_nor_copied() -> None:
    f = gd.jit(relu, target="cpu")
    for move in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(gd.ExecutionError) as caught:
            move(f)
        assert str(caught.value) == (
            "jitted function relu cannot be pickled or copied; gd.jit of the function that it was made of is needed "
            "there"
        )


@pytest.mark.parametrize(
    ("positional", "named", "said"),
    [
        ((), {}, "inputs of relu are missing; a mapping from name to array is needed"),
        ((), {"stream": 0}, "inputs of relu are missing; a mapping from name to array is needed"),
        ((None,), {}, "inputs of relu are a NoneType; a mapping from name to array is needed"),
        (
            (),
            {"x": X},
            "input x of relu is given as an argument by name; one mapping from name to array, {'x': ...}, is needed",
        ),
        ((X, X), {}, "relu was called with 2 arguments in a row; one mapping from name to array is needed"),
        (
            ({"x": X},),
            {"steam": 0},
            "calls of relu have no argument 'steam'; did you mean 'stream'? (they take inputs, stream)",
        ),
    ],
)
def test_other_arguments_than_one_mapping_are_refused(
    positional: tuple[Any, ...], named: dict[str, Any], said: str
) -> None:
    with pytest.raises(gd.ExecutionError) as caught:
        gd.jit(relu, target="cpu")(*positional, **named)
    assert str(caught.value) == said


def test_inputs_may_be_called_by_their_name() -> None:
    np.testing.assert_array_equal(gd.jit(relu, target="cpu")(inputs={"x": -X})["y"], 0 * X)


def test_functions_that_call_each_other_from_two_threads_are_told_so() -> None:
    both = threading.Barrier(2, timeout=10)

    def even(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
        both.wait()
        jitted["odd"]({"x": X})
        return {"y": x}

    def odd(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
        both.wait()
        jitted["even"]({"x": X})
        return {"y": x}

    jitted = {"even": gd.jit(even, target="cpu"), "odd": gd.jit(odd, target="cpu")}
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(f, {"x": X}) for f in jitted.values()]
        errors = [a.exception(20) for a in answers]
    assert all(isinstance(e, gd.ExecutionError) for e in errors)
    (said,) = {str(e) for e in errors}
    assert said in {
        f"jitted function {name} was called by itself, directly or through others, with the signature that is being "
        "built, (x: f32[2x3]); one whose build does not lead back to itself is needed"
        for name in jitted
    }


def test_functions_that_call_each_other_from_one_thread_are_told_so() -> None:
    def first(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
        second({"x": X})
        return {"y": x}

    f = gd.jit(first, target="cpu")

    def back(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
        f({"x": X})
        return {"y": x}

    second = gd.jit(back, target="cpu")
    with pytest.raises(gd.ExecutionError, match=r"^jitted function first was called by itself.*\(x: f32\[2x3\]\)"):
        f({"x": X})
