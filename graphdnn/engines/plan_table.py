"""The plans that were found for each engine and region, by the scratch memory that they were allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from graphdnn.answer import Decline
from graphdnn.engines.attempt import Chosen, Refused, ranked_lower
from graphdnn.engines.contract import Device, Engine, Policy
from graphdnn.errors import ExecutionError


class PlanTable:
    """Plans, or why there is none, by engine, structure (`Region.key`) and bytes of scratch; None allows any number."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], dict[int | None, Chosen | Refused]] = {}

    def __iter__(self) -> Iterator[Chosen | Refused]:
        return (found for by_scratch in self._found.values() for found in by_scratch.values())

    def keep(self, engine: str, key: str, scratch: int | None, found: Chosen | Refused) -> None:
        """Adds what was found."""
        self._found.setdefault((engine, key), {})[scratch] = found

    def find(self, engine: str, key: str, scratch: int | None) -> Chosen | Refused | None:
        """What was found under this limit on scratch.

        A plan that was chosen under a looser limit, and keeps to this one, counts as found under this one too.
        """
        found = self._found.get((engine, key), {})
        if scratch is None or scratch in found:
            return found.get(scratch)
        more = (f for n, f in found.items() if (n is None or n > scratch) and isinstance(f, Chosen))
        return next((f for f in more if f.candidate.workspace_bytes <= scratch), None)

    def add_alternatives(self, engines: Mapping[str, Engine], device: Device, policy: Policy) -> None:
        """Adds the plans that engines propose beside each chosen one, which they were not asked for where that one was
        decided beforehand.  Adds none any more once the device does not work."""
        for (engine, _), by_scratch in self._found.items():
            for scratch, found in by_scratch.items():
                if isinstance(found, Refused):
                    continue
                try:
                    with device:
                        proposed = engines[engine].candidates(found.candidate.region, device, policy)
                except ExecutionError:
                    return
                known = {t.candidate.name for t in found.tried}
                rest = () if isinstance(proposed, Decline) else (c for c in proposed if c.name not in known)
                by_scratch[scratch] = replace(found, tried=(*found.tried, *map(ranked_lower, rest)))
