"""Covers kept across compilations: which regions, engines and plans were taken for a graph the last time.

What is kept follows from the graph and from what stands in the entry's key, so that finding it is as good as choosing
anew: nothing that failed or was ruled out on the way, and no answer that may be another in a minute.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from graphdnn.config import CompileOptions
from graphdnn.engines.answers import OURS, circumstances, structure
from graphdnn.engines.attempt import Chosen
from graphdnn.engines.choose import Decision, Selector
from graphdnn.engines.contract import Store, Support, forget
from graphdnn.engines.environment import code_digest, is_as_loaded
from graphdnn.engines.serialization import key_text
from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region
from graphdnn.ir.views import is_free
from graphdnn.passes.cover_search import bits
from graphdnn.passes.select import Cover, Offer
from graphdnn.planning.decisions import engine_of

KIND = "cover"
"""Kind of the store's entries."""

FORMAT = 1

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What comes of reading an entry that somebody else wrote."""

Row = tuple[str, str, float, str]
"""A region's nodes as a mask in hexadecimal digits, its engine, its estimate and its plan, in the order they run."""


@dataclass(frozen=True)
class Recalled:
    """A cover of earlier, without the offers that it could not hold, and its plans by the regions' keys."""

    cover: Cover
    plans: Mapping[str, Decision]

    def decided(self, region: Region) -> Decision | None:
        """What runs the region."""
        return self.plans.get(region.key)


class Covers:
    """Covers in a store, for one machine and one set of options.  Entries that cannot be read are dropped."""

    def __init__(self, store: Store, selector: Selector, options: CompileOptions) -> None:
        self._store = store
        self._selector = selector
        self._are_ours = all(type(e).__module__.startswith(OURS) for e in selector.engines)
        self._options = {
            "engines": [e.name for e in selector.engines],
            "disabled_plans": sorted(options.disabled_plans),
            "is_fused": "fuse" not in options.disabled_passes,
        }

    def recall(self, graph: Graph) -> Recalled | None:
        """The cover of a graph that the passes are through with; None where none is known whose engines still take
        their regions."""
        if not self._are_ours or not is_as_loaded():
            return None
        key = self._key(graph)
        content = self._store.get(KIND, key)
        if content is None:
            return None
        try:
            return read(content, graph, self._selector)
        except UNREADABLE:
            forget(self._store, KIND, key, f"cover of {graph.name}", "it does not say which regions of the graph run")
            return None

    def keep(self, graph: Graph, cover: Cover, plans: Mapping[Region, Chosen]) -> None:
        """Remembers a cover whose plans were each the first that its engine proposed."""
        selector = self._selector
        chosen = [plans[o.region] for o in cover.picks]
        names = {(c.candidate.region.key, c.name) for c in chosen}
        is_first = all(c.tried and c.tried[0].verdict == "chosen" for c in chosen)
        is_unique = len(names) == len({key for key, _ in names})
        if is_first and is_unique and self._are_ours and selector.is_lasting and is_as_loaded():
            rows = [row_of(o, c) for o, c in zip(cover.picks, chosen, strict=True)]
            said = {"format": FORMAT, "exact": cover.exact, "regions": rows}
            self._store.put(KIND, self._key(graph), json.dumps(said).encode())

    def _key(self, graph: Graph) -> str:
        selector = self._selector
        said = repr((circumstances(selector.target, selector.policy), self._options))
        digest = hashlib.sha256(said.encode()).hexdigest()
        return key_text(
            {
                "graph": graph.name,
                "device": selector.target.name,
                "structure": structure(graph),
                "circumstances": digest,
                "code": code_digest(),
            }
        )


def row_of(offer: Offer, chosen: Chosen) -> Row:
    return f"{offer.region.mask:x}", engine_of(offer), offer.cost_us, chosen.candidate.name


def read(content: bytes, graph: Graph, selector: Selector) -> Recalled | None:
    """The cover of an entry; None where an engine does not take its region any more.

    Raises one of UNREADABLE for what does not cover the graph with regions in an order that runs.
    """
    said = json.loads(content)
    if said["format"] != FORMAT:
        raise ValueError("another format")
    wanted = sum(1 << i for i, n in enumerate(graph.nodes) if not is_free(n))
    picks: list[Offer] = []
    plans: dict[str, Decision] = {}
    covered = 0
    for digits, engine, cost_us, plan in said["regions"]:
        mask = int(digits, 16)
        if not 0 < mask < 1 << len(graph.nodes):
            raise ValueError("a region of no nodes of the graph")
        nodes = tuple(graph.nodes[i] for i in bits(mask))
        needed = 0
        for node in nodes:
            needed |= graph.ancestors[node]
        if mask & covered & wanted or needed & wanted & ~(covered | mask) or not math.isfinite(cost_us):
            raise ValueError("regions that overlap, or run before what they need")
        region = Region(graph, nodes)
        if not isinstance(selector.support.answers(region)[engine], Support):
            return None
        covered |= mask
        picks.append(Offer(region, float(cost_us), engine))
        plans[region.key] = Decision(engine, str(plan))
    if wanted & ~covered:
        raise ValueError("nodes in no region")
    cover = Cover(tuple(picks), sum(o.cost_us for o in picks), said["exact"] is True)
    return Recalled(cover, plans)
