"""How a call of exact shapes goes through a build for padded ones: inputs lengthened, lengths filled in, outputs cut.

On a device lengthening is a graph as any other, compiled once for each exact shape: order among streams, memory and
layouts are then the runtime's matter here too.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdnn import compiler
from graphdnn.config import CompileOptions
from graphdnn.errors import CompileError, ExecutionError
from graphdnn.executable import Executable
from graphdnn.forking import renew_in_children
from graphdnn.ir.builder import GraphBuilder
from graphdnn.ir.graph import Graph
from graphdnn.ir.types import TensorType, int32
from graphdnn.specialize.buckets import check_parameter, cut, is_whole, lies_on_host, padded
from graphdnn.specialize.masking import Masking
from graphdnn.spelling import counted, quoted
from graphdnn.target import Target

Lengths = Mapping[str, tuple[str, int]]
"""Parameters that jit fills in, each with the input and the axis whose exact extent it holds."""


class Build:
    """One compiled signature.  `traced` is the function's graph, `graph` that with the masks of `masking`.

    `executable` is replaced when a tuned one, which `is_untuned` asks for, is ready.
    """

    __slots__ = ("__weakref__", "executable", "graph", "is_untuned", "masking", "traced")

    def __init__(self, traced: Graph, masking: Masking, graph: Graph, executable: Executable, is_untuned: bool) -> None:
        self.traced = traced
        self.masking = masking
        self.graph = graph
        self.executable = executable
        self.is_untuned = is_untuned


def checked_lengths(who: str, lengths: Any, parameters: tuple[str, ...]) -> Lengths:
    """A caller's lengths.  Raises CompileError naming the parameter that cannot be filled in."""
    if not isinstance(lengths, Mapping):
        raise CompileError(
            f'jit: lengths are {quoted(lengths)}; an input and an axis by parameter, {{"n": ("x", 1)}}, are needed'
        )
    for name, source in lengths.items():
        check_parameter("lengths", name, who, parameters)
        if not isinstance(source, tuple | list) or len(source) != 2 or not is_whole(source[1]) or source[1] == 0:
            raise CompileError(
                f"jit: {name} is to hold the lengths {quoted(source)}; an input and one of its axes behind the first, "
                '("x", 1), are needed'
            )
        if source[0] not in parameters or source[0] in lengths:
            raise CompileError(f"jit: {name} is to hold lengths of {source[0]}, which is no input of {who}")
    return {name: (source[0], source[1]) for name, source in lengths.items()}


def length_types(lengths: Lengths, types: Mapping[str, TensorType]) -> dict[str, TensorType]:
    """Types of the parameters filled in: an int32 for each entry of the input's first axis."""
    found = {}
    for name, (source, axis) in lengths.items():
        if source not in types:
            raise ExecutionError(f"input {source} is missing; {name} holds its lengths")
        shape = types[source].shape
        if not -len(shape) < axis < len(shape):
            raise ExecutionError(
                f"input {source} has {counted(len(shape), 'axis')}; {name} holds lengths along its axis {axis}"
            )
        found[name] = TensorType(shape[:1], int32)
    return found


def limits_of(exact: Graph, lengths: Lengths) -> dict[str, int]:
    """What the parameters filled in hold for a graph of exact shapes."""
    return {name: exact.inputs[source].type.shape[axis] for name, (source, axis) in lengths.items()}


@dataclass(frozen=True)
class PaddingTarget:
    """Where padding is compiled for: a target, and the directory of the disk cache."""

    target: str | Target
    cache_dir: str | None

    def compile(self, graph: Graph) -> Executable:
        return compiler.compile(graph, self.target, CompileOptions(cache_dir=self.cache_dir))


class Route:
    """From the exact shapes of one signature to one build, as long as that is kept."""

    def __init__(self, build: Build, exact: Graph, lengths: Lengths, target: PaddingTarget) -> None:
        """`exact` is the function's graph of the exact shapes, which was proved to be served by the build."""
        wanted = build.graph.inputs
        self.build = weakref.ref(build)
        self._target = target
        self._inputs = {n: v.type for n, v in exact.inputs.items() if n not in lengths}
        self._longer = {n: wanted[n].type for n, t in self._inputs.items() if wanted[n].type.shape != t.shape}
        fills = limits_of(exact, lengths) | build.masking.extents(exact)
        self._fills = {name: np.full(wanted[name].type.shape, extent, np.int32) for name, extent in fills.items()}
        self._cuts = {
            name: value.type.shape
            for name, value in exact.outputs.items()
            if value.type.shape != build.graph.outputs[name].type.shape
        }
        self._padding: dict[tuple[str, ...], Executable] = {}
        self._fills_there: dict[str, Any] = {}
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Makes the lock anew."""
        self._lock = threading.Lock()

    def run(self, executable: Executable, inputs: Mapping[str, Any], stream: object) -> dict[str, Any]:
        """The outputs of a caller's inputs, from an executable of the build."""
        if not self._longer and not self._fills:
            return self._cut(executable(inputs, stream=stream))
        there = tuple(name for name in self._inputs if not lies_on_host(inputs[name]))
        fed = {**inputs, **self._fills}
        for name, type in self._longer.items():
            if name not in there:
                fed[name] = padded(inputs[name], type)
        if not there:
            return self._cut(executable(fed, stream=stream))
        with self._lock:
            return self._cut(self._run_there(executable, fed, there, stream))

    def _run_there(
        self, executable: Executable, fed: dict[str, Any], there: tuple[str, ...], stream: object
    ) -> dict[str, Any]:
        """A call with arrays on the device."""
        if self._fills and not self._fills_there:
            # An array on the host would have every call wait for the one before.
            self._fills_there = self._target.compile(self._length_graph(there[0]))(
                {there[0]: fed[there[0]]}, stream=stream
            )
        fed.update(self._fills_there)
        grown = tuple(name for name in there if name in self._longer)
        if grown:
            if grown not in self._padding:
                self._padding[grown] = self._target.compile(self._pad_graph(grown))
            fed.update(self._padding[grown]({name: fed[name] for name in grown}, stream=stream))
        return executable(fed, stream=stream)

    def _cut(self, outputs: dict[str, Any]) -> dict[str, Any]:
        """The caller's outputs of the build's: their leading corners, in the same memory."""
        for name, shape in self._cuts.items():
            outputs[name] = cut(outputs[name], shape)
        return outputs

    def _length_graph(self, name: str) -> Graph:
        """The lengths as they are, where an input lies."""
        g, type = GraphBuilder("lengths"), self._inputs[name]
        g.input(name, type.shape, type.dtype, strides=type.strides)
        return g.build({n: g.constant(a) for n, a in self._fills.items()})

    def _pad_graph(self, names: tuple[str, ...]) -> Graph:
        """Each input at the leading corner of a tensor of the build's type, with zeros behind it."""
        g = GraphBuilder("pad")
        outputs = {}
        for name in names:
            given, wanted = self._inputs[name], self._longer[name]
            x = g.input(name, given.shape, given.dtype, strides=given.strides)
            behind = [(0, m - n) for n, m in zip(given.shape, wanted.shape, strict=True)]
            outputs[name] = g.pad(x, behind, value=False if given.dtype.kind == "bool" else 0)
        return g.build(outputs, strides={n: self._longer[n].layout for n in names})
