"""Canonicalization: one node for one computation, none for what nobody reads, constants computed once, short chains.

Its parts are passes of their own; `canonicalize` repeats them until none changes anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from graphdnn.errors import CompileError
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.payload import Compute, Payload
from graphdnn.ir.writer import Rewriter
from graphdnn.passes.rewrite import Rewritten, finish, rewrite
from graphdnn.passes.rules.movement import MOVEMENT
from graphdnn.passes.rules.pointwise import POINTWISE

ROUNDS = 50
"""Rounds after which the parts count as undoing each other."""

SMALL = 1 << 14
"""Elements up to which a constant may be larger than what it is computed from."""


def canonicalize(graph: Graph) -> Rewritten:
    """The graph in its simplest form that means the same.  Raises CompileError when that does not settle."""
    done, idle = Rewritten(graph), 0
    for step in STEPS * ROUNDS:
        before = done.graph
        done = done.then(step)
        idle = idle + 1 if done.graph is before else 0
        if idle == len(STEPS):
            return done
    raise CompileError(f"graph {graph.name} is still changing after {ROUNDS} rounds of canonicalization")


def drop_dead(graph: Graph) -> Rewritten:
    """Without the nodes whose results nothing needs."""
    needed = set(graph.escaping)
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.results):
            needed.update(node.operands)
    dropped = [n for n in graph.nodes if needed.isdisjoint(n.results)]
    if not dropped:
        return Rewritten(graph)
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        rewriter.keep(node)
    return Rewritten(finish(rewriter), tuple(f"{n.name}: nothing reads it" for n in dropped))


def merge_equal(graph: Graph) -> Rewritten:
    """One constant for equal ones, one node for equal ops on equal operands.  States are never merged."""
    rewriter = Rewriter(graph)
    changes: list[str] = []
    for value, first in equal_constants(graph).items():
        rewriter.replace(value, first)
        changes.append(f"{value.name}: the same constant as {first.name}")
    twins = equal_nodes(graph, rewriter)
    first_of = {twin: node for node, others in twins.items() for twin in others}
    for node in graph.nodes:
        first_node = first_of.get(node)
        if first_node is None:
            merged = (o for n in (node, *twins.get(node, ())) for o in n.origins)
            rewriter.keep(node, origins=tuple(dict.fromkeys(merged)))
            continue
        for value, kept in zip(node.results, first_node.results, strict=True):
            rewriter.replace(value, rewriter[kept])
        changes.append(f"{node.name}: computed once, as {first_node.name}")
    return Rewritten(finish(rewriter), tuple(changes)) if changes else Rewritten(graph)


def equal_constants(graph: Graph) -> dict[Value, Value]:
    """For each constant that repeats an earlier one, that one.

    Contents are compared only where types are equal and, with all data here, a sample of them too: hashing the weights
    of a ResNet takes longer than most passes.
    """
    by_type: dict[object, list[str]] = {}
    for name, value in graph.constants.items():
        by_type.setdefault(value.type, []).append(name)
    repeats: dict[Value, Value] = {}
    for names in (group for alike in by_type.values() for group in by_sample(alike, graph)):
        first: dict[str, Value] = {}
        for name in names if len(names) > 1 else ():
            value = graph.constants[name]
            known = first.setdefault(graph.payloads[name].digest, value)
            if known is not value:
                repeats[value] = known
    return repeats


def by_sample(names: Sequence[str], graph: Graph) -> Iterable[list[str]]:
    """Constants that may be equal, together."""
    samples = [graph.payloads[name].sample for name in names] if len(names) > 1 else [None]
    if None in samples:
        return [list(names)]
    groups: dict[bytes | None, list[str]] = {}
    for name, sample in zip(names, samples, strict=True):
        groups.setdefault(sample, []).append(name)
    return groups.values()


def equal_nodes(graph: Graph, rewriter: Rewriter) -> dict[Node, list[Node]]:
    """For each node that later ones repeat, those."""
    number: dict[Value, int | str] = {}
    first: dict[object, Node] = {}
    twins: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        reads = tuple(operand_key(rewriter[v], number) for v in node.operands)
        known = first.setdefault((repr(node.op), reads), node)
        if known is not node:
            twins.setdefault(known, []).append(node)
        for value, same in zip(node.results, known.results, strict=True):
            number[value] = number.setdefault(same, len(number))
    return twins


def operand_key(value: Value, number: dict[Value, int | str]) -> int | str:
    """Equal for equal operands: repr tells -0.0 from 0.0, and 1 from True."""
    if value.literal is not None:
        return f"{value.literal!r} {value.type}"
    return number.setdefault(value, len(number))


def fold_constants(graph: Graph) -> Rewritten:
    """Nodes on nothing but constants become constants, computed when their data is asked for.

    What would be larger than it is made from (an expansion, a padding) stays, unless it is small; so does what leaves
    the graph.
    """
    rewriter = Rewriter(graph)
    payloads: dict[Value, Payload] = {value: graph.payloads[name] for name, value in graph.constants.items()}
    changes: list[str] = []
    for node in graph.nodes:
        if not all(v in payloads or v.literal is not None for v in node.operands) or not is_worth_storing(node, graph):
            rewriter.keep(node)
            continue
        parts = tuple(payloads[v] if v.literal is None else v.literal for v in node.operands)
        for index, value in enumerate(node.results):
            payload = Payload(value.type, compute=Compute(node.op, parts, node.operand_types, index))
            payloads[value] = payload
            rewriter.precompute(value, payload)
        changes.append(f"{', '.join(node.origins)}: computed once, from constants")
    return Rewritten(finish(rewriter), tuple(changes)) if changes else Rewritten(graph)


def is_worth_storing(node: Node, graph: Graph) -> bool:
    elements = sum(t.size for t in node.result_types)
    fits = elements <= max(SMALL, sum(t.size for t in node.operand_types))
    return fits and graph.escaping.isdisjoint(node.results)


def simplify(graph: Graph) -> Rewritten:
    """Pointwise identities and chains of views."""
    return rewrite(graph, (*POINTWISE, *MOVEMENT))


STEPS: tuple[Callable[[Graph], Rewritten], ...] = (drop_dead, merge_equal, fold_constants, simplify)
"""Cheapest first; each leaves less for the next."""
