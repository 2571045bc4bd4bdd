"""The report as text, for a terminal: what runs, what it saves, and why the rest was not taken."""

from __future__ import annotations

from io import StringIO

from graphdnn.report import CandidateReport, CompileReport, RegionReport

WIDTH = 120
SHOWN_ALTERNATIVES = 6


def explain(report: CompileReport) -> str:
    """A summary, a table of regions, then for each region the alternatives with their reason and fix."""
    parts = [summary(report), table(report), *(reasons(r) for r in report.regions if r.alternatives)]
    if report.promotions:
        parts.append(
            "promotions\n" + "\n".join(f"  {p.node}: {p.operand} {p.before} -> {p.after}" for p in report.promotions)
        )
    notes = [f"  {p.name}: {change}" for p in report.passes for change in p.changes]
    notes += [
        f"  {p.name}: not {r.rule} on {', '.join(r.nodes)}: {r.reason}" for p in report.passes for r in p.refusals
    ]
    if notes:
        parts.append("passes\n" + "\n".join(notes))
    return "\n\n".join(parts)


def summary(report: CompileReport) -> str:
    moved = report.read_bytes + report.written_bytes
    lines = [
        f"graph {report.graph} for {report.target}: {report.kernel_count} kernels "
        f"(unfused {report.unfused_kernel_count}), {size(moved)} moved (unfused {size(report.unfused_bytes)}), "
        f"estimated {report.estimated_us:.1f} us",
        f"memory: arena {size(report.arena_bytes)}, peak {size(report.peak_bytes)}",
    ]
    if report.last_resort_count:
        lines.append(f"{report.last_resort_count} regions run on last-resort kernels")
    if not report.exact_cover:
        lines.append("the cover was found by a bounded search, not an exact one")
    return "\n".join(lines)


def table(report: CompileReport) -> str:
    """One line a region."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, justify in (
        ("region", "left"),
        ("pattern", "left"),
        ("engine", "left"),
        ("plan", "left"),
        ("kernels", "right"),
        ("estimate us", "right"),
        ("read", "right"),
        ("written", "right"),
    ):
        grid.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for r in report.regions:
        engine = f"{r.engine} (last resort)" if r.last_resort else r.engine
        grid.add_row(
            r.name,
            shorten(r.pattern),
            engine,
            r.plan,
            str(r.kernels),
            f"{r.estimated_us:.1f}",
            size(r.read_bytes),
            size(r.written_bytes),
        )
    out = StringIO()
    Console(file=out, width=WIDTH, color_system=None).print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def reasons(region: RegionReport) -> str:
    """Why this region is what it is: the alternatives, the larger first."""
    ranked = sorted(region.alternatives, key=lambda c: (-len(c.nodes), c.id))
    lines = [f"{region.name}: {region.pattern} on {region.engine}"]
    lines += [f"  {alternative(c)}" for c in ranked[:SHOWN_ALTERNATIVES]]
    hidden = len(ranked) - SHOWN_ALTERNATIVES
    if hidden > 0:
        lines.append(f"  and {hidden} more in exe.report")
    return "\n".join(lines)


def alternative(entry: CandidateReport) -> str:
    cost = f" at {entry.estimated_us:.1f} us" if entry.estimated_us is not None else ""
    fix = f"; {entry.fix.sentence}" if entry.fix else ""
    code = f" [{entry.code}]" if entry.code else ""
    return f"{entry.verdict}: {entry.engine} {shorten(entry.pattern)}{cost}{code} {entry.reason}{fix}".rstrip()


def shorten(pattern: str, limit: int = 60) -> str:
    """A pattern with its middle left out where it is long."""
    return pattern if len(pattern) <= limit else f"{pattern[: limit - 22]}...{pattern[-19:]}"


def size(count: int) -> str:
    """Bytes in the largest unit that keeps a digit before the point."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
