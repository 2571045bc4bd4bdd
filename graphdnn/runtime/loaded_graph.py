"""A scheduled graph on a device: what all its contexts share, which is its plans and its constants, uploaded once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import cast

import numpy as np

from graphdnn.engines.contract import DevicePlan, aligned
from graphdnn.errors import CompileError, ContextLostError, ExecutionError
from graphdnn.ir.graph import Graph
from graphdnn.ir.types import Array, TensorType
from graphdnn.once import MakeOnce
from graphdnn.runtime.arrays import empty
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.schedule import Schedule
from graphdnn.spelling import first_of

CONVERSIONS_KEPT = 64
"""Pairs of layouts between which plans that copy are kept; callers may bring any strides."""

PLANS_NAMED = 5
"""Plans that an error names; how many more there are it counts."""

AT_ONCE = 8
"""Constants that are made ready for uploading at the same time."""

Convert = Callable[[TensorType, TensorType], DevicePlan]
"""Builds a plan with one input and one output of equal shape and type and other strides."""


class LoadedGraph:
    """Plans and constants of one graph on one device."""

    def __init__(self, graph: Graph, placed: Schedule, device: CudaDevice, convert: Convert | None) -> None:
        self.graph = graph
        self.schedule = placed
        self.device = device
        self.plans = [cast(DevicePlan, step.plan) for step in placed.steps]
        self.types = {name: laid_out(graph.output_type(name)) for name in graph.outputs}
        for name, value in graph.outputs.items():
            if value.type.layout != self.types[name].layout:
                raise CompileError(f"output {name} is {value.type} inside the graph, but declared {self.types[name]}")
        self._convert = convert
        self._conversions: MakeOnce[tuple[TensorType, TensorType], DevicePlan] = MakeOnce(CONVERSIONS_KEPT)
        self._upload()

    def _upload(self) -> None:
        used = {p.name for p in self.schedule.places.values() if p.space == "constant"}
        used |= {c.source.name for c in self.schedule.copies if c.source.space == "constant"}
        offsets: dict[str, int] = {}
        total = 0
        for name, value in self.graph.constants.items():
            if name in used:
                offsets[name] = total
                total += aligned(value.type.span_bytes)
        self.constants = self.device.allocate(total)
        self.constant_addresses = {name: self.constants.handle + offset for name, offset in offsets.items()}
        # Folded weights are computed and laid out here; numpy works outside the interpreter's lock.
        sizes = {name: self.graph.constants[name].type.span_bytes for name in offsets}
        waiting: deque[tuple[str, Future[Array]]] = deque()

        def write() -> None:
            name, host = waiting.popleft()
            self.device.write(self.constant_addresses[name], host.result().ctypes.data, sizes[name])

        with ThreadPoolExecutor(AT_ONCE) as pool:
            for name in sorted(sizes, key=lambda n: -sizes[n]):
                waiting.append((name, pool.submit(self._constant, name)))
                if len(waiting) == 2 * AT_ONCE:
                    write()
            while waiting:
                write()

    def _constant(self, name: str) -> Array:
        """A constant in host memory, lying as its type says."""
        host = empty(laid_out(self.graph.constants[name].type))
        np.copyto(host, self.graph.payloads[name].array())
        return host

    def conversion(self, who: str, source: TensorType, target: TensorType) -> DevicePlan:
        """A plan that copies one layout into another.  Raises ExecutionError where nobody builds any, or where that has
        to be done for the first time during a capture of the caller's."""
        convert = self._convert
        if convert is None:
            raise ExecutionError(
                f"{who} has strides {source.layout}; {target.layout} are needed, since no engine copies"
            )
        key = (laid_out(source), laid_out(target))

        def make() -> DevicePlan:
            self.device.check_no_capture(f"building the conversion of {who}")
            return convert(*key)

        return self._conversions.get(key, make)

    @contextmanager
    def named_when_lost(self) -> Iterator[None]:
        """Around what meets the device: a lost context is told with this graph's name."""
        try:
            yield
        except ContextLostError as error:
            raise self.lost(error) from error

    def lost(self, error: ContextLostError) -> ContextLostError:
        """The same error saying whose plans were running when the device's context was lost."""
        named = [f"{step.name} for {step.region.pattern}" for step in self.schedule.steps]
        plans = first_of(named, PLANS_NAMED)
        return ContextLostError(
            f"graph {self.graph.name} could not run: {error}; its plans are {plans}; to find the one at fault, save "
            "the graph and run `graphdnn doctor --replay FILE`"
        )


def laid_out(type: TensorType) -> TensorType:
    """The same type with its strides written out."""
    return type.with_strides(type.layout)
