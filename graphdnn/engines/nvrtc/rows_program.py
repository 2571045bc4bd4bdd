"""A region as a row program: element-wise work and folds over one set of axes, sorted into phases.

Composite ops (softmax, norms) are expanded first, so a program knows pointwise nodes and folds only.  A term varies
along the row, or is one number a row; a fold ends a phase: what depends on it belongs to the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from graphdnn.answer import Code, Decline
from graphdnn.engines.nvrtc.analysis import cached_for_last
from graphdnn.engines.nvrtc.emit import literal
from graphdnn.engines.nvrtc.places import Place, pointwise_operand, strides_at
from graphdnn.engines.nvrtc.rows_places import place_all, reshaped_place
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.movement import Reshape
from graphdnn.ir.ops.pointwise import Elementwise, Pointwise
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, float32, promote
from graphdnn.ir.writer import Operand, immediates


@dataclass(frozen=True, eq=False)
class Term:
    """One value of a row program.

    Exactly one of these: a load (`strides` along the space), a literal (`text`), a fold (`fold` names the reduction), a
    pointwise node (`node`), or a call of a function of templates/rows.cu (`call`).  `varies` says whether it changes
    along the row, `phase` how many folds stand before it.
    """

    dtype: DType
    varies: bool
    phase: int
    operands: tuple[Term, ...] = ()
    value: Value | None = None
    strides: tuple[int, ...] = ()
    text: str = ""
    fold: str = ""
    node: Node | None = None
    call: str = ""

    @property
    def is_load(self) -> bool:
        return self.value is not None


@dataclass(frozen=True)
class Output:
    """One output of the region: what to store, and how its address moves along the space."""

    value: Value
    term: Term
    strides: tuple[int, ...]
    varies: bool


@dataclass(frozen=True)
class Program:
    """A whole row program over a space of `extents`; the axes `along` make up a row, all others count the rows."""

    extents: tuple[int, ...]
    along: tuple[int, ...]
    outputs: tuple[Output, ...]
    terms: tuple[Term, ...]

    @property
    def phases(self) -> int:
        """Folds in a row, one behind the other."""
        return max((t.phase for t in self.terms if t.fold), default=0)

    @property
    def loads(self) -> tuple[Term, ...]:
        return tuple(t for t in self.terms if t.is_load)

    @property
    def length(self) -> int:
        """Elements of a row."""
        return prod(self.extents[a] for a in self.along)


class Unfit(Exception):
    """Carries a Decline out of a recursion; caught in `program`."""

    def __init__(self, decline: Decline) -> None:
        super().__init__(str(decline))
        self.decline = decline


class Flattening:
    """Emits nodes outside any graph: the region's own, with composite ops replaced by their expansions.

    All are named after the region's node whose work they do, which is what a refusal speaks of.
    """

    def __init__(self, region: Region) -> None:
        self.nodes: list[Node] = []
        self.stands_for: dict[Value, Value] = {}
        self.name = ""
        for node in region.nodes:
            self.name = node.name
            operands = tuple(self.stands_for.get(v, v) for v in node.operands)
            results = None if isinstance(node.op, Elementwise | Reduce | Reshape) else node.op.expand(self, *operands)
            if results is None:
                results = self.all(node.op, *operands)
            self.stands_for.update(zip(node.results, results, strict=True))

    def __call__(self, op: Op, /, *operands: Operand) -> Value:
        return self.all(op, *operands)[0]

    def all(self, op: Op, /, *operands: Operand) -> tuple[Value, ...]:
        values = immediates(op, operands)
        types = op.infer(*(v.type for v in values))
        results = tuple(Value(self.name, t) for t in types)
        self.nodes.append(Node(self.name, op, values, results, ()))
        return results


@cached_for_last
def program(region: Region) -> Program | Decline:
    """The row program of a region, or why it has none."""
    flat = Flattening(region)
    folds = [n for n in flat.nodes if isinstance(n.op, Reduce)]
    if folds:
        root = max(folds, key=lambda n: n.operands[0].type.size).operands[0]
    else:
        root = max((n.result for n in flat.nodes), key=lambda v: (v.type.size, v.type.rank))
    places = place_all(flat.nodes, root)
    if isinstance(places, Decline):
        return places
    try:
        return TermBuilder(region, flat, root, places).program()
    except Unfit as unfit:
        return unfit.decline


class TermBuilder:
    """Builds the terms that the outputs need, each (value, place) once."""

    def __init__(self, region: Region, flat: Flattening, root: Value, places: Mapping[Value, Place]) -> None:
        self.region, self.flat, self.places = region, flat, places
        self.extents = root.type.shape
        self.producer = {n.result: n for n in flat.nodes}
        self.along = row_axes(flat.nodes, places, self.extents)
        self.terms: list[Term] = []
        self.known: dict[tuple[Value, Place], Term] = {}
        self.loads: dict[tuple[Value, tuple[int, ...]], Term] = {}
        self.inverses: dict[Term, tuple[Term, Term]] = {}

    def program(self) -> Program:
        if not self.along:
            self.along = walk_axes(self.region, self.places, self.flat, self.extents)
        outputs = tuple(self.output(v) for v in self.region.outputs)
        return Program(self.extents, self.along, outputs, tuple(self.terms))

    def output(self, value: Value) -> Output:
        inner = self.flat.stands_for[value]
        place = self.places[inner]
        covered = {a for run in place for a in run.axes}
        lacking = [a for a, n in enumerate(self.extents) if n > 1 and a not in covered]
        if any(a not in self.along for a in lacking) or (lacking and set(lacking) != set(self.long_axes())):
            raise Unfit(
                Decline(
                    Code.BROADCAST,
                    f"{value} of shape {value.type.shape} is neither one element for each of {self.extents} nor one "
                    "for each of its rows",
                )
            )
        term = self(inner, place)
        if term.node is not None and not term.fold and term.node.op.label == "cast" and term.dtype == value.type.dtype:
            source = term.operands[0]
            if source.dtype.is_float and term.dtype.is_float:
                term = source  # Storing rounds to the same type.
        strides = strides_at(value.type.layout, place, self.extents)
        return Output(value, term, strides, not lacking and bool(self.long_axes()))

    def long_axes(self) -> tuple[int, ...]:
        return tuple(a for a in self.along if self.extents[a] > 1)

    def add(self, term: Term) -> Term:
        self.terms.append(term)
        return term

    def __call__(self, value: Value, place: Place) -> Term:
        """The term of a value where it lies at `place`."""
        if value.literal is not None:
            return Term(value.type.dtype, False, 0, text=literal(value.literal, value.type.dtype))
        known = self.known.get((value, place))
        if known is None:
            node = self.producer.get(value)
            known = self.load(value, place) if node is None else self.apply(node, place)
            self.known[value, place] = known
        return known

    def load(self, value: Value, place: Place) -> Term:
        strides = strides_at(value.type.layout, place, self.extents)
        known = self.loads.get((value, strides))
        if known is None:
            varies = any(strides[a] for a in self.along)
            known = self.loads[value, strides] = self.add(
                Term(value.type.dtype, varies, 0, value=value, strides=strides)
            )
        return known

    def apply(self, node: Node, place: Place) -> Term:
        op = node.op
        if isinstance(op, Reduce):
            return self.fold(node, op, place)
        if isinstance(op, Reshape):
            inner = reshaped_place(place, op.shape, node.operands[0].type.shape, self.extents)
            if inner is None:
                raise Unfit(unplaced(node, self.extents))
            return self(node.operands[0], inner)
        operands = tuple(self(v, pointwise_operand(node, i, place)) for i, v in enumerate(node.operands))
        varies, phase = any(t.varies for t in operands), max(t.phase for t in operands)
        if isinstance(op, Pointwise) and op.fn == "div" and operands[0].varies and not operands[1].varies:
            divided = self.divide(operands[0], operands[1], node.result.type.dtype, phase)
            if divided is not None:
                return divided
        return self.add(Term(node.result.type.dtype, varies, phase, operands, node=node))

    def divide(self, a: Term, b: Term, dtype: DType, phase: int) -> Term | None:
        """Division by one number a row as a product with its inverse, which is found once; float32 only."""
        if b.text or promote(a.dtype, b.dtype).compute != float32:
            return None
        if b not in self.inverses:
            near = self.add(Term(float32, False, b.phase, (b,), call="near"))
            self.inverses[b] = (near, self.add(Term(float32, False, b.phase, (b, near), call="inverse")))
        return self.add(Term(dtype, True, phase, (a, *self.inverses[b]), call="divided"))

    def fold(self, node: Node, op: Reduce, place: Place) -> Term:
        value = node.operands[0]
        inner = self.places[value]
        folded = {a for axis in op.axes for a in inner[axis].axes}
        if place != self.places[node.result] or folded != set(self.long_axes()):
            raise Unfit(unplaced(node, self.extents))
        operand = self(value, inner)
        return self.add(Term(node.result.type.dtype, False, operand.phase + 1, (operand,), fold=op.fn))


def unplaced(node: Node, space: Sequence[int]) -> Decline:
    return Decline(
        Code.PATTERN,
        f"{node.op.label} of {node.operands[0].type} does not run over the same rows of {tuple(space)} as the rest; "
        "one kernel folds one set of axes",
    )


def row_axes(nodes: Sequence[Node], places: Mapping[Value, Place], extents: Sequence[int]) -> tuple[int, ...]:
    """The axes of the space that the first fold of more than one element folds; none where nothing is folded."""
    folds = [(places[n.operands[0]], n.op.axes) for n in nodes if isinstance(n.op, Reduce)]
    for place, axes in folds:
        if folded := tuple(a for axis in axes for a in place[axis].axes):
            return folded
    # Folds over axes of extent 1 alone still need a row to fold: any such axis is one.
    return tuple(a for a, n in enumerate(extents) if n == 1)[:1] if folds else ()


def walk_axes(
    region: Region, places: Mapping[Value, Place], flat: Flattening, extents: Sequence[int]
) -> tuple[int, ...]:
    """For a program without folds: the innermost axes of the largest output, as far as the same operands move."""
    moving: list[set[Value]] = [set() for _ in extents]
    for node in flat.nodes:
        for value in node.operands:
            for run in places.get(value, ()) if value in region.inputs else ():
                for axis in run.axes:
                    moving[axis].add(value)
    leader = max(region.outputs, key=lambda v: v.type.size)
    strides = strides_at(leader.type.layout, places[flat.stands_for[leader]], extents)
    order = sorted((a for a, n in enumerate(extents) if n > 1 and strides[a]), key=lambda a: strides[a])
    if not order:
        return (0,) if extents else ()
    along = [order[0]]
    for axis in order[1:]:
        if moving[axis] != moving[order[0]] or strides[axis] != strides[along[-1]] * extents[along[-1]]:
            break
        along.append(axis)
    return tuple(sorted(along))
