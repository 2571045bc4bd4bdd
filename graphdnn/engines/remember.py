"""Timings of earlier processes: what was found of a region's plans, under everything that it depends on."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from graphdnn.engines.contract import Candidate, Policy, Store
from graphdnn.engines.environment import environment
from graphdnn.engines.trial import Limits, Tried
from graphdnn.ir.region import Region
from graphdnn.target import Target

KIND = "tuning"
"""Kind of the store's entries."""

FORMAT = 1


class Memory:
    """What is known of regions on one machine under one policy.  Entries that cannot be read count as absent."""

    def __init__(self, store: Store, target: Target, policy: Policy, limits: Limits) -> None:
        self._store = store
        self._target = target
        self._options = {"policy": asdict(policy), "limits": asdict(limits)}

    def recall(self, region: Region, engines: Sequence[str]) -> dict[str, tuple[Tried, ...]] | None:
        """The timed plans by engine; None where these engines' plans of such a region were not all timed here."""
        content = self._store.get(KIND, self._key(region.key, engines))
        if content is None:
            return None
        try:
            found = json.loads(content)["engines"]
            return {name: tuple(tried_of(name, region, row) for row in found[name]) for name in engines}
        except (ValueError, KeyError, TypeError):
            return None

    def keep(self, region: Region, tried: Mapping[str, Sequence[Tried]]) -> None:
        """Remembers what became of each engine's plans."""
        rows = {engine: [row_of(t) for t in plans] for engine, plans in tried.items()}
        self._store.put(KIND, self._key(region.key, list(tried)), json.dumps({"engines": rows}).encode())

    def recall_whole(self, name: str, engines: Sequence[str]) -> dict[str, float] | None:
        """Microseconds of whole graphs by variant, for a graph of that name (a hash of all it is)."""
        content = self._store.get(KIND, self._key(name, engines))
        try:
            found = json.loads(content)["variants"] if content else None
            return None if found is None else {str(k): positive(v) for k, v in found.items()}
        except (ValueError, KeyError, TypeError, AttributeError):
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
    us = None if row["us"] is None else positive(row["us"])
    candidate = Candidate(
        engine,
        region,
        str(row["name"]),
        int(row["workspace"]),
        str(row["precision"]),
        bool(row["deterministic"]),
        tuple(map(str, row["notes"])),
    )
    return Tried(candidate, row["verdict"], str(row["reason"]), us)


def positive(number: Any) -> float:
    us = float(number)
    if not math.isfinite(us) or us <= 0:
        raise ValueError(number)
    return us
