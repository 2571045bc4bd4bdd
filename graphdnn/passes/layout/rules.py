"""What each op needs of its operands' layouts and what layout its results get, once the operands have theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import Conv, MatMul
from graphdnn.ir.ops.movement import Concat, Convert, Pad, WriteSlice
from graphdnn.ir.ops.norm import Norm
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.ops.pool import Pool
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.types import IMAGE_RANKS, TensorType, channels_last, dense_strides, int8, row_major

Strides = tuple[int, ...]

CONVOLUTIONS: tuple[type[Op], ...] = (Conv, ConvTranspose)
FOLLOWERS: tuple[type[Op], ...] = (Elementwise, Pool, Norm, Softmax, Reduce, Concat, Pad)
"""Ops that run on any axis order and hand it on."""


class Layouts(NamedTuple):
    """Strides that each operand must have (None: those it has will do), and that each result gets.

    `constants` are strides that an operand should have besides where it is a constant, whose conversion costs nothing.
    """

    operands: tuple[Strides | None, ...]
    results: tuple[Strides, ...]
    constants: tuple[Strides | None, ...] = ()


Rule = Callable[[Op, Sequence[TensorType], Sequence[TensorType]], Layouts]


def axis_order(type: TensorType) -> tuple[int, ...] | None:
    """Axes from the outermost in memory to the innermost; None where elements share memory."""
    if type.repeats:
        return None
    return tuple(sorted(range(type.rank), key=lambda a: (-type.layout[a], type.shape[a] != 1, a)))


def in_order(type: TensorType, order: tuple[int, ...] | None) -> Strides:
    return row_major(type.shape) if order is None else dense_strides(type.shape, order)


def anything(operands: Sequence[TensorType]) -> tuple[Strides | None, ...]:
    return (None,) * len(operands)


def plain(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Layouts:
    """Operands as they are, results row-major."""
    return Layouts(anything(operands), tuple(row_major(r.shape) for r in results))


def like_most(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Layouts:
    """The result in the order in which most bytes of full-size operands come."""
    result = results[0]
    votes: Counter[tuple[int, ...]] = Counter()
    for type in operands:
        order = axis_order(type) if type.rank == result.rank and type.size * 2 > result.size else None
        if order is not None:
            votes[order] += type.nbytes
    chosen = max(votes, key=votes.__getitem__, default=None)
    return Layouts(anything(operands), (in_order(result, chosen),))


def joined(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Layouts:
    """As like_most; where no operand is most of the result, channels-last if all of them are."""
    if all(t.is_channels_last and not t.is_row_major for t in operands):
        return Layouts(anything(operands), (channels_last(results[0].shape),))
    return like_most(op, operands, results)


def like_first(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Layouts:
    """Results of the first operand's rank in its order, others row-major."""
    x = operands[0]
    order = axis_order(x)
    return Layouts(anything(operands), tuple(in_order(r, order if r.rank == x.rank else None) for r in results))


def reduced(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Layouts:
    """The axes that are left, in the order of x."""
    assert isinstance(op, Reduce)
    order = axis_order(operands[0])
    if order is None or op.keepdims:
        return like_first(op, operands, results)
    left = [a for a in range(operands[0].rank) if a not in op.axes]
    return Layouts((None,), (dense_strides(results[0].shape, [left.index(a) for a in order if a in left]),))


def is_matrix(type: TensorType) -> bool:
    """Whether one of the last two axes is dense and the other steps over it, as matrix product kernels need."""
    rows, columns = type.layout[-2:]
    m, n = type.shape[-2:]
    return (columns == 1 and (rows >= n or m == 1)) or (rows == 1 and (columns >= m or n == 1))


def product(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Layouts:
    """Operands plain or transposed, the result row-major.  Of int8 constants K is contiguous: the integer units read
    four elements at a time along it, and cuBLASLt multiplies no others."""
    needs = tuple(None if is_matrix(t) else row_major(t.shape) for t in operands)
    constants = tuple(along(t, axis) for t, axis in zip(operands, (-1, -2), strict=True))
    return Layouts(needs, tuple(row_major(r.shape) for r in results), constants)


def along(type: TensorType, axis: int) -> Strides | None:
    """Strides of an int8 matrix with this axis innermost; None where it is, and for other types."""
    if type.dtype != int8 or type.layout[axis] == 1:
        return None
    order = [a for a in range(type.rank) if a != axis % type.rank]
    return dense_strides(type.shape, (*order, axis % type.rank))


def has_dense_rows(type: TensorType) -> bool:
    return type.shape[-1] == 1 or type.layout[-1] == 1


def attended(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Layouts:
    """q, k and v with dense rows; o in q's order, so that what made q a view makes its inverse one."""
    heads = [None if has_dense_rows(t) else row_major(t.shape) for t in operands[:3]]
    order = axis_order(operands[0]) if heads[0] is None else None
    o = results[0]
    dense = order if order is not None and order[-1] == o.rank - 1 else None
    rest = [row_major(r.shape) for r in results[1:]]
    return Layouts((*heads, *anything(operands[3:])), (in_order(o, dense), *rest))


def written(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Layouts:
    """The result lies as x does, so that it may take x's place."""
    x = operands[0]
    return Layouts(anything(operands), (row_major(x.shape) if axis_order(x) is None else x.layout,))


def decided(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Layouts:
    """A conversion's result lies as it was made to."""
    return Layouts(anything(operands), tuple(r.layout for r in results))


RULES: tuple[tuple[type[Op], Rule], ...] = (
    (Elementwise, like_most),
    (Concat, joined),
    (MatMul, product),
    (Attention, attended),
    (Reduce, reduced),
    (Softmax, like_first),
    (Norm, like_first),
    (Pool, like_first),
    (Pad, like_first),
    (WriteSlice, written),
    (Convert, decided),
)
"""No op has two rules; those without one are `plain`."""


def layouts(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType]) -> Layouts:
    """Layouts around an op outside convolutional parts.  An op that can be a view of its operand is one."""
    views = op.view(operands[0]) if op.is_renaming else None
    if views is not None:
        return Layouts(anything(operands), tuple(v.strides for v in views))
    rule = next((rule for kind, rule in RULES if isinstance(op, kind)), plain)
    return rule(op, operands, results)


def matters(type: TensorType) -> bool:
    """Whether row-major and channels-last differ for such a tensor."""
    return type.rank in IMAGE_RANKS and type.shape[1] != 1 and any(n != 1 for n in type.shape[2:])


def image_strides(shape: Sequence[int], is_channels_last: bool) -> Strides:
    return channels_last(shape) if is_channels_last else row_major(shape)


def image_layouts(op: Op, operands: Sequence[TensorType], results: Sequence[TensorType], last: bool) -> Layouts:
    """Layouts around an op of a convolutional part, channels-last or row-major: operands of the result's rank too."""
    views = op.view(operands[0]) if op.is_renaming else None
    if views is not None:
        return Layouts(anything(operands), tuple(v.strides for v in views))
    rank = results[0].rank
    dense = isinstance(op, CONVOLUTIONS)
    anyhow = isinstance(op, Pad)  # a copy, which turns the image as it goes
    needs = (
        None if anyhow or t.rank != rank or fits(t, last, dense) else image_strides(t.shape, last) for t in operands
    )
    return Layouts(tuple(needs), tuple(in_image_order(r, last, rank) for r in results))


def in_image_order(result: TensorType, last: bool, rank: int) -> Strides:
    return image_strides(result.shape, last and result.rank == rank)


def fits(type: TensorType, last: bool, dense: bool) -> bool:
    """Whether a tensor lies in the order asked for; unless `dense`, gaps and repeated elements do no harm."""
    wanted = type.with_strides(image_strides(type.shape, last))
    if type.layout == wanted.layout:
        return True
    if dense:
        return False
    order = axis_order(type)
    return order is None or [a for a in order if type.shape[a] > 1] == [
        a for a in axis_order(wanted) or () if type.shape[a] > 1
    ]


def leaving(graph: Graph) -> list[tuple[Value, TensorType]]:
    """What leaves the graph, states' next values first, as the types that it has outside."""
    states = [(value, graph.states[name].type) for name, value in graph.updates.items()]
    return states + [(value, graph.output_type(name)) for name, value in graph.outputs.items()]


def promised_strides(graph: Graph) -> Mapping[Value, Strides]:
    """The layout in which each value leaves the graph first, be it as a copy that an earlier run of the pass made."""
    promised: dict[Value, Strides] = {}
    for value, type in leaving(graph):
        promised.setdefault(value, type.layout)
        maker = graph.producer.get(value)
        if maker is not None and isinstance(maker.op, Convert):
            promised.setdefault(maker.operands[0], type.layout)
    return promised


def writes_anywhere(node: Node, strides: Strides) -> bool:
    """Whether a node's first result may have any strides, so that an output of it needs no conversion."""
    if isinstance(node.op, Attention):
        return has_dense_rows(node.result.type.with_strides(strides))
    return isinstance(node.op, Elementwise)


def layouts_around(
    node: Node, operands: Sequence[TensorType], images: Mapping[Node, bool], promised: Mapping[Value, Strides]
) -> Layouts:
    """Layouts around a node where those of `images` are channels-last or row-major and values leave as `promised`."""
    if node in images:
        return image_layouts(node.op, operands, node.result_types, images[node])
    found = layouts(node.op, operands, node.result_types)
    strides = promised.get(node.result)
    if strides is None or not writes_anywhere(node, strides):
        return found
    return Layouts(found.operands, (strides, *found.results[1:]))
