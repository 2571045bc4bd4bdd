"""Running plans on a device: addresses worked out once, scratch memory of one's own, whole runs as CUDA graphs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from graphdnn.engines.contract import DevicePlan
from graphdnn.errors import ContextLostError, ExecutionError
from graphdnn.forking import renew_in_children
from graphdnn.ir.types import TensorType
from graphdnn.runtime.arrays import DeviceArray, StreamOrder, empty
from graphdnn.runtime.buffers import Memory
from graphdnn.runtime.capture import CapturedGraph
from graphdnn.runtime.context_lock import ClosedLock, ContextLock, check_open
from graphdnn.runtime.device import CudaDevice
from graphdnn.runtime.driver import LEGACY_STREAM, stream_handle
from graphdnn.runtime.fast_path import FastPath
from graphdnn.runtime.loaded_graph import LoadedGraph, laid_out
from graphdnn.runtime.pool import OutputPool
from graphdnn.runtime.reading import Source, read_checked, read_inputs
from graphdnn.runtime.schedule import MemoryPlace
from graphdnn.runtime.transfer import Command, InputStaging, OutputStaging, reads_in_place

GRAPHS_KEPT = 16
"""Captured graphs and addresses seen that one context remembers for plain calls."""


class DeviceContext:
    """Scratch memory, states and captured graphs of one context.  `lock` admits one call at a time, and after `close`
    none."""

    def __init__(self, loaded: LoadedGraph) -> None:
        self.loaded = loaded
        self.device = loaded.device
        self.lock: ContextLock = threading.RLock()
        renew_in_children(self)
        self.order = StreamOrder(loaded.device)
        self._arena: Memory | None = None
        self._input_staging: dict[str, InputStaging] = {}
        self._output_staging: dict[str, OutputStaging] = {}
        self._pools = [(n, t, OutputPool(self.device, t.span_bytes)) for n, t in loaded.types.items()]
        self._fast_paths = {n: FastPath(v.type, self.device.ordinal) for n, v in loaded.graph.inputs.items()}
        self._graphs: OrderedDict[tuple[int, ...], CapturedGraph | None] = OrderedDict()
        self._kept: list[object] = []
        self._states: dict[str, Memory] = {}
        with loaded.named_when_lost(), self.device as device:
            for name, value in loaded.graph.states.items():
                nbytes = value.type.span_bytes
                self._states[name] = device.allocate(nbytes)
                device.fill(self._states[name].handle, 0, nbytes, device.stream)
                self.order.leave(device.stream, device)

    def renew(self) -> None:
        """A forked child may not wait for a thread of its parent; its next call says that CUDA is lost there."""
        if not isinstance(self.lock, ClosedLock):
            self.lock = threading.RLock()

    def run(self, inputs: Mapping[str, Any], stream: object | None) -> dict[str, Any]:
        """A plain call; see Program.run."""
        try:
            handle = LEGACY_STREAM if stream is None else stream_handle(stream)
            with self.lock, self.device as device:
                if handle != LEGACY_STREAM and device.is_capturing(handle):
                    raise ExecutionError(
                        f"graph {self.loaded.graph.name} was called on a stream that is being captured, but a plain "
                        "call allocates its outputs; call what bind() returns there instead"
                    )
                addresses = self._fast_addresses(inputs, handle)
                if addresses is None:
                    return self._read_and_run(inputs, handle, stream)
                self.order.enter(handle)
                return self._run(addresses, handle, stream)
        except ContextLostError as error:
            raise self.loaded.lost(error) from error

    def _fast_addresses(self, inputs: Mapping[str, Any], stream: int) -> list[int] | None:
        """Addresses of the inputs where the fast path is enough for each, in the graph's order."""
        if inputs.__class__ is not dict or len(inputs) != len(self._fast_paths):
            return None
        addresses = []
        for name, fast_path in self._fast_paths.items():
            address = fast_path.address(inputs.get(name), stream)
            if not address:
                return None
            addresses.append(address)
        return addresses

    def _read_and_run(self, inputs: Mapping[str, Any], handle: int, stream: object | None) -> dict[str, Any]:
        """A call some of whose arrays have to be read in full, and copied perhaps.

        Raises MomentaryError on the default stream where a stream of the caller's is known to be captured: that stream
        would be told to let the default one wait for it, which ends the capture.
        """
        if handle == LEGACY_STREAM:
            self.device.check_no_capture(f"calling graph {self.loaded.graph.name} on the default stream")
        sources = read_inputs(self.loaded.graph, inputs, handle, self.device)
        self.order.enter(handle)
        addresses = self._feed(sources, inputs, handle)
        if all(source.on_host for source in sources.values()):
            return self._fetch(addresses, handle, stream)
        return self._run(addresses, handle, stream)

    def _run(self, addresses: list[int], handle: int, stream: object | None) -> dict[str, Any]:
        """Runs the plans into memory from the pool, and hands that out; its addresses are added to `addresses`."""
        order, device = self.order, self.device
        results: dict[str, Any] = {}
        for name, type, pool in self._pools:
            lease = pool.lend(handle)
            addresses.append(lease.memory.handle)
            results[name] = DeviceArray(type, lease, order, device)
        self._execute(tuple(addresses), handle)
        order.leave(handle, stream)
        return results

    def _feed(self, sources: Mapping[str, Source], inputs: Mapping[str, Any], stream: int) -> list[int]:
        """Addresses of the inputs, those that cannot be read in place copied to memory of this context."""
        addresses: list[int] = []
        finished = False
        for name, source in sources.items():
            type = self.loaded.graph.inputs[name].type
            if reads_in_place(source, type):
                self._fast_paths[name].learn(inputs[name])
                addresses.append(source.address)
                continue
            staging = self._input_staging.get(name)
            if staging is None:
                staging = self._input_staging[name] = InputStaging(f"input {name}", type, self.loaded)
            if source.array is None:
                issue(self.device, (staging.prepare(source),), stream)
            else:
                if not finished:
                    self.order.finish()
                    finished = True
                staging.send(source.array, stream)
            addresses.append(staging.memory.handle)
        return addresses

    def _execute(self, addresses: tuple[int, ...], stream: int) -> None:
        """Runs the steps on addresses of inputs and outputs: one by one the first time, as one captured graph from the
        second on."""
        graphs = self._graphs
        known = graphs.get(addresses)
        if known is not None:
            graphs.move_to_end(addresses)
            known.launch(stream)
            return
        graph = self.loaded.graph
        inputs = dict(zip(graph.inputs, addresses, strict=False))
        outputs = dict(zip(graph.outputs, addresses[len(inputs) :], strict=True))
        commands = self.commands(inputs, outputs)
        if addresses in graphs:
            captured = self.try_capture(commands)
            if captured is not None:
                graphs[addresses] = captured
                graphs.move_to_end(addresses)
                captured.launch(stream)
                return
        issue(self.device, commands, stream)
        graphs[addresses] = None
        if len(graphs) > GRAPHS_KEPT:
            graphs.popitem(last=False)

    def try_capture(self, commands: list[Command]) -> CapturedGraph | None:
        """The commands as one graph, or None where the capture was broken from outside.

        The driver ends every capture of a process when any thread asks for the whole device to finish; the work is then
        put on the stream piece by piece, and captured at a later call.
        """
        try:
            return self.device.capture(lambda own: issue(self.device, commands, own))
        except ContextLostError:
            raise
        except ExecutionError:
            return None

    def commands(self, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> list[Command]:
        """The steps and closing copies with every address filled in."""
        loaded, placed = self.loaded, self.loaded.schedule
        check_open(self.lock)  # this call may have waited for `close`
        if self._arena is None:
            self._arena = self.device.allocate(placed.arena_bytes)
        spaces: dict[str, Mapping[str, int]] = {
            "input": inputs,
            "output": outputs,
            "constant": loaded.constant_addresses,
            "state": {name: memory.handle for name, memory in self._states.items()},
            "arena": {"": self._arena.handle},
        }

        def address(place: MemoryPlace) -> int:
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

    def _fetch(self, addresses: list[int], stream: int, owner: object | None) -> dict[str, Any]:
        """Runs the plans, and copies each part of an output to a fresh host array while the next is on its way."""
        leases = [(name, pool.lend(stream)) for name, _, pool in self._pools]
        self._execute((*addresses, *(lease.memory.handle for _, lease in leases)), stream)
        stagings = {name: self.output_staging(name) for name in self.loaded.types}
        for name, lease in leases:
            stagings[name].receive(lease.memory.handle, stream)
        self.order.leave(stream, owner)
        fresh = {name: empty(type) for name, type in self.loaded.types.items()}
        for name, staging in stagings.items():
            staging.deliver(fresh[name])
        return fresh

    def output_staging(self, name: str) -> OutputStaging:
        found = self._output_staging.get(name)
        if found is None:
            found = self._output_staging[name] = OutputStaging(self.loaded.types[name], self.device)
        return found

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None) -> Any:
        from graphdnn.runtime.bound import DeviceBound

        with self.loaded.named_when_lost(), self.lock, self.device as device:
            device.check_no_capture(f"binding graph {self.loaded.graph.name}")
            return DeviceBound(self, inputs, outputs or {})

    def read_state(self, name: str) -> DeviceArray:
        """A copy of a state's current value."""
        type = laid_out(self.loaded.graph.states[name].type)
        with self.loaded.named_when_lost(), self.lock, self.device as device:
            check_open(self.lock)
            fresh = device.allocate(type.span_bytes)
            self.order.enter(device.stream)
            device.copy(fresh.handle, self._states[name].handle, fresh.nbytes, device.stream)
            self.order.leave(device.stream, device)
            return DeviceArray(type, fresh, self.order, device)

    def write_state(self, name: str, array: Any) -> None:
        """Makes an array's present content the state's current value."""
        type = self.loaded.graph.states[name].type
        with self.loaded.named_when_lost(), self.lock, self.device as device:
            check_open(self.lock)
            source = read_checked(f"state {name}", array, type, device.stream, device)
            staging = InputStaging(f"state {name}", type, self.loaded, self._states[name])
            self.order.enter(device.stream)
            if source.array is None:
                issue(device, (staging.prepare(source),), device.stream)
            else:
                staging.send(source.array, device.stream)
            self.order.leave(device.stream, device)
            device.synchronize()

    def retain(self, stream: int, thing: object) -> None:
        """Keeps a bound call, and with it this context, for as long as the graph captured on `stream` may replay its
        addresses; until `close` where the driver cannot tell how long that is."""
        if not self.device.retain(stream, thing):
            self._kept.append(thing)

    def held(self) -> list[Memory]:
        """The memory of the context's own that `commands` refers to."""
        assert self._arena is not None
        return [self._arena, *self._states.values()]

    def close(self) -> None:
        """See Program.close.  Nothing here asks the driver for anything but to destroy our graphs."""
        if isinstance(self.lock, ClosedLock):
            return
        with self.lock:
            self.lock = ClosedLock(self.loaded.graph.name)
            while self._kept:
                self.device.release(self._kept.pop())
            self._graphs.clear()
            self._input_staging.clear()
            self._output_staging.clear()
            self._states.clear()
            self._arena = None
            for _, _, pool in self._pools:
                pool.clear()


def run_plan(plan: DevicePlan, addresses: Sequence[int], workspace: int) -> Command:
    enqueue = plan.enqueue
    return lambda stream: enqueue(addresses, stream, workspace)


def issue(device: CudaDevice, commands: Sequence[Command], stream: int) -> None:
    """Puts commands on a stream.  Raises ContextLostError where one fails since the context is lost: libraries report
    that by errors of their own."""
    try:
        for command in commands:
            command(stream)
    except ContextLostError:
        raise
    except ExecutionError:
        device.check_alive(stream)
        raise
