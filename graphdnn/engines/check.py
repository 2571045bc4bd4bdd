"""Whether a plan's results are right: random inputs whose indices stay in range, a trusted result, and a verdict.

Where the float64 definition of a region is cheap, every plan's results are compared with it.  Elsewhere plans are
compared with each other: plans whose results agree form a group, and the group of the most independent implementations
is trusted.  Where two groups are of equally many, or all plans are of one implementation, the results are compared with
the definition of a part of the batch: of its end, and of where those contradict each other that are right there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt

import numpy as np

from graphdnn.engines.arithmetic import TF32
from graphdnn.engines.contract import Policy
from graphdnn.engines.definition import definition, entries, seconds
from graphdnn.ir.evaluate import is_float, widened
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.movement import Gather, WriteSlice
from graphdnn.ir.ops.norm import InstanceNorm, LayerNorm, RmsNorm
from graphdnn.ir.ops.pointwise import Cast, Elementwise
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, TensorType

DRAWN = 1_000_003
"""Random numbers drawn for one tensor; a larger one repeats them.  A prime, so that no two rows are equal."""

DIGIT = 9
"""Magnitude of integers that are drawn: products of two fit int8, and sums of many of them int32."""

AT_ONCE_S = 0.05
"""Seconds up to which the float64 definition is computed of every region."""

PART_S = 0.2
"""Seconds that the definition of a part of a larger one may take."""

DISPUTE_S = 10.0
"""Seconds that the least part may take where plans contradict each other."""

COMPARED = 1 << 17
"""Elements of a larger output that are compared, drawn at random: a tile of 64 x 64 in 50 million is met 10 times."""

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "tf32": 1e-3, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Largest error relative to the peak by the narrowest type that the arithmetic passes through, widest first."""

SLACK = 2.0
"""How far beyond the tolerance a plan must be to be called wrong: several roundings may add up in one region."""

STEEP = frozenset({"div", "mod", "reciprocal", "log", "rsqrt", "pow", "tan", "atan2"})
SHARP = frozenset(
    {"equal", "not_equal", "greater", "greater_equal", "less", "less_equal", "ceil", "floor", "select"}
    | {"relu_backward", "leaky_relu_backward"}
)
"""Functions that turn a rounding of a computed operand into an error of any size at some elements."""

SHARP_SHARE = 1e-3
"""Elements that may be off for that reason."""

OF_UNIT_SCALE = (Attention, LayerNorm, RmsNorm, InstanceNorm)
"""Ops whose rounding errors are those of numbers around 1 even where results vanish: attention averages values that are
drawn from a standard normal distribution, and norms give rows whose mean square is 1."""

FEW = 64
"""Outputs of fewer elements may be near zero by chance, so their error is measured against sums of magnitudes."""

POSITIVE = {"log": (0,), "sqrt": (0,), "rsqrt": (0,), "reciprocal": (0,), "pow": (0,), "div": (1,), "mod": (1,)}
"""Operands of pointwise functions that are drawn from [0.5, 1.5]."""


def inputs_for(region: Region, rng: np.random.Generator) -> list[Array]:
    """Random arrays for the region's inputs, in the memory order of their types, large ones of repeated numbers.

    Lengths and indices stay inside what they index; where one is computed within the region, all integers are zero.
    """
    blind = any(i in index_roles(n) and v not in region.inputs for n in region.nodes for i, v in enumerate(n.operands))
    return [v.type.strided(np.resize(numbers(region, v, blind, rng), v.type.extent)) for v in region.inputs]


def numbers(region: Region, value: Value, blind: bool, rng: np.random.Generator) -> Array:
    """As many random elements of one input as it has, or DRAWN of them."""
    type, count = value.type, min(value.type.extent, DRAWN)
    uses = [(n, i) for n in region.nodes for i, v in enumerate(n.operands) if v is value]
    if type.dtype.is_float:
        if any(is_positive(n, i) for n, i in uses):
            return rng.uniform(0.5, 1.5, count).astype(type.dtype.numpy)
        scale = min((operand_scale(n, i) for n, i in uses), default=1.0)
        return (scale * rng.standard_normal(count, np.float32)).astype(type.dtype.numpy)
    if type.dtype.kind == "bool":
        return rng.integers(0, 2, count).astype(type.dtype.numpy)
    bounds = [bound for n, i in uses if (bound := index_roles(n).get(i)) is not None]
    if bounds:
        return rng.integers(0, min(bounds), count, endpoint=True).astype(type.dtype.numpy)
    if blind:
        return np.zeros(count, type.dtype.numpy)
    low = 1 if any(is_positive(n, i) for n, i in uses) else 0 if type.dtype.kind == "uint" else -DIGIT
    return rng.integers(low, DIGIT, count, endpoint=True).astype(type.dtype.numpy)


def index_roles(node: Node) -> dict[int, int]:
    """Operands that say where to read or write, and the largest value that each may have."""
    op, types = node.op, node.operand_types
    if isinstance(op, Gather):
        return {1: types[0].shape[op.axis] - 1}
    if isinstance(op, WriteSlice):
        return {2: types[0].shape[op.axis] - types[1].shape[op.axis]} if op.start is None else {}
    if isinstance(op, Attention):
        extents = {"q_lengths": types[0].shape[2], "kv_lengths": types[1].shape[2]}
        return {i: extents[name] for i, name in enumerate(op.operand_names) if name in extents}
    return {}


def is_positive(node: Node, index: int) -> bool:
    """Whether an operand had better be positive for the result to be a number."""
    if isinstance(node.op, Elementwise):
        return index in POSITIVE.get(node.op.function, ())
    names = node.op.operand_names
    return index < len(names) and "var" in names[index]


def operand_scale(node: Node, index: int) -> float:
    """What the second operand of a product is drawn with, so that sums of products are about 1."""
    if index != 1 or not isinstance(node.op, MatMul | Conv | ConvTranspose):
        return 1.0
    return 1 / sqrt(max(1, node.flops // (2 * max(1, node.result.type.size))))


@dataclass(frozen=True)
class Finding:
    """One plan's outputs at the compared elements.

    `implementation` names the code that computed them: the engine, and of a library the number of its own engine or
    algorithm.  Two plans that differ in knobs alone share it, so that their agreement proves nothing.
    `rounds_to_tf32` says that its float32 products read TF32.
    """

    implementation: str
    rounds_to_tf32: bool
    outputs: tuple[Array, ...]


class Checker:
    """Judges the results of one region's plans on one draw of inputs."""

    def __init__(self, region: Region, inputs: Sequence[Array], policy: Policy, rng: np.random.Generator) -> None:
        self._region = region
        self._inputs = inputs
        self._policy = policy
        self._places = [places(v.type, rng) for v in region.outputs]
        self._wanted: dict[int | None, list[Array]] = {}
        self._scales = [own_scale(region)] * len(region.outputs)
        whole = seconds(region)
        count = 1 if whole <= PART_S else entries(region)
        self._is_small = whole <= AT_ONCE_S
        self._least_s = whole / count
        # The last entries: what goes wrong at an end is met.
        self._part = slice(count - max(1, int(PART_S / self._least_s)), count) if count > 1 else None

    @property
    def compares_plans(self) -> bool:
        """Whether `judge` compares plans with each other, so that it can say nothing of one plan alone."""
        return not self._is_small

    @property
    def can_afford_definition(self) -> bool:
        """Whether the definition, or that of one entry of the batch, takes PART_S at most."""
        return self._least_s <= PART_S

    def finding(self, implementation: str, precision: str, outputs: Sequence[Array]) -> Finding:
        """What is kept of the outputs of a plan of that precision, in the words of `Candidate`."""
        picked = (widened(a if p is None else at(a, p)) for a, p in zip(outputs, self._places, strict=True))
        return Finding(implementation, precision == TF32, tuple(np.array(a) for a in picked))

    def judge(self, findings: Sequence[Finding]) -> list[str]:
        """What is wrong with each finding, in words; empty for one that is right."""
        if self._is_small:
            return self._held(findings, self._part)
        groups = self._groups(findings)
        if len(groups) < 2:
            return [""] * len(findings)
        support = [len({findings[i].implementation for i in g}) for g in groups]
        if support.count(max(support)) > 1 and self._least_s <= DISPUTE_S:
            return self.by_definition(findings)
        _, trusted = max(zip(support, groups, strict=True), key=lambda pair: (pair[0], len(pair[1])))
        reference = findings[trusted[0]]
        return ["" if i in trusted else self._differs(f, reference) for i, f in enumerate(findings)]

    def by_definition(self, findings: Sequence[Finding]) -> list[str]:
        """As `judge`, by the definition whatever the others computed."""
        wrong = self._held(findings, self._part)
        while (part := self._disputed([f for f, w in zip(findings, wrong, strict=True) if not w])) is not None:
            held = self._held(findings, part)
            if not any(h and not w for h, w in zip(held, wrong, strict=True)):
                break
            wrong = [w or h for h, w in zip(held, wrong, strict=True)]
        return wrong

    def _groups(self, findings: Sequence[Finding]) -> list[list[int]]:
        """The findings by number: those in one group do not differ from its first one."""
        groups: list[list[int]] = []
        for index, finding in enumerate(findings):
            home = next((g for g in groups if not self._differs(finding, findings[g[0]])), None)
            if home is None:
                groups.append([index])
            else:
                home.append(index)
        return groups

    def _disputed(self, findings: Sequence[Finding]) -> slice | None:
        """The part of the batch where two groups contradict each other most; None where none do."""
        groups = self._groups(findings) if self._part is not None else []
        if self._part is None or len(groups) < 2:
            return None
        one, other = (findings[g[0]] for g in groups[:2])
        counts = np.zeros(self._part.stop, np.int64)
        for places, compared in zip(self._places, self._pairs(one, other.outputs, 2 * SLACK), strict=True):
            bad = misses(*compared, is_sharp=is_sharp(self._region), is_definition=False)
            entries = np.nonzero(bad)[0] if places is None else places[0][bad]
            counts += np.bincount(entries, minlength=len(counts))
        start = min(int(counts.argmax()), self._part.start)
        return slice(start, start + self._part.stop - self._part.start)

    def _held(self, findings: Sequence[Finding], part: slice | None) -> list[str]:
        """What is wrong with each finding by the definition of this part of the batch, or of all of it."""
        key = None if part is None else part.start
        if key not in self._wanted:
            whole = definition(self._region, self._inputs, part)
            self._wanted[key] = [
                a if p is None else a[inside(p, part)] for a, p in zip(whole, self._places, strict=True)
            ]
            if any(a.size < FEW for a in whole):
                sums = definition(self._region, [np.abs(a) if is_float(a) else a for a in self._inputs], part)
                self._scales = [
                    max(scale, peak_of(a)) if a.size < FEW else scale
                    for scale, a in zip(self._scales, sums, strict=True)
                ]
        return [self._off(self._parted(f, part), self._wanted[key], SLACK) for f in findings]

    def _parted(self, finding: Finding, part: slice | None) -> Finding:
        """What of a finding lies in the part."""
        if part is None:
            return finding
        outputs = zip(finding.outputs, self._places, strict=True)
        return replace(finding, outputs=tuple(a[part] if p is None else a[lies_in(p, part)] for a, p in outputs))

    def _differs(self, finding: Finding, other: Finding) -> str:
        """What is wrong with a result if the other is right as far as its own arithmetic can be: both may be off."""
        both = replace(finding, rounds_to_tf32=finding.rounds_to_tf32 or other.rounds_to_tf32)
        return self._off(both, other.outputs, 2 * SLACK, is_definition=False)

    def _off(self, finding: Finding, wanted: Sequence[Array], slack: float, *, is_definition: bool = True) -> str:
        """What is wrong with a result where `wanted` is right.

        It names no value, since regions of equal structure share what was found, those of other graphs too.
        """
        share = SHARP_SHARE if is_sharp(self._region) else 0.0
        count = len(wanted)
        for number, compared in enumerate(self._pairs(finding, wanted, slack), 1):
            reason = difference(*compared, share, is_definition=is_definition)
            if reason:
                return reason if count == 1 else f"output {number} of {count}: {reason}"
        return ""

    def _pairs(
        self, finding: Finding, wanted: Sequence[Array], slack: float
    ) -> Iterator[tuple[Array, Array, TensorType, float, float]]:
        """Of each output what was found and what is wanted, its type, the tolerance, and the least scale of errors."""
        tolerance = slack * TOLERANCE[narrowest(self._region, finding.rounds_to_tf32, self._policy)]
        outputs = zip(self._region.outputs, finding.outputs, wanted, self._scales, strict=True)
        return ((found, right, value.type, tolerance, scale) for value, found, right, scale in outputs)


def lies_in(places: tuple[Array, ...], part: slice) -> Array:
    """Which of the places lie in a part of the first axis."""
    return (places[0] >= part.start) & (places[0] < part.stop)


def inside(places: tuple[Array, ...], part: slice | None) -> tuple[Array, ...]:
    """Those of the places that lie in the part, counted from its start."""
    if part is None:
        return places
    held = lies_in(places, part)
    return (places[0][held] - part.start, *(p[held] for p in places[1:]))


def misses(
    found: Array,
    wanted: Array,
    type: TensorType,
    tolerance: float,
    scale: float,
    *,
    is_sharp: bool,
    is_definition: bool,
) -> Array:
    """Which elements of a result differ from the wanted one by more than they may.

    Where the definition is not a number, anything will do; where only another plan's result is none, that one may be
    what is wrong: memory that nobody wrote to is not a number.
    """
    if not type.dtype.is_float:
        near = 1 if is_sharp and type.dtype.is_integer else 0  # a rounding may jump to the next integer
        return np.abs(found.astype(np.int64) - wanted.astype(np.int64)) > near
    with np.errstate(all="ignore"):
        right = rounded(wanted, type)
        is_near = np.abs(found - wanted) <= tolerance * max(peak_of(right), scale)
        undefined = np.isnan(right) if is_definition else np.isnan(right) & np.isnan(found)
        return np.where(np.isfinite(right), ~is_near, ~((found == right) | undefined))


def difference(
    found: Array,
    wanted: Array,
    type: TensorType,
    tolerance: float,
    scale: float,
    share: float,
    *,
    is_definition: bool = True,
) -> str:
    """How a result differs from the right one by more than it may, in words; `share` of the elements may differ."""
    bad = misses(found, wanted, type, tolerance, scale, is_sharp=bool(share), is_definition=is_definition)
    if not bad.size or bad.mean() <= share:
        return ""
    if not type.dtype.is_float:
        return f"{int(bad.sum())} of {bad.size} elements differ"
    with np.errstate(all="ignore"):
        right = rounded(wanted, type)
        error = np.abs(found - wanted)
    finite, peak = np.isfinite(right), max(peak_of(right), scale)
    lost = int((np.isnan(found) & finite).sum())
    largest = float(np.max(error[finite & ~np.isnan(error)], initial=0.0))
    relative = largest / peak if peak else largest
    text = f"{int(bad.sum())} of {bad.size} elements are off, by up to {relative:.2g} of the peak"
    return f"{text}; {lost} are not a number" if lost else text


def rounded(wanted: Array, type: TensorType) -> Array:
    """What is wanted, as the type holds it."""
    return wanted.astype(type.dtype.numpy).astype(np.float64)


def peak_of(array: Array) -> float:
    """Largest finite magnitude."""
    magnitudes = np.abs(array[np.isfinite(array)])
    return float(magnitudes.max(initial=0.0))


def places(type: TensorType, rng: np.random.Generator) -> tuple[Array, ...] | None:
    """Coordinates of the compared elements; None where all are."""
    if type.size <= COMPARED:
        return None
    return tuple(np.unravel_index(np.sort(rng.integers(0, prod(type.shape), COMPARED)), type.shape))


def at(array: Array, places: tuple[Array, ...]) -> Array:
    """The elements at these coordinates: by their places in memory, which takes half of numpy's time for several
    axes."""
    size = array.itemsize
    if any(s < 0 or s % size for s in array.strides):
        return np.asarray(array[places])
    steps = [s // size for s in array.strides]
    flat = np.lib.stride_tricks.as_strided(
        array, (1 + sum(s * (n - 1) for s, n in zip(steps, array.shape, strict=True)),), (size,), writeable=False
    )
    offsets = np.zeros(len(places[0]), np.int64)
    for coordinates, step in zip(places, steps, strict=True):
        offsets += coordinates * step
    return flat[offsets]


def narrowest(region: Region, rounds_to_tf32: bool, policy: Policy) -> str:
    """Row of TOLERANCE for a plan whose float32 products read TF32 or not."""
    values = [*region.inputs, *(v for n in region.nodes for v in n.results)]
    names = {v.type.dtype.name for v in values if v.type.dtype.is_float} | {"float64"}
    if rounds_to_tf32 or (policy.precision == "reduced" and "float32" in names):
        names.add("tf32")
    if policy.precision == "reduced" and names & {"float16", "bfloat16"}:
        names.add("bfloat16")
    order = list(TOLERANCE)
    return max(names, key=order.index)


def is_sharp(region: Region) -> bool:
    """Whether a rounding inside the region may turn into an error of any size at a few elements."""
    inside = {v for n in region.nodes for v in n.results}
    for node in region.nodes:
        op = node.op
        label = op.function if isinstance(op, Elementwise) else ""
        to_integer = isinstance(op, Cast) and not node.result.type.dtype.is_float
        if (label in SHARP or label in STEEP or to_integer) and any(v in inside for v in node.operands):
            return True
    return False


def own_scale(region: Region) -> float:
    """Magnitude that an error is measured against at least, however small the results are."""
    return 1.0 if any(isinstance(n.op, OF_UNIT_SCALE) for n in region.nodes) else 0.0
