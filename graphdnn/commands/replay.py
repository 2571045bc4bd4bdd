"""Finding the plan behind a lost CUDA context: a saved graph is run in a child, plan by plan, each waited for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile, is_zipfile

import numpy as np

from graphdnn.commands.cli import said
from graphdnn.compiler import compile
from graphdnn.config import CompileOptions
from graphdnn.engines.contract import HostPlan
from graphdnn.engines.manifest import MANIFEST
from graphdnn.engines.trial import TRYING
from graphdnn.errors import ContextLostError, ExecutionError, GraphDnnError
from graphdnn.executable import Executable
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.types import Array
from graphdnn.runtime.arrays import empty
from graphdnn.runtime.child import Child, Ended, Parent
from graphdnn.runtime.context import DeviceContext
from graphdnn.runtime.loaded_graph import laid_out
from graphdnn.runtime.program import Program
from graphdnn.serialization.kinds import Kind, kind_of
from graphdnn.serialization.load import graph_in, load
from graphdnn.spelling import counted

COMPILE_SECONDS = 600.0
PLAN_SECONDS = 60.0
"""How long compiling may take, and how long one plan."""

Message = dict[str, Any]


@dataclass(frozen=True)
class Suspect:
    """A plan and what it runs; `region` is empty while it is still being compiled."""

    engine: str
    plan: str
    pattern: str
    region: str = ""

    def __str__(self) -> str:
        where = f"region {self.region} ({self.pattern})" if self.region else f"{self.pattern}, while compiling"
        return f"{where}, engine {self.engine}, plan {self.plan}"


@dataclass(frozen=True)
class Outcome:
    """What a replay found: how it failed, where it did, and the plan at fault where that is known."""

    reason: str = ""
    culprit: Suspect | None = None

    @property
    def is_healthy(self) -> bool:
        return not self.reason

    @property
    def advice(self) -> str:
        """The change of options that goes round the plan at fault; empty where there is none."""
        if self.culprit is None:
            return ""
        return (
            f"compile with gd.CompileOptions(disabled_plans=({f'{self.culprit.engine}:{self.culprit.plan}'!r},)) to go "
            "without this plan, and report the graph with these lines"
        )


def replay(
    path: str | Path,
    inputs: str | Path | None = None,
    target: str = "auto",
    options: Mapping[str, Any] | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> Outcome:
    """Compiles the graph at `path` (of Graph.save) and runs it plan by plan, in a child process.

    Of a saved executable the plans in it are run; given a target or options its graph is compiled anew.  `inputs` is an
    .npz file with arrays by input name; without it floats are drawn and all else is zero.  `options` are those of
    CompileOptions.  `tell` is given a line for each thing that happens.  Raises ExecutionError for a file, inputs or
    options that are wrong, or where no child process can be started.
    """
    child = Child.start("graphdnn.commands.replay:work")
    if isinstance(child, Ended):
        raise ExecutionError(f"a replay needs a child process: {child.how}")
    question = {
        "path": str(path),
        "inputs": None if inputs is None else str(inputs),
        "target": target,
        "options": dict(options or {}),
        "engines": MANIFEST,
        "plan_seconds": PLAN_SECONDS,
    }
    try:
        return followed(child, question, tell)
    finally:
        child.close()


def followed(child: Child, question: Message, tell: Callable[[str], object]) -> Outcome:
    """What becomes of the child, told line by line."""
    suspects: Sequence[Suspect] = ()
    current: Suspect | None = None
    answer = child.ask(question, COMPILE_SECONDS)
    while not isinstance(answer, Ended):
        match answer["what"]:
            case "wrong":
                raise ExecutionError(answer["reason"])
            case "trying":
                current = Suspect(*answer["plan"])
            case "compiled":
                suspects, current = [Suspect(*plan) for plan in answer["plans"]], None
                plans = counted(len(suspects), "plan")
                tell(f"graph {answer['graph']} on {answer['device']}: {plans}, one after the other")
            case "starts":
                current = suspects[answer["index"]]
            case "ran":
                tell(f"ran in {answer['us']:7.0f} us: {current}")
                current = None
            case "done":
                return Outcome()
            case _:  # others may have been tried before the error was heard of
                current = Suspect(*answer["plan"]) if answer.get("plan") else current
                break
        answer = child.next(PLAN_SECONDS if suspects else COMPILE_SECONDS)
    reason = answer.how if isinstance(answer, Ended) else str(answer["reason"])
    tell(f"FAILED: {current or ('outside of any plan' if suspects else 'while compiling')}: {reason}")
    return Outcome(reason, current)


class Watch:
    """The child's end of the story: what begins and what ends is told before anything can go wrong."""

    def __init__(self, parent: Parent, seconds: float) -> None:
        self._parent = parent
        self._seconds = seconds

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook."""
        if event == TRYING:
            self._parent.send({"what": "trying", "plan": [str(a) for a in arguments]})

    @contextmanager
    def step(self, index: int) -> Iterator[None]:
        """Around one plan and the wait for it."""
        self._parent.allow(self._seconds)
        self._parent.send({"what": "starts", "index": index})
        begun = time.perf_counter()
        yield
        self._parent.send({"what": "ran", "index": index, "us": 1e6 * (time.perf_counter() - begun)})


@dataclass(frozen=True)
class WatchedPlan:
    """A plan on the CPU, whose run is told."""

    plan: HostPlan
    index: int
    watch: Watch

    def run(self, inputs: Sequence[Array]) -> Sequence[Array]:
        with self.watch.step(self.index):
            return self.plan.run(inputs)


def work(parent: Parent) -> None:
    """The child's side."""
    question = parent.receive()
    if question is None:
        return
    MANIFEST.update(question["engines"])  # what the parent calls an engine is one here
    watch = Watch(parent, question["plan_seconds"])
    sys.addaudithook(watch.hear)
    try:
        executable = compiled(question)
        program = executable._present()
        arrays = given(executable.graph, question["inputs"])
    except ContextLostError as error:  # while plans were tried
        parent.send({"what": "failed", "reason": str(error), "plan": error.plan})
        return
    except (GraphDnnError, OSError, ValueError) as error:
        reason = said(error) if isinstance(error, OSError) else str(error)
        parent.send({"what": "wrong", "reason": reason})
        return
    plans = [[r.engine, r.plan, r.pattern, r.name] for r in executable.report.regions]
    parent.send({"what": "compiled", "graph": program.graph.name, "device": str(program.device), "plans": plans})
    try:
        run_by_plan(program, arrays, watch)
    except Exception as error:
        parent.send({"what": "failed", "reason": f"{type(error).__name__}: {error}"})
    else:
        parent.send({"what": "done"})


def compiled(question: Message) -> Executable:
    """The saved executable as it is where nothing else is asked for, or its graph, or a saved one, compiled."""
    path, target, options = Path(question["path"]), question["target"], question["options"]
    is_executable = kind_of(path) is Kind.EXECUTABLE
    if is_executable and target == "auto" and not options:
        return load(path)
    graph = graph_in(path) if is_executable else Graph.load(path)
    return compile(graph, target, CompileOptions(**options))


def given(graph: Graph, path: str | None) -> dict[str, Array]:
    """The inputs: from a file, or floats drawn around zero and zeros elsewhere, which lead nowhere as indices.

    Raises ExecutionError for an input that is missing, unknown, or of another type or shape.
    """
    if path is None:
        rng = np.random.default_rng(0)
        return {name: drawn(value, rng) for name, value in graph.inputs.items()}
    arrays = arrays_at(path)
    for name in graph.inputs.keys() ^ arrays.keys():
        which = "is missing" if name in graph.inputs else "is no input of the graph"
        raise ExecutionError(f"{path}: {name} {which}; the inputs are {', '.join(graph.inputs)}")
    return {name: read(path, value, arrays[name]) for name, value in graph.inputs.items()}


def arrays_at(path: str) -> dict[str, Array]:
    """The arrays of an .npz file by name.  Raises ExecutionError for another file."""
    with open(path, "rb") as opened:
        if not is_zipfile(opened):
            raise ExecutionError(f"{path}: it is no .npz file; one that numpy.savez wrote is needed")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, BadZipFile) as error:
        raise ExecutionError(f"{path}: its arrays cannot be read ({error})") from None


def drawn(value: Value, rng: np.random.Generator) -> Array:
    type = value.type
    if not type.dtype.is_float:
        return np.zeros(type.shape, type.dtype.numpy)
    return rng.standard_normal(type.shape).astype(type.dtype.numpy)


def read(path: str, value: Value, array: Array) -> Array:
    """An array of a file; numpy writes types that it does not know as so many bytes."""
    wanted = np.dtype(value.type.dtype.numpy)
    if array.dtype.kind == "V" and array.dtype.itemsize == wanted.itemsize:
        array = array.view(wanted)
    if (array.shape, array.dtype) != (value.type.shape, wanted):
        raise ExecutionError(
            f"{path}: {value.name} is {array.dtype} of shape {array.shape}; {wanted} of shape {value.type.shape} "
            "is needed"
        )
    return array


def run_by_plan(program: Program, arrays: Mapping[str, Array], watch: Watch) -> None:
    """Runs the plans of a program in order, each told and waited for.  Raises what a plan or the device raises."""
    graph, placed = program.graph, program.schedule
    if program.device.target.kind == "cpu":
        plans = [WatchedPlan(cast(HostPlan, s.plan), i, watch) for i, s in enumerate(placed.steps)]
        steps = tuple(replace(s, plan=p) for s, p in zip(placed.steps, plans, strict=True))
        Program(graph, replace(placed, steps=steps), program.device).run(arrays)
        return
    context = cast(DeviceContext, program._context)
    with context.device as device:
        types = {name: laid_out(value.type) for name, value in graph.inputs.items()}
        inputs = {name: device.allocate(type.span_bytes) for name, type in types.items()}
        outputs = {name: device.allocate(laid_out(graph.output_type(name)).span_bytes) for name in graph.outputs}
        for name, type in types.items():
            host = empty(type)
            np.copyto(host, arrays[name])
            device.write(inputs[name].handle, host.ctypes.data, type.span_bytes)
        handles = ({name: memory.handle for name, memory in part.items()} for part in (inputs, outputs))
        commands = context.commands(*handles)
        device.synchronize()  # what fails before the first plan is no plan's fault
        for index, command in enumerate(commands[: len(placed.steps)]):
            with watch.step(index):
                command(device.stream)
                device.synchronize()
        for command in commands[len(placed.steps) :]:
            command(device.stream)
        device.synchronize()
