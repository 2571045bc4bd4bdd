"""Lock files: the cover, engines and plans of one compilation as text, for another to take them again.

A region is known by its structure and the user's nodes whose work it does.  What does not fit is said and left to the
compiler, region by region.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from graphdnn.config import CompileOptions
from graphdnn.engines.choose import Decision
from graphdnn.errors import SavedFileError
from graphdnn.files import AtomicFile, path_to_write
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region
from graphdnn.passes.fuse import propose
from graphdnn.passes.select import Offer
from graphdnn.planning.decisions import Compilation, Pick
from graphdnn.planning.fitting import COMPETING
from graphdnn.report.model import CompileReport
from graphdnn.serialization.manifest import compared, environment
from graphdnn.serialization.records import read_bounded, read_json, read_record
from graphdnn.spelling import counted, first_of, quoted
from graphdnn.strict_json import Record
from graphdnn.target import Target

FORMAT = "graphdnn lock"
VERSION = 1
KEY_LENGTH = 16
"""Hexadecimal digits of a region's key that stand in the file."""

MACHINE = ("device", "architecture", "multiprocessors")
"""Facts of the environment that say which machine it is, beside its versions."""

NUMBERS = ("precision", "deterministic", "workspace_limit", "disabled_passes", "disabled_engines", "disabled_plans")
"""Options that decide which bits come out; those that a file does not name were left as they are by default."""

NAMES_SHOWN = 6
"""Nodes that one message names."""


class LockedRegion(Record):
    """One region of the cover.  `nth` tells regions apart that are alike and do work of the same nodes, from 0 on."""

    region: str
    nodes: list[str]
    pattern: str
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    engine: str
    plan: str
    nth: Annotated[int, Field(ge=0, lt=1 << 32)] = 0

    @property
    def identity(self) -> Identity:
        return self.key, tuple(self.nodes)


class LockModel(Record):
    """A whole lock file; `left_out` are passes that tuning left out for speed."""

    format: Literal["graphdnn lock"]
    version: Literal[1]
    graph: str
    environment: dict[str, str]
    options: dict[str, Any]
    left_out: list[str]
    regions: list[LockedRegion]


Identity = tuple[str, tuple[str, ...]]
"""Key and nodes of a region."""


def identity(region: Region) -> Identity:
    return region.key[:KEY_LENGTH], region.origins


def alike(regions: Iterable[Region]) -> dict[Identity, list[Region]]:
    """The regions by identity, each set of nodes once, in the graph's order."""
    found: dict[Identity, dict[int, Region]] = {}
    for region in regions:
        found.setdefault(identity(region), {}).setdefault(region.mask, region)
    return {who: [by_mask[m] for m in sorted(by_mask)] for who, by_mask in found.items()}


def write_lock(report: CompileReport, compilation: Compilation, path: Path) -> None:
    """Writes the decisions, a region a line.  The file appears whole.

    Raises SavedFileError where something stands at `path` that is no regular file.
    """
    place = path_to_write("save_lock: path", path, SavedFileError)
    chosen = report.options
    head = {
        "format": FORMAT,
        "version": VERSION,
        "graph": report.graph,
        "environment": environment(compilation.target),
        "options": {name: chosen[name] for name in NUMBERS},
        "left_out": list(compilation.left_out),
    }
    entries = locked(report, compilation.prepared, compilation.picks)
    lines = ",\n".join(f"  {json.dumps(e.model_dump(exclude_defaults=True), ensure_ascii=False)}" for e in entries)
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2] + f',\n "regions": [\n{lines}\n ]\n}}\n'
    with AtomicFile(place) as file:
        file.write(text.encode())


def locked(report: CompileReport, prepared: Graph, picks: Sequence[Pick]) -> list[LockedRegion]:
    """The cover's regions in its order."""
    known = alike(p.region for p in propose(prepared))
    return [
        LockedRegion(
            region=said.name,
            nodes=list(said.nodes),
            pattern=said.pattern,
            key=pick.region.key[:KEY_LENGTH],
            engine=pick.engine,
            plan=said.plan,
            nth=[r.mask for r in known[identity(pick.region)]].index(pick.region.mask),
        )
        for said, pick in zip(report.regions, picks, strict=True)
    ]


def read_lock(path: Path) -> LockModel:
    """The lock of a file.  Raises SavedFileError naming the field that is wrong, OSError where it cannot be read."""
    who = path.name
    if path.exists() and not path.is_file():
        raise SavedFileError(f"{who}: it is no regular file; a lock file is needed")
    content = read_bounded(path)
    found = read_json(who, content)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise SavedFileError(f"{who}: it is no lock file; one that Executable.save_lock wrote is needed")
    version = found.get("version")
    if type(version) is not int or version != VERSION:
        raise SavedFileError(f"{who}: its version is {quoted(version)}; this graphdnn reads {VERSION}")
    return read_record(who, content, LockModel)


class LockFile:
    """A lock file held against one compilation (planner.FixedDecisions)."""

    def __init__(self, who: str, model: LockModel) -> None:
        self.who = who
        self.model = model
        self._said: dict[str, None] = {}
        self._misfits: list[str] = []
        self._kept: dict[tuple[int, str], LockedRegion] = {}
        self._plans: dict[str, Decision] = {}
        self._nodes = {node for entry in model.regions for node in entry.nodes}
        self._follow(model.regions)

    def _follow(self, entries: Iterable[LockedRegion]) -> None:
        """Decides the plans of these regions and of no others."""
        self._plans = {}
        for entry in entries:
            self._plans.setdefault(entry.key, Decision(entry.engine, entry.plan))

    @staticmethod
    def of(path: Path, graph: str, target: Target, options: dict[str, Any]) -> LockFile:
        """The lock for a graph of this name, a machine and options; how they differ from the file's is said.

        Raises SavedFileError for a damaged file.
        """
        lock = LockFile(path.name, read_lock(path))
        if lock.model.graph != graph:
            lock._say(f"it was made for graph {quoted(lock.model.graph)}, and this is {quoted(graph)}")
        there, here = lock.model.environment, environment(target)
        for name in compared(there, here):
            was, now = there.get(name, "none"), here.get(name, "none")
            if was != now and name in MACHINE:
                lock._say(f"it was made for {name} {was}, and this is {now}; regions that do not fit are chosen anew")
            elif was != now and target.present:
                lock._say(f"it was made with {name} {was}, and this is {now}; bits may differ")
        usual = CompileOptions().model_dump(mode="json")
        for name in NUMBERS:
            asked, asks = lock.model.options.get(name, usual[name]), options[name]
            if asked != asks:
                lock._say(
                    f"it was made with the option {name}={quoted(asked)}, and this is {quoted(asks)}; bits may differ"
                )
        for name in lock.model.options:
            if name not in NUMBERS:
                lock._say(f"its option {quoted(name)} is none that lock files hold; nothing comes of it")
        for name in lock.model.left_out:
            if name not in COMPETING:
                lock._say(f"the pass {quoted(name)} cannot be left out")
        return lock

    @property
    def messages(self) -> list[str]:
        """What of the file was not taken, and why."""
        return [f"lock file {self.who}: {message}" for message in (*self._said, *self._misfits)]

    def _say(self, message: str) -> None:
        self._said[message] = None

    def give_up(self, why: str) -> None:
        """Takes nothing of the file after all."""
        self._say(why)
        self.model = self.model.model_copy(update={"regions": [], "left_out": []})
        self._plans, self._misfits, self._kept = {}, [], {}

    @property
    def left_out(self) -> tuple[str, ...]:
        """Passes that were left out for speed when the file was made."""
        return tuple(name for name in self.model.left_out if name in COMPETING)

    def decided(self, region: Region) -> Decision | None:
        """The engine and plan that the file has for regions of this structure."""
        return self._plans.get(region.key[:KEY_LENGTH])

    def narrowed(self, offers: Sequence[Offer]) -> list[Offer]:
        """The offers that leave the file's regions as they are; those that do not fit are left to the compiler."""
        known = alike(o.region for o in offers)
        by_place = {(o.region.mask, o.payload): o for o in offers}
        self._misfits, self._kept = [], {}  # the last cover is the one that counts
        kept: list[Offer] = []
        taken = 0
        for entry in self.model.regions:
            who = f"region {entry.region} ({entry.pattern})"
            same = known.get(entry.identity, [])
            regions = same[entry.nth :]
            offer = by_place.get((regions[0].mask, entry.engine)) if regions else None
            if same and not regions:
                self._misfits.append(f"{who} is said to be number {entry.nth} of those alike; here are {len(same)}")
            elif not regions:
                self._misfits.append(f"{who} is not in this graph, or no engine takes it")
            elif offer is None:
                self._misfits.append(f"{who} is not taken by {entry.engine} here")
            elif offer.region.mask & taken:
                self._misfits.append(f"{who} overlaps one that stands before it")
            else:
                taken |= offer.region.mask
                kept.append(offer)
                self._kept[offer.region.mask, entry.engine] = entry
        self._follow(self._kept.values())
        return kept + [o for o in offers if not o.region.mask & taken]

    def effects(self, picks: Sequence[Pick]) -> list[str]:
        """What the file came to, for the report: how much of the cover is its own, and what is not."""
        followed = 0
        for pick in picks:
            entry = self._kept.get((pick.region.mask, pick.engine))
            if entry is not None and pick.chosen is not None and entry.plan not in ("", pick.chosen.candidate.name):
                tried = (t for t in pick.chosen.tried if t.candidate.name == entry.plan and t.verdict != "slower")
                why = next((f": {t.reason}" for t in tried if t.reason), "")
                now = pick.chosen.candidate.name
                self._say(f"region {entry.region} runs on {now}; {entry.plan} is not usable here{why}")
            elif entry is not None:
                followed += 1
        unknown = dict.fromkeys(n for pick in picks for n in pick.region.origins if n not in self._nodes)
        if unknown:
            who = (
                f"nodes {first_of(unknown, NAMES_SHOWN)} are" if len(unknown) > 1 else f"node {next(iter(unknown))} is"
            )
            self._misfits.append(f"{who} in none of its regions, and what runs there was chosen anew")
        return [f"lock file {self.who} decided {followed} of {counted(len(picks), 'region')}", *self.messages]
