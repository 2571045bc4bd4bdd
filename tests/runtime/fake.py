"""A device that is not there: host memory, streams that run as late and as disorderly as their events allow, and plans
that check what they are given.  Work that somebody forgot to wait for has not happened yet."""

from __future__ import annotations

import ctypes
import itertools
import random
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from graphdnn.engines.contract import MEMORY_ALIGNMENT
from graphdnn.engines.reference import ReferencePlan
from graphdnn.errors import MomentaryError
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.ops.movement import Convert
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.region import Region
from graphdnn.ir.types import TensorType, dense_strides, row_major
from graphdnn.ir.views import is_free
from graphdnn.ir.writer import GraphWriter
from graphdnn.runtime.buffers import Memory, Pinned, host_view
from graphdnn.runtime.cache import NullStore
from graphdnn.runtime.driver import LEGACY_STREAM
from graphdnn.runtime.loaded_graph import LoadedGraph
from graphdnn.runtime.program import Program
from graphdnn.runtime.schedule import Step, schedule
from graphdnn.target import Target

POISON = 0xFF
"""Every byte of unwritten memory: NaN as a float, -1 as an integer."""


M = TypeVar("M", bound=Memory)


class Owner:
    """What holds a piece of memory."""


@dataclass
class FakeEvent:
    behind: set[int] = field(default_factory=set)


@dataclass
class FakeGraph:
    device: FakeDevice
    work: list[Callable[[], None]]
    kernels: int

    def launch(self, stream: int) -> None:
        self.device.launches += 1
        self.device.enqueue(stream, lambda: [run() for run in self.work])

    def try_default(self) -> tuple[int]:
        self.launch(LEGACY_STREAM)
        return (0,)


class FakeDevice:
    """What the runtime needs of a CudaDevice, with every piece of work deferred until somebody waits for it."""

    stream = 77
    ordinal = 0
    name = "fake"
    is_alone = True

    def __init__(self, seed: int = 0) -> None:
        self.target = replace(Target.named("h200"), present=True)
        self.store = NullStore()
        self.random = random.Random(seed)
        self.lock = threading.RLock()
        self.own_streams = itertools.count(1_000_000)
        self.pending: dict[int, tuple[Callable[[], None], set[int]]] = {}
        self.tails: dict[int, set[int]] = {}
        self.count = 0
        self.capturing: dict[int, list[Callable[[], None]]] = {}
        self.kernels = 0
        self.launches = 0
        self.allocations = 0
        self.live: dict[int, np.ndarray] = {}
        self.kept: dict[int, object] = {}
        self.current_stream = LEGACY_STREAM

    def __enter__(self) -> FakeDevice:
        return self

    def __exit__(self, *_: object) -> None: ...

    # memory

    def _take(self, nbytes: int) -> int:
        raw = np.full(nbytes + 2 * MEMORY_ALIGNMENT, POISON, np.uint8)
        handle = -(-raw.ctypes.data // MEMORY_ALIGNMENT) * MEMORY_ALIGNMENT
        self.live[handle] = raw
        self.allocations += 1
        return handle

    def _free(self, handle: int) -> None:
        self.drain()
        self.live.pop(handle).fill(POISON)

    def allocate(self, nbytes: int) -> Memory:
        self.check_no_capture("allocating memory")
        return self._given(Memory, nbytes)

    def pinned(self, nbytes: int) -> Pinned:
        return self._given(Pinned, nbytes)

    def _given(self, kind: type[M], nbytes: int) -> M:
        """Memory whose owner goes back when nobody refers to it."""
        handle, owner = self._take(nbytes), Owner()
        weakref.finalize(owner, self._free, handle)
        return kind(handle, nbytes, owner)

    def _move(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.enqueue(stream, lambda: ctypes.memmove(target, source, nbytes))

    copy = upload = download = _move

    def write(self, target: int, source: int, nbytes: int) -> None:
        ctypes.memmove(target, source, nbytes)

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        self.enqueue(stream, lambda: ctypes.memset(target, byte, nbytes))

    # streams

    def enqueue(self, stream: int, work: Callable[[], object]) -> None:
        if stream in self.capturing:
            self.capturing[stream].append(work)
            return
        with self.lock:
            self.count += 1
            self.pending[self.count] = (work, set(self.tails.get(stream, ())))
            self.tails[stream] = {self.count}

    def _run(self, numbers: Iterable[int]) -> None:
        with self.lock:
            for number in numbers:
                found = self.pending.get(number)
                if found is None:
                    continue
                work, behind = found
                self._run(self.random.sample(sorted(behind), len(behind)))
                del self.pending[number]
                work()

    def drain(self) -> None:
        """Runs everything, what came late first where nothing forbids it."""
        with self.lock:
            self._run(sorted(self.pending, reverse=True))

    def synchronize(self, stream: int | None = None) -> None:
        self._run(sorted(self.tails.get(self.stream if stream is None else stream, ())))

    def event(self, timing: bool = False) -> FakeEvent:
        return FakeEvent()

    def record(self, event: FakeEvent, stream: int) -> None:
        assert stream not in self.capturing
        event.behind = set(self.tails.get(stream, ()))

    def wait(self, stream: int, event: FakeEvent) -> None:
        assert stream not in self.capturing
        self.tails[stream] = self.tails.get(stream, set()) | event.behind

    def wait_on_host(self, event: FakeEvent) -> None:
        self._run(sorted(event.behind))

    def check_alive(self, stream: int) -> None: ...

    # capture

    def is_capturing(self, stream: int) -> bool:
        return stream in self.capturing

    def check_no_capture(self, doing: str) -> None:
        """Knows of the stream that another library works on."""
        if self.current_stream in self.capturing:
            raise MomentaryError(f"{doing} is not possible while its current stream is being captured")

    def capture(self, issue: Callable[[int], None]) -> FakeGraph:
        own, before = next(self.own_streams), self.kernels
        self.capturing[own] = []
        issue(own)
        return FakeGraph(self, self.capturing.pop(own), self.kernels - before)

    def retain(self, stream: int, thing: object) -> bool:
        assert stream in self.capturing
        self.kept[id(thing)] = thing
        return False

    def release(self, thing: object) -> None:
        self.kept.pop(id(thing), None)

    def ordinal_of(self, address: int) -> int:
        return 0


class FakePlan:
    """Computes a region by its definition when its stream gets there.

    It writes over an input where it says that it may, poisons its workspace, and asserts that nothing else overlaps.
    """

    kernels = 1

    def __init__(self, region: Region, device: FakeDevice, workspace_bytes: int = 0, in_place: bool = False) -> None:
        self.region = region
        self.workspace_bytes = workspace_bytes
        self._device = device
        self._reference = ReferencePlan(region)
        self.in_place: tuple[tuple[int, int], ...] = ()
        if in_place and len(region.nodes) == 1 and isinstance(region.nodes[0].op, Elementwise):
            self.in_place = tuple((i, 0) for i in range(len(region.inputs)))

    def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
        region = self.region
        inputs, outputs = addresses[: len(region.inputs)], addresses[len(region.inputs) :]
        assert len(outputs) == len(region.outputs)
        for address, value in zip(inputs, region.inputs, strict=True):
            assert region.graph.inputs.get(value.name) is not value or address % 16 == 0 or region.pattern == "convert"
        spans = [span(a, v.type) for a, v in zip(outputs, region.outputs, strict=True)]
        if self.workspace_bytes:
            assert workspace % MEMORY_ALIGNMENT == 0
            spans.append((workspace, workspace + self.workspace_bytes))
        for number, (start, stop) in enumerate(spans):
            for index, (address, value) in enumerate(zip(inputs, region.inputs, strict=True)):
                if (index, number) in self.in_place and address == start:
                    continue
                low, high = span(address, value.type)
                assert stop <= low or high <= start, f"{value} overlaps what {region.pattern} writes"
            for low, high in spans[:number]:
                assert stop <= low or high <= start, f"{region.pattern} writes twice to the same bytes"
        self._device.kernels += 1
        self._device.enqueue(stream, lambda: self._run(inputs, outputs, workspace))

    def _run(self, inputs: Sequence[int], outputs: Sequence[int], workspace: int) -> None:
        region = self.region
        arrays = [host_view(a, v.type, None).copy() for a, v in zip(inputs, region.inputs, strict=True)]
        if self.workspace_bytes:
            ctypes.memset(workspace, POISON, self.workspace_bytes)
        for address, value, result in zip(outputs, region.outputs, self._reference.run(arrays), strict=True):
            np.copyto(host_view(address, value.type, None), result)


def span(address: int, type: TensorType) -> tuple[int, int]:
    return address, address + type.span_bytes


def fake_convert(device: FakeDevice) -> Callable[[TensorType, TensorType], FakePlan]:
    """Builds plans that copy one layout into another."""

    def build(source: TensorType, target: TensorType) -> FakePlan:
        writer = GraphWriter("convert")
        x = writer.input("x", source)
        (y,) = writer.emit(Convert(), (x,), types=[target])
        graph = writer.finish({"y": y}, output_strides={"y": target.layout})
        return FakePlan(Region.of(graph, graph.nodes), device)

    return build


def laid_out(graph: Graph, rng: np.random.Generator, permute: bool = True) -> Graph:
    """Views where ops allow them, any dense layout elsewhere, and conversions where a caller wants row-major."""
    writer = GraphWriter(graph.name)
    for name in ("inputs", "constants", "payloads", "states"):
        getattr(writer, name).update(getattr(graph, name))
    new: dict[Value, Value] = {}
    for node in graph.nodes:
        operands = [new.get(v, v) for v in node.operands]
        types = node.op.infer(*(v.type for v in operands))
        views = node.op.view(operands[0].type) if operands and operands[0].literal is None else None
        if views is not None and rng.random() < 0.8:
            decided = [t.with_strides(v.strides) for t, v in zip(types, views, strict=True)]
        else:
            orders = [rng.permutation(t.rank) if permute else np.arange(t.rank) for t in types]
            decided = [
                t.with_strides(dense_strides(t.shape, [int(a) for a in o])) for t, o in zip(types, orders, strict=True)
            ]
        new.update(zip(node.results, writer.emit(node.op, operands, name=f"n_{node.name}", types=decided), strict=True))

    def wanted(value: Value) -> Value:
        value = new.get(value, value)
        rows = value.type.with_strides(row_major(value.type.shape))
        return value if value.type.layout == rows.layout else writer.emit(Convert(), (value,), types=[rows])[0]

    outputs = {name: wanted(v) for name, v in graph.outputs.items()}
    return writer.finish(outputs, {name: wanted(v) for name, v in graph.updates.items()})


def segments(graph: Graph, rng: np.random.Generator, longest: int = 3) -> list[Region]:
    """Runs of neighbours in topological order as regions; free nodes are inside some of them and outside others."""
    regions, start = [], 0
    while start < len(graph.nodes):
        stop = start + int(rng.integers(1, longest + 1))
        nodes = graph.nodes[start:stop]
        if not all(is_free(n) for n in nodes):
            regions.append(Region.of(graph, nodes))
        start = stop
    return regions


def fake_steps(graph: Graph, device: FakeDevice, rng: np.random.Generator, longest: int = 3) -> list[Step]:
    """One fake plan per region, some with a workspace, most pointwise ones able to work in place."""
    steps = []
    for region in segments(graph, rng, longest):
        workspace = int(rng.integers(1, 5000)) if rng.random() < 0.3 else 0
        plan = FakePlan(region, device, workspace, in_place=rng.random() < 0.8)
        steps.append(Step(region, plan, workspace, name=f"fake:plan{len(steps)}"))
    return steps


def fake_program(graph: Graph, device: FakeDevice, rng: np.random.Generator, longest: int = 3) -> Program:
    return Program(graph, schedule(graph, fake_steps(graph, device, rng, longest)), device, fake_convert(device))


def host_program(graph: Graph, rng: np.random.Generator) -> Program:
    """The same graph on the CPU, by the reference engine."""
    from graphdnn.runtime.device import HostDevice

    steps = [Step(region, ReferencePlan(region)) for region in segments(graph, rng)]
    return Program(graph, schedule(graph, steps), HostDevice())


class Foreign:
    """Another library's array in device memory: numpy memory that claims to be on the device."""

    def __init__(self, array: np.ndarray, device: FakeDevice, stream: int = LEGACY_STREAM) -> None:
        self.array = array
        self.device = device
        self.stream = stream
        self.exports = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> object:
        from graphdnn.ir.types import as_dtype
        from graphdnn.runtime import dlpack

        self.exports += 1
        if stream not in (-1, self.stream):
            event = self.device.event()
            self.device.record(event, self.stream)
            self.device.wait(LEGACY_STREAM if stream is None else stream, event)
        array = self.array
        strides = [s // array.itemsize for s in array.strides]
        return dlpack.export(
            array.ctypes.data, array.shape, strides, as_dtype(array.dtype), (2, 0), array, max_version is not None
        )


def on_device(array: np.ndarray, device: FakeDevice, misaligned: int = 0) -> Foreign:
    """A copy of an array, `misaligned` elements off a 256-byte boundary."""
    raw = np.zeros(array.nbytes + 2 * MEMORY_ALIGNMENT + misaligned * array.itemsize, np.uint8)
    start = -raw.ctypes.data % MEMORY_ALIGNMENT + misaligned * array.itemsize
    held = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    held[...] = array
    return Foreign(held, device)


def loaded(program: Program) -> LoadedGraph:
    return program._context.loaded  # type: ignore[attr-defined]
