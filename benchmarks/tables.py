"""Writes docs/benchmarks.md from the result files, so that no figure in the documentation is typed by hand.

Run from the repository's root after each benchmark: `python -m benchmarks.tables`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.results import ROOT

DOCUMENT = ROOT.parent / "docs" / "benchmarks.md"

SUITES = {
    "layers": "Whole networks and layers, device time",
    "launch": "Host cost of a call",
    "kernels": "Single kernels, device time",
}
"""Title of each suite, in the order of the document."""

INTRODUCTION = """# Benchmarks

This page is written by `python -m benchmarks.tables` from `benchmarks/results/`; run a suite again with
`python -m benchmarks.layers`, `python -m benchmarks.launch` or `python -m benchmarks.kernels` (each takes `--rows`).

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
- Host cost: the device is idle before each timing, and nothing waits for it.
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
        parts += [section(SUITES[suite], suites[suite]) for suite in SUITES if suite in suites]
    return "\n".join(parts)


def section(title: str, document: Mapping[str, Any]) -> str:
    """One suite on one device: where it comes from, and its table in microseconds."""
    versions = ", ".join(f"{name} {found}" for name, found in document["versions"].items())
    return (
        f"### {title}\n\nMicroseconds; commit {document['commit']}, {document['date']}.\n\n{table(document['rows'])}\n"
        f"Versions: {versions}.\n"
    )


def table(rows: list[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table, one column for each peer that any row has."""
    peers = list(dict.fromkeys(name for row in rows for name in row["peers"]))
    head = ["", "ours", *peers, "ratio", "floor", "estimated", "error", "peer error"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [row["name"], figure(row["ours_us"]), *(figure(row["peers"].get(name)) for name in peers)]
        cells += ["–" if row["ratio"] is None else f"**{row['ratio']:.2f}**"]
        cells += [figure(row["floor_us"]), figure(row["estimated_us"])]
        cells += [scientific(row["error"]), scientific(row["peer_error"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def figure(us: float | None) -> str:
    """Microseconds with as many digits as mean something."""
    if us is None:
        return "–"
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def scientific(error: float | None) -> str:
    return "–" if error is None else f"{error:.0e}"


if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(page(result_files()))
