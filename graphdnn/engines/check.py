"""Whether a plan's numbers are right: random inputs that lead nowhere outside, a trusted result, and a verdict.

Small regions are compared with their float64 definition, large ones with each other: the largest group of plans of
different engines that agree is trusted, and where no group is larger the definition decides after all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt

import numpy as np

from graphdnn.engines.contract import Policy
from graphdnn.ir.evaluate import apply, is_float, operand, widened
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.movement import Gather, WriteSlice
from graphdnn.ir.ops.pointwise import Cast, Elementwise
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.region import Region
from graphdnn.ir.types import Array, TensorType

DRAWN = 1_000_003
"""Random numbers drawn for one tensor; a larger one repeats them.  A prime, so that no two rows are equal."""

SMALL_FLOPS = 2e8
SMALL_SIZE = 1 << 24
"""Operations and elements up to which the float64 definition is computed at once."""

LARGEST_FLOPS = 1e12
"""Operations up to which the definition settles a dispute."""

COMPARED = 1 << 18
"""Elements of a larger output that are compared, drawn at random: a tile of 64 x 64 in 100 million is met 10 times."""

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

FEW = 64
"""Outputs of fewer elements may be near zero by chance, so their error is measured against sums of magnitudes."""

POSITIVE = {"log": (0,), "sqrt": (0,), "rsqrt": (0,), "reciprocal": (0,), "pow": (0,), "div": (1,), "mod": (1,)}
"""Operands of pointwise functions that are drawn from [0.5, 1.5]."""


def inputs_for(region: Region, rng: np.random.Generator) -> list[Array]:
    """Random arrays for the region's inputs, in the memory order of their types.

    Lengths and indices stay inside what they index; where one is computed within the region, all integers are zero.
    """
    blind = any(i in index_roles(n) and v not in region.inputs for n in region.nodes for i, v in enumerate(n.operands))
    return [laid_out(v.type, numbers(region, v, blind, rng)) for v in region.inputs]


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
    low = 1 if any(is_positive(n, i) for n, i in uses) else 0 if type.dtype.kind == "uint" else -9
    return rng.integers(low, 9, count, endpoint=True).astype(type.dtype.numpy)


def laid_out(type: TensorType, elements: Array) -> Array:
    """An array of that type in memory of its own, filled with these elements again and again."""
    flat = np.resize(elements, type.extent)
    return np.lib.stride_tricks.as_strided(flat, type.shape, [s * flat.itemsize for s in type.layout])


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


def definition(region: Region, inputs: Sequence[Array]) -> list[Array]:
    """The region's outputs by the ops' definitions in float64."""
    values: dict[Value, Array] = {v: widened(a) for v, a in zip(region.inputs, inputs, strict=True)}
    for node in region.nodes:
        results = apply(node.op, [operand(v, values, True) for v in node.operands], None)
        for value, array in zip(node.results, results, strict=True):
            own = value.type.dtype
            values[value] = widened(array) if own.is_float else array.astype(own.numpy, copy=False)
    return [values[v] for v in region.outputs]


@dataclass(frozen=True)
class Finding:
    """One plan's outputs at the compared places; `voice` is its engine, of a library's the numbered one."""

    voice: str
    precision: str
    outputs: tuple[Array, ...]


class Referee:
    """Judges the results of one region's plans on one draw of inputs."""

    def __init__(self, region: Region, inputs: Sequence[Array], policy: Policy, rng: np.random.Generator) -> None:
        self._region = region
        self._inputs = inputs
        self._policy = policy
        self._places = [places(v.type, rng) for v in region.outputs]
        self._wanted: list[Array] | None = None
        self._scales = [own_scale(region)] * len(region.outputs)
        flops = sum(n.flops for n in region.nodes)
        size = sum(v.type.size for v in (*region.inputs, *region.outputs))
        self._is_small = flops <= SMALL_FLOPS and size <= SMALL_SIZE
        self._can_settle = flops <= LARGEST_FLOPS

    @property
    def needs_voices(self) -> bool:
        """Whether plans are compared with each other, so that one alone tells nothing."""
        return not self._is_small

    def finding(self, voice: str, precision: str, outputs: Sequence[Array]) -> Finding:
        """What is kept of a plan's outputs."""
        picked = (widened(a if p is None else a[p]) for a, p in zip(outputs, self._places, strict=True))
        return Finding(voice, precision, tuple(np.array(a) for a in picked))

    def judge(self, findings: Sequence[Finding]) -> list[str]:
        """For each what is wrong with it, empty where nothing is."""
        if self._is_small:
            return self._by_definition(findings)
        groups: list[list[int]] = []
        for index, finding in enumerate(findings):
            home = next((g for g in groups if not self._off(finding, findings[g[0]].outputs, 2 * SLACK)), None)
            if home is None:
                groups.append([index])
            else:
                home.append(index)
        if len(groups) < 2:
            return [""] * len(findings)
        voices = sorted((len({findings[i].voice for i in g}) for g in groups), reverse=True)
        if voices[0] == voices[1] and self._can_settle:
            return self._by_definition(findings)
        trusted = max(groups, key=lambda g: (len({findings[i].voice for i in g}), len(g)))
        reference = findings[trusted[0]].outputs
        return ["" if i in trusted else self._off(f, reference, 2 * SLACK) for i, f in enumerate(findings)]

    def _by_definition(self, findings: Sequence[Finding]) -> list[str]:
        if self._wanted is None:
            whole = definition(self._region, self._inputs)
            self._wanted = [a if p is None else a[p] for a, p in zip(whole, self._places, strict=True)]
            if any(a.size < FEW for a in whole):
                sums = definition(self._region, [np.abs(a) if is_float(a) else a for a in self._inputs])
                self._scales = [
                    max(scale, peak_of(a)) if a.size < FEW else scale
                    for scale, a in zip(self._scales, sums, strict=True)
                ]
        return [self._off(f, self._wanted, SLACK) for f in findings]

    def _off(self, finding: Finding, wanted: Sequence[Array], slack: float) -> str:
        """What is wrong with a result where `wanted` is right."""
        narrow = narrowest(self._region, finding.precision, self._policy)
        share = SHARP_SHARE if is_sharp(self._region) else 0.0
        for value, found, right, scale in zip(self._region.outputs, finding.outputs, wanted, self._scales, strict=True):
            reason = difference(found, right, value.type, slack * TOLERANCE[narrow], scale, share)
            if reason:
                return f"{value.name}: {reason}"
        return ""


def difference(found: Array, wanted: Array, type: TensorType, tolerance: float, scale: float, share: float) -> str:
    """How a result differs from the right one by more than it may, in words; `share` of the elements may differ."""
    if not type.dtype.is_float:
        near = 1 if share and type.dtype.is_integer else 0
        bad = np.abs(found.astype(np.int64) - wanted.astype(np.int64)) > near
        return f"{int(bad.sum())} of {bad.size} elements differ" if bad.mean() > share else ""
    with np.errstate(all="ignore"):
        right = wanted.astype(type.dtype.numpy).astype(np.float64)
        finite = np.isfinite(right)
        peak = max(peak_of(right), scale)
        error = np.abs(found - wanted)
        bad = np.where(finite, ~(error <= tolerance * peak), ~((found == right) | np.isnan(right)))
    if not bad.size or bad.mean() <= share:
        return ""
    lost = int((np.isnan(found) & finite).sum())
    largest = float(np.max(error[finite & ~np.isnan(error)], initial=0.0))
    relative = largest / peak if peak else largest
    text = f"{int(bad.sum())} of {bad.size} elements are off, by up to {relative:.2g} of the peak"
    return f"{text}; {lost} are not a number" if lost else text


def peak_of(array: Array) -> float:
    """Largest finite magnitude."""
    magnitudes = np.abs(array[np.isfinite(array)])
    return float(magnitudes.max(initial=0.0))


def places(type: TensorType, rng: np.random.Generator) -> tuple[Array, ...] | None:
    """Coordinates of the compared elements; None where all are."""
    if type.size <= COMPARED:
        return None
    return tuple(np.unravel_index(rng.integers(0, prod(type.shape), COMPARED), type.shape))


def narrowest(region: Region, precision: str, policy: Policy) -> str:
    """Row of TOLERANCE for a plan of that precision."""
    values = [*region.inputs, *(v for n in region.nodes for v in n.results)]
    names = {v.type.dtype.name for v in values if v.type.dtype.is_float} | {"float64"}
    if "tf32" in precision or (policy.precision == "reduced" and "float32" in names):
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
    """Magnitude that an error is measured against at least: that of the values for attention, 1 for normalised rows."""
    kinds: Mapping[str, float] = {"attention": 1.0, "layer_norm": 1.0, "rms_norm": 1.0, "instance_norm": 1.0}
    return max((kinds.get(n.kind, 0.0) for n in region.nodes), default=0.0)
