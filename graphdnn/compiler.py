"""The public compile: passes, engines, cover, plans, schedule and report put together."""

from __future__ import annotations

from dataclasses import dataclass

from graphdnn.account import Decisions, account
from graphdnn.answer import Code, Decline
from graphdnn.config import CompileOptions
from graphdnn.engines.choose import Chosen, Desk, Refused
from graphdnn.engines.contract import Device, DevicePlan, HostPlan, Support
from graphdnn.engines.manifest import engines_for
from graphdnn.errors import CompileError, SetupError
from graphdnn.executable import Executable
from graphdnn.ir.graph import Graph
from graphdnn.ir.op import Op
from graphdnn.ir.ops.movement import Convert
from graphdnn.ir.region import Region
from graphdnn.ir.types import TensorType
from graphdnn.ir.views import is_free
from graphdnn.ir.writer import GraphWriter
from graphdnn.passes.fuse import Proposal, propose
from graphdnn.passes.pipeline import prepare
from graphdnn.passes.promote import promotions
from graphdnn.passes.select import Cover, Offer, select
from graphdnn.runtime.device import device_for, device_present
from graphdnn.runtime.program import Program
from graphdnn.runtime.schedule import Schedule, Step, schedule
from graphdnn.target import Target


@dataclass(frozen=True)
class Bid:
    """One engine's offer to run one region, as selection sees it."""

    engine: str
    region: Region


def compile(graph: Graph, target: str | Target = "auto", options: CompileOptions | None = None) -> Executable:
    """Compiles `graph` for a target: "cpu", "cuda", "auto" (cuda where there is a device) or a Target.

    A described target (`Target.named("h200")`) gives a full report and an executable that refuses to run.
    Raises CompileError where no cover exists, SetupError where a missing library is the only reason.
    """
    chosen_options = options or CompileOptions()
    if not isinstance(graph, Graph):
        raise CompileError(
            f"compile: graph is a {type(graph).__name__}; a Graph, as GraphBuilder.build gives, is needed"
        )
    machine, device = resolve(target, chosen_options)
    policy = chosen_options.policy()
    desk = Desk(engines_for(machine.kind, chosen_options.disabled_engines), machine, policy)
    whole: list[Region] = []

    def ask(region: Region) -> float | None:
        """The cheapest estimate; composite nodes that nobody takes whole are kept, for the report to say why."""
        cost = desk.cheapest(region)
        if cost is None and len(region.nodes) == 1 and type(region.nodes[0].op).expand is not Op.expand:
            whole.append(region)
        return cost

    prepared, records = prepare(graph, ask, chosen_options.disabled_passes)
    proposals = propose(prepared)
    if "fuse" in chosen_options.disabled_passes:
        proposals = tuple(p for p in proposals if len(p.region.nodes) == 1)
    if device is None:
        cover = cheapest_cover(prepared, proposals, desk)
        plans: dict[Region, Chosen] = {}
        program = None
        placed = schedule(prepared, planned_steps(cover, desk))
    else:
        cover, plans = built_cover(prepared, proposals, desk, device)
        placed = schedule(
            prepared,
            [Step(o.region, plans[o.region].plan, plans[o.region].candidate.workspace_bytes) for o in cover.picks],
        )
        check_memory(placed, chosen_options)
        program = Program(prepared, placed, device, lambda source, wanted: conversion(desk, device, source, wanted))
    decisions = Decisions(
        graph, prepared, proposals, cover, desk, plans, placed, records, promotions(graph), chosen_options, tuple(whole)
    )
    return Executable(graph, account(decisions), program)


def resolve(target: str | Target, options: CompileOptions) -> tuple[Target, Device | None]:
    """The machine that is meant, and the device where it is here.  Raises CompileError for an unknown word."""
    if isinstance(target, Target):
        if not target.present:
            return target, None
        device = device_for(target.kind, target.ordinal, options.cache_dir)
    elif target in ("cpu", "cuda", "auto"):
        kind = ("cuda" if device_present() else "cpu") if target == "auto" else target
        device = device_for(kind, None, options.cache_dir)
    else:
        raise CompileError(
            f'compile: target is {target!r}; "auto", "cpu", "cuda" or a gd.Target is needed '
            f"(a described device: gd.Target.named({target!r}))"
        )
    return device.target, device


def offers_of(proposals: tuple[Proposal, ...], desk: Desk) -> list[Offer]:
    """Every engine's "yes" to every proposal, in the engines' order."""
    return [
        Offer(p.region, answer.estimated_us, Bid(engine, p.region))
        for p in proposals
        for engine, answer in desk.answers(p.region).items()
        if isinstance(answer, Support)
    ]


def cheapest_cover(graph: Graph, proposals: tuple[Proposal, ...], desk: Desk) -> Cover:
    """The cover of least estimated cost.  Raises CompileError or SetupError naming the node that nobody takes."""
    offers = offers_of(proposals, desk)
    covered = 0
    for offer in offers:
        covered |= offer.region.mask
    for position, node in enumerate(graph.nodes):
        if covered >> position & 1 or is_free(node):
            continue
        declines = desk.answers(Region.of(graph, [node]))
        reasons = "; ".join(f"{name}: {answer}" for name, answer in declines.items()) or "no engine is enabled"
        lacking = [a for a in declines.values() if isinstance(a, Decline) and a.code is Code.SETUP]
        raise (SetupError if lacking else CompileError)(f"no engine takes {node} on {desk.target}: {reasons}")
    return select(graph, offers)


def built_cover(
    graph: Graph, proposals: tuple[Proposal, ...], desk: Desk, device: Device
) -> tuple[Cover, dict[Region, Chosen]]:
    """The cheapest cover whose every region has a plan that was built and run.

    A region whose engine cannot build it turns into a decline, and the cover is chosen anew; each round rules out at
    least one answer, so this ends.
    """
    while True:
        cover = cheapest_cover(graph, proposals, desk)
        plans: dict[Region, Chosen] = {}
        refused = False
        for offer in cover.picks:
            bid = offer.payload
            assert isinstance(bid, Bid)
            found = desk.plan(bid.engine, offer.region, device)
            if isinstance(found, Refused):
                refused = True
            else:
                plans[offer.region] = found
        if not refused:
            return cover, plans


def conversion(desk: Desk, device: Device, source: TensorType, wanted: TensorType) -> DevicePlan:
    """A plan that copies a tensor into another layout, for arrays whose strides differ from the declared ones.

    Raises CompileError where no engine copies it.
    """
    writer = GraphWriter("convert")
    (copied,) = writer.emit(Convert(), [writer.input("x", source)], types=[wanted])
    graph = writer.finish({"y": copied})
    region = Region.of(graph, graph.nodes)
    for name, answer in desk.answers(region).items():
        found = desk.plan(name, region, device) if isinstance(answer, Support) else None
        if isinstance(found, Chosen) and not isinstance(found.plan, HostPlan):
            return found.plan
    raise CompileError(f"no engine on {desk.target} copies {source} into {wanted}")


def planned_steps(cover: Cover, desk: Desk) -> list[Step]:
    """Steps without plans, for a device that is not here: scratch memory as estimated."""
    steps = []
    for offer in cover.picks:
        bid = offer.payload
        assert isinstance(bid, Bid)
        answer = desk.answers(offer.region)[bid.engine]
        assert isinstance(answer, Support)
        steps.append(Step(offer.region, None, answer.workspace_bytes, answer.in_place))
    return steps


def check_memory(placed: Schedule, options: CompileOptions) -> None:
    """Raises CompileError where the arena is larger than `memory_limit`."""
    limit = options.memory_limit
    if limit is not None and placed.arena_bytes > limit:
        raise CompileError(
            f"the intermediates and scratch of this graph need {placed.arena_bytes} bytes; memory_limit is {limit}"
        )
