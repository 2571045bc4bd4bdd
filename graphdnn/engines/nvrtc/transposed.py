"""Last-resort transposed convolution: each place of the result gathers the taps that reach it, as a matrix product.

Along an axis of stride s the places fall into s phases, which different taps of the filter reach.  Each phase is a
product of its own, so that no tap is multiplied that does not count; a phase that no tap reaches is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod

from graphdnn.engines.nvrtc.recipe import Anchored, parameter_names
from graphdnn.engines.nvrtc.tiled import Contraction, Read, but_in_ieee_float32, tiled_family
from graphdnn.engines.nvrtc.tiling import Product, Tiling, dense_vector
from graphdnn.engines.nvrtc.window import declared, input_read, operand_constants, three
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.region import Region
from graphdnn.ir.types import promote

AXES = "DHW"

TAP_INSTRUCTIONS = 40
"""As in a convolution, but by divisors that differ from phase to phase."""


@dataclass(frozen=True)
class Phases:
    """One axis: for each phase the first tap that reaches it, how many do, and where the first one reads at place 0.

    From tap to tap of a phase it is `skip` taps of the filter, and `back` elements of the operand backwards.
    """

    first: tuple[int, ...]
    taps: tuple[int, ...]
    base: tuple[int, ...]
    skip: int
    back: int

    @property
    def count(self) -> int:
        return len(self.first)


def phases(extent: int, kernel: int, stride: int, dilation: int, padding: int) -> Phases:
    """The phases of an axis whose result is `extent` long; `padding` is cut off before it."""
    common = gcd(stride, dilation)
    reaching = [
        [r for r in range(kernel) if (phase + padding - r * dilation) % stride == 0]
        for phase in range(min(stride, extent))
    ]
    first = tuple(taps[0] if taps else 0 for taps in reaching)
    base = tuple((phase + padding - r * dilation) // stride for phase, r in enumerate(first))
    return Phases(first, tuple(map(len, reaching)), base, stride // common, dilation // common)


def transposed_op(parts: Anchored) -> ConvTranspose:
    op = parts.anchor.op
    assert isinstance(op, ConvTranspose)
    return op


def phases_of(parts: Anchored) -> tuple[Phases, Phases, Phases]:
    """The phases along depth, height and width."""
    op = transposed_op(parts)
    kernel, out = parts.anchor.operand_types[1].shape[2:], parts.anchor.result.type.shape[2:]
    extents = (three(out, 1), three(kernel, 1), three(op.stride, 1), three(op.dilation, 1))
    low = three(tuple(lo for lo, _ in op.padding), 0)
    depth, height, width = (phases(*sizes) for sizes in zip(*extents, low, strict=True))
    return depth, height, width


def product_of(parts: Anchored) -> Product:
    """The largest product among the phases; groups and phases are its batch."""
    x, w = parts.anchor.operand_types
    batch, channels, *places = parts.anchor.result.type.shape
    op, axes = transposed_op(parts), phases_of(parts)
    rows = batch * prod(-(-n // s) for n, s in zip(places, op.stride, strict=True))
    taps = x.shape[1] // op.groups * prod(max(a.taps) for a in axes)
    count = prod(a.count for a in axes)
    return Product((op.groups * count,), rows, channels // op.groups, max(taps, 1), promote(x.dtype, w.dtype))


def table(name: str, values: tuple[int, ...]) -> str:
    return f"__constant__ const int {name}[] = {{{', '.join(map(str, values))}}};"


def window_constants(parts: Anchored) -> list[str]:
    """Extents and steps as C++ constants, and what differs from phase to phase as tables."""
    x = parts.anchor.operand_types[0]
    axes = phases_of(parts)
    lines = [
        declared("X", three(x.shape[2:], 1)),
        declared("O", three(parts.anchor.result.type.shape[2:], 1)),
        declared("STEP_", three(transposed_op(parts).stride, 1)),
        declared("PHASES_", tuple(a.count for a in axes)),
        declared("SKIP_", tuple(a.skip for a in axes)),
        declared("BACK_", tuple(a.back for a in axes)),
    ]
    for letter, axis in zip(AXES, axes, strict=True):
        lines += [
            table(f"{n}_{letter}", v) for n, v in (("FIRST", axis.first), ("TAPS", axis.taps), ("BASE", axis.base))
        ]
    return lines


def operand_reads(parts: Anchored, product: Product, tiling: Tiling) -> tuple[Read, Read]:
    """How x and w are fetched: w along k where x is and its input channels are dense, else along output channels."""
    x, w = parts.anchor.operand_types
    channels = x.shape[1] // transposed_op(parts).groups
    of_x = input_read(x, channels, tiling)
    size, share, most = w.dtype.itemsize, tiling.share(1), tiling.most_fetched
    if of_x.along_k and w.layout[0] == 1:
        return of_x, Read(True, dense_vector(1, (*w.layout[1:], channels), channels, size, share, most))
    others = (w.layout[0], *w.layout[2:])
    return of_x, Read(False, dense_vector(w.layout[1], others, product.n, size, share, most))


def contraction(region: Region, parts: Anchored) -> Contraction:
    """A transposed convolution as a tiled product."""
    x, w = parts.anchor.operands
    product = product_of(parts)
    groups = transposed_op(parts).groups
    batch, _, *places = parts.anchor.result.type.shape
    names = [f"at{axis}" for axis in range(2 + len(places))]
    parameter = parameter_names(region)

    def reads(tiling: Tiling) -> tuple[Read, Read]:
        return operand_reads(parts, product, tiling)

    def head(tiling: Tiling) -> Sequence[str]:
        return [
            *window_constants(parts),
            *operand_constants(x.type, w.type, x.type.shape[1] // groups, reads(tiling), "CK"),
        ]

    def place(block: str) -> Sequence[str]:
        return [
            f"const int phase = {block} % (PHASES_D * PHASES_H * PHASES_W);",
            f"const Index group = {block} / (PHASES_D * PHASES_H * PHASES_W);",
            "const int phase_w = phase % PHASES_W, phase_h = phase / PHASES_W % PHASES_H;",
            "const int phase_d = phase / (PHASES_W * PHASES_H);",
            *(f"const int places_{a.lower()} = (O{a} - phase_{a.lower()} + STEP_{a} - 1) / STEP_{a};" for a in AXES),
            *(f"const int taps_{a.lower()} = TAPS_{a}[phase_{a.lower()}];" for a in AXES),
            f"const Index M = (Index){batch} * places_d * places_h * places_w;",
            "const Index K = (Index)CG * taps_d * taps_h * taps_w;",
            f"const TA* a = {parameter[x]} + group * CG * X_C;",
            f"const TB* b = {parameter[w]} + group * CG * W_C;",
        ]

    return Contraction(
        product=product,
        reads=reads,
        head=head,
        fetch="transposed_fetch.cu",
        instructions=TAP_INSTRUCTIONS,
        place=place,
        names=names,
        axis=1,
        rows=rows(names),
        columns=["const Index at1 = group * N + n;"],
        reach=2 * max(x.type.extent, w.type.extent),
        grouped=groups > 1,
    )


def rows(names: list[str]) -> list[str]:
    """Statements that find the place of the result that row m of a phase is."""
    letters = AXES[3 - len(names[2:]) :].lower()
    lines, rest = [], "m"
    for name, letter in zip(reversed(names[2:]), reversed(letters), strict=True):
        lines.append(f"const Index {name} = {rest} % places_{letter} * STEP_{letter.upper()} + phase_{letter};")
        rest = f"{rest} / places_{letter}"
    return [*lines, f"const Index {names[0]} = {rest};"]


FAMILY = tiled_family("transposed", ConvTranspose, contraction, but_in_ieee_float32)
