"""Turning the compiler's decisions into a report: every candidate once, every region with what overlaps it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version

from graphdnn.answer import Code, Decline
from graphdnn.config import CompileOptions
from graphdnn.engines.choose import Chosen, Selector
from graphdnn.engines.contract import Support
from graphdnn.engines.trial import Tried
from graphdnn.engines.tune import floor_us
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.region import Region
from graphdnn.lazy import cached_property
from graphdnn.passes.fuse import Proposal
from graphdnn.passes.pipeline import PassRecord
from graphdnn.passes.promote import Promotion, implied_casts
from graphdnn.passes.select import Cover, Offer
from graphdnn.report import (
    CandidateReport,
    CompileReport,
    FixReport,
    PassReport,
    PlanReport,
    PromotionReport,
    RefusalReport,
    RegionReport,
    Verdict,
)
from graphdnn.runtime.schedule import Schedule

PACKAGES = (
    "numpy",
    "scipy",
    "cuda-bindings",
    "cuda-core",
    "nvidia-cudnn-frontend",
    "nvidia-cudnn-cu13",
    "nvidia-cuda-nvrtc",
)
"""Distributions whose versions a report states beside our own."""


REFUSED: dict[Code, Verdict] = {
    Code.OPTION: "excluded",
    Code.BUILD: "failed",
    Code.RUN: "failed",
    Code.NUMBERS: "wrong",
    Code.TRANSIENT: "failed",
}
"""Verdicts on engines that would have taken a region; the other codes are an engine's own "no"."""

FAR = 8.0
"""Multiple of the floor by bytes and operations above which an estimate is worth a remark."""

NAME_ALONE = re.compile(r"\w(?:[\w.]*\w)?")
NAME = re.compile(f"%({NAME_ALONE.pattern})")
"""A node's or value's name as sentences write it."""


@dataclass(frozen=True)
class Decisions:
    """Everything that `compile` decided about one graph.

    `expanded` are the composite nodes that no engine took whole, as they stood when the engines were asked; `effects`
    says what the options for choosing did.
    """

    graph: Graph
    prepared: Graph
    proposals: tuple[Proposal, ...]
    cover: Cover
    selector: Selector
    plans: dict[Region, Chosen]
    schedule: Schedule
    passes: tuple[PassRecord, ...]
    promotions: tuple[Promotion, ...]
    options: CompileOptions
    expanded: tuple[Region, ...] = ()
    effects: tuple[str, ...] = ()

    @cached_property
    def user_names(self) -> dict[str, str]:
        """For nodes and values that passes made, the user's node whose work they do, or what they convert."""
        known = {v.name for n in self.graph.nodes for v in n.results} | {n.name for n in self.graph.nodes}
        known -= {v.name for v in self.implied}
        names: dict[str, str] = {}
        for graph in {self.prepared, *(r.graph for r in self.expanded)}:
            for node in graph.nodes:
                source = node.operands[0].name if node.operands else node.name
                meant = node.origins[0] if node.origins else names.get(source, source)
                names.update((name, meant) for name in (node.name, *(v.name for v in node.results)))
        return {name: meant for name, meant in names.items() if name not in known}

    @cached_property
    def user_ops(self) -> dict[str, type[Op]]:
        """What each of the user's nodes is."""
        return {n.name: type(n.op) for n in self.graph.nodes if n.result not in self.implied}

    @cached_property
    def implied(self) -> dict[Value, Value]:
        """What the builder cast, by the result of the cast."""
        return implied_casts(self.graph)

    @cached_property
    def spread(self) -> frozenset[str]:
        """The user's nodes whose work several nodes do."""
        shares = Counter(origin for n in self.prepared.nodes for origin in n.origins)
        return frozenset(name for name, count in shares.items() if count > 1)

    @cached_property
    def foreign_names(self) -> set[str]:
        """Sources that passes made: constants that were folded or spelled out."""
        graphs = {self.prepared, *(r.graph for r in self.expanded)}
        return {name for g in graphs for name in g.constants} - set(self.graph.constants)


def account(made: Decisions) -> CompileReport:
    """The report of one compilation."""
    candidates = candidate_reports(made)
    regions = tuple(region_reports(made, candidates))
    return CompileReport(
        graph=made.graph.name,
        target=str(made.selector.target),
        regions=regions,
        candidates=tuple(entry for _, entry in candidates),
        kernel_count=sum(r.kernels for r in regions),
        unfused_kernel_count=sum(not n.op.is_renaming for n in made.graph.nodes) - len(made.implied),
        read_bytes=sum(r.read_bytes for r in regions),
        written_bytes=sum(r.written_bytes for r in regions),
        unfused_bytes=unfused_bytes(made.graph, made.implied),
        arena_bytes=made.schedule.arena_bytes,
        peak_bytes=made.schedule.peak_bytes,
        last_resort_count=sum(r.last_resort for r in regions),
        exact_cover=made.cover.exact,
        promotions=tuple(
            PromotionReport(node=p.node, operand=p.operand, before=p.before.name, after=p.after.name)
            for p in made.promotions
        ),
        passes=tuple(pass_report(p) for p in made.passes),
        versions=versions(made.selector),
        options=made.options.model_dump(mode="json"),
        effects=made.effects,
    )


def candidate_reports(made: Decisions) -> list[tuple[Region, CandidateReport]]:
    """Each engine's answer for each set of nodes that was asked about, once."""
    chosen = {(offer.region, engine_of(offer)) for offer in made.cover.picks}
    conflicts = {(offer.region, engine_of(offer)): reason for offer, reason in made.cover.conflicts}
    candidates: list[tuple[Region, CandidateReport]] = []
    proposed = {(p.region.key, p.region.origins) for p in made.proposals}
    whole = (r for r in made.expanded if (r.key, r.origins) not in proposed)
    for region in (*(p.region for p in made.proposals), *whole):
        for engine, answer in made.selector.answers(region).items():
            key = (region, engine)
            id = f"c{len(candidates)}"
            if isinstance(answer, Support):
                entry = accepted(id, engine, region, answer, made.selector, key in chosen, conflicts.get(key))
            else:
                own = own_answer(made.selector, engine, region, answer)
                entry = refused(id, engine, region, in_user_words(made, own, region), made.selector)
            candidates.append((region, entry))
    return candidates


def own_answer(selector: Selector, engine: str, region: Region, shared: Decline) -> Decline:
    """A "no" that names this region's nodes.

    Equal regions share one answer, which names the nodes of whichever was asked about first; its names are exchanged.
    The engine is asked again where names cannot be told from the text around them, as in the words of a fix.  An answer
    names no node where an option or a failed plan is the reason.
    """
    if shared.code in REFUSED or names_nothing(shared):
        return shared
    before = selector.named_in_answers(region)
    if before == region.names:
        return shared
    if shared.fix is None and all(map(NAME_ALONE.fullmatch, before)):
        own_names = dict(zip(before, region.names, strict=True))
        return replace(shared, reason=NAME.sub(lambda found: f"%{own_names.get(found[1], found[1])}", shared.reason))
    by_name = {e.name: e for e in selector.engines}
    own = by_name[engine].supports(region, selector.target, selector.policy)
    return shared if isinstance(own, Support) else own


def names_nothing(answer: Decline) -> bool:
    """Whether a "no" is said in words that fit every region of its structure."""
    return answer.fix is None and "%" not in answer.reason


def in_user_words(made: Decisions, answer: Decline, region: Region) -> Decline:
    """A "no" that names the user's nodes where it names those that passes made of them.

    What it would take to change a part of an expansion is no change of the user's node, and so no fix.
    """
    if names_nothing(answer):
        return answer
    if answer.fix is not None and is_part(made, answer.fix.target, region):
        answer = replace(answer, code=Code.PATTERN, fix=None)
    names = made.user_names
    reason = NAME.sub(lambda found: f"%{names.get(found[1], found[1])}", answer.reason)
    fix = answer.fix and replace(answer.fix, target=names.get(answer.fix.target, answer.fix.target))
    if fix is not None and fix.target in made.foreign_names:
        fix = None  # nobody can change what a pass made
    return replace(answer, reason=reason, fix=fix)


def is_part(made: Decisions, name: str, region: Region) -> bool:
    """Whether a node or value of this name is one of several that do the work of a user's node, and not that node."""
    makers = (region.graph.producer.get(v) for v in region.inputs)
    near = (*region.nodes, *(n for n in makers if n is not None))
    node = next((n for n in near if name in (n.name, *(v.name for v in n.results))), None)
    if node is None or type(node.op).expand is not Op.expand or made.user_ops.get(node.name) is type(node.op):
        return False
    return not made.spread.isdisjoint(node.origins)


def engine_of(offer: Offer) -> str:
    """The engine that made an offer: the payload that compile gives each."""
    assert isinstance(offer.payload, str)
    return offer.payload


def unfused_bytes(graph: Graph, casts: Mapping[Value, Value]) -> int:
    """Bytes that one kernel per user node would read and write; views move nothing, and casts for promotion are part of
    the kernel that reads them."""
    total = 0
    for node in graph.nodes:
        if not node.op.is_renaming and node.result not in casts:
            read: dict[Value, int] = {}
            operands = [casts.get(v, v) for v in node.operands]
            types = tuple(v.type for v in operands)
            for index, value in enumerate(operands):
                if value.literal is None:
                    needed = node.op.bytes_read(index, types, node.result_types)
                    read[value] = max(read.get(value, 0), needed)
            total += sum(read.values()) + sum(t.nbytes for t in node.result_types)
    return total


def accepted(
    id: str, engine: str, region: Region, answer: Support, selector: Selector, is_chosen: bool, conflict: str | None
) -> CandidateReport:
    """An engine's "yes" as the report states it."""
    verdict: Verdict = "chosen" if is_chosen else "conflict" if conflict else "slower"
    return CandidateReport(
        id=id,
        engine=engine,
        pattern=region.pattern,
        nodes=region.origins,
        verdict=verdict,
        reason="" if is_chosen else conflict or "a cheaper cover won",
        ruled_out=ruled_out(selector, engine, region, answer),
        estimated_us=answer.estimated_us,
        measured_us=selector.measured(engine, region),
        plans=plan_reports(selector, engine, region),
    )


def ruled_out(selector: Selector, engine: str, region: Region, answer: Support) -> str:
    """What a limit on scratch costs an engine that does with less, in words; nothing where it costs none."""
    free = selector.freely(engine, region) if selector.limits.most_scratch is not None else None
    if free is None or free.estimated_us >= answer.estimated_us or not selector.limits.forbids(free.workspace_bytes):
        return answer.ruled_out
    limit = selector.limits.loosened(free.workspace_bytes, deterministic=True)
    return (
        f"{limit.attribute}={limit.before} rules out {free.workspace_bytes} bytes of scratch, with which {engine} is "
        f"estimated at {free.estimated_us:.1f} us"
    )


def refused(id: str, engine: str, region: Region, answer: Decline, selector: Selector) -> CandidateReport:
    """An engine's "no" as the report states it."""
    offered = selector.offered(engine, region)
    verdict = REFUSED.get(answer.code, "declined")
    return CandidateReport(
        id=id,
        engine=engine,
        pattern=region.pattern,
        nodes=region.origins,
        verdict=verdict,
        code=answer.code.value,
        reason=answer.reason,
        fix=fix_report(answer),
        estimated_us=offered.estimated_us if offered else None,
        plans=plan_reports(selector, engine, region),
    )


def fix_report(answer: Decline) -> FixReport | None:
    fix = answer.fix
    if fix is None:
        return None
    return FixReport(target=fix.target, attribute=fix.attribute, before=fix.before, after=fix.after, sentence=str(fix))


def plan_reports(selector: Selector, engine: str, region: Region) -> tuple[PlanReport, ...]:
    """Every plan that was tried; those that need too much scratch with what the engine is estimated at with that."""
    tried = selector.tried(engine, region)
    offered = selector.offered(engine, region)
    limited = any(selector.limits.forbids(t.candidate.workspace_bytes) for t in tried)
    free = (selector.freely(engine, region) if limited else None) or offered
    found = ((t, free if selector.limits.forbids(t.candidate.workspace_bytes) else offered) for t in tried)
    return tuple(plan_report(t, answer.estimated_us if answer else None) for t, answer in found)


def plan_report(tried: Tried, estimated_us: float | None) -> PlanReport:
    plan = tried.candidate
    verdict: Verdict = tried.verdict  # type: ignore[assignment]
    return PlanReport(
        name=plan.name,
        workspace_bytes=plan.workspace_bytes,
        deterministic=plan.deterministic,
        precision=plan.precision,
        notes=plan.notes,
        estimated_us=estimated_us,
        measured_us=tried.measured_us,
        verdict=verdict,
        reason=tried.reason,
    )


def region_reports(made: Decisions, candidates: list[tuple[Region, CandidateReport]]) -> list[RegionReport]:
    """The cover's regions in the order they run."""
    names: Counter[str] = Counter()
    order = {step.region: i for i, step in enumerate(made.schedule.steps)}
    touching = Touching(candidates, list(order))
    reports = []
    for offer in sorted(made.cover.picks, key=lambda o: order[o.region]):
        region, engine = offer.region, engine_of(offer)
        answer = made.selector.answers(region)[engine]
        assert isinstance(answer, Support)
        plan = made.plans.get(region)
        stem = name_of(region)
        names[stem] += 1
        reports.append(
            RegionReport(
                name=stem if names[stem] == 1 else f"{stem}.{names[stem]}",
                nodes=region.origins,
                pattern=region.pattern,
                engine=engine,
                plan=plan.candidate.name if plan else "",
                kernels=plan.kernels if plan else answer.kernels,
                precision=plan.candidate.precision if plan else answer.precision,
                estimated_us=answer.estimated_us,
                measured_us=plan.measured_us if plan else None,
                workspace_bytes=plan.candidate.workspace_bytes if plan else answer.workspace_bytes,
                read_bytes=region.read_bytes,
                written_bytes=region.written_bytes,
                deterministic=plan.candidate.deterministic if plan else answer.deterministic,
                last_resort=answer.last_resort and not is_preferred(answer, engine, region, candidates),
                ruled_out=ruled_out(made.selector, engine, region, answer),
                notes=(*(plan.candidate.notes if plan else answer.notes), *remarks(made.selector, region, answer)),
                alternatives=tuple(c for c in touching(region) if c.verdict != "chosen"),
            )
        )
    return reports


def is_preferred(
    answer: Support, engine: str, region: Region, candidates: list[tuple[Region, CandidateReport]]
) -> bool:
    """Whether a plain kernel was chosen for its price, not for want of another: in float32, where libraries have no
    matrix units either, and another engine takes the region's anchor, alone or with other work.

    Of other types a plain kernel that is the cheapest says that a price is wrong.
    """
    anchor = anchor_of(region)
    return answer.precision == "float32" and any(
        entry.code is None and entry.engine != engine and anchor in asked.nodes for asked, entry in candidates
    )


def remarks(selector: Selector, region: Region, answer: Support) -> list[str]:
    """What is to be said of a region's time: why it was not measured, or that its estimate is far from its floor."""
    outcome = selector.outcome(region)
    if outcome is not None:
        return [outcome.note] if outcome.note else []
    floor = floor_us(region, selector.target, selector.policy.precision)
    if answer.estimated_us <= FAR * floor or not floor:
        return []
    times = answer.estimated_us / floor
    return [f'estimated {times:.0f} times the floor by bytes and operations; selection="autotune" would measure it']


def anchor_of(region: Region) -> Node:
    """The first op that is not pointwise, else the last one."""
    return next((n for n in region.nodes if not isinstance(n.op, Elementwise)), region.nodes[-1])


def name_of(region: Region) -> str:
    """The user's node behind the anchor."""
    return next(iter(anchor_of(region).origins or region.origins), region.pattern)


class Touching:
    """Finds the candidates that hold one of a region's nodes or, of another graph, do work of its user's nodes.

    `regions` are those of a cover: they are of one graph, and no two of them share a node.
    """

    def __init__(self, candidates: list[tuple[Region, CandidateReport]], regions: Sequence[Region]) -> None:
        self._candidates = candidates
        self._found: dict[Region, list[int]] = {region: [] for region in regions}
        owners = {node: region for region in regions for node in region.nodes}
        by_origin: dict[str, list[Region]] = {}
        for region in regions:
            for origin in region.origins:
                by_origin.setdefault(origin, []).append(region)
        touched: set[Region] = set()
        last: Region | None = None
        for index, (asked, _) in enumerate(candidates):
            if asked is not last:  # the engines' answers for one region follow one another
                last = asked
                touched = {owners[node] for node in asked.nodes if node in owners}
                if not regions or regions[0].graph is not asked.graph:
                    touched.update(r for origin in asked.origins for r in by_origin.get(origin, ()))
            for region in touched:
                self._found[region].append(index)

    def __call__(self, region: Region) -> list[CandidateReport]:
        """The candidates in their order."""
        return [self._candidates[i][1] for i in self._found[region]]


def pass_report(record: PassRecord) -> PassReport:
    refusals = tuple(RefusalReport(rule=r.rule, nodes=r.nodes, reason=r.reason) for r in record.refusals)
    return PassReport(
        name=record.name,
        changes=record.changes,
        refusals=refusals,
        nodes_before=record.nodes_before,
        nodes_after=record.nodes_after,
    )


def versions(selector: Selector) -> dict[str, str]:
    """This package, installed ones that it stands on, and the libraries of the target."""
    from graphdnn import __version__

    found = {"graphdnn": __version__}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {**found, **{f"target {name}": v for name, v in selector.target.versions.items()}}
