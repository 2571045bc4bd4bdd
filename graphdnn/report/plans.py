"""The plans of one region as text: every engine's answer for its very nodes, plan by plan, then for other nodes."""

from __future__ import annotations

from collections.abc import Sequence

from graphdnn.report.explain import TABLE_PATTERN, printable, shorten
from graphdnn.report.model import CandidateReport, CompileReport, PlanReport, RegionReport
from graphdnn.spelling import byte_count, counted, first_of

HEADINGS = ("engine", "plan", "verdict", "scratch", "estimate us", "time us", "same bits", "precision", "notes")
NUMERIC = ("scratch", "estimate us", "time us")
ORDER = ("chosen", "slower", "conflict", "excluded", "wrong", "failed", "declined")
"""Verdicts as they are listed."""


def plans(report: CompileReport, name: str) -> str:
    """The region's candidates and their plans as text.  Raises KeyError naming the regions there are."""
    place = report.regions.index(report.region(name))
    report = printable(report)
    region = report.regions[place]
    same = [c for c in region.alternatives if (c.nodes, c.pattern) == (region.nodes, region.pattern)]
    others = [c for c in region.alternatives if c not in same]
    own = [*(c for c in report.candidates if is_pick(c, region))][:1] + same
    parts = [heading(region), table(own), reasons(own), beside(others)]
    return "\n\n".join(part for part in parts if part)


def is_pick(entry: CandidateReport, region: RegionReport) -> bool:
    """Whether a candidate is the one that the region runs on; conversions of equal cost cannot be told apart."""
    return entry.verdict == "chosen" and (entry.nodes, entry.pattern, entry.engine, entry.estimated_us) == (
        region.nodes,
        region.pattern,
        region.engine,
        region.estimated_us,
    )


def heading(region: RegionReport) -> str:
    time = f"measured {region.measured_us:.2f} us" if region.measured_us is not None else "not timed"
    runs = f"{region.engine} {region.plan}".rstrip()
    return (
        f"region {region.name}: {region.pattern}\n"
        f"  does the work of {', '.join(region.nodes) or 'no node; it changes a layout'}\n"
        f"  runs on {runs}: {counted(region.kernels, 'kernel')}, scratch {byte_count(region.workspace_bytes)}, "
        f"estimated {region.estimated_us:.2f} us, {time}"
    )


def table(entries: Sequence[CandidateReport]) -> str:
    """A row a plan; engines that have none to show, since they decline or the device is not here, have one row.

    Plans are never shortened: `disabled_plans` takes their names, which differ anywhere.
    """
    if not entries:
        return "the report holds no engine's answer for just these nodes"
    rows = [row for entry in entries for row in rows_of(entry)]
    rows.sort(key=lambda row: ORDER.index(row[2]))
    return columns((HEADINGS, *rows), NUMERIC)


def rows_of(entry: CandidateReport) -> list[tuple[str, ...]]:
    if not entry.plans:
        return [(entry.engine, "", entry.verdict, "", us(entry.estimated_us), us(entry.measured_us), "", "", "")]
    return [row_of(entry, plan) for plan in entry.plans]


def row_of(entry: CandidateReport, plan: PlanReport) -> tuple[str, ...]:
    estimate = plan.estimated_us if plan.estimated_us is not None else entry.estimated_us
    verdict = "slower" if plan.verdict == "chosen" and entry.verdict == "slower" else plan.verdict
    return (
        entry.engine,
        plan.name,
        verdict,
        byte_count(plan.workspace_bytes),
        us(estimate),
        us(plan.measured_us),
        "yes" if plan.deterministic else "no",
        plan.precision,
        "; ".join(plan.notes),
    )


def us(time: float | None) -> str:
    return "" if time is None else f"{time:.2f}"


def reasons(entries: Sequence[CandidateReport]) -> str:
    """Why engines and plans were not taken, and what would change that; each reason once."""
    said: dict[str, list[str]] = {}
    for entry in entries:
        fix = f"; to have it: {entry.fix.sentence}" if entry.fix else ""
        if entry.reason and not (entry.plans and entry.verdict == "slower"):
            said.setdefault(entry.reason + fix, []).append(entry.engine)
        if entry.ruled_out:
            said.setdefault(entry.ruled_out, []).append(entry.engine)
        for plan in entry.plans:
            if plan.reason:
                said.setdefault(plan.reason, []).append(f"{entry.engine} {plan.name}")
    lines = [f"  {first_of(who, 3)}: {reason}" for reason, who in said.items()]
    return "\n".join(("why not", *lines)) if lines else ""


def beside(entries: Sequence[CandidateReport]) -> str:
    """What engines said of other sets of nodes that hold some of the region's."""
    taken = [c for c in entries if c.verdict != "declined"]
    lines = []
    if taken:
        rows = [
            (c.engine, shorten(c.pattern, TABLE_PATTERN), c.verdict, us(c.estimated_us), us(c.measured_us))
            for c in taken
        ]
        grid = columns((("engine", "pattern", "verdict", "estimate us", "time us"), *rows), NUMERIC)
        lines += ["other sets of nodes", *(f"  {line}" for line in grid.splitlines())]
    refused = len(entries) - len(taken)
    if refused:
        lines.append(f"declined besides: {counted(refused, 'answer')} for other sets of nodes")
    return "\n".join(lines)


def columns(rows: Sequence[Sequence[str]], numeric: Sequence[str]) -> str:
    """Rows as aligned text, the headings underlined, without columns that say nothing; `numeric` ones to the right."""
    told = [column for column in zip(*rows, strict=True) if any(column[1:])]
    aligned = []
    for column in told:
        width = max(map(len, column))
        aligned.append([cell.rjust(width) if column[0] in numeric else cell.ljust(width) for cell in column])
    lines = ["  ".join(cells).rstrip() for cells in zip(*aligned, strict=True)]
    return "\n".join((lines[0], "-" * max(map(len, lines)), *lines[1:]))
