"""From a graph to a cover with plans: passes, proposals, engines' answers, by estimates or by what was timed.

By estimates alone the cheapest cover is taken.  "autotune" times the plans of that cover's regions, of every engine
that takes them.  "measure" chooses covers by what was timed, with a bound by bytes and operations in place of what was
not: what such a bound rules out need not be timed, and a cover that is cheapest when all of it was timed is the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from graphdnn.answer import Decline
from graphdnn.config import CompileOptions
from graphdnn.engines.attempt import Chosen
from graphdnn.engines.choose import Decision, Selector
from graphdnn.engines.contract import Device, Support
from graphdnn.errors import CompileError
from graphdnn.ir.graph import Graph, Node
from graphdnn.ir.op import Op
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType
from graphdnn.ir.views import is_free
from graphdnn.passes.fuse import Proposal, propose
from graphdnn.passes.pipeline import PassRecord, prepare
from graphdnn.passes.select import Cover, Offer, select
from graphdnn.planning.covers import Covers
from graphdnn.planning.decisions import engine_of
from graphdnn.planning.refusal import nobody_takes
from graphdnn.runtime.schedule import Step

Price = Callable[[str, Region], float]
"""What an engine's plan of a region costs, in microseconds or in whatever else the sum over a cover is to be least."""

WEIGHT_THREADS = 4
"""Constants that are computed at the same time while plans are built."""

Signature = tuple[Op, tuple[tuple[tuple[int, ...], DType], ...]]
"""What an op is applied to, whatever the layouts: operands' shapes and types."""


class FixedDecisions(Protocol):
    """Decisions that come before any choosing, such as those of a lock file."""

    @property
    def left_out(self) -> tuple[str, ...]:
        """Passes that were left out for speed when the decisions were made."""

    def decided(self, region: Region) -> Decision | None:
        """What runs the region; None where nothing is decided about it."""

    def narrowed(self, offers: Sequence[Offer]) -> list[Offer]:
        """Those of the offers that leave the decided regions as they are."""


@dataclass(frozen=True)
class Problem:
    """What is asked of one compilation; the rest is asked of `selector`.  `covers` are those of earlier ones."""

    graph: Graph
    selector: Selector
    device: Device | None
    options: CompileOptions
    fixed: FixedDecisions | None = None
    covers: Covers | None = None

    def offers(self, proposals: Sequence[Proposal], price: Price) -> list[Offer]:
        """Every engine's "yes" to every proposal, in the engines' order, as far as decisions leave room."""
        found = [
            Offer(p.region, price(engine, p.region), engine)
            for p in proposals
            for engine, answer in self.selector.support.answers(p.region).items()
            if isinstance(answer, Support)
        ]
        return found if self.fixed is None else self.fixed.narrowed(found)


@dataclass(frozen=True)
class Planned:
    """A graph ready to run: what the passes made of it, what was proposed and chosen, and the plans where they exist.

    `whole` are regions of one composite node each that no engine took and that were expanded.  `left_out` are passes
    that did not run, for speed or for memory; `spared` those of them that were left out for memory.  `scratch` is the
    most bytes that a plan was allowed, where `memory_limit` led to a bound, and `arenas` are those that exceeded it, as
    Limits has them.  Where `is_recalled`, the cover is one that an earlier compilation kept, and `proposals` and the
    cover's conflicts are empty until `explained` fills them in.
    """

    prepared: Graph
    records: tuple[PassRecord, ...]
    proposals: tuple[Proposal, ...]
    cover: Cover
    plans: dict[Region, Chosen]
    whole: tuple[Region, ...]
    left_out: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()
    scratch: int | None = None
    arenas: tuple[tuple[int | None, int], ...] = ()
    is_recalled: bool = False


def planned(problem: Problem, left_out: tuple[str, ...] = (), price: Price | None = None) -> Planned:
    """Passes, proposals and cover, and on a device the plans.  `price` is what the cover is to have least of, instead
    of time.

    A composite node that engines took on paper and none of them can build is expanded after all, and all begins anew;
    each round gives up one more op, so this ends.  Raises CompileError or SetupError naming the node nobody takes.
    """
    selector = problem.selector
    given_up: dict[Signature, dict[str, Support | Decline]] = {}
    disabled = (*problem.options.disabled_passes, *left_out)
    while True:
        whole: list[Region] = []

        def ask(region: Region, whole: list[Region] = whole) -> float | None:
            if len(region.nodes) == 1 and (answers := given_up.get(signature(region.nodes[0]))) is not None:
                selector.support.overrule(region, answers)
            cost = selector.cheapest(region)
            if cost is None and len(region.nodes) == 1 and is_composite(region.nodes[0]):
                whole.append(region)
            return cost

        prepared, records = prepare(problem.graph, ask, disabled)
        recalled = recalled_cover(prepared, problem) if not given_up else None
        if recalled is not None:
            return Planned(prepared, records, (), *recalled, tuple(whole), left_out, is_recalled=True)
        proposals = proposed(prepared, problem.options)
        found = built_cover(prepared, proposals, problem, price)
        if not isinstance(found, Node):
            if problem.covers is not None and not given_up:
                problem.covers.keep(prepared, *found)
            return Planned(prepared, records, proposals, *found, tuple(whole), left_out)
        if not is_composite(found) or signature(found) in given_up:
            raise nobody_takes(found, prepared, proposals, problem.graph, selector, whole)
        given_up[signature(found)] = selector.support.answers(Region.of(prepared, [found]))


def recalled_cover(graph: Graph, problem: Problem) -> tuple[Cover, dict[Region, Chosen]] | None:
    """A cover of earlier whose plans run today as well; None where there is none."""
    found = problem.covers.recall(graph) if problem.covers is not None else None
    if found is None or problem.device is None:
        return None
    selector = problem.selector
    selector.decided, before = found.decided, selector.decided
    try:
        plans = built_plans(graph, found.cover, selector, problem.device)
    finally:
        selector.decided = before
    return (found.cover, plans) if plans is not None else None


def explained(made: Planned, problem: Problem) -> Planned:
    """The same plan with what it was chosen among, which one that was recalled does not know.

    Engines answer as they did, so the search finds the same cover again, and what kept better ones from being taken.
    """
    if not made.is_recalled:
        return made
    assert problem.device is not None
    picked = {o.region.mask: o.region for o in made.cover.picks}
    fresh = proposed(made.prepared, problem.options)
    proposals = tuple(replace(p, region=picked.get(p.region.mask, p.region)) for p in fresh)
    again = select(made.prepared, problem.offers(proposals, problem.selector.estimate))
    problem.selector.add_alternatives(problem.device)
    return replace(made, proposals=proposals, cover=replace(made.cover, conflicts=again.conflicts), is_recalled=False)


def proposed(graph: Graph, options: CompileOptions) -> tuple[Proposal, ...]:
    """Regions to ask about: each node alone only, where the user wants nothing fused."""
    found = propose(graph)
    return tuple(p for p in found if len(p.region.nodes) == 1) if "fuse" in options.disabled_passes else found


def is_composite(node: Node) -> bool:
    return type(node.op).expand is not Op.expand


def signature(node: Node) -> Signature:
    return node.op, tuple((t.shape, t.dtype) for t in node.operand_types)


def unserved(graph: Graph, proposals: Sequence[Proposal], selector: Selector) -> Node | None:
    """The first computing node that no engine takes, alone or within a larger region."""
    covered = 0
    for proposal in proposals:
        if any(isinstance(a, Support) for a in selector.support.answers(proposal.region).values()):
            covered |= proposal.region.mask
    missing = (n for i, n in enumerate(graph.nodes) if not covered >> i & 1 and not is_free(n))
    return next(missing, None)


def built_cover(
    graph: Graph, proposals: Sequence[Proposal], problem: Problem, price: Price | None
) -> tuple[Cover, dict[Region, Chosen]] | Node:
    """The cheapest cover, on a device such that every region has a plan that was built and run; or a node without one.

    A region whose engine cannot build it turns into a decline, and the cover is chosen anew; each round rules out at
    least one answer, so this ends.
    """
    selector, device = problem.selector, problem.device
    while True:
        node = unserved(graph, proposals, selector)
        if node is not None:
            return node
        try:
            if selector.tuner is not None and price is None and problem.options.selection == "measure":
                cover = measured_cover(graph, proposals, problem)
            else:
                cover = select(graph, problem.offers(proposals, price or selector.estimate))
                if selector.tuner is not None:
                    cover = tuned_cover(cover, selector, price or selector.estimate)
        except CompileError:  # each node is taken within a larger region, and those that are left do not fit together
            node = unserved(graph, [p for p in proposals if len(p.region.nodes) == 1], selector)
            if node is None:
                raise
            return node
        if cover is None:
            continue
        if device is None:
            return cover, {}
        plans = built_plans(graph, cover, selector, device)
        if plans is not None:
            return cover, plans


def built_plans(graph: Graph, cover: Cover, selector: Selector, device: Device) -> dict[Region, Chosen] | None:
    """A plan that was built and run for each region of a cover; None where one has none, which its engine's answer
    says from now on."""
    with weights_meanwhile(graph):
        found = selector.plan_all([(engine_of(o), o.region) for o in cover.picks], device)
    plans = {o.region: f for o, f in zip(cover.picks, found, strict=True) if isinstance(f, Chosen)}
    return plans if len(plans) == len(cover.picks) else None


@contextmanager
def weights_meanwhile(graph: Graph) -> Iterator[None]:
    """Constants that passes promised are computed while the body builds plans, the largest first.

    Libraries hold the interpreter while they build, and numpy works without it.  What has not begun when the body ends
    is left to the upload, which has threads of its own and tells what fails.
    """
    promised = [p for p in graph.payloads.values() if p.has_data and not p.is_settled]
    promised.sort(key=lambda p: -p.type.nbytes)
    pool = ThreadPoolExecutor(WEIGHT_THREADS)
    try:
        for payload in promised:
            pool.submit(payload.array)
        yield
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def tuned_cover(cover: Cover, selector: Selector, price: Price) -> Cover | None:
    """The same regions, each run by the engine whose plan was timed fastest.

    None where the cover has to be chosen anew: a region has no usable plan any more, or one that was not timed has a
    higher price than when the cover was chosen.
    """
    selector.tune([o.region for o in cover.picks])
    picks: list[Offer] = []
    for offer in cover.picks:
        region, engine = offer.region, selector.fastest(offer.region) or engine_of(offer)
        if not isinstance(selector.support.answers(region)[engine], Support):
            return None
        us = selector.timed.measured_us(engine, region)
        if us is None and price(engine, region) > offer.cost_us:
            return None
        picks.append(Offer(region, offer.cost_us if us is None else us, engine))
    return replace(cover, picks=tuple(picks), cost_us=sum(o.cost_us for o in picks))


def measured_cover(graph: Graph, proposals: Sequence[Proposal], problem: Problem) -> Cover | None:
    """The cover of least measured time; None where a node lost its last engine meanwhile.

    Of a cover that only competes, pointwise regions are timed first: they are built in no time, and what they take may
    rule out the cover before the plans of a convolution or product are built for it.
    """
    selector = problem.selector
    assert selector.tuner is not None
    price: Price = selector.estimate
    while not selector.tuner.budget.is_over():
        cover = select(graph, problem.offers(proposals, price))
        fresh = [o.region for o in cover.picks if selector.timed.of(o.region) is None]
        if not fresh and price == selector.lower_bound_us:
            return cover
        light = [r for r in fresh if all(isinstance(n.op, Elementwise) for n in r.nodes)]
        selector.tune(light if light and price == selector.lower_bound_us else fresh)
        if unserved(graph, proposals, selector) is not None:
            return None
        price = selector.lower_bound_us
    all_of_it = problem.offers(proposals, selector.lower_bound_us)
    timed = [
        o
        for o in all_of_it
        if selector.timed.measured_us(engine_of(o), o.region) is not None or selector.decided(o.region)
    ]
    try:
        return select(graph, timed)
    except CompileError:  # too little was timed for a whole cover
        return tuned_cover(select(graph, problem.offers(proposals, selector.estimate)), selector, selector.estimate)


def steps_of(made: Planned, selector: Selector) -> list[Step]:
    """The cover's regions with their plans; for a device that is not here, with what engines said of them."""
    steps = []
    for offer in made.cover.picks:
        chosen = made.plans.get(offer.region)
        if chosen is not None:
            steps.append(Step(offer.region, chosen.plan, chosen.candidate.workspace_bytes, name=chosen.name))
            continue
        answer = selector.support.answers(offer.region)[engine_of(offer)]
        assert isinstance(answer, Support)
        steps.append(Step(offer.region, None, answer.workspace_bytes, answer.in_place))
    return steps
