"""The passes in their order, and what each of them changed.

The order: no dead nodes (prune: engines are never asked about a region without results), types (promote), then fewer
and canonical nodes, then larger ops (raise), then fewer of them (fold), then ops that some engine takes (complete,
masks as biases, expand), views out of the way of pointwise ops (sink), products side by side whose biases stand right
behind them (merge), images of few channels padded where that pays (pad), and layouts last, when the nodes to lay out
are known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region
from graphdnn.passes.attention.bands import plain_bands
from graphdnn.passes.attention.empty_sequences import give_keys
from graphdnn.passes.attention.lengths import complete
from graphdnn.passes.attention.masks import masks_as_biases
from graphdnn.passes.canonicalize import canonicalize, drop_dead
from graphdnn.passes.expand import expand
from graphdnn.passes.fold import fold
from graphdnn.passes.layout.choice import apart_layouts, cheapest_layouts, row_major_images
from graphdnn.passes.merge import merge_products
from graphdnn.passes.pad import pad_channels
from graphdnn.passes.promote import promote
from graphdnn.passes.raise_ops import raise_ops
from graphdnn.passes.rewrite import Ask, Refusal, Rewritten
from graphdnn.passes.sink import sink_views

OPTIONAL_PASSES = ("canonicalize", "raise", "fold", "sink", "merge", "pad", "layout", "fuse")
"""Passes that a user may leave out; without the others the graph could not run.  Of the layout pass its choice is left
out: images are row-major then."""


@dataclass(frozen=True)
class PassRecord:
    """What one pass did, in sentences, and what it nearly did."""

    name: str
    changes: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    nodes_before: int
    nodes_after: int


def prepare(graph: Graph, ask: Ask, disabled: tuple[str, ...] = ()) -> tuple[Graph, tuple[PassRecord, ...]]:
    """The graph ready for fusion, every value with strides, and the record of each pass.

    Passes may have the same doubt; what one of them asked is answered without asking again.
    """
    ask = asked_once(ask)
    lay_out: Callable[[Graph], Rewritten] = partial(cheapest_layouts, ask=ask)
    if "layout" in disabled:
        lay_out = row_major_images
    elif "fuse" in disabled:
        lay_out = apart_layouts
    passes: tuple[tuple[str, Callable[[Graph], Rewritten]], ...] = (
        ("prune", drop_dead),
        ("promote", promote),
        ("canonicalize", canonicalize),
        ("raise", lambda g: raise_ops(g, ask)),
        ("fold", fold),
        ("complete", lambda g: completed(g, ask)),
        ("expand", lambda g: expand(g, ask)),
        ("sink", sink_views),
        ("merge", lambda g: merge_products(g, ask)),
        ("pad", lambda g: pad_channels(g, ask)),
        ("layout", lay_out),
    )
    records: list[PassRecord] = []
    for name, run in passes:
        if name in disabled and name != "layout":
            continue
        done = run(graph)
        records.append(PassRecord(name, done.changes, done.refusals, len(graph.nodes), len(done.graph.nodes)))
        graph = done.graph
    return graph, tuple(records)


def completed(graph: Graph, ask: Ask) -> Rewritten:
    """What attention is told otherwise for engines to take it, and to be safe: the same function each time."""
    done = plain_bands(graph).then(complete)
    return done.then(partial(masks_as_biases, ask=ask)).then(partial(give_keys, ask=ask))


def asked_once(ask: Ask) -> Ask:
    """The same answers, each region of equal structure and origins asked about once."""
    known: dict[tuple[str, tuple[str, ...]], float | None] = {}

    def answer(region: Region) -> float | None:
        key = region.key, region.origins
        if key not in known:
            known[key] = ask(region)
        return known[key]

    return answer
