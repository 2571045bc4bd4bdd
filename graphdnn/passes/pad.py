"""Channel padding: images of few odd channels get zero channels in front of their convolutions, where that pays.

The matrix units want channels in eights, and kernels for few channels want fours: the first convolution of ResNet (32
images, float16) took 92.9 us on 3 channels, 67.1 us on 4, and 174.2 us on 8.  The copy that pads turns the image
channels-last as well, which is needed anyway, and the weights are padded when compiled.  What pays is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.ops.linear import Conv
from graphdnn.ir.ops.movement import Convert, Pad
from graphdnn.ir.region import Region
from graphdnn.ir.types import TensorType, channels_last
from graphdnn.ir.writer import GraphWriter, Rewriter
from graphdnn.passes.layout.assign import assign_layouts
from graphdnn.passes.layout.images import dependence
from graphdnn.passes.rewrite import Ask, Precomputed, Rewritten, user_name

MULTIPLES = (4, 8)
"""The channels may be padded to the next multiple of one of these."""

MOST_CHANNELS = 32
"""Images of as many channels or more are left alone: a copy of them costs more than a few zeros gain."""


@dataclass(frozen=True)
class Padded:
    """An image, the convolutions that are to read more channels of it, how many, and the microseconds of both ways.

    `name` is what the user calls the image; `turns` says that it does not lie channels-last before.
    """

    image: Value
    name: str
    convolutions: tuple[Node, ...]
    channels: int
    before_us: float
    after_us: float
    turns: bool

    @property
    def sentence(self) -> str:
        names = ", ".join(o for n in self.convolutions for o in n.origins)
        how = "in the copy that turns it channels-last" if self.turns else "in a copy of it"
        return (
            f"{names}: {self.name} is padded with zeros from {self.image.type.shape[1]} to {self.channels} "
            f"channels, {how}: {self.after_us:.1f} us are estimated instead of {self.before_us:.1f}"
        )


def pad_channels(graph: Graph, ask: Ask) -> Rewritten:
    """Every image that pays read with more channels by all the convolutions that may; the others read it as it is."""
    laid = None
    found: list[Padded] = []
    for image in dict.fromkeys(n.operands[0] for n in graph.nodes if takes_zeros(n, graph)):
        lies = image.type.with_strides(image.type.layout)
        if image in graph.producer:
            laid = dependence(graph).laid if laid is None else laid
            lies = laid[image].last
        padded = cheapest(image, graph, lies, ask)
        if padded is not None:
            found.append(padded)
    return apply(graph, found) if found else Rewritten(graph)


def takes_zeros(node: Node, graph: Graph) -> bool:
    """Whether a convolution of few odd channels of halves has weights that can be padded when compiled."""
    if not isinstance(node.op, Conv) or node.op.groups != 1:
        return False
    x, w = node.operands
    few = x.type.rank == 4 and x.type.shape[1] < MOST_CHANNELS and x.type.shape[1] % max(MULTIPLES) != 0
    halves = x.type.dtype.is_half and w.type.dtype == x.type.dtype
    return few and halves and graph.is_constant(w) and not graph.is_constant(x)


def cheapest(image: Value, graph: Graph, lies: TensorType, ask: Ask) -> Padded | None:
    """The number of channels that costs least; None where the image is best left alone.

    It `lies` as where all convolutional parts are channels-last: then nothing but the arithmetic can gain inside them.
    """
    readers = graph.users[image]
    convolutions = tuple(n for n in readers if takes_zeros(n, graph))
    channels = image.type.shape[1]
    is_shared = len(convolutions) < len(readers)
    before = price(alone(lies, convolutions, channels, is_shared), ask)
    after = {
        wide: price(alone(lies, convolutions, wide, is_shared), ask)
        for wide in dict.fromkeys(-(-channels // m) * m for m in MULTIPLES)
        if wide > channels
    }
    best = min(after, key=after.__getitem__)
    turns = not lies.is_channels_last
    if not isfinite(after[best]) or after[best] >= before:
        return None
    return Padded(image, user_name(image, graph), convolutions, best, before, after[best], turns)


def price(graph: Graph, ask: Ask) -> float:
    """Microseconds of all nodes, each run by itself; infinite where nobody takes one."""
    answers = [ask(Region(graph, (node,))) for node in graph.nodes]
    return inf if None in answers else sum(a for a in answers if a is not None)


def alone(image: TensorType, convolutions: Sequence[Node], channels: int, is_shared: bool) -> Graph:
    """The convolutions on so many channels, laid out, and the image channels-last as it is where others read it."""
    writer = GraphWriter("padding")
    x = writer.input("x", image)
    results: dict[str, Value] = {}
    last = image.with_strides(channels_last(image.shape))
    if is_shared and image.layout != last.layout and channels > image.shape[1]:
        (results["x"],) = writer.emit(Convert(), (x,), types=(last,))
    if channels > image.shape[1]:
        (x,) = writer.emit(zeros(image, channels), (x,))
    for index, node in enumerate(convolutions):
        w = node.operands[1].type
        shape = (w.shape[0], channels, *w.shape[2:])
        weights = writer.input(f"w{index}", TensorType(shape, w.dtype, channels_last(shape)))
        (results[f"y{index}"],) = writer.emit(node.op, (x, weights))
    written = writer.finish(results, output_strides={n: channels_last(v.type.shape) for n, v in results.items()})
    return assign_layouts(written).graph


def zeros(type: TensorType, channels: int) -> Pad:
    """Zeros behind the channels, on axis 1."""
    return Pad(padding=tuple((0, channels - n if a == 1 else 0) for a, n in enumerate(type.shape)))


def apply(graph: Graph, found: Sequence[Padded]) -> Rewritten:
    """One copy of each image, before the first of its convolutions."""
    rewriter = Rewriter(graph)
    wanted = {node: padded for padded in found for node in padded.convolutions}
    images: dict[Value, Value] = {}
    for node in graph.nodes:
        padded = wanted.get(node)
        if padded is None:
            rewriter.keep(node)
            continue
        image, weights = node.operands
        if image not in images:
            pad = zeros(image.type, padded.channels)
            (images[image],) = rewriter.emit(pad, rewriter[image], origins=(), stem=f"{image.name}.padded")
        constants = Precomputed(rewriter, node.origins)
        rewriter.keep(node, operands=(images[image], constants(zeros(weights.type, padded.channels), weights)))
    return Rewritten(rewriter.finish(), tuple(p.sentence for p in found))
