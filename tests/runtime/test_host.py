"""The CPU target where memory ends, and with streams, which it does not need."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from tests.runtime.fake import host_program


def test_an_output_without_memory_is_named(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    g = gd.GraphBuilder("gaps")
    graph = g.build({"y": g.relu(g.input("x", (2, 3), gd.float32))}, strides={"y": (2**39, 1)})
    program, inputs = host_program(graph, rng), {"x": np.ones((2, 3), np.float32)}

    def full(type: gd.TensorType) -> None:
        raise MemoryError(f"Unable to allocate {type.extent}")

    monkeypatch.setattr("graphdnn.runtime.host.empty", full)
    for call in (program.run, program.bind):
        with pytest.raises(gd.ExecutionError) as caught:
            call(inputs)
        assert str(caught.value) == (
            "output y of graph gaps takes 2199023255564 bytes as it is declared; there is not so much memory"
        )


class Stream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 7


def both_calls(rng: np.random.Generator) -> tuple[Callable[..., Any], Callable[..., Any]]:
    g = gd.GraphBuilder()
    program = host_program(g.build({"y": g.relu(g.input("x", (3,), gd.float32))}), rng)
    inputs = {"x": np.float32([-1, 0, 2])}
    return partial(program.run, inputs), program.bind(inputs)


@pytest.mark.parametrize("stream", ["cuda", 1.5, True, object(), [0], np.zeros(1)])
def test_what_is_no_stream_is_refused_as_on_a_device(stream: object, rng: np.random.Generator) -> None:
    for call in both_calls(rng):
        with pytest.raises(gd.ExecutionError) as caught:
            call(stream=stream)
        assert str(caught.value) == (
            f"stream is a {type(stream).__name__}; an int, None or an object with __cuda_stream__ is needed"
        )


@pytest.mark.parametrize("stream", [None, 0, 1, 1 << 40, Stream()])
def test_a_stream_changes_nothing(stream: object, rng: np.random.Generator) -> None:
    for call in both_calls(rng):
        np.testing.assert_array_equal(call(stream=stream)["y"], [0, 0, 2])
