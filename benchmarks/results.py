"""What a benchmark leaves behind: rows with versions, commit and date, in benchmarks/results/<gpu>/<suite>.json.

A run of some rows replaces these in the file and keeps the others; one kept from another commit says so.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
PACKAGES = (
    "numpy",
    "torch",
    "triton",
    "nvidia-cudnn-frontend",
    "nvidia-cudnn-cu13",
    "nvidia-cuda-nvrtc",
    "nvidia-cublas",
    "nvmath-python",
    "cuda-core",
    "cuda-bindings",
)
"""Distributions whose versions a result states."""

COMMIT_VARIABLE = "GRAPHDNN_COMMIT"
"""Environment variable that names the commit where the checkout has no history."""


@dataclass(frozen=True)
class Row:
    """One comparison, times in microseconds.  Errors are largest differences from float64 over its peak.

    `peer_error` is that of the fastest peer.  `estimated_us` is what our report expected before running.
    """

    name: str
    ours_us: float
    peers: Mapping[str, float]
    floor_us: float
    error: float
    peer_error: float | None
    samples: int
    estimated_us: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """The best peer's time over ours: above 1 we are ahead.  None without a peer."""
        return min(self.peers.values()) / self.ours_us if self.peers else None

    def as_json(self) -> dict[str, Any]:
        return rounded({**asdict(self), "ratio": self.ratio})


def rounded(value: Any) -> Any:
    """Floats to four significant digits, all the way down."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    return value


def device_folder(name: str) -> str:
    """The folder of a device's results: NVIDIA H200 is h200."""
    return name.lower().removeprefix("nvidia ").replace(" ", "-")


def versions_here(extra: Mapping[str, str]) -> dict[str, str]:
    """Versions of Python and of what is installed, and `extra`."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return {**found, **extra}


def commit_here() -> str:
    """The checkout's commit, marked where files differ from it; else what the environment names, else "unknown"."""
    if named := os.environ.get(COMMIT_VARIABLE):
        return named
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def document(rows: Iterable[Row], versions: Mapping[str, str], order: Iterable[str], old: Any = None) -> dict[str, Any]:
    """What a result file holds after a run: its rows and those of `old` that it did not measure, in `order`."""
    commit, date = commit_here(), datetime.now(UTC).strftime("%Y-%m-%d")
    merged = {}
    for row in (old or {}).get("rows", []):
        if old["commit"] != commit:
            row["settings"] = {"commit": old["commit"], "date": old["date"], **row["settings"]}
        merged[row["name"]] = row
    merged.update({row.name: row.as_json() for row in rows})
    places = list(order)
    known = sorted((n for n in merged if n in places), key=places.index)
    return {"versions": dict(versions), "commit": commit, "date": date, "rows": [merged[n] for n in known]}


def save(path: Path, rows: Iterable[Row], versions: Mapping[str, str], order: Iterable[str]) -> None:
    """Writes or updates a result file; rows of names that are not in `order` are dropped."""
    old = json.loads(path.read_text()) if path.exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(rows, versions, order, old), indent=1) + "\n")


def measured(
    names: Iterable[str], measure: Callable[[str], Row], keep: Callable[[list[Row]], None], say: Callable[[Row], str]
) -> int:
    """Measures rows one after the other, keeps what there is after each, and prints what `say` says of it.  The exit
    code: 1 where a row failed."""
    rows: list[Row] = []
    failed = 0
    for name in names:
        try:
            rows.append(measure(name))
        except Exception as error:
            failed = 1
            print(f"{name}: failed: {type(error).__name__}: {error}", flush=True)
            traceback.print_exc()
            continue
        keep(rows)
        print(say(rows[-1]), flush=True)
    return failed


def sentence(row: Row) -> str:
    """A row as one line of text."""
    peers = ", ".join(f"{name} {us:.1f}" for name, us in row.peers.items()) or "no peer"
    ratio = f"{row.ratio:.2f}" if row.ratio is not None else "-"
    return (
        f"{row.name}: {row.ours_us:.1f} us against {peers}; ratio {ratio}, floor {row.floor_us:.1f}, "
        f"estimated {row.estimated_us:.1f}, error {row.error:.1e}"
    )


def chosen_rows(wanted: str | None, names: Iterable[str]) -> list[str]:
    """Names that are one of the comma-separated words or contain it; all without words.  Raises SystemExit for none."""
    known = list(names)
    words = [w.strip() for w in wanted.split(",")] if wanted else [""]
    found = [n for n in known if any(n == w if w in known else w in n for w in words)]
    if not found:
        raise SystemExit(f"--rows {wanted} names none of: {', '.join(known)}")
    return found
