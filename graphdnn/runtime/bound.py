"""A call on fixed device addresses: captured once, then one graph launch a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphdnn.errors import ContextLostError, ExecutionError
from graphdnn.forking import renew_in_children
from graphdnn.ir.region import ALIGNMENT
from graphdnn.ir.types import Array, TensorType
from graphdnn.runtime.arrays import DeviceArray, empty
from graphdnn.runtime.buffers import Memory
from graphdnn.runtime.capture import CapturedGraph
from graphdnn.runtime.context import DeviceContext, issue
from graphdnn.runtime.driver import LEGACY_STREAM, stream_handle
from graphdnn.runtime.reading import Source, check_apart, read_inputs, read_writable
from graphdnn.runtime.transfer import Command, InputStaging, OutputStaging, reads_in_place


class DeviceBound:
    """A call whose arrays are fixed; see Program.bind.  `graph` is the captured graph once a call was made."""

    def __init__(self, context: DeviceContext, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        self._context = context
        self._device = context.device
        self._order = context.order
        self.graph: CapturedGraph | None = None
        self._launch: Callable[[], tuple[Any, ...]] | None = None
        sources = read_inputs(context.loaded.graph, inputs, context.device.stream, context.device)
        context.device.synchronize()  # what producers still had to do; later changes are the caller's to order
        self._held: list[object] = [source.owner for source in sources.values()]
        self._staged: list[tuple[InputStaging, Array]] = []
        self._fetched: dict[str, tuple[OutputStaging, Array]] = {}
        self._results: dict[str, Any] = {}
        self._taken = {f"input {name}": source.placed() for name, source in sources.items()}
        before: list[Command] = []
        after: list[Command] = []
        inputs_at = {name: self._bind_input(name, source, before) for name, source in sources.items()}
        on_host = all(source.on_host for source in sources.values())
        outputs_at = self._bind_outputs(outputs, on_host, after)
        self._commands = [*before, *context.commands(inputs_at, outputs_at), *after]
        self._held += context.held()  # which a closed context lets go of, while a caller's graph may replay this
        renew_in_children(self)

    def __repr__(self) -> str:
        graph = self._context.loaded.graph
        return f"<bound call of {graph.name} on {self._device.target}: {graph.signature}>"

    def renew(self) -> None:
        """A forked child launches nothing: its next call finds the device lost."""
        self._launch = None

    @property
    def kernels(self) -> int:
        """Kernels in the captured graph.  Raises ExecutionError before the first call."""
        if self.graph is None:
            raise ExecutionError("a bound call is captured by its first call; make one before asking for its kernels")
        return self.graph.kernels

    def __call__(self, *, stream: object | None = None) -> dict[str, Any]:
        """Runs on the bound arrays as they are now and returns the same outputs each time."""
        if stream is None and self._launch is not None:
            # The most common call, with nothing in it but the launch.  Whatever is unusual, a failure too, is left to
            # `_run`: a launch that fails puts nothing on the stream.
            order = self._order
            with self._context.lock:
                if order.last == LEGACY_STREAM and not self._launch()[0]:
                    order.count += 1
                    return dict(self._results)
        try:
            return self._run(stream)
        except ContextLostError as error:
            raise self._context.loaded.lost(error) from error

    def _run(self, stream: object | None) -> dict[str, Any]:
        context = self._context
        with context.lock, self._device as device:
            handle = stream_handle(stream)
            if handle != LEGACY_STREAM and device.is_capturing(handle):
                self._join_capture(handle)
                return dict(self._results)
            context.order.enter(handle)
            if self._staged:
                context.order.finish()
                for staging, array in self._staged:
                    staging.stage(array)
            if self.graph is None:
                issue(device, self._commands, handle)
                self.graph = context.try_capture(self._commands)
                if self.graph is not None and device.is_alone and not self._staged and not self._fetched:
                    self._launch = self.graph.try_default
            else:
                self.graph.launch(handle)
            for fetched, _ in self._fetched.values():
                fetched.mark(handle)
            context.order.leave(handle, stream)
            for fetched, array in self._fetched.values():
                fetched.deliver(array)
            return dict(self._results)

    def _join_capture(self, stream: int) -> None:
        """Puts the plans into the graph that the caller captures; its replays find everything alive."""
        if self._staged or self._fetched:
            raise ExecutionError(
                "a call bound to numpy arrays cannot be captured, since the host copies them; bind arrays on the device"
            )
        self._context.retain(stream, self)
        issue(self._device, self._commands, stream)

    def _bind_input(self, name: str, source: Source, before: list[Command]) -> int:
        type = self._context.loaded.graph.inputs[name].type
        if reads_in_place(source, type):
            return source.address
        staging = InputStaging(f"input {name}", type, self._context.loaded)
        self._held.append(staging)
        before.append(staging.prepare(source))
        if source.array is not None:
            self._staged.append((staging, source.array))
        return staging.memory.handle

    def _bind_outputs(self, given: Mapping[str, Any], on_host: bool, after: list[Command]) -> dict[str, int]:
        """Addresses that the plans write outputs to.  Raises ExecutionError for one that cannot be written there."""
        context = self._context
        for name in given:
            if name not in context.loaded.types:
                known = ", ".join(context.loaded.types)
                raise ExecutionError(
                    f"{name} is not an output of graph {context.loaded.graph.name}; its outputs are {known}"
                )
        addresses: dict[str, int] = {}
        for name, type in context.loaded.types.items():
            if name in given or on_host:
                array = self._results[name] = given[name] if name in given else empty(type)
                addresses[name] = self._write_to(name, array, type, after)
            else:
                memory = self._device.allocate(type.span_bytes)
                self._results[name] = DeviceArray(type, memory, context.order, self._device)
                addresses[name] = memory.handle
        return addresses

    def _write_to(self, name: str, array: Any, type: TensorType, after: list[Command]) -> int:
        """Where plans write an output that the caller gave, fetching it from there for an array on the host."""
        source = read_writable(f"output {name}", array, type, self._device.stream, self._device)
        self._held.append(source.owner)
        check_apart(f"output {name}", source.placed(), self._taken)
        self._taken[f"output {name}"] = source.placed()
        if source.array is not None:
            memory: Memory = self._device.allocate(type.span_bytes)
            staging = OutputStaging(type, self._device)
            self._held += (memory, staging)
            after.append(staging.fetch(memory.handle))
            self._fetched[name] = staging, source.array
            return memory.handle
        if not source.lies_as(type):
            raise ExecutionError(
                f"output {name} has strides {source.strides}; {type.layout} are needed to write in place"
            )
        if source.address % ALIGNMENT:
            raise ExecutionError(
                f"output {name} starts at address {source.address}; one aligned to {ALIGNMENT} bytes "
                "is needed to write in place"
            )
        return source.address
