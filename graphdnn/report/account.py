"""Turning the compiler's decisions into a report: every candidate once, every region with what overlaps it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from graphdnn.answer import Code, Decline
from graphdnn.engines.arithmetic import has_few_channels
from graphdnn.engines.choose import Selector
from graphdnn.engines.contract import Support
from graphdnn.engines.trial import Tried
from graphdnn.engines.tune import floor_us
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.movement import WriteSlice
from graphdnn.ir.region import Region
from graphdnn.passes.pipeline import PassRecord
from graphdnn.planning.decisions import Decisions, anchor_of, engine_of, name_of
from graphdnn.report.model import (
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
from graphdnn.report.user_words import UserNames, own_answer

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
"""Verdicts by the codes of `OVERRULED`; every other code is an engine's own refusal, "declined"."""

FAR = 8.0
"""Multiple of the floor by bytes and operations above which an estimate is worth a remark."""


def account(made: Decisions) -> CompileReport:
    """The report of one compilation."""
    candidates = candidate_reports(made)
    in_place = written_in_place(made)
    regions = tuple(region_reports(made, candidates, in_place))
    return CompileReport(
        graph=made.graph.name,
        target=str(made.selector.target),
        regions=regions,
        candidates=tuple(entry for _, entry in candidates),
        kernel_count=sum(r.kernels for r in regions),
        unfused_kernel_count=sum(not n.op.is_renaming for n in made.graph.nodes) - len(made.implied),
        read_bytes=sum(r.read_bytes for r in regions),
        written_bytes=sum(r.written_bytes for r in regions),
        unfused_bytes=unfused_bytes(made.graph, made.implied, {n for r in in_place for n in r.origins}),
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
    """Each engine's answer for each set of nodes that was asked about, once.

    A spelling of a node that a pass tried, an attention with a bias for its band, is left out where every engine says
    of it what it said of an earlier one.
    """
    chosen = {(offer.region, engine_of(offer)) for offer in made.cover.picks}
    conflicts = {(offer.region, engine_of(offer)): reason for offer, reason in made.cover.conflicts}
    candidates: list[tuple[Region, CandidateReport]] = []
    user_names = UserNames(made)
    proposed = {(p.region.key, p.region.origins) for p in made.proposals}
    whole = {r: None for r in made.expanded if (r.key, r.origins) not in proposed}
    told: set[tuple[tuple[str, ...], tuple[tuple[str, str], ...]]] = set()
    for region in (*(p.region for p in made.proposals), *whole):
        entries: list[CandidateReport] = []
        for engine, answer in made.selector.support.answers(region).items():
            key = (region, engine)
            id = f"c{len(candidates) + len(entries)}"
            if isinstance(answer, Support):
                entry = accepted(id, engine, region, answer, made.selector, key in chosen, conflicts.get(key))
            else:
                own = own_answer(made.selector, engine, region, answer)
                entry = refused(id, engine, region, user_names.translated(own, engine, region), made.selector)
            entries.append(entry)
        if region in whole:
            sentences = region.origins, tuple((e.engine, e.reason) for e in entries)
            if sentences in told:
                continue
            told.add(sentences)
        candidates += [(region, entry) for entry in entries]
    return candidates


def written_in_place(made: Decisions) -> set[Region]:
    """Regions that write a slice into the memory that they read the rest from, as of a state: the rest stays there."""
    places = made.schedule.places
    return {
        step.region
        for step in made.schedule.steps
        if isinstance(step.region.nodes[0].op, WriteSlice)
        and any(places[step.region.inputs[i]] == places[step.region.outputs[o]] for i, o in step.in_place)
    }


def bytes_in_place(node: Node) -> tuple[int, int]:
    """Bytes that a slice written in place reads and writes."""
    assert isinstance(node.op, WriteSlice)
    return node.op.bytes_in_place(node.operand_types, node.result_types)


def unfused_bytes(graph: Graph, casts: Mapping[Value, Value], in_place: Collection[str]) -> int:
    """Bytes that one kernel per user node would read and write; views move nothing, and casts for promotion are part of
    the kernel that reads them.  The nodes `in_place` are slices written in place, as they would be too."""
    total = 0
    for node in graph.nodes:
        if node.name in in_place:
            total += sum(bytes_in_place(node))
        elif not node.op.is_renaming and node.result not in casts:
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
        measured_us=selector.timed.measured_us(engine, region),
        plans=plan_reports(selector, engine, region),
    )


def ruled_out(selector: Selector, engine: str, region: Region, answer: Support) -> str:
    """What a limit on scratch costs an engine that does with less, in words; nothing where it costs none."""
    free = selector.support.without_scratch_limit(engine, region) if selector.limits.most_scratch is not None else None
    if free is None or free.estimated_us >= answer.estimated_us or not selector.limits.forbids(free.workspace_bytes):
        return ""
    limit = selector.limits.loosened(free.workspace_bytes, deterministic=True)
    return (
        f"{limit.attribute}={limit.before} rules out {free.workspace_bytes} bytes of scratch, with which {engine} is "
        f"estimated at {free.estimated_us:.1f} us"
    )


def refused(id: str, engine: str, region: Region, answer: Decline, selector: Selector) -> CandidateReport:
    """An engine's "no" as the report states it."""
    offered = selector.support.offered(engine, region)
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
    offered = selector.support.offered(engine, region)
    limited = any(selector.limits.forbids(t.candidate.workspace_bytes) for t in tried)
    free = (selector.support.without_scratch_limit(engine, region) if limited else None) or offered
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


def region_reports(
    made: Decisions, candidates: list[tuple[Region, CandidateReport]], in_place: Collection[Region]
) -> list[RegionReport]:
    """The cover's regions in the order they run; of those `in_place` what a window takes."""
    names: Counter[str] = Counter()
    order = {step.region: i for i, step in enumerate(made.schedule.steps)}
    touching = Touching(candidates, list(order))
    reports = []
    for offer in sorted(made.cover.picks, key=lambda o: order[o.region]):
        region, engine = offer.region, engine_of(offer)
        answer = made.selector.support.answers(region)[engine]
        assert isinstance(answer, Support)
        plan = made.plans.get(region)
        estimated_us, moved = answer.estimated_us, (region.read_bytes, region.written_bytes)
        if region in in_place and answer.in_place_us is not None:
            estimated_us, moved = answer.in_place_us, bytes_in_place(region.nodes[0])
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
                estimated_us=estimated_us,
                measured_us=plan.measured_us if plan else None,
                workspace_bytes=plan.candidate.workspace_bytes if plan else answer.workspace_bytes,
                read_bytes=moved[0],
                written_bytes=moved[1],
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
    """Whether a plain kernel was chosen for its price, not for want of another: another engine takes the region's
    anchor, alone or with other work, and does so without the matrix units' best kernels too, in float32 or on few
    channels.

    Of others a plain kernel that is the cheapest says that a price is wrong.
    """
    anchor = anchor_of(region)
    is_rival = answer.precision == "float32" or has_few_channels(anchor)
    return is_rival and any(
        entry.code is None and entry.engine != engine and anchor in asked.nodes for asked, entry in candidates
    )


def remarks(selector: Selector, region: Region, answer: Support) -> list[str]:
    """What is to be said of a region's time: why it was not measured, or that its estimate is far from its floor."""
    outcome = selector.timed.of(region)
    if outcome is not None:
        return [outcome.note] if outcome.note else []
    floor = floor_us(region, selector.target, selector.policy.precision)
    if answer.estimated_us <= FAR * floor or not floor:
        return []
    times = answer.estimated_us / floor
    return [f'estimated {times:.0f} times the floor by bytes and operations; selection="autotune" would measure it']


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
