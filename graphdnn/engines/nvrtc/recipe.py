"""What a family of kernels is and what it hands to the engine: source, launch shape and arguments, as data.

A family is one module with a `FAMILY` constant, listed once in engine.py.  Its functions are pure: they see a region
and a target, need no device, and give the same source for equal regions, so that cubins can be cached by source.
Every kernel is deterministic (no atomics on floats), reads sizes and strides as literals, and includes no header.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Policy
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.region import Region
from graphdnn.lazy import cached_property
from graphdnn.target import Target


@dataclass(frozen=True)
class Buffer:
    """A kernel argument: the address of input or output `index` of the region (inputs first, then outputs)."""

    index: int


@dataclass(frozen=True)
class Scratch:
    """A kernel argument: an address `offset` bytes into the plan's workspace, which is aligned to MEMORY_ALIGNMENT."""

    offset: int = 0


Argument = Buffer | Scratch


@dataclass(frozen=True)
class Kernel:
    """One launch.  `source`, which `text` makes, holds a function `entry` that begins as `emit.opening` writes it and
    whose parameters are the `arguments`.

    `grid` and `block` are (x, y, z), `shared_bytes` is dynamic shared memory, `options` are further NVRTC options.
    Put sizes and scalars into the source as literals.  Addresses are aligned to their element only, unless the kernel
    itself looks (see `aligned` in templates/prelude.cu).
    """

    entry: str
    text: Callable[[], str] = field(compare=False)
    arguments: tuple[Argument, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0
    options: tuple[str, ...] = ()

    @cached_property
    def source(self) -> str:
        """The text, made when it is first asked for: a kernel is priced far more often than it is built."""
        return self.text()


Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Recipe:
    """The kernels that run a region, in order on one stream, and the scratch memory that they share.

    `in_place` are pairs of input and output indices: the kernels work right with both addresses equal, for any of them.
    `in_place_us` is what they take then, if they move less.
    """

    name: str
    kernels: tuple[Kernel, ...]
    workspace_bytes: int = 0
    notes: tuple[str, ...] = ()
    in_place: Pairs = ()
    in_place_us: float | None = None


RAMP_US = 0.8
"""From a kernel's launch until memory is busy, and from the last bytes to the end: what small kernels take (a mean over
49 places, a layout conversion) beyond their bytes at the pace of large ones."""


def only_one(region: Region, target: Target) -> tuple[Recipe, ...]:
    """No further recipes."""
    return ()


def never(region: Region, policy: Policy) -> bool:
    """A family that is made to be fast."""
    return False


@dataclass(frozen=True)
class Family:
    """One kind of kernel.

    `anchors` are the op classes it runs beside pointwise ones; with `alone` it runs pointwise regions without any too.
    `takes` answers None for a region that it can run and a Decline for one that it cannot; it sees only regions whose
    other ops are pointwise.  `generate` makes the recipe of a region that it takes, `estimate` prices it in
    microseconds, launches included; `others` are further recipes that may turn out faster, best first.  `last_resort`
    says where its kernels are correct, but slower than a library's.
    """

    name: str
    anchors: tuple[type[Op], ...]
    takes: Callable[[Region], Decline | None]
    generate: Callable[[Region, Target], Recipe]
    estimate: Callable[[Region, Target], float]
    last_resort: Callable[[Region, Policy], bool] = never
    alone: bool = False
    others: Callable[[Region, Target], tuple[Recipe, ...]] = only_one


@dataclass(frozen=True)
class Anchored:
    """A region seen from its one anchor: pointwise nodes that the anchor depends on, and all others."""

    anchor: Node
    before: tuple[Node, ...]
    after: tuple[Node, ...]


def anchored(region: Region) -> Anchored | Decline:
    """The one node that is not pointwise, with what stands before and behind it, in order."""
    anchors = [n for n in region.nodes if not isinstance(n.op, Elementwise)]
    if len(anchors) != 1:
        return Decline(
            Code.PATTERN,
            f"{region.pattern} has {len(anchors)} operations that are not pointwise; "
            "a generated kernel runs one, with pointwise work around it",
        )
    anchor = anchors[0]
    above = region.graph.ancestors[anchor]
    position = region.graph.position
    before = tuple(n for n in region.nodes if above >> position[n] & 1)
    return Anchored(anchor, before, tuple(n for n in region.nodes if n is not anchor and n not in before))


def buffers(region: Region) -> tuple[Buffer, ...]:
    """Arguments of a kernel whose parameters are those of `parameters`."""
    return tuple(Buffer(i) for i in range(len(region.inputs) + len(region.outputs)))


def parameter_names(region: Region) -> dict[Value, str]:
    """The C++ parameter of each input and output of the region, as `parameters` declares them."""
    return {v: f"p{i}" for i, v in enumerate((*region.inputs, *region.outputs))}


def parameters(region: Region, in_place: Pairs = ()) -> str:
    """Declarations of C++ parameters p0, p1, ... for the region's inputs, then its outputs.

    The input and output of a pair of `in_place` may be the same memory, so they are not declared __restrict__.
    """
    count = len(region.inputs)
    shared = {i for i, _ in in_place} | {count + o for _, o in in_place}
    declared = [f"const {v.type.dtype.text}*" for v in region.inputs] + [
        f"{v.type.dtype.text}*" for v in region.outputs
    ]
    return ", ".join(f"{text}{'' if i in shared else ' __restrict__'} p{i}" for i, text in enumerate(declared))
