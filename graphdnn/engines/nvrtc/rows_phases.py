"""What each phase of a row program computes, and which elements wait in registers for a later one.

Phase p folds and stores whatever needs p folds before it.  An element that a later phase needs again is found again
from the row's loads where that is cheap, and kept where it is dear.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphdnn.engines.nvrtc.rows_program import Output, Program, Term

HEAVY = 12
"""Instructions of any function that is not light, by which an element is dear: kept rather than computed again."""

LIGHT_ARITHMETIC = ("add", "sub", "mul", "neg", "abs", "square", "add_square", "bias", "cast", "identity", "select")
LIGHT_BOUNDS = ("relu", "relu_backward", "leaky_relu", "minimum", "maximum", "clip")
LIGHT_LOGIC = ("logical_and", "logical_or", "logical_not", "equal", "not_equal", "greater", "less")
LIGHT = frozenset({*LIGHT_ARITHMETIC, *LIGHT_BOUNDS, *LIGHT_LOGIC, "greater_equal", "less_equal"})
"""Functions of one or two instructions: computed again rather than kept."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One walk over the row.

    `rows` are the numbers a row that are known before it, `elements` what it computes for each element, in order, out
    of `loads` and of `reused` elements from earlier phases; `keeps` are those elements that wait for a later phase.
    """

    rows: tuple[Term, ...]
    loads: tuple[Term, ...]
    reused: tuple[Term, ...]
    elements: tuple[Term, ...]
    keeps: tuple[Term, ...]
    folds: tuple[Term, ...]
    stores: tuple[Output, ...]

    @property
    def is_walk(self) -> bool:
        """Whether it looks at elements at all."""
        return bool(self.folds or any(o.varies for o in self.stores))


def phases(program: Program, keep: bool) -> tuple[Phase, ...]:
    """The phases in order; with `keep`, dear elements wait in registers between them."""
    reached = [closure(program, p, frozenset()) for p in range(program.phases + 1)]
    weight = weights(program)
    several = [t for t in program.terms if sum(t in r for r in reached) > 1]
    dear = frozenset(t for t in several if keep and not t.is_load and weight[t] >= HEAVY)
    first = {t: next(p for p, r in enumerate(reached) if t in r) for t in dear}
    ready: list[tuple[dict[Term, None], frozenset[Term]]] = []
    for p in range(program.phases + 1):
        stops = frozenset(t for t in dear if first[t] < p)
        ready.append((closure(program, p, stops), stops))
    wanted = {t for found, stops in ready for t in found if t in stops}
    return tuple(
        phase(program, p, list(found), stops, {t for t in wanted if first[t] == p})
        for p, (found, stops) in enumerate(ready)
    )


def phase(program: Program, p: int, found: list[Term], stops: frozenset[Term], keeps: set[Term]) -> Phase:
    order = [t for t in program.terms if t in found]
    return Phase(
        rows=tuple(t for t in program.terms if not t.varies and t.phase == p),
        loads=tuple(t for t in order if t.is_load),
        reused=tuple(t for t in order if t in stops),
        elements=tuple(t for t in order if not t.is_load and t not in stops),
        keeps=tuple(t for t in order if t in keeps),
        folds=folds_of(program, p),
        stores=stores_of(program, p),
    )


def folds_of(program: Program, p: int) -> tuple[Term, ...]:
    return tuple(t for t in program.terms if t.fold and t.phase == p + 1)


def stores_of(program: Program, p: int) -> tuple[Output, ...]:
    return tuple(o for o in program.outputs if o.term.phase == p)


def closure(program: Program, p: int, stops: frozenset[Term]) -> dict[Term, None]:
    """The terms varying along the row that phase p computes with; behind `stops` it does not look."""
    found: dict[Term, None] = {}

    def visit(term: Term) -> None:
        if term in found or not term.varies:
            return
        found[term] = None
        if term not in stops:
            for operand in term.operands:
                visit(operand)

    for fold in folds_of(program, p):
        visit(fold.operands[0])
    for output in stores_of(program, p):
        if output.varies:
            visit(output.term)
    return found


def weights(program: Program) -> dict[Term, int]:
    """For each term, roughly, the instructions that find it again from what the row's loads hold."""
    found: dict[Term, int] = {}
    for term in program.terms:
        if not term.varies or term.is_load:
            found[term] = 0
            continue
        light = term.call == "divided" or (term.node is not None and term.node.op.label in LIGHT)
        found[term] = min(HEAVY, (1 if light else HEAVY) + sum(found.get(t, 0) for t in term.operands))
    return found


def kept_bytes(program: Program) -> int:
    """Most bytes that one element of the row takes in registers between two phases; loads as they lie in memory."""
    work = phases(program, True)
    most = 0
    for boundary in range(1, len(work)):
        before, behind = work[:boundary], work[boundary:]
        loads = {t for w in before for t in w.loads} & {t for w in behind for t in w.loads}
        keeps = {t for w in before for t in w.keeps} & {t for w in behind for t in w.reused}
        most = max(most, sum(t.dtype.itemsize for t in loads) + sum(max(4, t.dtype.itemsize) for t in keeps))
    return most
