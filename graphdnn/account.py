"""Turning the compiler's decisions into a report: every candidate once, every region with what overlaps it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from graphdnn.answer import Code, Decline
from graphdnn.config import CompileOptions
from graphdnn.engines.choose import Chosen, Desk, Tried
from graphdnn.engines.contract import Support
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region
from graphdnn.passes.fuse import Proposal
from graphdnn.passes.pipeline import PassRecord
from graphdnn.passes.promote import Promotion
from graphdnn.passes.select import Cover
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
    "graphdnn",
    "numpy",
    "scipy",
    "cuda-bindings",
    "cuda-core",
    "nvidia-cudnn-frontend",
    "nvidia-cudnn-cu13",
    "nvidia-cuda-nvrtc",
)
"""Distributions whose versions a report states."""


@dataclass(frozen=True)
class Decisions:
    """Everything that `compile` decided about one graph."""

    graph: Graph
    prepared: Graph
    proposals: tuple[Proposal, ...]
    cover: Cover
    desk: Desk
    plans: dict[Region, Chosen]
    schedule: Schedule
    passes: tuple[PassRecord, ...]
    promotions: tuple[Promotion, ...]
    options: CompileOptions


def account(made: Decisions) -> CompileReport:
    """The report of one compilation."""
    chosen = {(offer.region.mask, bid_engine(offer.payload)) for offer in made.cover.picks}
    conflicts = {(offer.region.mask, bid_engine(offer.payload)): reason for offer, reason in made.cover.conflicts}
    candidates: list[tuple[Region, CandidateReport]] = []
    for proposal in made.proposals:
        for engine, answer in made.desk.answers(proposal.region).items():
            key = (proposal.region.mask, engine)
            entry = candidate(
                f"c{len(candidates)}", engine, proposal.region, answer, made.desk, key in chosen, conflicts.get(key)
            )
            candidates.append((proposal.region, entry))
    regions = tuple(region_reports(made, candidates))
    return CompileReport(
        graph=made.graph.name,
        target=str(made.desk.target),
        regions=regions,
        candidates=tuple(entry for _, entry in candidates),
        kernel_count=sum(r.kernels for r in regions),
        unfused_kernel_count=sum(not n.op.is_renaming for n in made.graph.nodes),
        read_bytes=sum(r.read_bytes for r in regions),
        written_bytes=sum(r.written_bytes for r in regions),
        unfused_bytes=unfused_bytes(made.graph),
        arena_bytes=made.schedule.arena_bytes,
        peak_bytes=made.schedule.peak_bytes,
        last_resort_count=sum(r.last_resort for r in regions),
        exact_cover=made.cover.exact,
        promotions=tuple(
            PromotionReport(node=p.node, operand=p.operand, before=p.before.name, after=p.after.name)
            for p in made.promotions
        ),
        passes=tuple(pass_report(p) for p in made.passes),
        versions=versions(made.desk),
        options=made.options.model_dump(),
    )


def bid_engine(payload: object) -> str:
    return str(getattr(payload, "engine", payload))


def unfused_bytes(graph: Graph) -> int:
    """Bytes that one kernel per user node would read and write; views move nothing."""
    total = 0
    for node in graph.nodes:
        if not node.op.is_renaming:
            read = {v: v.type.nbytes for v in node.operands if v.literal is None}
            total += sum(read.values()) + sum(t.nbytes for t in node.result_types)
    return total


def candidate(
    id: str, engine: str, region: Region, answer: Support | Decline, desk: Desk, is_chosen: bool, conflict: str | None
) -> CandidateReport:
    """One engine's answer for one region as the report states it."""
    tried = desk.tried(engine, region)
    plans = tuple(plan_report(t) for t in tried)
    if isinstance(answer, Support):
        verdict: Verdict = "chosen" if is_chosen else "conflict" if conflict else "slower"
        reason = "" if is_chosen else conflict or "a cheaper cover won"
        return CandidateReport(
            id=id,
            engine=engine,
            pattern=region.pattern,
            nodes=region.origins,
            verdict=verdict,
            reason=reason,
            estimated_us=answer.estimated_us,
            plans=plans,
        )
    verdict = (
        "excluded" if answer.code is Code.OPTION else "failed" if answer.code in (Code.BUILD, Code.RUN) else "declined"
    )
    return CandidateReport(
        id=id,
        engine=engine,
        pattern=region.pattern,
        nodes=region.origins,
        verdict=verdict,
        code=answer.code.value,
        reason=answer.reason,
        fix=fix_report(answer),
        plans=plans,
    )


def fix_report(answer: Decline) -> FixReport | None:
    fix = answer.fix
    if fix is None:
        return None
    return FixReport(target=fix.target, attribute=fix.attribute, before=fix.before, after=fix.after, sentence=str(fix))


def plan_report(tried: Tried) -> PlanReport:
    plan = tried.candidate
    verdict: Verdict = tried.verdict  # type: ignore[assignment]
    return PlanReport(
        name=plan.name,
        workspace_bytes=plan.workspace_bytes,
        deterministic=plan.deterministic,
        precision=plan.precision,
        notes=plan.notes,
        verdict=verdict,
        reason=tried.reason,
    )


def region_reports(made: Decisions, candidates: list[tuple[Region, CandidateReport]]) -> list[RegionReport]:
    """The cover's regions in the order they run."""
    names: Counter[str] = Counter()
    order = {step.region: i for i, step in enumerate(made.schedule.steps)}
    reports = []
    for offer in sorted(made.cover.picks, key=lambda o: order[o.region]):
        region, engine = offer.region, bid_engine(offer.payload)
        answer = made.desk.answers(region)[engine]
        assert isinstance(answer, Support)
        plan = made.plans.get(region)
        stem = region.origins[-1] if region.origins else region.pattern
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
                workspace_bytes=plan.candidate.workspace_bytes if plan else answer.workspace_bytes,
                read_bytes=region.read_bytes,
                written_bytes=region.written_bytes,
                deterministic=plan.candidate.deterministic if plan else answer.deterministic,
                last_resort=answer.last_resort,
                notes=plan.candidate.notes if plan else answer.notes,
                alternatives=tuple(c for other, c in candidates if other.mask & region.mask and c.verdict != "chosen"),
            )
        )
    return reports


def pass_report(record: PassRecord) -> PassReport:
    refusals = tuple(RefusalReport(rule=r.rule, nodes=r.nodes, reason=r.reason) for r in record.refusals)
    return PassReport(
        name=record.name,
        changes=record.changes,
        refusals=refusals,
        nodes_before=record.nodes_before,
        nodes_after=record.nodes_after,
    )


def versions(desk: Desk) -> dict[str, str]:
    """Installed packages, and the libraries of the target."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {**found, **{f"target {name}": v for name, v in desk.target.versions.items()}}
