"""The report as text, for a terminal: what runs, what it saves, and why the rest was not taken.

Of the many answers of the engines it shows those that teach something: changes that would be accepted, what failed or
was ruled out, and why the next larger fusion is not taken.  All answers are in the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from io import StringIO
from typing import Any
from unicodedata import category

from graphdnn.report.model import CandidateReport, CompileReport, RegionReport
from graphdnn.spelling import byte_count, counted
from graphdnn.strict_json import Record

WIDTH = 250
"""Characters of a line of the table, which is wider than any: a narrow terminal breaks lines, and files do not."""

LINE_PATTERN, TABLE_PATTERN = 60, 40
"""Characters of a pattern within a line, and in a column of a table."""

GAP, END = "...", 19
"""What stands for a long pattern's middle, and how many characters of its end are shown."""

HEADINGS = ("region", "pattern", "engine and plan", "kernels", "estimate us", "measured us", "read", "written")
TEXTS = ("region", "pattern", "engine and plan")
RULED = "\n".join(("    ", "    ", " -- ", *["    "] * 5)) + "\n"
"""A rule below the headings and no other line, as rich's boxes are spelt; ASCII, which every output can show."""

SHOWN_LINES = 4
"""Lines that are shown under a region."""

SHOWN_NAMES = 3
"""Names of further regions of which the same holds that are shown."""

SHOWN_CHANGES = 8
"""Lines that are shown of what one pass changed."""

CLOSE = 1.5
"""Another engine for the same work is named up to this multiple of the chosen one's estimate."""

OBEYED = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of control and format characters, lone surrogates, and separators of lines."""

TROUBLE = ("failed", "wrong", "conflict", "excluded")
"""Verdicts of plans and answers that something kept from being chosen."""

BESIDE_THE_POINT = ("op", "pattern")
"""Codes that say no more than that an engine is for other work, where the set of nodes is that of the region."""


def explain(report: CompileReport) -> str:
    """A summary, a table of regions, why they are what they are (regions alike once), and what the passes did."""
    report = printable(report)
    parts = [summary(report), table(report), *grouped(report)]
    if report.promotions:
        lines = (f"  {p.node}: {p.operand} is {p.before} and is computed in {p.after}" for p in report.promotions)
        parts.append("\n".join(("promotions", *lines)))
    parts += passes(report)
    found = len(report.candidates)
    held = f"all {found} answers" if found > 1 else "the only answer" if found else "no answer"
    parts.append(f"exe.report.candidates holds {held} of the engines")
    return "\n\n".join(parts)


def printable(report: CompileReport) -> CompileReport:
    """The report as it may be shown: names are anybody's, and a terminal does what control characters in them say."""
    shown: CompileReport = escaped_within(report, {})
    return shown


def escaped_within(value: Any, known: dict[int, Any]) -> Any:
    """The same with every text in it escaped, itself where there is nothing to escape; `known` are parts seen."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, tuple | list):
        entries = [escaped_within(entry, known) for entry in value]
        return value if all(a is b for a, b in zip(entries, value, strict=True)) else type(value)(entries)
    if isinstance(value, dict):
        pairs = {escaped(str(name)): escaped_within(entry, known) for name, entry in value.items()}
        return value if all(pairs.get(name, known) is entry for name, entry in value.items()) else pairs
    if not isinstance(value, Record):
        return value
    if id(value) not in known:
        fields = {name: (old, escaped_within(old, known)) for name, old in vars(value).items()}
        changed = {name: new for name, (old, new) in fields.items() if new is not old}
        known[id(value)] = value.model_copy(update=changed) if changed else value
    return known[id(value)]


def escaped(text: str) -> str:
    """A text on one line, without characters that a terminal obeys or that have no form of their own."""
    if text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if category(c) in OBEYED else c for c in text)


def summary(report: CompileReport) -> str:
    moved = report.read_bytes + report.written_bytes
    lines = [
        f"graph {report.graph} for {report.target}: {counted(report.kernel_count, 'kernel')} "
        f"(unfused {report.unfused_kernel_count}), {byte_count(moved)} moved "
        f"(unfused {byte_count(report.unfused_bytes)}), estimated {report.estimated_us:.1f} us",
        f"memory: arena {byte_count(report.arena_bytes)}, peak {byte_count(report.peak_bytes)}",
    ]
    if report.last_resort_count:
        verb = "runs" if report.last_resort_count == 1 else "run"
        lines.append(
            f"{counted(report.last_resort_count, 'region')} {verb} on last-resort kernels, correct but not tuned"
        )
    if not report.exact_cover:
        lines.append("the cover was found by a bounded search, not an exact one")
    lines += report.effects
    plans = spoiled_plans(report)
    if plans["wrong"]:
        lines.append(
            f"{counted(plans['wrong'], 'plan')} gave wrong numbers and {plans['failed']} failed; none was chosen"
        )
    elif plans["failed"]:
        lines.append(f"{counted(plans['failed'], 'plan')} failed; none was chosen")
    return "\n".join(lines)


def spoiled_plans(report: CompileReport) -> Counter[str]:
    """How many plans failed and how many were wrong.

    Equal regions share what became of their plans, times and estimates included, so equal plans of one engine and
    pattern are one.
    """
    entries = ((c.engine, c.pattern, p) for c in report.candidates for p in c.plans)
    spoiled = {entry for entry in entries if entry[2].verdict in ("wrong", "failed")}
    return Counter(plan.verdict for _, _, plan in spoiled)


def table(report: CompileReport) -> str:
    """One line a region."""
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_timed = any(r.measured_us is not None for r in report.regions)
    shown = [h for h in HEADINGS if is_timed or h != "measured us"]
    grid = Table(box=Box(RULED, ascii=True), pad_edge=False)
    for heading in shown:
        grid.add_column(heading, justify="left" if heading in TEXTS else "right", no_wrap=True)
    for r in report.regions:
        engine = f"{r.engine} (last resort)" if r.last_resort else f"{r.engine} {r.plan}"
        measured = "" if r.measured_us is None else f"{r.measured_us:.1f}"
        texts = (r.name, shorten(r.pattern, TABLE_PATTERN), engine, str(r.kernels), f"{r.estimated_us:.1f}", measured)
        cells = dict(zip(HEADINGS, (*texts, byte_count(r.read_bytes), byte_count(r.written_bytes)), strict=True))
        grid.add_row(*(Text(cells[h]) for h in shown))  # as they are: a user's name may look like markup
    out = StringIO()
    Console(file=out, width=WIDTH, color_system=None, emoji=False).print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines() if line.strip())


class Rank(IntEnum):
    """What a line under a region teaches, the most useful first; of a region's lines the first few are shown."""

    FIX = 0
    """A change that would be accepted; each is told once in all of the text."""
    TROUBLE = 1
    """What failed or was ruled out."""
    REFUSED = 2
    """Why another engine does not take the same work."""
    LARGER = 3
    """Why the region does not hold more."""
    CLOSE = 4
    """Another engine that takes nearly as little time."""


@dataclass(frozen=True)
class Lesson:
    """One line under a region.  Lessons of two regions that differ in `text` only, with equal `kind`, are alike."""

    rank: Rank
    kind: tuple[str | None, ...]
    text: str


def grouped(report: CompileReport) -> list[str]:
    """A paragraph for each kind of region that there is something to say about; what is alike is said once."""
    groups: dict[object, list[tuple[RegionReport, list[Lesson]]]] = {}
    offered: dict[object, list[CandidateReport]] = {}
    for entry in report.candidates:
        if entry.plans and entry.code is None:
            offered.setdefault((entry.pattern, entry.nodes), []).append(entry)
    said: set[str] = set()
    for region in report.regions:
        every = lessons(region, report.regions, offered.get((region.pattern, region.nodes), ()))
        found = [one for one in every if one.rank != Rank.FIX or one.text not in said]
        said.update(one.text for one in found)
        if found:
            key = (region.pattern, region.engine, tuple(one.kind for one in found))
            groups.setdefault(key, []).append((region, found))
    return [paragraph(group) for group in groups.values()]


def paragraph(group: Sequence[tuple[RegionReport, list[Lesson]]]) -> str:
    region, found = group[0]
    lines = [f"{region.name}: {shorten(region.pattern)} on {region.engine} at {taken(region):.1f} us"]
    lines += [f"  {one.text}" for one in found]
    others = [r.name for r, _ in group[1:]]
    if others:
        more = f", ... ({len(others)} in all)" if len(others) > SHOWN_NAMES else ""
        lines.append(f"  likewise {', '.join(others[:SHOWN_NAMES])}{more}")
    return "\n".join(lines)


def lessons(
    region: RegionReport, regions: Sequence[RegionReport], offered: Sequence[CandidateReport] = ()
) -> list[Lesson]:
    """What a user learns from a region's alternatives, and from the plans of engines that take its very work, the
    `offered`: the most useful first, a few at most."""
    same = [c for c in region.alternatives if is_same_work(c, region)]
    larger = sorted((c for c in region.alternatives if encloses(c, region)), key=extent)
    fixable = {(c.engine, c.fix.sentence): c for c in reversed((*same, *larger)) if c.fix and c.verdict == "declined"}
    found = [lesson(Rank.FIX, c, c.fix.attribute if c.fix else None) for c in fixable.values()]
    found += [lesson(Rank.TROUBLE, c) for c in region.alternatives if c.verdict in TROUBLE]
    declined = (c for c in same if c.verdict == "declined" and not c.fix and c.code not in BESIDE_THE_POINT)
    found += [lesson(Rank.REFUSED, c) for c in declined]
    found += [lesson(Rank.REFUSED, c) for c in refused_parts(region)] if region.last_resort else []
    found += next_larger(region, larger, regions)
    found += [one for c in offered for one in spoiled(c)]
    costs = dict.fromkeys(text for text in (region.ruled_out, *(c.ruled_out for c in same)) if text)
    found += [Lesson(Rank.TROUBLE, ("ruled out",), f"excluded: {text}") for text in costs]
    close = [c for c in same if c.verdict == "slower" and taken(c) <= CLOSE * taken(region)]
    found += [Lesson(Rank.CLOSE, ("close", c.engine), f"close: {c.engine} at {taken(c):.1f} us") for c in close]
    once = {one.text: one for one in sorted(found, key=lambda one: one.rank)}
    return list(once.values())[:SHOWN_LINES]


def is_same_work(entry: CandidateReport, region: RegionReport) -> bool:
    """Whether an answer is of another engine about what a region does.

    One of the region's own engine is about a node as it was before passes made it what that engine runs now.
    """
    alike = entry.pattern == region.pattern and set(entry.nodes) == set(region.nodes)
    return alike and entry.engine != region.engine


def refused_parts(region: RegionReport) -> list[CandidateReport]:
    """Why a plain kernel runs a region: what other engines say to its ops alone, where none of them takes one."""
    ops = region.pattern.split("+")
    alone = [c for c in region.alternatives if c.pattern in ops and c.engine != region.engine]
    offered = {(c.pattern, c.nodes) for c in alone if c.code is None}
    return [c for c in alone if (c.pattern, c.nodes) not in offered and c.code != "pattern"]


def taken(entry: CandidateReport | RegionReport) -> float:
    """Microseconds: measured where they were, else estimated."""
    return entry.measured_us if entry.measured_us is not None else entry.estimated_us or 0.0


def extent(entry: CandidateReport) -> int:
    return entry.pattern.count("+") + 1


def encloses(entry: CandidateReport, region: RegionReport) -> bool:
    """Whether a candidate holds a region and more, or is the composite op that the region is a part of."""
    ops = region.pattern.split("+")
    whole = extent(entry) == 1 and entry.pattern not in ops
    return set(entry.nodes) >= set(region.nodes) and (whole or extent(entry) > len(ops))


def spoiled(entry: CandidateReport) -> list[Lesson]:
    """Plans of an engine that failed or gave wrong numbers, while others are usable: the first of each kind and why."""
    found = []
    for verdict in ("wrong", "failed"):
        names = [p.name for p in entry.plans if p.verdict == verdict]
        reason = next((p.reason for p in entry.plans if p.verdict == verdict), "")
        if names:
            more = f" and {len(names) - 1} more" if names[1:] else ""
            text = f"{verdict}: {entry.engine} {names[0]}{more}: {reason}"
            found.append(Lesson(Rank.TROUBLE, ("plan", verdict, entry.engine), text))
    return found


def lesson(rank: Rank, entry: CandidateReport, attribute: str | None = None) -> Lesson:
    """An answer in words, with its verdict, engine, pattern and reason, and the change that would be accepted."""
    text = f"{entry.verdict}: {entry.engine} {shorten(entry.pattern)}: {entry.reason}"
    fix = f"\n    to have it: {entry.fix.sentence}" if entry.fix else ""
    return Lesson(rank, (entry.verdict, entry.engine, entry.code, attribute), text + fix)


def next_larger(
    region: RegionReport, larger: Sequence[CandidateReport], regions: Sequence[RegionReport]
) -> list[Lesson]:
    """Why the region does not hold more: the cheapest larger one that lost, else the smallest that nobody takes."""
    lost = sorted((c for c in larger if c.verdict == "slower"), key=taken)
    if lost:
        best = lost[0]
        parts = [r for r in regions if r.nodes and set(r.nodes) <= set(best.nodes)]
        whole = sum(r.pattern.count("+") + 1 for r in parts) == extent(best)
        against = (
            f"; the {counted(len(parts), 'region')} in its place take {sum(map(taken, parts)):.1f} us" if whole else ""
        )
        text = f"slower: {best.engine} {shorten(best.pattern)} at {taken(best):.1f} us{against}"
        return [Lesson(Rank.LARGER, ("slower", best.engine), text)]
    refused = [c for c in larger if c.verdict == "declined" and extent(c) == extent(larger[0])]
    if any(c.fix for c in refused):
        return []
    refused.sort(key=lambda c: (c.code in BESIDE_THE_POINT, c.engine != region.engine))
    return [lesson(Rank.LARGER, c) for c in refused[:1]]


def passes(report: CompileReport) -> list[str]:
    """What each pass changed and nearly changed; what it did several times once, and long lists cut.

    Not the casts of promotion, which have a paragraph of their own.
    """
    paragraphs = []
    for p in report.passes:
        if p.name == "promote":
            continue
        refusals = (f"not {r.rule} on {', '.join(r.nodes)}: {r.reason}" for r in p.refusals)
        lines = [f"  {line}" for line in dict.fromkeys((*p.changes, *refusals))]
        if len(lines) > SHOWN_CHANGES:
            lines[SHOWN_CHANGES:] = [f"  and {len(lines) - SHOWN_CHANGES} more"]
        if lines:
            paragraphs.append("\n".join((f"pass {p.name}", *lines)))
    return paragraphs


def shorten(pattern: str, limit: int = LINE_PATTERN) -> str:
    """A pattern with its middle left out where it is long."""
    start = limit - len(GAP) - END
    return pattern if len(pattern) <= limit else f"{pattern[:start]}{GAP}{pattern[-END:]}"
