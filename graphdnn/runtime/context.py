"""Running plans on a device: addresses worked out once, scratch memory of one's own, whole runs as CUDA graphs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from graphdnn.engines.contract import DevicePlan
from graphdnn.errors import CompileError, ExecutionError
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import ALIGNMENT
from graphdnn.ir.types import Array, TensorType
from graphdnn.runtime.arrays import DeviceArray, Lease, Order, Source, empty, read_checked, read_inputs
from graphdnn.runtime.capture import CapturedGraph
from graphdnn.runtime.device import LEGACY_STREAM, ContextLostError, CudaDevice, Memory, Pinned, stream_handle
from graphdnn.runtime.memory import aligned
from graphdnn.runtime.schedule import Place, Schedule

Convert = Callable[[TensorType, TensorType], DevicePlan]
"""Builds a plan with one input and one output of equal shape and type and other strides."""

Command = Callable[[int], None]
"""Puts one piece of work on a stream."""

GRAPHS_KEPT = 16
"""Captured graphs and addresses seen that one context remembers for plain calls."""

SPARES_KEPT = 4
"""Free blocks that a context keeps for each output."""


class LoadedGraph:
    """What all contexts of one graph share on a device: plans and constants, uploaded once."""

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
        self._conversions: dict[tuple[TensorType, TensorType], DevicePlan] = {}
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
        for name, address in self.constant_addresses.items():
            value = self.graph.constants[name]
            host = empty(laid_out(value.type))
            np.copyto(host, self.graph.payloads[name].array())
            self.device.write(address, host.ctypes.data, value.type.span_bytes)

    def conversion(self, who: str, source: TensorType, target: TensorType) -> DevicePlan:
        """A plan that copies one layout into another.  Raises ExecutionError where nobody builds any."""
        key = (laid_out(source), laid_out(target))
        plan = self._conversions.get(key)
        if plan is None:
            if self._convert is None:
                raise ExecutionError(
                    f"{who} has strides {source.layout}; {target.layout} are needed, since no engine copies"
                )
            plan = self._conversions[key] = self._convert(*key)
        return plan

    def lost(self, error: ContextLostError) -> ExecutionError:
        """The same error saying whose plans were running when the device's context was lost."""
        plans = ", ".join(f"{type(s.plan).__name__} for {s.region.pattern}" for s in self.schedule.steps)
        return ExecutionError(f"graph {self.graph.name} could not run: {error}; its plans are {plans}")


class Inlet:
    """Memory that one array is copied into where it cannot be read in place: from the host, or in another layout."""

    def __init__(self, who: str, type: TensorType, loaded: LoadedGraph, memory: Memory | None = None) -> None:
        self._who = who
        self._type = laid_out(type)
        self._loaded = loaded
        self._nbytes = type.span_bytes
        self.memory = memory or loaded.device.allocate(self._nbytes)
        self._pinned: Pinned | None = None

    def stage(self, array: Array) -> None:
        """Copies a host array to where the device fetches it.  Earlier fetches must be over."""
        if self._pinned is None:
            self._pinned = self._loaded.device.pinned(self._nbytes)
        np.copyto(self._pinned.array(self._type), array)

    def prepare(self, source: Source) -> Command:
        """What brings a source in when put on a stream; a host array must have been staged before it runs."""
        device, target, nbytes = self._loaded.device, self.memory.handle, self._nbytes
        if source.on_host:
            if self._pinned is None:
                self._pinned = device.pinned(nbytes)
            pinned = self._pinned.handle
            return lambda stream: device.upload(target, pinned, nbytes, stream)
        address = source.address
        if source.lies_as(self._type):
            return lambda stream: device.copy(target, address, nbytes, stream)
        plan = self._loaded.conversion(self._who, source.type(self._type.dtype), self._type)
        return lambda stream: plan.enqueue([address, target], stream, 0)


class Outlet:
    """Pinned memory through which one output reaches the host."""

    def __init__(self, type: TensorType, device: CudaDevice) -> None:
        self._type = type
        self._device = device
        self._nbytes = type.span_bytes
        self._pinned = device.pinned(self._nbytes)
        self._done = device.event()

    def fetch(self, address: int) -> Command:
        device, pinned, nbytes = self._device, self._pinned.handle, self._nbytes
        return lambda stream: device.download(pinned, address, nbytes, stream)

    def mark(self, stream: int) -> None:
        self._device.record(self._done, stream)

    def deliver(self, target: Array) -> None:
        """Copies what was fetched to the caller's array once it is there."""
        self._device.wait_on_host(self._done)
        np.copyto(target, self._pinned.array(self._type))


class DeviceContext:
    """Scratch memory, states and captured graphs of one context.  `lock` admits one call at a time."""

    def __init__(self, loaded: LoadedGraph) -> None:
        self.loaded = loaded
        self.device = loaded.device
        self.lock = threading.RLock()
        self.order = Order(loaded.device)
        self._arena: Memory | None = None
        self._inlets: dict[str, Inlet] = {}
        self._outlets: dict[str, Outlet] = {}
        self._spare: dict[str, list[Memory]] = {name: [] for name in loaded.graph.outputs}
        self._graphs: OrderedDict[tuple[int, ...], CapturedGraph | None] = OrderedDict()
        self._kept: list[object] = []
        self._states: dict[str, Memory] = {}
        with self.device as device:
            for name, value in loaded.graph.states.items():
                nbytes = value.type.span_bytes
                self._states[name] = device.allocate(nbytes)
                device.fill(self._states[name].handle, 0, nbytes, device.stream)
                self.order.leave(device.stream, device)

    def run(self, inputs: Mapping[str, Any], stream: object | None) -> dict[str, Any]:
        """A plain call; see Program.run."""
        try:
            return self._run(inputs, stream)
        except ContextLostError as error:
            raise self.loaded.lost(error) from error

    def _run(self, inputs: Mapping[str, Any], stream: object | None) -> dict[str, Any]:
        loaded = self.loaded
        with self.lock, self.device as device:
            handle = stream_handle(stream)
            if handle != LEGACY_STREAM and device.is_capturing(handle):
                raise ExecutionError(
                    f"graph {loaded.graph.name} was called on a stream that is being captured, but a plain call "
                    "allocates its outputs; call what bind() returns there instead"
                )
            sources = read_inputs(loaded.graph, inputs, handle, device)
            self.order.enter(handle)
            addresses = self._feed(sources, handle)
            leases = {name: self._lease(name) for name in loaded.types}
            self._execute(addresses, {name: lease.memory.handle for name, lease in leases.items()}, handle)
            if all(source.on_host for source in sources.values()):
                return self._fetch(leases, handle, stream)
            self.order.leave(handle, stream)
            return {name: DeviceArray(type, leases[name], self.order, device) for name, type in loaded.types.items()}

    def _feed(self, sources: Mapping[str, Source], stream: int) -> dict[str, int]:
        """Addresses of the inputs, those that cannot be read in place copied to memory of this context."""
        addresses: dict[str, int] = {}
        finished = False
        for name, source in sources.items():
            type = self.loaded.graph.inputs[name].type
            if reads_in_place(source, type):
                addresses[name] = source.address
                continue
            inlet = self._inlets.get(name)
            if inlet is None:
                inlet = self._inlets[name] = Inlet(f"input {name}", type, self.loaded)
            if source.array is not None:
                if not finished:
                    self.order.finish()
                    finished = True
                inlet.stage(source.array)
            inlet.prepare(source)(stream)
            addresses[name] = inlet.memory.handle
        return addresses

    def _lease(self, name: str) -> Lease:
        spare = self._spare[name]
        del spare[SPARES_KEPT:]
        try:
            memory = spare.pop()
        except IndexError:
            memory = self.device.allocate(self.loaded.types[name].span_bytes)
        return Lease(memory, spare)

    def _execute(self, inputs: Mapping[str, int], outputs: Mapping[str, int], stream: int) -> None:
        """Runs the steps on these addresses: one by one the first time, as one captured graph from the second on."""
        key = (*inputs.values(), *outputs.values())
        graphs = self._graphs
        known = graphs.get(key)
        if known is not None:
            graphs.move_to_end(key)
            known.launch(stream)
            return
        commands = self.commands(inputs, outputs)
        if key in graphs:
            captured = self._captured(commands)
            if captured is not None:
                graphs[key] = captured
                graphs.move_to_end(key)
                captured.launch(stream)
                return
        issue(commands, stream)
        graphs[key] = None
        if len(graphs) > GRAPHS_KEPT:
            graphs.popitem(last=False)

    def _captured(self, commands: list[Command]) -> CapturedGraph | None:
        """The commands as one graph, or None where the capture was broken from outside.

        The driver ends every capture of a process when any thread asks for the whole device to finish; the work is then
        put on the stream piece by piece, and captured at a later call.
        """
        try:
            return self.device.capture(lambda own: issue(commands, own))
        except ContextLostError:
            raise
        except ExecutionError:
            return None

    def commands(self, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> list[Command]:
        """The steps and closing copies with every address filled in."""
        loaded, placed = self.loaded, self.loaded.schedule
        if self._arena is None:
            self._arena = self.device.allocate(placed.arena_bytes)
        spaces: dict[str, Mapping[str, int]] = {
            "input": inputs,
            "output": outputs,
            "constant": loaded.constant_addresses,
            "state": {name: memory.handle for name, memory in self._states.items()},
            "arena": {"": self._arena.handle},
        }

        def address(place: Place) -> int:
            return spaces[place.space][place.name] + place.offset

        commands: list[Command] = []
        for step, plan, offset in zip(placed.steps, loaded.plans, placed.workspaces, strict=True):
            region = step.region
            addresses = [address(placed.places[v]) for v in (*region.inputs, *region.outputs)]
            commands.append(run_plan(plan, addresses, self._arena.handle + offset))
        for copy in placed.copies:
            commands.append(self._copy(copy.type, address(copy.source), address(copy.target)))
        return commands

    def _copy(self, type: TensorType, source: int, target: int) -> Command:
        if type.is_dense:
            device = self.device
            return lambda stream: device.copy(target, source, type.nbytes, stream)
        plan = self.loaded.conversion("a value that is copied", type, type)
        return run_plan(plan, [source, target], 0)

    def _fetch(self, leases: Mapping[str, Lease], stream: int, owner: object | None) -> dict[str, Any]:
        """Outputs in fresh host arrays, each copied while the next is on its way."""
        outlets = {name: self.outlet(name) for name in leases}
        for name, outlet in outlets.items():
            outlet.fetch(leases[name].memory.handle)(stream)
            outlet.mark(stream)
        self.order.leave(stream, owner)
        fresh = {name: empty(self.loaded.types[name]) for name in leases}
        for name, outlet in outlets.items():
            outlet.deliver(fresh[name])
        return fresh

    def outlet(self, name: str) -> Outlet:
        found = self._outlets.get(name)
        if found is None:
            found = self._outlets[name] = Outlet(self.loaded.types[name], self.device)
        return found

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None) -> Any:
        from graphdnn.runtime.bound import DeviceBound

        with self.lock, self.device:
            return DeviceBound(self, inputs, outputs or {})

    def read_state(self, name: str) -> DeviceArray:
        """A copy of a state's current value."""
        type = laid_out(self.loaded.graph.states[name].type)
        with self.lock, self.device as device:
            fresh = device.allocate(type.span_bytes)
            self.order.enter(device.stream)
            device.copy(fresh.handle, self._states[name].handle, fresh.nbytes, device.stream)
            self.order.leave(device.stream, device)
            return DeviceArray(type, fresh, self.order, device)

    def write_state(self, name: str, array: Any) -> None:
        """Makes an array's present content the state's current value."""
        type = self.loaded.graph.states[name].type
        with self.lock, self.device as device:
            source = read_checked(f"state {name}", array, type, device.stream, device)
            inlet = Inlet(f"state {name}", type, self.loaded, self._states[name])
            if source.array is not None:
                inlet.stage(source.array)
            self.order.enter(device.stream)
            inlet.prepare(source)(device.stream)
            self.order.leave(device.stream, device)
            device.synchronize()

    def keep(self, thing: object) -> None:
        """Keeps a bound call, and with it this context, for as long as a caller's graph may replay its addresses."""
        self._kept.append(thing)
        self.device.keep(thing)

    def close(self) -> None:
        while self._kept:
            self.device.release(self._kept.pop())


def laid_out(type: TensorType) -> TensorType:
    """The same type with its strides written out."""
    return type.with_strides(type.layout)


def reads_in_place(source: Source, type: TensorType) -> bool:
    return not source.on_host and source.address % ALIGNMENT == 0 and source.lies_as(type)


def run_plan(plan: DevicePlan, addresses: Sequence[int], workspace: int) -> Command:
    enqueue = plan.enqueue
    return lambda stream: enqueue(addresses, stream, workspace)


def issue(commands: Sequence[Command], stream: int) -> None:
    for command in commands:
        command(stream)
