"""The user's function: which inputs it takes, what it may not be, and how a graph is made by calling it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType
from typing import Any

from graphdnn.errors import CompileError, GraphError
from graphdnn.executable import Executable
from graphdnn.ir.builder import GraphBuilder
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.types import TensorType
from graphdnn.spelling import quoted

KIND = inspect.Parameter
KINDS: dict[type, str] = {BuiltinFunctionType: "built into Python", Executable: "a compiled graph already"}
"""Callables that know no builder, whatever their parameters are called."""

NAMED = (KIND.POSITIONAL_OR_KEYWORD, KIND.KEYWORD_ONLY)


@dataclass(frozen=True)
class Function:
    """A function of a builder, its first parameter, and of values by name; those in `optional` may be left out."""

    call: Callable[..., Any]
    name: str
    builder: str
    parameters: tuple[str, ...]
    optional: frozenset[str]

    @staticmethod
    def of(call: Any) -> Function:
        """Reads a function's signature.  Raises CompileError where its inputs have no names."""
        if not callable(call):
            raise CompileError(
                f"jit: {quoted(call)} is a {type(call).__name__}; a function of a GraphBuilder is needed"
            )
        name = name_of(call)
        kind = KINDS.get(type(call)) or ("a class" if isinstance(call, type) else None)
        if kind is not None:
            raise CompileError(
                f"jit: {name} is {kind}; a Python function whose first parameter takes a GraphBuilder is needed"
            )
        try:
            first, *rest = inspect.signature(call).parameters.values()
        except ValueError:
            raise CompileError(
                f"jit: {name} takes nothing, or does not say what it takes; a GraphBuilder as first parameter is needed"
            ) from None
        if first.kind not in (KIND.POSITIONAL_ONLY, KIND.POSITIONAL_OR_KEYWORD):
            raise CompileError(
                f"jit: the first parameter of {name} is {first}; one that takes a GraphBuilder is needed"
            )
        for parameter in rest:
            if parameter.kind not in NAMED:
                raise CompileError(
                    f"jit: parameter {parameter} of {name} has no name that a call could bind an input to; "
                    "parameters with names, neither collected nor positional only, are needed"
                )
        optional = frozenset(p.name for p in rest if p.default is not KIND.empty)
        return Function(call, name, first.name, tuple(p.name for p in rest), optional)

    def trace(self, types: Mapping[str, TensorType]) -> Graph:
        """The graph that the function makes of inputs of these types.

        Raises GraphError where it gives something else, and whatever the function raises.
        """
        g = GraphBuilder(self.name)
        values = {n: g.input(n, t.shape, t.dtype, strides=t.strides) for n, t in types.items()}
        made = self.call(g, **values)
        if made is None:
            raise GraphError(
                f'{self.name} returned None; outputs by name, {{"y": value}}, are needed: is its return missing?'
            )
        if isinstance(made, Value):
            raise GraphError(
                f'{self.name} returned the value {made}; outputs by name, such as {{"y": value}}, are needed'
            )
        if not isinstance(made, Graph | Mapping):
            raise GraphError(
                f"{self.name} returned a {type(made).__name__}; a mapping from names to values is needed, "
                "or what build() of its first parameter gives"
            )
        graph = made if isinstance(made, Graph) else g.build(made)
        found = {n: v.type for n, v in graph.inputs.items()}
        if found != types:
            raise GraphError(
                f"{self.name} made a graph with the inputs {', '.join(found) or 'none'}; "
                f"its parameters {', '.join(types) or '(none)'}, with their types, and no other are needed"
            )
        if graph.states:
            raise GraphError(
                f"{self.name} has the state {next(iter(graph.states))}, of which each signature would have one of its "
                "own; a parameter for it, and its next value among the outputs, are needed"
            )
        return graph


def name_of(call: Any) -> str:
    """What a function is called in messages and as a graph."""
    while not isinstance(getattr(call, "__name__", None), str):
        inner = getattr(call, "func", None)  # functools.partial
        if inner is None:
            return type(call).__name__
        call = inner
    name: str = call.__name__
    return "lambda" if name == "<lambda>" else name
