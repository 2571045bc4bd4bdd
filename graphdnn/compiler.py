"""The public compile: passes, engines, cover, plans, schedule and report put together."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from graphdnn.config import CompileOptions
from graphdnn.engines.answers import answers_stored_in
from graphdnn.engines.attempt import Chosen
from graphdnn.engines.choose import Selector, undecided
from graphdnn.engines.contract import Device, DevicePlan, HostPlan, Policy, Store, Support
from graphdnn.engines.environment import code_digest
from graphdnn.engines.manifest import BY_KIND, MANIFEST, engines_for
from graphdnn.engines.trial import Limits
from graphdnn.errors import CompileError
from graphdnn.executable import Executable, LazyReport
from graphdnn.ir.graph import Graph
from graphdnn.ir.ops.movement import Convert
from graphdnn.ir.region import Region
from graphdnn.ir.types import TensorType
from graphdnn.ir.writer import GraphWriter
from graphdnn.passes.promote import promotions
from graphdnn.planning.covers import Covers
from graphdnn.planning.decisions import Compilation, Decisions, Pick, engine_of
from graphdnn.planning.effects import effects_of
from graphdnn.planning.fitting import fitted
from graphdnn.planning.planner import FixedDecisions, Planned, Problem, explained
from graphdnn.planning.session import Session
from graphdnn.report.account import account
from graphdnn.report.model import CompileReport
from graphdnn.runtime.cache import DiskStore, NullStore
from graphdnn.runtime.device import device_for
from graphdnn.runtime.driver import device_present
from graphdnn.runtime.probe import ChildProber
from graphdnn.runtime.program import Program
from graphdnn.runtime.schedule import Schedule
from graphdnn.serialization.manifest import environment
from graphdnn.spelling import named_arguments
from graphdnn.target import WORDS, Target, unknown_target

THREADS = 8
"""Threads that build plans for a device; a library's own compilation leaves most of a processor idle."""


@named_arguments(CompileOptions.model_fields)
def compile(
    graph: Graph,
    target: str | Target = "auto",
    options: CompileOptions | None = None,
    *,
    lock: str | Path | None = None,
) -> Executable:
    """Compiles `graph` for a target: "cpu", "cuda", "auto" (cuda where there is a device) or a Target.

    A described target (`Target.named("h200")`) gives a full report and an executable that refuses to run.  With the
    `lock` that Executable.save_lock wrote, regions, engines and plans are those of that file; what of it does not fit
    is left to the compiler, with a RuntimeWarning and a line in the report's effects.
    Raises CompileError where no cover exists, SetupError where a missing library is the only reason, SavedFileError
    for a damaged lock, or one that is no path of a file.
    """
    if not isinstance(graph, Graph):
        raise CompileError(
            f"compile: graph is a {type(graph).__name__}; a Graph, as GraphBuilder.build gives, is needed"
        )
    if not isinstance(options, CompileOptions | None):
        raise CompileError(f"compile: options is a {type(options).__name__}; a gd.CompileOptions is needed")
    chosen_options = options or CompileOptions()
    machine, device = resolve("compile", target, chosen_options)
    if lock is None:
        return compile_for(graph, machine, device, chosen_options)
    return compile_locked(graph, machine, device, chosen_options, lock)


def compile_locked(
    graph: Graph, machine: Target, device: Device | None, options: CompileOptions, path: str | Path
) -> Executable:
    """Compiles with what a lock file decides, as far as it fits."""
    from graphdnn.serialization.kinds import path_of
    from graphdnn.serialization.lock import LockFile

    lock = LockFile.of(path_of("compile: lock", path), graph.name, machine, options.model_dump(mode="json"))
    try:
        made = compile_for(graph, machine, device, options, lock)
    except CompileError as error:
        lock.give_up(f"with its regions the rest could not be compiled ({error}), so that nothing of it is taken")
        made = compile_for(graph, machine, device, options)
    effects = lock.effects(made.compilation.picks)
    made = made.with_report(lambda report: report.model_copy(update={"effects": (*report.effects, *effects)}))
    if lock.messages:
        more = f"; exe.report.effects has {len(lock.messages) - 1} more" if lock.messages[1:] else ""
        warnings.warn(lock.messages[0] + more, RuntimeWarning, stacklevel=4)
    return made


def compile_for(
    graph: Graph, machine: Target, device: Device | None, options: CompileOptions, fixed: FixedDecisions | None = None
) -> Executable:
    """Compiles for a machine, and on a device that is here.  What is `fixed` comes before any choosing.

    Raises CompileError where no cover exists, SetupError where a missing library is the only reason.
    """
    selector = Selector(
        engines_for(machine.kind, options.disabled_engines),
        machine,
        options.policy(),
        fixed.decided if fixed is not None else undecided,
        threads=THREADS if machine.kind == "cuda" else 1,
        limits=Limits(disabled=options.disabled_plans),
    )
    covers = covers_of(device, selector, options) if fixed is None else None
    problem = Problem(graph, selector, device, options, fixed, covers)
    session = None
    with ExitStack() as stack:
        stack.enter_context(stored_answers(problem))
        if options.selection == "heuristic":
            stack.enter_context(uncollected())
        if device is not None:
            selector.prober = stack.enter_context(prober_for(machine, device, selector.policy))
        if device is not None and options.selection != "heuristic" and not options.deterministic:
            session = stack.enter_context(Session(problem, device))
        made, placed = fitted(problem, fixed.left_out if fixed is not None else ())
        if session is not None:
            made, placed = session.finish(made, placed)
    program = None
    if device is not None:
        program = Program(made.prepared, placed, device, converter(selector, device))
    effects = effects_of(problem, session, made)
    engines = {offer.region: engine_of(offer) for offer in made.cover.picks}
    picks = tuple(Pick(step.region, engines[step.region], made.plans.get(step.region)) for step in placed.steps)
    compilation = Compilation(made.prepared, picks, machine, options, made.left_out)
    return Executable(graph, LazyReport(lambda: reported(problem, made, placed, effects)), program, compilation)


def store_of(device: Device | None, options: CompileOptions) -> Store | None:
    """Where what was found out is kept: in the device's cache; for a described device only where the user names one."""
    if options.cache_dir == "":
        return None
    if device is not None:
        return None if isinstance(device.store, NullStore) else device.store
    return None if options.cache_dir is None else DiskStore(options.cache_dir)


def stored_answers(problem: Problem) -> AbstractContextManager[None]:
    """A while in which engines' answers about the graph are kept."""
    store = store_of(problem.device, problem.options)
    selector = problem.selector
    return nullcontext() if store is None else answers_stored_in(store, problem.graph, selector.target, selector.policy)


def covers_of(device: Device | None, selector: Selector, options: CompileOptions) -> Covers | None:
    """Where covers are kept: those that estimates alone chose on a device, without a limit that plans share."""
    store = store_of(device, options)
    if store is None or device is None or options.selection != "heuristic" or options.memory_limit is not None:
        return None
    return Covers(store, selector, options)


def reported(problem: Problem, made: Planned, placed: Schedule, effects: tuple[str, ...]) -> CompileReport:
    """The report, made without collections: of thousands of nodes it has a hundred thousand parts that stay."""
    with uncollected():
        with stored_answers(problem) if made.is_recalled else nullcontext():
            whole = explained(made, problem)
        return account(
            Decisions(
                problem.graph,
                whole.prepared,
                whole.proposals,
                whole.cover,
                problem.selector,
                whole.plans,
                placed,
                whole.records,
                promotions(problem.graph),
                problem.options,
                whole.whole,
                effects,
            )
        )


@contextmanager
def uncollected() -> Iterator[None]:
    """A while without collections of cyclic garbage.

    Planning makes a hundred thousand objects that stay and next to no cycles; each full collection on the way walks all
    that the process holds, which is seconds beside a large framework.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def resolve(who: str, target: str | Target, options: CompileOptions) -> tuple[Target, Device | None]:
    """The machine that is meant, and the device where it is here.  Raises CompileError for an unknown word, naming the
    function `who` that was given it."""
    if isinstance(target, Target):
        if target.kind not in BY_KIND:
            raise CompileError(f"{who}: target {target} is of kind {target.kind!r}; {' or '.join(BY_KIND)} is needed")
        if not target.present:
            return target, None
        device = device_for(target.kind, target.ordinal, options.cache_dir)
    elif target in WORDS:
        kind = ("cuda" if device_present() else "cpu") if target == "auto" else target
        device = device_for(kind, None, options.cache_dir)
    else:
        raise unknown_target(who, target)
    return device.target, device


def prober_for(machine: Target, device: Device, policy: Policy) -> ChildProber:
    """Tries plans in a child.  Verdicts hold while machine, versions and the code that makes plans stay the same."""
    return ChildProber(MANIFEST, device, policy, {**environment(machine), "code": code_digest()})


def converter(selector: Selector, device: Device) -> Callable[[TensorType, TensorType], DevicePlan]:
    """Builds plans that copy a tensor into another layout, for arrays whose strides differ from the declared ones.

    It lives as long as the executable, and so holds the selector's engines and options, and nothing of what that knows.
    """
    engines, machine, policy = selector.engines, selector.target, replace(selector.policy, workspace_limit=0)
    limits = Limits(disabled=selector.limits.disabled)

    def convert(source: TensorType, wanted: TensorType) -> DevicePlan:
        with prober_for(machine, device, policy) as prober:
            return conversion(Selector(engines, machine, policy, prober=prober, limits=limits), device, source, wanted)

    return convert


def conversion(selector: Selector, device: Device, source: TensorType, wanted: TensorType) -> DevicePlan:
    """A plan without scratch memory that copies a tensor into another layout.  Raises CompileError where no engine
    copies it."""
    writer = GraphWriter("convert")
    (copied,) = writer.emit(Convert(), [writer.input("x", source)], types=[wanted])
    graph = writer.finish({"y": copied})
    region = Region.of(graph, graph.nodes)
    for name, answer in selector.support.answers(region).items():
        found = selector.plan(name, region, device) if isinstance(answer, Support) else None
        if isinstance(found, Chosen) and not isinstance(found.plan, HostPlan):
            return found.plan
    raise CompileError(f"no engine on {selector.target} copies {source} into {wanted}")
