"""The CPU target where memory ends."""

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
