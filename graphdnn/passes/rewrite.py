"""Rewriting: rules swept over a graph until none fits, and the record of what was done and what was refused.

Every sweep looks at the nodes from the outputs backwards, so that the larger of two matches wins, and at each node
tries the rules in their order.  The new graph is built once a sweep, in linear time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from graphdnn.answer import Code, Decline, renamed
from graphdnn.errors import CompileError
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.payload import Compute, Payload
from graphdnn.ir.region import Region
from graphdnn.ir.types import TensorType
from graphdnn.ir.writer import Operand, Rewriter, immediates
from graphdnn.passes.pattern import Is, Match, OneOf, Pattern, matches

Ask = Callable[[Region], float | None]
"""Cheapest estimated microseconds at which some engine runs a region; None where none takes it."""

SWEEPS = 200
"""Sweeps after which rules count as undoing each other; deep chains need one for each doubling of their length."""


@dataclass(frozen=True)
class Refusal:
    """A near miss: the user's nodes that look like what `rule` wants, and why they are not."""

    rule: str
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Rewritten:
    """What a pass gives: the graph, one sentence for each change, and the near misses."""

    graph: Graph
    changes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()

    def then(self, step: Callable[[Graph], Rewritten]) -> Rewritten:
        """This followed by `step`, with both records."""
        after = step(self.graph)
        return Rewritten(
            after.graph, self.changes + after.changes, tuple(dict.fromkeys(self.refusals + after.refusals))
        )


@dataclass(frozen=True)
class Rule:
    """Where `pattern` fits and `where` has no objection, the root's result becomes what `build` makes.

    `does` completes the sentence "the user's nodes: ...", or gives the whole of it.  `build` returns the value that
    takes the root's place, a new or an existing one.  Both `fits` and `where` look at a match of the pattern: what
    `fits` turns down was no candidate and is not reported, a Decline of `where` is a near miss and becomes a refusal in
    the report.
    """

    name: str
    does: str | Callable[[Match], str]
    pattern: Is | OneOf
    build: Callable[[Emitter, Match], Value]
    fits: Callable[[Match], bool] | None = None
    where: Callable[[Match], Decline | None] | None = None


class Emitter:
    """Emits nodes of the new graph that do the work of some user's nodes; takes old values or new ones as operands."""

    def __init__(self, rewriter: Rewriter, origins: Iterable[str]) -> None:
        self.rewriter = rewriter
        self.origins = tuple(dict.fromkeys(origins))

    def __call__(self, op: Op, /, *operands: Operand) -> Value:
        return self.all(op, *operands)[0]

    def all(self, op: Op, /, *operands: Operand) -> tuple[Value, ...]:
        """Every result of the new node."""
        now = (self.rewriter[v] if isinstance(v, Value) else v for v in operands)
        return self.rewriter.emit(op, *now, origins=self.origins)

    def also(self, nodes: Iterable[Node]) -> None:
        """What is emitted from now on does the work of these nodes too."""
        self.origins = tuple(dict.fromkeys((*(o for n in nodes for o in n.origins), *self.origins)))

    def constant(self, payload: Payload) -> Value:
        """A new constant."""
        return self.rewriter.constant(payload)


class Precomputed(Emitter):
    """Emits constants, computed when asked for, in place of nodes on nothing but constants."""

    def all(self, op: Op, /, *operands: Operand) -> tuple[Value, ...]:
        now = immediates(op, [self.rewriter[v] if isinstance(v, Value) else v for v in operands])
        types = tuple(v.type for v in now)
        inferred = op.infer(*types)
        return self.computed(op, now, types, inferred) or super().all(op, *now)

    def rounded(self, op: Op, result: TensorType, /, *operands: Value) -> Value:
        """`op` on constants in its precision, rounded once to the type `result`."""
        now = tuple(self.rewriter[v] for v in operands)
        made = self.computed(op, now, tuple(v.type for v in now), (result,))
        assert made is not None
        return made[0]

    def computed(
        self, op: Op, operands: tuple[Value, ...], types: tuple[TensorType, ...], results: tuple[TensorType, ...]
    ) -> tuple[Value, ...] | None:
        """Constants for the results; None where an operand is no constant."""
        parts: list[Payload | float] = []
        writer = self.rewriter.writer
        for operand in operands:
            if operand.literal is not None:
                parts.append(operand.literal)
            elif writer.constants.get(operand.name) is operand:
                parts.append(writer.payloads[operand.name])
            else:
                return None
        computes = (Compute(op, tuple(parts), types, index) for index in range(len(results)))
        return tuple(
            self.rewriter.constant(Payload(t, compute=c), stem=self.origins[0])
            for t, c in zip(results, computes, strict=True)
        )


def rewrite(graph: Graph, rules: Sequence[Rule]) -> Rewritten:
    """Applies `rules` until none fits.  Raises CompileError with the rules' names when they do not settle.

    A refusal stands even where another rule takes the nodes, unless the same rule accepts them later.
    """
    index = Index(rules)
    changes: list[str] = []
    refusals: dict[Refusal, None] = {}
    busy = ""
    for _ in range(SWEEPS):
        done, refused = find(graph, index)
        refusals.update(dict.fromkeys(refused))
        if not done:
            return Rewritten(graph, tuple(changes), tuple(refusals))
        graph = apply(graph, done)
        for rule, found in reversed(done.values()):
            changes.append(sentence(rule, found))
            for settled in [r for r in refusals if r.rule == rule.name and set(r.nodes) <= set(found.origins)]:
                del refusals[settled]
        busy = ", ".join(dict.fromkeys(rule.name for rule, _ in done.values()))
    raise CompileError(
        f"graph {graph.name}: the rules {busy} still change it after {SWEEPS} sweeps; they undo each other"
    )


def sentence(rule: Rule, found: Match) -> str:
    return f"{', '.join(found.origins)}: {rule.does}" if isinstance(rule.does, str) else rule.does(found)


class Index:
    """Rules by the op that their root may have, in their order."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.heads = [(rule, heads(rule.pattern)) for rule in rules]
        self.known: dict[tuple[type[Op], str], tuple[Rule, ...]] = {}

    def __getitem__(self, op: Op) -> tuple[Rule, ...]:
        key = type(op), op.label
        if key not in self.known:
            self.known[key] = tuple(rule for rule, roots in self.heads if any(may_be(op, root) for root in roots))
        return self.known[key]


def may_be(op: Op, root: Is) -> bool:
    return isinstance(op, root.op) and (root.labels is None or op.label in root.labels)


def heads(pattern: Pattern) -> tuple[Is, ...]:
    """Patterns of the nodes that can be the root of a match."""
    if isinstance(pattern, OneOf):
        return tuple(head for choice in pattern.choices for head in heads(choice))
    if isinstance(pattern, Is):
        return (pattern,)
    raise CompileError(f"the root of a pattern is {pattern}; a node is needed there")


def find(graph: Graph, rules: Index) -> tuple[dict[Node, tuple[Rule, Match]], tuple[Refusal, ...]]:
    """Matches by root that share no node, and the near misses."""
    taken: set[Node] = set()
    done: dict[Node, tuple[Rule, Match]] = {}
    refusals: dict[Refusal, None] = {}
    for node in reversed(graph.nodes):
        for rule in () if node in taken else rules[node.op]:
            found = first_legal(rule, node, graph)
            if isinstance(found, Match) and taken.isdisjoint(found.nodes):
                done[node] = rule, found
                taken.update(found.nodes)
                break
            if isinstance(found, Refusal):
                refusals[found] = None
    return done, in_user_names(refusals, graph)


def in_user_names(refusals: Iterable[Refusal], graph: Graph) -> tuple[Refusal, ...]:
    """Refusals of nodes of `graph` whose reasons name the user's nodes, not those that passes made of them."""
    made = [n for n in graph.nodes if n.origins and n.name not in n.origins]
    names = {name: n.origins[0] for n in made for name in (n.name, *(v.name for v in n.results))}
    return tuple(replace(r, reason=renamed(r.reason, names)) for r in refusals)


def user_name(value: Value, graph: Graph) -> str:
    """What the user calls a value of `graph`, or else the first node of theirs whose work makes it, or what was copied
    to make it."""
    node = graph.producer.get(value)
    while node is not None and not node.origins:
        value = node.operands[0]
        node = graph.producer.get(value)
    return value.name if node is None or node.name in node.origins else node.origins[0]


def first_legal(rule: Rule, node: Node, graph: Graph) -> Match | Refusal | None:
    """The first match of `rule` at `node` that nothing speaks against, else the first objection."""
    refusal: Refusal | None = None
    for found in matches(rule.pattern, node, graph):
        if rule.fits is not None and not rule.fits(found):
            continue
        decline = found.escape
        if decline is None and rule.where is not None:
            decline = rule.where(found)
        if decline is None:
            return found
        refusal = refusal or Refusal(rule.name, found.origins, decline.reason)
    return refusal


def apply(graph: Graph, done: dict[Node, tuple[Rule, Match]]) -> Graph:
    """The graph with every root of `done` replaced by what its rule builds, without what nothing reads any more."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        if node not in done:
            rewriter.keep(node)
            continue
        rule, found = done[node]
        made = rewriter[rule.build(Emitter(rewriter, found.origins), found)]
        before, after = node.result.type, made.type
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            raise CompileError(f"rule {rule.name} made {after} of {node}, which is {before}")
        rewriter.replace(node.result, made)
    return finish(rewriter)


def finish(rewriter: Rewriter) -> Graph:
    """The new graph without the nodes that nothing reads."""
    needed = {rewriter[v] for v in rewriter.graph.escaping}
    live: list[Node] = []
    for node in reversed(rewriter.writer.nodes):
        if needed.isdisjoint(node.results):
            continue
        live.append(node)
        needed.update(node.operands)
    rewriter.writer.nodes[:] = reversed(live)
    return rewriter.finish()


def leaves_a_node(found: Match, value: Value) -> Decline | None:
    """Declines to put `value` in the root's place where an output of the graph would become one of its sources."""
    if found.root.result in found.graph.escaping and value not in found.graph.producer:
        return Decline(Code.ESCAPE, f"{found.root.result} leaves the graph, and {value} is not made in it")
    return None
