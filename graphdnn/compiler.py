"""The public compile: passes, engines, cover, plans, schedule and report put together."""

from __future__ import annotations

from dataclasses import dataclass

from graphdnn.account import Decisions, account, engine_of
from graphdnn.answer import Code, Decline
from graphdnn.config import CompileOptions
from graphdnn.engines.choose import Chosen, Desk
from graphdnn.engines.contract import Device, DevicePlan, HostPlan, Support
from graphdnn.engines.manifest import engines_for
from graphdnn.errors import CompileError, SetupError
from graphdnn.executable import Decided, Executable, Pick
from graphdnn.ir.graph import Graph, Node
from graphdnn.ir.op import Op
from graphdnn.ir.ops.movement import Convert
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, TensorType
from graphdnn.ir.views import is_free
from graphdnn.ir.writer import GraphWriter
from graphdnn.passes.fuse import Proposal, propose
from graphdnn.passes.pipeline import PassRecord, prepare
from graphdnn.passes.promote import promotions
from graphdnn.passes.select import Cover, Offer, select
from graphdnn.runtime.device import device_for
from graphdnn.runtime.driver import device_present
from graphdnn.runtime.program import Program
from graphdnn.runtime.schedule import Schedule, Step, schedule
from graphdnn.target import Target


@dataclass(frozen=True)
class Planned:
    """A graph ready to run: what the passes made of it, what was proposed and chosen, and the plans where they exist.

    `whole` are composite nodes that no engine took as they are, asked alone.
    """

    prepared: Graph
    records: tuple[PassRecord, ...]
    proposals: tuple[Proposal, ...]
    cover: Cover
    plans: dict[Region, Chosen]
    whole: tuple[Region, ...]


Signature = tuple[Op, tuple[tuple[tuple[int, ...], DType], ...]]
"""What an op is applied to, whatever the layouts: operands' shapes and types."""


def compile(graph: Graph, target: str | Target = "auto", options: CompileOptions | None = None) -> Executable:
    """Compiles `graph` for a target: "cpu", "cuda", "auto" (cuda where there is a device) or a Target.

    A described target (`Target.named("h200")`) gives a full report and an executable that refuses to run.
    Raises CompileError where no cover exists, SetupError where a missing library is the only reason.
    """
    if not isinstance(graph, Graph):
        raise CompileError(
            f"compile: graph is a {type(graph).__name__}; a Graph, as GraphBuilder.build gives, is needed"
        )
    if not isinstance(options, CompileOptions | None):
        raise CompileError(f"compile: options is a {type(options).__name__}; a gd.CompileOptions is needed")
    chosen_options = options or CompileOptions()
    machine, device = resolve(target, chosen_options)
    desk = Desk(engines_for(machine.kind, chosen_options.disabled_engines), machine, chosen_options.policy())
    made = planned(graph, desk, device, chosen_options)
    placed = schedule(made.prepared, steps_of(made, desk))
    check_memory(placed, chosen_options)
    program = None
    if device is not None:
        program = Program(made.prepared, placed, device, lambda source, to: conversion(desk, device, source, to))
    decisions = Decisions(
        graph,
        made.prepared,
        made.proposals,
        made.cover,
        desk,
        made.plans,
        placed,
        made.records,
        promotions(graph),
        chosen_options,
        made.whole,
    )
    engines = {offer.region: engine_of(offer) for offer in made.cover.picks}
    picks = tuple(Pick(step.region, engines[step.region], made.plans.get(step.region)) for step in placed.steps)
    return Executable(graph, account(decisions), program, Decided(made.prepared, picks, machine, chosen_options))


def planned(graph: Graph, desk: Desk, device: Device | None, options: CompileOptions) -> Planned:
    """Passes, proposals and cover, and on a device the plans.

    A composite node that engines took on paper and none of them can build is expanded after all, and all begins anew;
    each round gives up one more op, so this ends.  Raises CompileError or SetupError naming the node nobody takes.
    """
    given_up: dict[Signature, dict[str, Support | Decline]] = {}
    while True:
        whole: list[Region] = []

        def ask(region: Region, whole: list[Region] = whole) -> float | None:
            if len(region.nodes) == 1 and (answers := given_up.get(signature(region.nodes[0]))) is not None:
                desk.overrule(region, answers)
            cost = desk.cheapest(region)
            if cost is None and len(region.nodes) == 1 and is_composite(region.nodes[0]):
                whole.append(region)
            return cost

        prepared, records = prepare(graph, ask, options.disabled_passes)
        proposals = propose(prepared)
        if "fuse" in options.disabled_passes:
            proposals = tuple(p for p in proposals if len(p.region.nodes) == 1)
        found = built_cover(prepared, proposals, desk, device)
        if not isinstance(found, Node):
            return Planned(prepared, records, proposals, *found, tuple(whole))
        if not is_composite(found) or signature(found) in given_up:
            raise nobody_takes(found, prepared, desk)
        given_up[signature(found)] = desk.answers(Region.of(prepared, [found]))


def is_composite(node: Node) -> bool:
    return type(node.op).expand is not Op.expand


def signature(node: Node) -> Signature:
    return node.op, tuple((t.shape, t.dtype) for t in node.operand_types)


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
        Offer(p.region, answer.estimated_us, engine)
        for p in proposals
        for engine, answer in desk.answers(p.region).items()
        if isinstance(answer, Support)
    ]


def unserved(graph: Graph, proposals: tuple[Proposal, ...], desk: Desk) -> Node | None:
    """The first computing node that no engine takes, alone or within a larger region."""
    covered = 0
    for offer in offers_of(proposals, desk):
        covered |= offer.region.mask
    missing = (n for i, n in enumerate(graph.nodes) if not covered >> i & 1 and not is_free(n))
    return next(missing, None)


def nobody_takes(node: Node, graph: Graph, desk: Desk) -> CompileError:
    """The error for a node that no engine takes: SetupError where a library is missing."""
    answers = desk.answers(Region.of(graph, [node]))
    reasons = "; ".join(f"{name}: {answer}" for name, answer in answers.items()) or "no engine is enabled"
    lacking = any(isinstance(a, Decline) and a.code is Code.SETUP for a in answers.values())
    return (SetupError if lacking else CompileError)(f"no engine takes {node} on {desk.target}: {reasons}")


def built_cover(
    graph: Graph, proposals: tuple[Proposal, ...], desk: Desk, device: Device | None
) -> tuple[Cover, dict[Region, Chosen]] | Node:
    """The cheapest cover, on a device such that every region has a plan that was built and run; or a node without one.

    A region whose engine cannot build it turns into a decline, and the cover is chosen anew; each round rules out at
    least one answer, so this ends.
    """
    while True:
        node = unserved(graph, proposals, desk)
        if node is not None:
            return node
        cover = select(graph, offers_of(proposals, desk))
        plans: dict[Region, Chosen] = {}
        if device is None:
            return cover, plans
        for offer in cover.picks:
            found = desk.plan(engine_of(offer), offer.region, device)
            if isinstance(found, Chosen):
                plans[offer.region] = found
        if len(plans) == len(cover.picks):
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


def steps_of(made: Planned, desk: Desk) -> list[Step]:
    """The cover's regions with their plans; for a device that is not here, with what engines said of them."""
    steps = []
    for offer in made.cover.picks:
        chosen = made.plans.get(offer.region)
        if chosen is not None:
            steps.append(Step(offer.region, chosen.plan, chosen.candidate.workspace_bytes))
            continue
        answer = desk.answers(offer.region)[engine_of(offer)]
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
