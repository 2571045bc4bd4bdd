"""Lists of plans as tests/gpu/record_candidates.py records them, read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphdnn.engines.tune import PLANS

FILE = Path(__file__).parent.parent / "data" / "h200_candidates.json"


@dataclass(frozen=True)
class Plan:
    """One plan and what became of it, as `row_of` in graphdnn/engines/remember.py has it; `us` is None where it was
    not timed."""

    engine: str
    name: str
    workspace: int
    precision: str
    deterministic: bool
    notes: tuple[str, ...]
    verdict: str
    reason: str
    us: float | None
    is_known: bool

    @property
    def is_right(self) -> bool:
        """Whether it was timed and its numbers were right."""
        return self.us is not None and self.verdict not in ("wrong", "failed")


@dataclass(frozen=True)
class Offer:
    """One engine's answer: its estimate and its plans in its order, or why it has none."""

    engine: str
    estimated_us: float | None
    untimed_us: float | None
    refusal: str | None
    plans: tuple[Plan, ...]

    @property
    def fastest(self) -> Plan | None:
        return min((p for p in self.plans if p.is_right), key=lambda p: p.us or 0.0, default=None)


@dataclass(frozen=True)
class Recording:
    """What all engines offered for one region."""

    case: str
    precision: str
    pattern: str
    offers: tuple[Offer, ...]

    def __str__(self) -> str:
        return f"{self.case} in {self.precision}"

    @property
    def plans(self) -> tuple[Plan, ...]:
        """All plans, engine by engine."""
        return tuple(p for offer in self.offers for p in offer.plans)

    @property
    def candidates(self) -> tuple[Plan, ...]:
        """Those that timing looks at: the first ones of each engine."""
        return tuple(p for offer in self.offers for p in offer.plans[:PLANS])

    @property
    def fastest(self) -> Plan:
        """The fastest right plan."""
        return min((p for p in self.plans if p.is_right), key=lambda p: p.us or 0.0)


def read(path: Path) -> list[Recording]:
    """The recordings of a file."""
    return [recording(row) for row in json.loads(path.read_text())["regions"]]


def recording(row: Mapping[str, Any]) -> Recording:
    return Recording(row["case"], row["precision"], row["pattern"], tuple(offer(e) for e in row["engines"]))


def offer(row: Mapping[str, Any]) -> Offer:
    plans = tuple(plan(row["engine"], p) for p in row["plans"])
    return Offer(row["engine"], row["estimated_us"], row["untimed_us"], row["refusal"], plans)


def plan(engine: str, row: Mapping[str, Any]) -> Plan:
    return Plan(engine, **{**row, "notes": tuple(row["notes"])})
