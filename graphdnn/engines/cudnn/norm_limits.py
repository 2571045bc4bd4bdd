"""Rules of norms: which axes, how rows lie, and what pointwise work may stand around them."""

from __future__ import annotations

from graphdnn.answer import Code, Decline, Fix
from graphdnn.engines.contract import Policy
from graphdnn.engines.cudnn.anatomy import ROW_NORMS, Anatomy, is_over_last_axes, row_length
from graphdnn.engines.cudnn.limits import alone, lies_channels_last
from graphdnn.engines.cudnn.rules.pointwise import BRANCHING, TWO_SIDED
from graphdnn.ir.graph import Node
from graphdnn.ir.ops.norm import InstanceNorm, LayerNorm, RmsNorm
from graphdnn.ir.ops.pointwise import Cast, Elementwise
from graphdnn.ir.types import IMAGE_RANKS

NORM_ROW_MULTIPLE = 64
"""Elements of a row that cuDNN's norm kernels take at a time: with pointwise work around a norm there is no plan for
rows of another length, and one alone is slower on them."""

FUSED_INSTANCE_MULTIPLE = 8
"""Channels that instance norms with pointwise work behind them come in."""


def row_norm(anatomy: Anatomy, policy: Policy) -> Decline | None:
    """Norms over the last axes, whole rows dense in memory."""
    node = next(n for n in anatomy.anchors if isinstance(n.op, ROW_NORMS))
    op, x = node.op, node.operands[0].type
    assert isinstance(op, LayerNorm | RmsNorm)
    wanted = ("scale", "bias") if isinstance(op, LayerNorm) else ("scale",)
    if op.affine != wanted:
        return Decline(Code.ATTRIBUTE, f"{node}: cuDNN needs {' and '.join(wanted)} for it")
    if not is_over_last_axes(node):
        return Decline(Code.ATTRIBUTE, f"{node}: runs over axes {op.axes} of {x}; cuDNN takes the last axes only")
    problem = dense_rows(anatomy, node)
    return fused_norm(anatomy, node) if problem is None else problem


def dense_rows(anatomy: Anatomy, node: Node) -> Decline | None:
    """x, its result and all that is as large lie row after row without gaps, the row's elements side by side."""
    x = node.operands[0].type
    for value in (*anatomy.region.inputs, *anatomy.region.outputs):
        type = value.type
        if type.shape == x.shape and not type.is_row_major:
            return Decline(Code.LAYOUT, f"{node}: {value} has strides {type.layout}; cuDNN needs dense rows of {x}")
    return None


def fused_norm(anatomy: Anatomy, node: Node) -> Decline | None:
    """With pointwise work around it: rows of a multiple of 64, one element type all through."""
    if not anatomy.pointwise:
        return None
    problem = chain(anatomy, node)
    if problem is not None:
        return problem
    return alone(row_multiple(node), one_type_around(anatomy, node))


def row_multiple(node: Node) -> Decline | None:
    length = row_length(node)
    if not length % NORM_ROW_MULTIPLE:
        return None
    after = -(-length // NORM_ROW_MULTIPLE) * NORM_ROW_MULTIPLE
    return Decline(
        Code.ALIGNMENT,
        f"{node}: rows of {length}; with pointwise work around a norm cuDNN needs a multiple of {NORM_ROW_MULTIPLE}",
        Fix(node.operands[0].name, "row length", str(length), str(after)),
    )


def one_type_around(anatomy: Anatomy, node: Node) -> Decline | None:
    """Everything that a norm and the work around it read and give is of x's type."""
    x = node.operands[0].type
    other = [v for v in (*anatomy.region.inputs, *anatomy.region.outputs) if v.type.dtype != x.dtype]
    if not other:
        return None
    first = other[0]
    alike = " and ".join(v.name for v in other if v.type.dtype == first.type.dtype)
    return Decline(
        Code.DTYPE,
        f"{node}: {first} is {first.type} and x is {x.dtype}; with pointwise work around a norm cuDNN needs one type",
        Fix(alike, "dtype", first.type.dtype.name, x.dtype.name),
    )


def chain(anatomy: Anatomy, norm: Node) -> Decline | None:
    """Around a norm each tensor is read once, by functions that are one operation each."""
    reads = [v for n in anatomy.region.nodes for v in n.operands if v.literal is None]
    twice = next((v for v in reads if reads.count(v) > 1), None)
    if twice is not None:
        return Decline(
            Code.PATTERN, f"{norm}: {twice} is read twice; around a norm cuDNN takes a chain of pointwise work only"
        )
    if norm.result in anatomy.region.outputs and anatomy.after:
        return Decline(
            Code.PATTERN, f"{norm} is needed outside and {anatomy.after[0]} follows it; cuDNN gives one of them"
        )
    for node in anatomy.pointwise:
        assert isinstance(node.op, Elementwise)
        function, first = node.op.function, node.operands[0]
        outside = len(node.operands) > 1 and first not in anatomy.computed and node.operands[1] in anatomy.computed
        if (
            function in BRANCHING
            or isinstance(node.op, Cast)
            or (outside and function not in TWO_SIDED - {"add_square"})
        ):
            return Decline(
                Code.PATTERN,
                f"{norm}: {node} is not one operation on the value that passes through; around a norm cuDNN takes a "
                "chain of such only",
            )
    return None


def instance_norm(anatomy: Anatomy, policy: Policy) -> Decline | None:
    """Both layouts alone; channels-last and channels in eights with pointwise work behind it."""
    node = next(n for n in anatomy.anchors if isinstance(n.op, InstanceNorm))
    x = node.operands[0].type
    if x.rank not in IMAGE_RANKS:
        return Decline(Code.RANK, f"{node}: x is {x}; cuDNN takes two or three spatial axes")
    if anatomy.before:
        return Decline(Code.PATTERN, f"{node}: cuDNN takes nothing before it")
    if x.layout != node.result.type.layout:
        return Decline(Code.LAYOUT, f"{node}: x and its result lie differently; cuDNN needs one layout")
    if not anatomy.pointwise:
        return None
    if not lies_channels_last(x):
        return Decline(Code.LAYOUT, f"{node}: x is not channels-last, which cuDNN needs with work behind the norm")
    if x.shape[1] % FUSED_INSTANCE_MULTIPLE:
        after = -(-x.shape[1] // FUSED_INSTANCE_MULTIPLE) * FUSED_INSTANCE_MULTIPLE
        return Decline(
            Code.ALIGNMENT,
            f"{node}: {x.shape[1]} channels; with work behind the norm cuDNN needs a multiple of "
            f"{FUSED_INSTANCE_MULTIPLE}",
            Fix(node.operands[0].name, "channels", str(x.shape[1]), str(after)),
        )
    return None
