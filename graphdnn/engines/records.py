"""Timings of earlier processes: what was found of a region's plans, under everything that it depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from graphdnn.answer import Decline
from graphdnn.engines.contract import Candidate, Policy, Store, forget
from graphdnn.engines.environment import environment
from graphdnn.engines.json_fields import count, flag, microseconds, text, texts
from graphdnn.engines.trial import Limits, Tried
from graphdnn.ir.region import Region
from graphdnn.target import Target

KIND = "tuning"
"""Kind of the store's entries."""

FORMAT = 3

UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""What comes of reading an entry that somebody else wrote."""


@dataclass(frozen=True)
class TuningRecord:
    """What became of each engine's plans for a region, engines that proposed none after all, and a remark on it."""

    tried: Mapping[str, tuple[Tried, ...]]
    refused: Mapping[str, Decline]
    note: str = ""


class TuningRecords:
    """What is known of regions on one machine under one policy, and of times that were taken with so much memory.
    Entries that cannot be read count as absent."""

    def __init__(
        self, store: Store, target: Target, policy: Policy, limits: Limits, tuning_memory: int | None = None
    ) -> None:
        self._store = store
        self._target = target
        self._options = {"policy": asdict(policy), "limits": asdict(limits), "tuning_memory": tuning_memory}

    def recall(self, region: Region, engines: Sequence[str]) -> TuningRecord | None:
        """What was found of the engines' plans; None where those of such a region were not all timed here."""
        key = self._key(region.key, engines)
        content = self._store.get(KIND, key)
        if content is None:
            return None
        try:
            read = json.loads(content)
            tried = {name: tuple(tried_of(name, region, row) for row in read["engines"][name]) for name in engines}
            refused = {name: Decline.of_row(texts(row)) for name, row in read["refused"].items() if name in engines}
            return TuningRecord(tried, refused, text(read["note"]))
        except UNREADABLE:
            forget(self._store, KIND, key, f"timing of {region.pattern}", "it does not say what became of the plans")
            return None

    def keep(self, region: Region, found: TuningRecord) -> None:
        """Remembers what became of each engine's plans, and which engines had none."""
        rows = {
            "engines": {engine: [row_of(t) for t in plans] for engine, plans in found.tried.items()},
            "refused": {engine: decline.row for engine, decline in found.refused.items()},
            "note": found.note,
        }
        self._store.put(KIND, self._key(region.key, list(found.tried)), json.dumps(rows).encode())

    def recall_whole(self, name: str, engines: Sequence[str]) -> dict[str, float] | None:
        """Microseconds of whole graphs by variant, for a graph of that name (a hash of all it is)."""
        key = self._key(name, engines)
        content = self._store.get(KIND, key)
        try:
            found = json.loads(content)["variants"] if content else None
            return None if found is None else {variant: positive(us) for variant, us in found.items()}
        except UNREADABLE:
            forget(self._store, KIND, key, "timing of a whole graph", "it holds no times of variants")
            return None

    def keep_whole(self, name: str, engines: Sequence[str], times: Mapping[str, float]) -> None:
        self._store.put(KIND, self._key(name, engines), json.dumps({"variants": dict(times)}).encode())

    def _key(self, what: str, engines: Sequence[str]) -> str:
        versions = dict(self._target.versions)
        places = {e: environment(self._target, e, **versions) for e in sorted(engines)}
        parts = {"format": FORMAT, "what": what, "engines": places, **self._options}
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def row_of(tried: Tried) -> dict[str, Any]:
    one = tried.candidate
    return {
        "name": one.name,
        "workspace": one.workspace_bytes,
        "precision": one.precision,
        "deterministic": one.deterministic,
        "notes": list(one.notes),
        "verdict": tried.verdict,
        "reason": tried.reason,
        "us": tried.measured_us,
    }


def tried_of(engine: str, region: Region, row: Mapping[str, Any]) -> Tried:
    """The plan as it was remembered.  Raises ValueError, KeyError or TypeError for anything else."""
    if row["verdict"] not in ("slower", "excluded", "failed", "wrong"):
        raise ValueError(row["verdict"])
    candidate = Candidate(
        engine,
        region,
        text(row["name"]),
        count(row["workspace"]),
        text(row["precision"]),
        deterministic=flag(row["deterministic"]),
        notes=texts(row["notes"]),
    )
    return Tried(candidate, row["verdict"], text(row["reason"]), None if row["us"] is None else positive(row["us"]))


def positive(value: Any) -> float:
    """Microseconds that something took: more than none."""
    us = microseconds(value)
    if not us:
        raise ValueError(value)
    return us
