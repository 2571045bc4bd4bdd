"""Writes docs/benchmarks.md from the result files, so that no figure in the documentation is typed by hand.

Run from the repository's root after each benchmark: `python -m benchmarks.tables`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.results import ROOT

DOCUMENT = ROOT.parent / "docs" / "benchmarks.md"

COLUMNS = ("ratio", "floor", "estimated", "error", "peer error")
"""What most suites show behind the times of ours and the peers."""


@dataclass(frozen=True)
class Suite:
    """How a suite is shown: title, unit with the microseconds that make one, columns, and a sentence about all rows."""

    title: str
    unit: str = "Microseconds"
    unit_us: float = 1.0
    columns: tuple[str, ...] = COLUMNS
    summary: Callable[[Sequence[Mapping[str, Any]]], str] | None = None


def choice_summary(rows: Sequence[Mapping[str, Any]]) -> str:
    from benchmarks.plan_choice import summary  # imports PyTorch, which the page does without where it can

    return summary(rows)


SUITES = {
    "layers": Suite("Whole networks and layers, device time"),
    "launch": Suite("Host cost of a call"),
    "kernels": Suite("Single kernels, device time"),
    "plan_choice": Suite(
        "Plans chosen by estimates beside plans chosen by measurement, device time",
        columns=("ratio", "floor", "estimated", "error", "cold s", "warm s", "tuning s"),
        summary=choice_summary,
    ),
    "compile_time": Suite("Time to compile", "Seconds", 1e6, ("ratio", "error")),
}
"""In the order of the document."""

CAUSES = {
    "bert-large 1x128": (
        "small kernels of which each waits for the one before, by plans that are not the fastest of so few rows: that "
        "of the product with GELU, which cuDNN puts first; cuBLASLt's of the product behind attention, where cuDNN has "
        "a faster one that it puts later; and two generated layer norms, whose rows are reduced by blocks (the "
        "candidates in plan_choice.json have the times)"
    )
}
"""Why a row is slower than its fastest peer."""

INTRODUCTION = """# Benchmarks

This page is written by `python -m benchmarks.tables` from `benchmarks/results/`; run a suite again with
`python -m benchmarks.SUITE`, where SUITE is `layers`, `launch`, `kernels`, `plan_choice` or `compile_time` (each takes
`--rows`).

How the figures come about:

- Both sides run in one process on the same tensors, in turns, each turn beginning with another contender. A figure is
  the median. Ratios are what to trust; absolute times vary from machine to machine.
- `ratio` is the best peer's time over ours: above 1 graphdnn is ahead.
- `floor` is the larger of bytes (inputs, constants, outputs, once each) over copy bandwidth and matrix products over
  matmul rate, both measured in the same run. For the host cost it is the driver's own launch of our captured graph.
- Networks, layers and kernels: PyTorch runs in inference mode and is captured in a CUDA graph, as ours is; images are
  channels-last with `cudnn.benchmark`, attention is the fastest of PyTorch's backends at that size, `inductor_freezing`
  is Inductor with `freezing=True`. A buffer larger than the cache is read before each sample, so that weights and
  inputs come from memory as they do inside a larger model; the launch is queued meanwhile. Times with a warm cache
  stand in the result files.
- Single kernels: each graph holds several runs on rotated inputs and outputs, larger than the cache together.
- Host cost: the device is idle before each timing, and nothing waits for it. The same call is repeated, in blocks that
  the contenders take in turns; what it takes after another one's call stands in the result file. A replay is given no
  arrays. A plain call (rows `call`) is: beyond `bind` it looks at type, strides, device and stream of each input, lends
  memory for each output and makes an array of it, which is why it falls short of a replay.
- Plan choice: `ours` is what `selection="heuristic"` chose, `best` what `selection="measure"` did, and `error` is how
  far their results differ. `cold` and `warm` are the seconds that compiling took with an empty cache and with a full
  one; `tuning` those of choosing by measurement on one core, while every other core tuned another region.
- Time to compile: each figure is that of a process of its own, whose context and handles are there already. `cold` and
  `autotune` begin with an empty cache, as Inductor does; all but `autotune` and Inductor are the best of three. `load`
  includes reading the file, whose share stands in the result file.
- `error` and `peer error` are the largest difference from a float64 evaluation over its peak; the peer's is that of the
  fastest peer. `estimated` is what the report said before running.
"""


def result_files() -> dict[str, dict[str, Any]]:
    """Result documents by device and suite: {"h200": {"layers": {...}}}."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((ROOT / "results").glob("*/*.json")):
        found.setdefault(path.parent.name, {})[path.stem] = json.loads(path.read_text())
    return found


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole document."""
    parts = [INTRODUCTION]
    for device, suites in results.items():
        parts.append(f"## {device}\n")
        parts += [section(suite, suites[name]) for name, suite in SUITES.items() if name in suites]
    return "\n".join(parts)


def section(suite: Suite, document: Mapping[str, Any]) -> str:
    """One suite on one device: where it comes from, what its rows come to, and its table."""
    versions = ", ".join(f"{name} {found}" for name, found in document["versions"].items())
    rows = document["rows"]
    summary = f"{suite.summary(rows)}.\n\n" if suite.summary is not None and rows else ""
    slower = [row["name"] for row in rows if row["ratio"] is not None and row["ratio"] < 1]
    causes = "".join(f"\nWhat holds {name} back: {CAUSES[name]}.\n" for name in slower if name in CAUSES)
    return (
        f"### {suite.title}\n\n{suite.unit}; commit {document['commit']}, {document['date']}.\n\n{summary}"
        f"{table(suite, rows)}{causes}\nVersions: {versions}.\n"
    )


def table(suite: Suite, rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table, one column for each peer that any row has."""
    peers = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    head = ["", "ours", *peers, *suite.columns]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        times = [row["ours_us"], *(row["peers"].get(name) for name in peers)]
        cells = [row["name"], *(figure(us and us / suite.unit_us) for us in times)]
        cells += [CELLS[column](row) for column in suite.columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def figure(time: float | None) -> str:
    """A time with as many digits as mean something."""
    if time is None:
        return "–"
    return f"{time:.0f}" if time >= 100 else f"{time:.1f}" if time >= 10 else f"{time:.2f}"


def scientific(error: float | None) -> str:
    return "–" if error is None else f"{error:.0e}"


CELLS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "ratio": lambda row: "–" if row["ratio"] is None else f"**{row['ratio']:.2f}**",
    "floor": lambda row: figure(row["floor_us"]),
    "estimated": lambda row: figure(row["estimated_us"]),
    "error": lambda row: scientific(row["error"]),
    "peer error": lambda row: scientific(row["peer_error"]),
    "cold s": lambda row: figure(row["settings"]["cold_s"]),
    "warm s": lambda row: figure(row["settings"]["warm_s"]),
    "tuning s": lambda row: figure(row["settings"]["tuning_s"]),
}
"""What stands in a column, from a row of a result file."""


if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(page(result_files()))
