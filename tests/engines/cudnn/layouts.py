"""Strides for every value of a graph, set by hand as the layout pass would: engines are asked about decided layouts."""

from collections.abc import Callable

from graphdnn.ir.graph import Graph
from graphdnn.ir.region import Region
from graphdnn.ir.types import TensorType, channels_last, row_major
from graphdnn.ir.writer import Rewriter

Layout = Callable[[tuple[int, ...]], tuple[int, ...]]


def spatial_last(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Channels-last for tensors with spatial axes, row-major for others."""
    return channels_last(shape) if len(shape) in (4, 5) else row_major(shape)


def laid_out(graph: Graph, layout: Layout = spatial_last) -> Graph:
    """The same graph with every computed value in `layout`."""
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        types = [TensorType(t.shape, t.dtype, layout(t.shape)) for t in node.result_types]
        made = rewriter.emit(
            node.op, *(rewriter[v] for v in node.operands), origins=node.origins, stem=node.name, types=types
        )
        rewriter.replace_results(node, made)
    return rewriter.finish()


def whole(graph: Graph, layout: Layout = spatial_last) -> Region:
    """All of a graph as one region, laid out."""
    placed = laid_out(graph, layout)
    return Region.of(placed, placed.nodes)
