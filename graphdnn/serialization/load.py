"""Reading an executable: on an equal machine its plans are restored, elsewhere its graph is compiled anew.

Nothing in the file says where memory lies: order and arena are worked out from the graph and the plans, as at
compile time.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from graphdnn.answer import Code, Decline
from graphdnn.compiler import compile, converter, resolve
from graphdnn.config import CompileOptions
from graphdnn.engines.attempt import Chosen
from graphdnn.engines.choose import Selector
from graphdnn.engines.contract import Candidate, Device, Plan
from graphdnn.engines.manifest import engines_for
from graphdnn.engines.trial import Limits, TrialMemory, as_built, enabling, trial
from graphdnn.errors import CompileError, SavedFileError
from graphdnn.executable import Executable, LazyReport
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array
from graphdnn.ir.views import is_free
from graphdnn.lazy import cached_property
from graphdnn.planning.decisions import Compilation, Pick
from graphdnn.report.model import CompileReport
from graphdnn.runtime.driver import device_present
from graphdnn.runtime.program import Program
from graphdnn.runtime.schedule import Step, schedule
from graphdnn.serialization import container
from graphdnn.serialization.kinds import SAID, Kind, kind_of, path_of
from graphdnn.serialization.manifest import ManifestModel, difference, environment
from graphdnn.serialization.records import read_record
from graphdnn.serialization.reports import decode_report
from graphdnn.serialization.weights import graph_of
from graphdnn.spelling import named_arguments, quoted
from graphdnn.target import Target

THREADS = 8
"""Plans that are loaded at the same time."""

NAME = re.compile(r"manifest|report|graph|prepared|plan\.\d{1,9}|constant\.[0-9a-f]{64}")
"""What sections are called."""


@named_arguments()
def load(path: str | Path, target: str | Target | None = None, *, rebuild: bool = True) -> Executable:
    """The executable that `Executable.save` wrote, with states at zero.

    `target` is as for `compile`; without it the kind of device that the file was saved on, where there is one.  Where
    device or versions differ, or a plan cannot be restored, the graph is compiled anew with its options and a
    RuntimeWarning says why; with rebuild=False that raises.  Raises SavedFileError for a file that is damaged or is no
    saved executable.
    """
    file = opened(path_of("load: path", path))
    options = file.options
    machine, device = resolve("load", file.wanted if target is None else target, options)
    why = difference(file.manifest.environment, environment(machine)) if device else f"{machine} is not here"
    if device is not None and not why:
        restored = restore(file, machine, device, options)
        if isinstance(restored, Executable):
            return restored
        why = str(restored)
    if not rebuild:
        raise SavedFileError(f"{file.who}: {why}; with rebuild=True it is compiled anew from its graph")
    warnings.warn(f"{file.who}: {why}; it is compiled anew from its graph", RuntimeWarning, stacklevel=3)
    return compile(file.graph, machine, options)


def opened(path: Path) -> SavedFile:
    """A file's sections.  Raises SavedFileError saying which other file of graphdnn it is, or what is wrong with it."""
    kind = kind_of(path) if path.is_dir() or path.is_file() else Kind.EXECUTABLE
    if kind is not Kind.EXECUTABLE:
        raise SavedFileError(f"{path.name}: {SAID[kind]}; a saved executable, as Executable.save writes, is needed")
    sections = container.read(path)
    for name in sections:
        if not NAME.fullmatch(name):
            raise SavedFileError(f"{path.name}: section {name} is none of a saved executable")
    return SavedFile(path.name, sections)


def graph_in(path: Path) -> Graph:
    """The graph of a saved executable.  Raises SavedFileError for a file that is damaged or is none."""
    return opened(path).graph


@dataclass(frozen=True)
class SavedFile:
    """The sections of one file, each understood when it is asked for."""

    who: str
    sections: Mapping[str, Array]
    used: set[str] = field(default_factory=set)

    def section(self, name: str) -> bytes:
        if name not in self.sections:
            raise SavedFileError(f"{self.who}: section {name} is missing")
        self.used.add(name)
        return self.sections[name].tobytes()

    @cached_property
    def manifest(self) -> ManifestModel:
        return read_record(f"{self.who}: manifest", self.section("manifest"), ManifestModel)

    @cached_property
    def options(self) -> CompileOptions:
        """The options it was compiled with; where to cache is the reader's own affair."""
        if "cache_dir" in self.manifest.options:
            raise SavedFileError(f"{self.who}: manifest: options.cache_dir stands there; a file names no folders")
        try:
            return CompileOptions(**self.manifest.options)
        except CompileError as error:
            raise SavedFileError(f"{self.who}: manifest: {error}") from None

    @property
    def wanted(self) -> str:
        """The target for a reader who names none."""
        return "cuda" if self.manifest.kind == "cuda" and device_present() else "cpu"

    @cached_property
    def graph(self) -> Graph:
        """The user's graph."""
        return graph_of(f"{self.who}: graph", self.section("graph"), self.sections, self.used)

    @cached_property
    def prepared(self) -> Graph:
        """The graph as the passes left it, with all its constants."""
        graph = graph_of(f"{self.who}: prepared", self.section("prepared"), self.sections, self.used)
        for name, payload in graph.payloads.items():
            if not payload.has_data:
                raise SavedFileError(f"{self.who}: prepared: constant {name} has no section")
        return graph

    @cached_property
    def report(self) -> CompileReport:
        return decode_report(f"{self.who}: report", self.section("report"))

    def read_rest(self, regions: Sequence[Region]) -> None:
        """Reads the user's graph, which must be called as the prepared one is, and the report of these regions.

        Raises SavedFileError where they do not fit, or where a section belongs to none of what was read.
        """
        for what in ("inputs", "states", "outputs"):
            if interface(self.prepared, what) != interface(self.graph, what):
                raise SavedFileError(f"{self.who}: prepared: its {what} are not those of the graph")
        if misfit := self.misfit(regions):
            raise SavedFileError(f"{self.who}: report: {misfit}")
        for name in self.sections:
            if name not in self.used:
                raise SavedFileError(f"{self.who}: section {name} belongs to nothing in it")

    def misfit(self, regions: Sequence[Region]) -> str:
        """In what the report is another executable's, in words; empty where it is this one's."""
        if self.report.graph != self.graph.name:
            return f"it is of graph {quoted(self.report.graph)}; this one is {quoted(self.graph.name)}"
        if len(self.report.regions) != len(regions):
            return f"it has {len(self.report.regions)} regions; the manifest has {len(regions)}"
        for said, region, step in zip(self.report.regions, regions, self.manifest.steps, strict=True):
            plan = self.manifest.plans[step.plan]
            found = (said.nodes, said.pattern, said.engine, said.plan)
            if found != (region.origins, region.pattern, plan.engine, plan.name):
                return f"region {quoted(said.name)} is not the one that the manifest has in its place"
        return ""

    def regions(self) -> list[Region]:
        """The cover.  Raises SavedFileError unless computing nodes are in one region each, and views in one at most."""
        by_name = {node.name: node for node in self.prepared.nodes}
        left = set(by_name)
        regions = []
        for number, step in enumerate(self.manifest.steps):
            for name in step.nodes:
                if name not in left:
                    raise SavedFileError(
                        f"{self.who}: manifest: steps.{number} holds {quoted(name)}, which is no node left to compute"
                    )
                left.remove(name)
            region = Region.of(self.prepared, [by_name[name] for name in step.nodes])
            if not region.is_convex:
                raise SavedFileError(f"{self.who}: manifest: steps.{number} would wait for its own result")
            regions.append(region)
        missing = [name for name in by_name if name in left and not is_free(by_name[name])]
        if missing:
            raise SavedFileError(f"{self.who}: manifest: no step computes {missing[0]}")
        return regions


def interface(graph: Graph, what: str) -> dict[str, tuple[object, ...]]:
    """Names and types as a caller sees them."""
    types = {n: graph.output_type(n) if what == "outputs" else v.type for n, v in getattr(graph, what).items()}
    return {name: (type.shape, type.dtype, type.layout) for name, type in types.items()}


def restore(file: SavedFile, machine: Target, device: Device, options: CompileOptions) -> Executable | Decline:
    """The executable with the plans of the file, or why one of them cannot be restored here."""
    engines = engines_for(machine.kind, options.disabled_engines)
    selector = Selector(engines, machine, options.policy(), limits=Limits(disabled=options.disabled_plans))
    regions, numbers = file.regions(), [step.plan for step in file.manifest.steps]
    plans = restored_plans(file, regions, first_regions(file, regions, numbers), selector, device)
    if isinstance(plans, Decline):
        return plans
    chosen = {region: plans[number] for region, number in zip(regions, numbers, strict=True)}
    steps = [Step(r, one.plan, one.candidate.workspace_bytes, name=one.name) for r, one in chosen.items()]
    try:
        placed = schedule(file.prepared, steps)
    except CompileError as error:
        raise SavedFileError(f"{file.who}: {error}") from None
    try:
        program = Program(file.prepared, placed, device, converter(selector, device))
    except MemoryError:
        raise SavedFileError(f"{file.who}: its states need more memory than there is") from None
    picks = tuple(Pick(s.region, chosen[s.region].engine, chosen[s.region]) for s in placed.steps)
    compilation = Compilation(file.prepared, picks, machine, options, tuple(file.manifest.left_out))
    report = file.report  # and not the file, which holds all of its sections
    return Executable(file.graph, LazyReport(lambda: report), program, compilation)


def first_regions(file: SavedFile, regions: Sequence[Region], numbers: Sequence[int]) -> list[Region]:
    """For each plan of the manifest a region that it runs.  Raises SavedFileError where two such are not alike."""
    found: dict[int, Region] = {}
    for region, number in zip(regions, numbers, strict=True):
        if found.setdefault(number, region).key != region.key:
            raise SavedFileError(f"{file.who}: manifest: plan {number} is said to run two regions that are not alike")
    if sorted(found) != list(range(len(file.manifest.plans))):
        raise SavedFileError(
            f"{file.who}: manifest: the steps use plans {sorted(found)[:8]}; there are {len(file.manifest.plans)}"
        )
    return [found[number] for number in range(len(found))]


def restored_plans(
    file: SavedFile, regions: Sequence[Region], firsts: Sequence[Region], selector: Selector, device: Device
) -> list[Chosen] | Decline:
    """The plans in the manifest's order, each run once on scratch memory, or why one of them does not come back.

    `firsts` are regions that they run, one each.
    """
    engines = {engine.name: engine for engine in selector.engines}
    candidates = [
        Candidate(m.engine, region, m.name, m.workspace_bytes, m.precision, m.deterministic, tuple(m.notes))
        for m, region in zip(file.manifest.plans, firsts, strict=True)
    ]
    contents = [file.section(f"plan.{number}") for number in range(len(candidates))]

    def again(candidate: Candidate, content: bytes) -> Plan | Decline:
        engine = engines.get(candidate.engine)
        if engine is None:
            return Decline(Code.SETUP, f"there is no engine {quoted(candidate.engine)} here")
        with device:
            return engine.restore(candidate, content, device)

    with ThreadPoolExecutor(THREADS) as pool:
        plans = pool.map(again, candidates, contents)
        file.read_rest(regions)  # while the libraries load the plans
    found = []
    with TrialMemory(device) as memory:
        for candidate, plan, model in zip(candidates, plans, file.manifest.plans, strict=True):
            chosen = tried(candidate, plan, model.kernels, selector, memory)
            if isinstance(chosen, Decline):
                who = f"plan {quoted(candidate.name)} of {candidate.engine}"
                return replace(chosen, reason=f"{who} was not restored ({chosen})")
            found.append(chosen)
    return found


def tried(
    candidate: Candidate, plan: Plan | Decline, kernels: int, selector: Selector, memory: TrialMemory
) -> Chosen | Decline:
    """A restored plan that ran once, so that nothing of it is loaded later inside a capture."""
    if isinstance(plan, Decline):
        return plan
    actual = as_built(candidate, plan)
    excluded = selector.limits.bars(actual)
    if excluded:
        return Decline(Code.OPTION, excluded, enabling([actual], selector.limits))
    launched = trial(plan, actual, memory)
    if isinstance(launched, Decline):
        return launched
    return Chosen(candidate.engine, actual, plan, kernels, ())
