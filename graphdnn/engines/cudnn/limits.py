"""Rules of one family of anchors each: layouts, extents, element types, precision.  Those of norms: norm_limits.py."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from graphdnn.answer import Code, Decline, Fix
from graphdnn.engines.contract import Policy
from graphdnn.engines.cudnn.anatomy import CONVOLUTIONS, Anatomy
from graphdnn.engines.cudnn.frames import CACHE_SIZE, Ints, is_channels_last
from graphdnn.engines.cudnn.rules.pointwise import BRANCHING, COMPOSED, OWN_GRADIENTS, SINGLE, SQUARING, is_needed_again
from graphdnn.engines.cudnn.tables import IEEE
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import Conv
from graphdnn.ir.ops.pointwise import Elementwise
from graphdnn.ir.ops.transposed import ConvTranspose
from graphdnn.ir.types import IMAGE_RANKS, TensorType


class Form(StrEnum):
    """How a pointwise operand broadcasts to a result, in the words of a refusal."""

    FULL = "full size"
    NUMBER = "one number"
    CHANNEL = "one entry a channel"
    PIXEL = "one entry a pixel"
    OTHER = "another form"


FORMS = (Form.FULL, Form.NUMBER, Form.CHANNEL)
CONVOLUTION_FORMS = (*FORMS, Form.PIXEL)
"""Operands that cuDNN takes in pointwise work, alone and behind convolutions."""

HALVES = ("float16", "bfloat16")
"""Element types of attention."""

HEAD_MULTIPLE = 8
MOST_FEATURES = 256
"""Features of a head of attention: a multiple of the one, at most the other."""

READING_TWICE = BRANCHING | {"square"}
"""Functions that, or whose parts, read one tensor in two places."""


@lru_cache(CACHE_SIZE)
def broadcast_of(shape: Ints, full: Ints) -> Form:
    """How an operand of aligned `shape` broadcasts to `full`: (N, C, spatial) of rank 4 or 5, else channels last."""
    kept = tuple(n == m for n, m in zip(shape, full, strict=True))
    wide = tuple(n > 1 for n in shape)
    if all(kept):
        return Form.FULL
    if not any(wide):
        return Form.NUMBER
    channel = 1 if len(full) in IMAGE_RANKS else len(full) - 1
    if all(w == (a == channel) for a, w in enumerate(wide)):
        return Form.CHANNEL
    if not wide[channel] and all(k for a, k in enumerate(kept) if a != channel):
        return Form.PIXEL
    return Form.OTHER


def lies_channels_last(type: TensorType) -> bool:
    return is_channels_last(type.shape, type.layout)


def one_type(node: Node, count: int = 2) -> Decline | None:
    """The first `count` operands of an anchor have one element type."""
    types = [v.type.dtype.name for v in node.operands[:count]]
    if len(set(types)) == 1:
        return None
    names = ", ".join(f"{v} is {v.type}" for v in node.operands[:count])
    return Decline(Code.DTYPE, f"{node}: {names}; cuDNN needs one type", Fix(node.name, "dtype", types[1], types[0]))


def ieee_float32(anchor: Node, policy: Policy) -> bool:
    """Whether the anchor's arithmetic must be float32 without TF32."""
    return policy.precision == "ieee" and anchor.operands[0].type.dtype.name == "float32"


def convolution(anatomy: Anatomy, policy: Policy) -> Decline | None:
    """Convolutions take any channels and any bounded pointwise graph behind them, channels-last."""
    anchor = next(n for n in anatomy.anchors if isinstance(n.op, CONVOLUTIONS))
    problem = one_type(anchor)
    if problem is not None:
        return problem
    kind = convolution_class(anatomy)
    if anatomy.before:
        problem = prologue(anatomy, anchor)
        if problem is not None:
            return problem
    # Other layouts than channels-last are converted by the plan itself where there is no more than a bias and a relu.
    is_plain = kind in ("conv", "conv+bias") and isinstance(anchor.op, Conv)
    problem = None if is_plain else channels_last_all(anatomy, anchor)
    if problem is None and ieee_float32(anchor, policy) and kind not in IEEE:
        return Decline(
            Code.PRECISION,
            f"{anchor}: no engine of cuDNN is known to compute this in float32 without TF32",
            Fix("options", "precision", "ieee", "tf32"),
        )
    return problem


def channels_last_all(anatomy: Anatomy, anchor: Node) -> Decline | None:
    """Every image around a convolution is channels-last."""
    values = {v for n in (anchor, *anatomy.pointwise) for v in (*n.operands, *n.results) if v.literal is None}
    for value in sorted(values, key=lambda v: v.name):
        if value.type.rank in IMAGE_RANKS and not lies_channels_last(value.type):
            return Decline(
                Code.LAYOUT,
                f"{anchor}: {value} is {value.type}; cuDNN takes images that are not channels-last only of a "
                "convolution alone, or with a bias and maybe a relu behind it",
            )
    return None


def convolution_class(anatomy: Anatomy) -> str:
    """Which of cuDNN's classes of engines does a convolution with this work around it."""
    anchor = anatomy.anchors[0]
    if isinstance(anchor.op, ConvTranspose):
        return "conv_transpose" if not anatomy.pointwise else "conv_transpose+pointwise"
    if anatomy.before:
        return "pointwise+conv"
    if anatomy.reductions:
        return "conv+reduction"
    if not anatomy.pointwise:
        return "conv"
    return "conv+bias" if is_bias_relu(anatomy) else "conv+pointwise"


def is_bias_relu(anatomy: Anatomy) -> bool:
    """Whether all there is behind a convolution is one addition of a channel vector of its type, and maybe a relu."""
    first, *rest = anatomy.pointwise
    conv = anatomy.anchors[0].result
    assert isinstance(first.op, Elementwise)
    if first.op.function != "add" or len(anatomy.region.outputs) != 1:
        return False
    others = [i for i, v in enumerate(first.operands) if v is not conv]
    if len(others) != 1 or first.operands[others[0]].literal is not None:
        return False
    vector = first.operands[others[0]].type
    shape = first.op.aligned(others[0], vector.shape, conv.type.rank)
    functions = [n.op.function for n in rest if isinstance(n.op, Elementwise)]
    return (
        broadcast_of(shape, conv.type.shape) is Form.CHANNEL
        and vector.dtype == conv.type.dtype
        and functions in ([], ["relu"])
    )


def prologue(anatomy: Anatomy, anchor: Node) -> Decline | None:
    """Before a convolution cuDNN takes x * scale + bias and a relu, one entry a channel, nothing behind it."""
    if not isinstance(anchor.op, Conv):
        return Decline(Code.PATTERN, f"{anchor}: cuDNN takes nothing before a transposed convolution")
    outside = any(v in anatomy.region.outputs for n in anatomy.before for v in n.results)
    if not is_scale_and_bias(anatomy, anchor) or anatomy.after or outside:
        return Decline(
            Code.PATTERN,
            f"{anchor}: before a convolution cuDNN takes x * scale + bias and a relu, one entry a channel, whose "
            "result nothing else needs, with nothing behind the convolution",
        )
    if anchor.operands[0].type.dtype.name == "float32":
        return Decline(
            Code.DTYPE,
            f"{anchor}: with work before it cuDNN takes float16 and bfloat16 only",
            Fix(anchor.operands[0].name, "dtype", "float32", "float16"),
        )
    return None


def is_scale_and_bias(anatomy: Anatomy, anchor: Node) -> bool:
    """Whether what is before a convolution is one chain to its image: x * scale + bias, in either order of operands,
    and maybe a relu."""
    functions = [n.op.function for n in anatomy.before if isinstance(n.op, Elementwise)]
    if functions not in (["mul", "add"], ["mul", "add", "relu"]):
        return False
    passing: Value | None = None
    for node in anatomy.before:
        if passing is not None and passing not in node.operands:
            return False
        others = [i for i, v in enumerate(node.operands) if v is not passing]
        if others and not any(is_by_channel(node, i) for i in others):
            return False
        passing = node.result
    return anchor.operands[0] is passing and anchor.operands[1] not in anatomy.computed


def is_by_channel(node: Node, index: int) -> bool:
    """Whether an operand of a pointwise node has one entry a channel."""
    assert isinstance(node.op, Elementwise)
    full = node.result.type.shape
    shape = node.op.aligned(index, node.operands[index].type.shape, len(full))
    return broadcast_of(shape, full) is Form.CHANNEL


def matmul(anatomy: Anatomy, policy: Policy) -> Decline | None:
    """Matrix products of any extents, pointwise work before and behind."""
    for node in anatomy.anchors:
        problem = one_type(node)
        if problem is not None:
            return problem
        if ieee_float32(node, policy):
            return Decline(
                Code.PRECISION,
                f"{node}: cuDNN's float32 matrix products use TF32 whatever they are asked for",
                Fix("options", "precision", "ieee", "tf32"),
            )
        is_float32 = node.operands[0].type.dtype.name == "float32"
        if is_float32 and anatomy.before and (twice := branch_before(anatomy)) is not None:
            reason = f"before it {twice} is needed twice, with which cuDNN's TF32 products compute something else"
            return Decline(Code.PATTERN, f"{node}: {reason}")
        for value in node.operands:
            if value.type.shape[-1] > 1 and value.type.shape[-2] > 1 and 1 not in value.type.layout[-2:]:
                return Decline(
                    Code.LAYOUT,
                    f"{node}: {value} has strides {value.type.layout}; cuDNN needs neighbours along rows or columns",
                )
    return None


def branch_before(anatomy: Anatomy) -> Value | None:
    """What the work before a product needs in two places, within one function or of which one may be the product."""
    seen: set[Value] = set()
    for node in (*anatomy.before, *anatomy.anchors):
        reads_twice = isinstance(node.op, Elementwise) and node.op.function in READING_TWICE
        for value in node.operands:
            if reads_twice or value in seen:
                return value
            if value.literal is None:
                seen.add(value)
    return None


def joins_beside(anatomy: Anatomy, node: Node) -> bool:
    """Whether an epilogue's node has an operation of two tensors, one perhaps a number, that follow from no anchor.

    Of cuDNN's own gradients the first operand counts alone.
    """
    assert isinstance(node.op, Elementwise)
    function, behind = node.op.function, anatomy.behind
    if node.result in behind:
        if function in OWN_GRADIENTS:
            return node.operands[0] not in behind
        return function in SQUARING and node.operands[1] not in behind
    if len(node.operands) > 1 or (function in COMPOSED and function not in SINGLE):
        return True
    return function == "identity" and is_needed_again(anatomy.region, node.operands[0])


def alone(*answers: Decline | None) -> Decline | None:
    """The one objection that there is, with its fix; of several, whose fixes do not suffice alone, the reasons."""
    problems = list(dict.fromkeys(a for a in answers if a is not None))
    if len(problems) < 2:
        return next(iter(problems), None)
    return Decline(Code.ATTRIBUTE, "; and ".join(p.reason for p in problems))


def attention(anatomy: Anatomy, policy: Policy) -> Decline | None:
    """Halves only, features in eights up to 256, no boolean mask, few combinations with bottom-right alignment.

    What no change of the user's mends comes first; where two changes are needed, neither alone is a fix.
    """
    node = anatomy.anchors[0]
    op = node.op
    assert isinstance(op, Attention)
    q, k, v = node.operand_types[:3]
    for type in (q, k, v):
        if type.shape[3] > MOST_FEATURES:
            return Decline(Code.SIZE, f"{node}: {type.shape[3]} features a head; cuDNN takes {MOST_FEATURES} at most")
        if type.layout[3] != 1:
            return Decline(
                Code.LAYOUT, f"{node}: {type} has its features {type.layout[3]} apart; cuDNN needs neighbours"
            )
    problem = attention_mask(node, op, q, k)
    if problem is not None:
        return problem
    answers = (*(a for t in (q, k, v) for a in (half_type(node, t), head_features(node, t))), one_type(node, 3))
    return alone(*answers)


def half_type(node: Node, type: TensorType) -> Decline | None:
    dtype = type.dtype.name
    if dtype in HALVES:
        return None
    fix = Fix(node.name, "dtype", dtype, HALVES[0])
    return Decline(Code.DTYPE, f"{node}: in {dtype}; cuDNN's attention takes {' and '.join(HALVES)}", fix)


def head_features(node: Node, type: TensorType) -> Decline | None:
    features = type.shape[3]
    if not features % HEAD_MULTIPLE:
        return None
    after = -(-features // HEAD_MULTIPLE) * HEAD_MULTIPLE
    fix = Fix(node.name, "head features", str(features), str(after))
    return Decline(
        Code.ALIGNMENT, f"{node}: {features} features a head; cuDNN needs a multiple of {HEAD_MULTIPLE}", fix
    )


def attention_mask(node: Node, op: Attention, q: TensorType, k: TensorType) -> Decline | None:
    """What cuDNN cannot hide or shift in the scores."""
    if "mask" in op.extras:
        return Decline(Code.ATTRIBUTE, f"{node}: cuDNN takes no boolean mask; give an additive bias of 0 and -inf")
    if ("q_lengths" in op.extras) != ("kv_lengths" in op.extras):
        return Decline(Code.ATTRIBUTE, f"{node}: cuDNN needs lengths of queries and of keys, or neither")
    if is_number_a_sequence(node, op):
        return Decline(
            Code.BROADCAST,
            f"{node}: its bias varies over sequences and neither over queries nor over keys, which cuDNN reads wrongly",
        )
    low, high = op.bounds(q.shape[2], k.shape[2])
    if low is not None and (high is None or high > 0) and op.causal is None and "kv_lengths" in op.extras:
        return Decline(Code.ATTRIBUTE, f"{node}: cuDNN takes no window to the right together with lengths")
    if op.causal != "bottom_right":
        return None
    if "bias" in op.extras or "kv_lengths" in op.extras:
        extra = "bias" if "bias" in op.extras else "lengths"
        return Decline(Code.ATTRIBUTE, f"{node}: cuDNN takes no {extra} together with bottom-right alignment")
    if q.shape[2] > k.shape[2]:
        return Decline(
            Code.SHAPE,
            f"{node}: {q.shape[2]} queries and {k.shape[2]} keys; cuDNN's bottom-right alignment needs no more queries "
            "than keys",
        )
    return None


def is_number_a_sequence(node: Node, op: Attention) -> bool:
    """Whether an attention's bias is (B, 1, 1, 1) or (B, H, 1, 1).

    With such a bias every plan of cuDNN 9.19 is off by up to 0.3 of the peak (of (B, 1, 1, 1) where it hides whole
    sequences); with (1, H, 1, 1) and (1, 1, 1, 1) all are right.
    """
    if "bias" not in op.extras:
        return False
    shape = node.operands[3 + op.extras.index("bias")].type.shape
    return len(shape) == 4 and shape[0] > 1 and shape[2:] == (1, 1)


def no_anchor(anatomy: Anatomy) -> Decline | None:
    """Pointwise work alone: full-size tensors lie alike, channels or the last axis innermost."""
    for node in anatomy.region.layout_nodes:
        for value in (*node.operands, *node.results):
            type = value.type
            if (
                value.literal is not None
                or type.size == 1
                or (
                    isinstance(node.op, Elementwise)
                    and (type.rank != node.result.type.rank or type.shape != node.result.type.shape)
                )
            ):
                continue
            if type.rank > max(IMAGE_RANKS):
                return Decline(Code.RANK, f"{node}: {type} has {type.rank} axes; cuDNN takes five at most")
            if type.rank in IMAGE_RANKS and not lies_channels_last(type):
                return lying_wrong(node, value, "channels-last")
            if type.rank < 4 and not type.is_row_major:
                return lying_wrong(node, value, "row-major")
    return None


def lying_wrong(node: Node, value: Value, needed: str) -> Decline:
    """What of pointwise work alone does not lie as `needed`, and that it is a part of a larger tensor, where it is."""
    if value.type.span_bytes <= value.type.nbytes:
        return Decline(Code.LAYOUT, f"{node}: {value} is not {needed}, which cuDNN's pointwise work needs")
    return Decline(
        Code.LAYOUT,
        f"{node}: {value} has gaps between its elements (strides {value.type.layout}), as a part of a larger tensor "
        f"has; cuDNN's pointwise work needs {needed} tensors without gaps",
    )
