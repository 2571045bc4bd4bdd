"""What changed between two reports: totals, versions, options, passes, and which regions were fused, split or moved.

Regions are matched by the user's nodes whose work they do; regions that share nodes and do not match were regrouped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphdnn.report.explain import TABLE_PATTERN, printable, shorten
from graphdnn.report.model import CompileReport, PassReport, RegionReport
from graphdnn.spelling import byte_count, counted

Format = Callable[[int], str]

SHOWN = 8
"""Lines of one pass's changes that are shown."""

TOTALS: dict[str, str] = {
    "kernel_count": "kernels",
    "unfused_kernel_count": "kernels unfused",
    "last_resort_count": "regions on last-resort kernels",
}
BYTES: dict[str, str] = {
    "read_bytes": "read",
    "written_bytes": "written",
    "unfused_bytes": "moved unfused",
    "arena_bytes": "arena",
    "peak_bytes": "peak",
}
"""Fields of a report that count something, and what they are called here."""

REGION_BYTES: dict[str, str] = {"workspace_bytes": "scratch", "read_bytes": "read", "written_bytes": "written"}
"""The same of one region's bytes."""

SUMMED: tuple[tuple[str, str, Format], ...] = (
    ("kernels", "kernels", str),
    ("read_bytes", "read", byte_count),
    ("written_bytes", "written", byte_count),
)
"""Fields of a region that are added up over a group."""

PLAIN = ("precision", "deterministic", "last_resort", "pattern")
"""Fields of a region that are compared as they are."""


def difference(old: CompileReport, new: CompileReport) -> str:
    """What changed from one report to another, as text; empty where they are equal."""
    if old == new:
        return ""
    old, new = printable(old), printable(new)
    paragraphs = [
        heading(old, new),
        block("totals", totals(old, new)),
        block("versions", mappings(old.versions, new.versions)),
        block("options", mappings(old.options, new.options)),
        block("effects of the options", listed(old.effects, new.effects)),
        block("passes", passes(old, new)),
        block("promotions", listed(map(str, old.promotions), map(str, new.promotions))),
        block("regions", regions(old.regions, new.regions)),
        block("answers of the engines", answers(old, new)),
    ]
    return "\n\n".join(p for p in paragraphs if p)


def heading(old: CompileReport, new: CompileReport) -> str:
    graph = changed(old.graph, new.graph)
    return f"graph {graph} for {changed(old.target, new.target)}"


def block(title: str, lines: Sequence[str]) -> str:
    return "\n".join((title, *(f"  {line}" for line in lines))) if lines else ""


def changed(old: object, new: object) -> str:
    return str(new) if old == new else f"{old} -> {new}"


def totals(old: CompileReport, new: CompileReport) -> list[str]:
    """Sums of the whole graph that are not what they were."""
    lines = numbers(old, new, TOTALS, str) + numbers(old, new, BYTES, byte_count)
    lines += times("estimated", old.estimated_us, new.estimated_us)
    lines += times("measured", measured(old.regions), measured(new.regions))
    if old.exact_cover != new.exact_cover:
        lines.append(f"cover found by {changed(*('exact' if r.exact_cover else 'bounded' for r in (old, new)))} search")
    return lines


def measured(regions: Sequence[RegionReport]) -> float | None:
    """Sum of the measured times, where every region has one."""
    found = [r.measured_us for r in regions if r.measured_us is not None]
    return sum(found) if found and len(found) == len(regions) else None


def numbers(old: Any, new: Any, fields: Mapping[str, str], text: Format) -> list[str]:
    """A line for each field that counts something else than before."""
    pairs = [(title, getattr(old, name), getattr(new, name)) for name, title in fields.items()]
    return [f"{title} {text(a)} -> {text(b)}{exact(text, a, b)}" for title, a, b in pairs if a != b]


def exact(text: Format, old: int, new: int) -> str:
    """The difference in bytes where both are written alike."""
    return f" ({new - old:+d} B)" if text(old) == text(new) else ""


def times(title: str, old: float | None, new: float | None) -> list[str]:
    """A line where a time is another one."""
    if old == new:
        return []
    before, after = ("none" if us is None else f"{us:.2f}" for us in (old, new))
    share = f" ({(new / old - 1) * 100:+.1f} %)" if old and new is not None else ""
    return [f"{title} us {before} -> {after}{share}"]


def mappings(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Entries that were added, removed or changed."""
    names = [n for n in dict.fromkeys((*old, *new)) if old.get(n, ...) != new.get(n, ...)]
    return [f"{n}: {old.get(n, 'absent')} -> {new.get(n, 'absent')}" for n in names]


def passes(old: CompileReport, new: CompileReport) -> list[str]:
    """What passes did only before, and only now."""
    before, after = ({p.name: p for p in r.passes} for r in (old, new))
    lines: list[str] = []
    for name in dict.fromkeys((*before, *after)):
        if name not in after or name not in before:
            lines.append(f"{name} did not run {'before' if name in after else 'now'}")
        found = [f"{name} {line}" for line in listed(sentences(before.get(name)), sentences(after.get(name)))]
        if len(found) > SHOWN:
            found[SHOWN:] = [f"{name}   and {len(found) - SHOWN} more"]
        lines += found
    return lines


def sentences(record: PassReport | None) -> list[str]:
    """What a pass did and nearly did."""
    if record is None:
        return []
    refusals = (f"not {r.rule} on {', '.join(r.nodes)}: {r.reason}" for r in record.refusals)
    return [*record.changes, *refusals]


def listed(old: Iterable[str], new: Iterable[str]) -> list[str]:
    """Lines that only one of two lists has, with - or + before them."""
    before, after = Counter(old), Counter(new)
    return [f"- {line}" for line in (before - after).elements()] + [f"+ {line}" for line in (after - before).elements()]


def answers(old: CompileReport, new: CompileReport) -> list[str]:
    """How many candidates of each verdict only one of the reports has."""
    before, after = (Counter(c.model_dump_json(exclude={"id"}) for c in r.candidates) for r in (old, new))
    gone, come = (before - after).total(), (after - before).total()
    lines = (
        [f"{counted(gone, 'answer')} of before differ from {counted(come, 'answer')} of now"] if gone or come else []
    )
    verdicts = [Counter(c.verdict for c in r.candidates) for r in (old, new)]
    return lines + [
        f"{v}: {verdicts[0][v]} -> {verdicts[1][v]}"
        for v in sorted({*verdicts[0], *verdicts[1]})
        if verdicts[0][v] != verdicts[1][v]
    ]


KEYS: tuple[Callable[[RegionReport], object], ...] = (
    lambda r: (r.nodes, r.pattern, r.name),
    lambda r: (r.nodes, r.pattern),
    lambda r: r.nodes,
)
"""By what regions are matched, the surest first."""


@dataclass(frozen=True)
class Group:
    """Regions of two reports that do the same work; on both sides one where nothing was regrouped."""

    old: tuple[RegionReport, ...]
    new: tuple[RegionReport, ...]


def regions(old: Sequence[RegionReport], new: Sequence[RegionReport]) -> list[str]:
    """A line for each region that runs otherwise, for each group that was fused, split or regrouped, and where the same
    regions run in another order."""
    lines: list[str] = []
    for group in groups(old, new):
        if len(group.old) == len(group.new) == 1:
            before, after = group.old[0], group.new[0]
            details = region(before, after)
            if details or before.name != after.name:
                lines.append(f"{changed(before.name, after.name)}: {'; '.join(details) or 'renamed'}")
        else:
            lines.append(regrouped(group))
    names = [[r.name for r in side] for side in (old, new)]
    if sorted(names[0]) == sorted(names[1]) and names[0] != names[1]:
        lines.append("they run in another order")
    return lines


def groups(old: Sequence[RegionReport], new: Sequence[RegionReport]) -> list[Group]:
    """Regions matched, in the order they run: by equal nodes and pattern, else by equal nodes, else by shared ones."""
    left, right = list(old), list(new)
    found: list[Group] = []
    for key in KEYS:
        waiting: dict[object, list[RegionReport]] = {}
        for one in right:
            waiting.setdefault(key(one), []).append(one)
        for one in list(left):
            matches = waiting.get(key(one))
            if matches and (one.nodes or key is not KEYS[-1]):
                match = matches.pop(0)
                left.remove(one)
                right.remove(match)
                found.append(Group((one,), (match,)))
    found += joined(left, right)
    place = {id(r): i for side in (old, new) for i, r in enumerate(side)}
    in_order = [Group(*(tuple(sorted(side, key=lambda r: place[id(r)])) for side in (g.old, g.new))) for g in found]
    return sorted(in_order, key=lambda g: min(place[id(r)] for r in g.new or g.old))


def joined(old: Sequence[RegionReport], new: Sequence[RegionReport]) -> list[Group]:
    """Regions that share nodes, directly or through others, together; conversions, which have none, each alone."""
    parts: list[tuple[set[str], Group]] = []
    for one, group in (*((r, Group((r,), ())) for r in old), *((r, Group((), (r,))) for r in new)):
        nodes = set(one.nodes)
        for part in [p for p in parts if p[0] & nodes]:
            parts.remove(part)
            nodes |= part[0]
            group = Group(part[1].old + group.old, part[1].new + group.new)
        parts.append((nodes, group))
    return [group for _, group in parts]


def regrouped(group: Group) -> str:
    """A group as a line: what became of which regions, and what that does to their time."""
    old, new = group.old, group.new
    sides = " -> ".join(", ".join(map(named, side)) for side in (old, new) if side)
    if not old or not new:
        return f"{'new' if new else 'gone'}: {sides}"
    word = "fused" if len(new) == 1 else "split" if len(old) == 1 else "regrouped"
    return "; ".join((f"{word}: {sides}", *totalled(group)))


def totalled(group: Group) -> list[str]:
    """Kernels, bytes and times of a group, summed."""
    lines: list[str] = []
    for field, title, text in SUMMED:
        old, new = (sum(getattr(r, field) for r in side) for side in (group.old, group.new))
        lines += [f"{title} {text(old)} -> {text(new)}"] if old != new else []
    lines += times("estimated", *(sum(r.estimated_us for r in side) for side in (group.old, group.new)))
    return lines + times("measured", measured(group.old), measured(group.new))


def named(one: RegionReport) -> str:
    return f"{one.name} ({shorten(one.pattern, TABLE_PATTERN)} on {runner(one)})"


def runner(one: RegionReport) -> str:
    return f"{one.engine} {one.plan}".rstrip()


def region(old: RegionReport, new: RegionReport) -> list[str]:
    """What is different about one region."""
    lines = [f"{runner(old)} -> {runner(new)}"] if runner(old) != runner(new) else []
    lines += numbers(old, new, {"kernels": "kernels"}, str)
    lines += times("estimated", old.estimated_us, new.estimated_us)
    lines += times("measured", old.measured_us, new.measured_us)
    lines += numbers(old, new, REGION_BYTES, byte_count)
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in PLAIN]
    lines += [f"{name} {a} -> {b}" for name, a, b in pairs if a != b]
    lines += [f"node {line}" for line in listed(old.nodes, new.nodes)]
    lines += [f"option {line}" for line in listed(*([r.ruled_out] if r.ruled_out else [] for r in (old, new)))]
    return lines + [f"note {line}" for line in listed(old.notes, new.notes)]
