"""What `compile` decided about one graph: all of it, for the report, and what is kept of it to run and to save."""

from __future__ import annotations

from dataclasses import dataclass

from graphdnn.config import CompileOptions
from graphdnn.engines.attempt import Chosen
from graphdnn.engines.choose import Selector
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.region import Region
from graphdnn.lazy import cached_property
from graphdnn.passes.fuse import Proposal
from graphdnn.passes.pipeline import PassRecord
from graphdnn.passes.promote import Promotion, implied_casts
from graphdnn.passes.select import Cover, Offer
from graphdnn.runtime.schedule import Schedule
from graphdnn.target import Target


@dataclass(frozen=True)
class Decisions:
    """Everything that `compile` decided about one graph.

    `graph` is the user's, `prepared` what the passes made of it.  `expanded` are the composite nodes that no engine
    took whole, as they stood when the engines were asked; `effects` says what the options for choosing did.
    """

    graph: Graph
    prepared: Graph
    proposals: tuple[Proposal, ...]
    cover: Cover
    selector: Selector
    plans: dict[Region, Chosen]
    schedule: Schedule
    passes: tuple[PassRecord, ...]
    promotions: tuple[Promotion, ...]
    options: CompileOptions
    expanded: tuple[Region, ...] = ()
    effects: tuple[str, ...] = ()

    @cached_property
    def implied(self) -> dict[Value, Value]:
        """The operand behind each cast that the builder inserted for type promotion, by the cast's result."""
        return implied_casts(self.graph)


@dataclass(frozen=True)
class Pick:
    """One region of the cover and the engine that runs it, with its plan where the device is here."""

    region: Region
    engine: str
    chosen: Chosen | None


@dataclass(frozen=True)
class Compilation:
    """What an executable and its files keep of the decisions, beside the report.

    `prepared` is the graph after all passes; `picks` stand in the report's order; `left_out` are passes that were left
    out for speed.
    """

    prepared: Graph
    picks: tuple[Pick, ...]
    target: Target
    options: CompileOptions
    left_out: tuple[str, ...] = ()


def engine_of(offer: Offer) -> str:
    """The engine that made an offer: the payload that compile gives each."""
    assert isinstance(offer.payload, str)
    return offer.payload


def anchor_of(region: Region) -> Node:
    """The first op that is not pointwise, else the last one."""
    return next((n for n in region.nodes if not isinstance(n.op, Elementwise)), region.nodes[-1])


def name_of(region: Region) -> str:
    """A region's name: that of the user's node behind its anchor."""
    return next(iter(anchor_of(region).origins or region.origins), region.pattern)
