"""How many cuDNN operations a pointwise function becomes: the table that the limit is held against, counted."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from graphdnn.engines.cudnn.rules.pointwise import COMPOSED, MODE, OPERATIONS, SMALL_FIRST
from graphdnn.ir.ops.pointwise import FUNCTIONS


class Tensor:
    """Stands for a tensor of the frontend."""

    def get_dim(self) -> list[int]:
        return [1, 1, 1, 1]

    def set_data_type(self, dtype: object) -> "Tensor":
        return self


class Graph:
    """Stands for a graph of the frontend, each of whose methods adds an operation."""

    def __init__(self) -> None:
        self.count = 0

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        def operation(*operands: object, **arguments: object) -> Tensor:
            self.count += 1
            return Tensor()

        return operation


def operations(compose: Callable[..., object], function: str) -> int:
    """Operations of a function with parameters that take the longest way."""
    graph = Graph()
    kinds = SimpleNamespace(BOOLEAN="boolean")
    emit: Any = SimpleNamespace(graph=graph, scalar=lambda *_: Tensor(), cudnn=SimpleNamespace(data_type=kinds))
    parameters = (-0.5, 0.5) if function == "clip" else (0.5,)
    compose(emit, [Tensor() for _ in range(FUNCTIONS[function].arity)], parameters)
    return graph.count


@pytest.mark.parametrize("function", sorted({*MODE, *COMPOSED}))
def test_the_table_counts_the_longest_way(function: str) -> None:
    ways = [table[function] for table in (COMPOSED, SMALL_FIRST) if function in table]
    assert OPERATIONS.get(function, 1) == max([1, *(operations(way, function) for way in ways)])
