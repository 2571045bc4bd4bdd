"""Pointwise functions: which of the frontend's methods each one is, or how it is made of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphdnn.engines.cudnn.frames import Rows
from graphdnn.engines.cudnn.lower import Emitter, Handle, rule
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.ops.pointwise import Bias, Cast, Elementwise, Pointwise, Select
from graphdnn.ir.region import Region

MODE: dict[str, str] = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "div": "div",
    "mod": "mod",
    "pow": "pow",
    "minimum": "min",
    "maximum": "max",
    "add_square": "add_square",
    "neg": "neg",
    "abs": "abs",
    "identity": "identity",
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "reciprocal": "reciprocal",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "tanh": "tanh",
    "erf": "erf",
    "ceil": "ceil",
    "floor": "floor",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_approx_tanh",
    "sigmoid": "sigmoid",
    "relu_backward": "relu_backward",
    "gelu_backward": "gelu_backward",
    "gelu_tanh_backward": "gelu_approx_tanh_backward",
    "equal": "cmp_eq",
    "not_equal": "cmp_neq",
    "greater": "cmp_gt",
    "greater_equal": "cmp_ge",
    "less": "cmp_lt",
    "less_equal": "cmp_le",
    "logical_and": "logical_and",
    "logical_or": "logical_or",
    "logical_not": "logical_not",
}
"""The frontend's method for a function, operands in the same order.  Its gelu is the erf form."""

MIRRORED: dict[str, str] = {
    "greater": "less",
    "greater_equal": "less_equal",
    "less": "greater",
    "less_equal": "greater_equal",
    **{f: f for f in ("add", "mul", "minimum", "maximum", "logical_and", "logical_or", "equal", "not_equal")},
}
"""The function that gives the same with its two operands exchanged: a broadcast operand may not stand first."""

Composed = Callable[[Emitter, list[Handle], tuple[Any, ...]], Handle]


def _sub_from_small(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    """a - b with a the smaller operand: -b + a."""
    a, b = operands
    return emit.graph.add(emit.graph.neg(b), a)


def _div_into_small(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    """a / b with a the smaller operand: 1 / b * a."""
    a, b = operands
    return emit.graph.mul(emit.graph.reciprocal(b), a)


def _add_square_small(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    a, b = operands
    return emit.graph.add(emit.graph.mul(b, b), a)


SMALL_FIRST: dict[str, Composed] = {"sub": _sub_from_small, "div": _div_into_small, "add_square": _add_square_small}
"""How functions that are in no way symmetric are told when their first operand is the smaller one."""


def _square(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    return emit.graph.mul(operands[0], operands[0])


def _silu(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    return emit.graph.swish(operands[0], swish_beta=1.0)


def _swish(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    return emit.graph.swish(operands[0], swish_beta=parameters[0])


def _leaky_relu(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    return emit.graph.leaky_relu(operands[0], negative_slope=parameters[0])


def _clip(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    """As relu's clips where the lower bound is 0; else by max and min with scalars."""
    (x,), (low, high) = operands, parameters
    if low == 0:
        return emit.graph.relu(x) if high is None else emit.graph.relu(x, lower_clip=0.0, upper_clip=float(high))
    rank = rank_of(x)
    if low is not None:
        x = emit.graph.max(x, emit.scalar(low, rank))
    return x if high is None else emit.graph.min(x, emit.scalar(high, rank))


def _hard_sigmoid(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    rank = rank_of(operands[0])
    scaled = emit.graph.mul(operands[0], emit.scalar(1 / 6, rank))
    return emit.graph.relu(emit.graph.add(scaled, emit.scalar(0.5, rank)), lower_clip=0.0, upper_clip=1.0)


def _hard_swish(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    return emit.graph.mul(operands[0], _hard_sigmoid(emit, operands, parameters))


def _elu(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    """The frontend's alpha is 1: max(x, 0) + alpha * (exp(min(x, 0)) - 1) for others."""
    (x,), (alpha,) = operands, parameters
    if alpha == 1:
        return emit.graph.elu(x)
    rank = rank_of(x)
    below = emit.graph.exp(emit.graph.min(x, emit.scalar(0.0, rank)))
    shifted = emit.graph.mul(emit.graph.sub(below, emit.scalar(1.0, rank)), emit.scalar(alpha, rank))
    return emit.graph.add(emit.graph.relu(x), shifted)


def _softplus(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    """The frontend's beta is 1: softplus(beta x) / beta for others."""
    (x,), (beta,) = operands, parameters
    if beta == 1:
        return emit.graph.softplus(x)
    rank = rank_of(x)
    scaled = emit.graph.softplus(emit.graph.mul(x, emit.scalar(beta, rank)))
    return emit.graph.mul(scaled, emit.scalar(1 / beta, rank))


def _tanh_backward(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    """dy - dy * y * y; the frontend's form wants x where ours has y = tanh(x)."""
    dy, y = operands
    return emit.graph.sub(dy, emit.graph.mul(dy, emit.graph.mul(y, y)))


def _sigmoid_backward(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    """dy * y - dy * y * y; the frontend's form wants x where ours has y = sigmoid(x)."""
    dy, y = operands
    product = emit.graph.mul(dy, y)
    return emit.graph.sub(product, emit.graph.mul(product, y))


def _silu_backward(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    return emit.graph.swish_backward(operands[0], operands[1], swish_beta=1.0)


def _swish_backward(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    return emit.graph.swish_backward(operands[0], operands[1], swish_beta=parameters[0])


def _leaky_relu_backward(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    return emit.graph.leaky_relu_backward(operands[0], operands[1], negative_slope=parameters[0])


def _elu_backward(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    """dy above 0, dy * alpha * exp(x) elsewhere."""
    (dy, x), (alpha,) = operands, parameters
    rank = rank_of(x)
    slope = emit.graph.mul(emit.graph.exp(emit.graph.min(x, emit.scalar(0.0, rank))), emit.scalar(alpha, rank))
    outside = emit.graph.cmp_le(x, emit.scalar(0.0, rank)).set_data_type(emit.cudnn.data_type.BOOLEAN)
    return emit.graph.binary_select(emit.graph.mul(dy, slope), dy, outside)


def _softplus_backward(emit: Emitter, operands: list[Handle], parameters: tuple[Any, ...]) -> Handle:
    """dy * sigmoid(beta x)."""
    (dy, x), (beta,) = operands, parameters
    scaled = x if beta == 1 else emit.graph.mul(x, emit.scalar(beta, rank_of(x)))
    return emit.graph.mul(dy, emit.graph.sigmoid(scaled))


COMPOSED: dict[str, Composed] = {
    "square": _square,
    "silu": _silu,
    "swish": _swish,
    "leaky_relu": _leaky_relu,
    "clip": _clip,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _hard_swish,
    "elu": _elu,
    "softplus": _softplus,
    "tanh_backward": _tanh_backward,
    "sigmoid_backward": _sigmoid_backward,
    "silu_backward": _silu_backward,
    "swish_backward": _swish_backward,
    "leaky_relu_backward": _leaky_relu_backward,
    "elu_backward": _elu_backward,
    "softplus_backward": _softplus_backward,
}
"""Functions that have parameters, and those that the frontend lacks, composed of several that it has."""

OPERATIONS: dict[str, int] = {
    "hard_sigmoid": 3,
    "hard_swish": 4,
    "clip": 2,
    "elu": 6,
    "softplus": 3,
    "tanh_backward": 3,
    "sigmoid_backward": 3,
    "elu_backward": 6,
    "softplus_backward": 3,
    "sub": 2,
    "div": 2,
    "add_square": 2,
}
"""Most cuDNN operations that one function becomes, whatever its parameters and the order of its operands; one where it
is not listed."""

SINGLE = frozenset({"silu", "swish", "leaky_relu"})
"""Functions of COMPOSED that are one operation of one tensor."""

SQUARING = frozenset({"tanh_backward", "softplus_backward", "elu_backward"})
"""Gradients of which some operation joins the second operand with itself or with a number."""

GRADIENTS = frozenset(f for f in (*MODE, *COMPOSED) if f.endswith("_backward"))

OWN_GRADIENTS = GRADIENTS - OPERATIONS.keys()
"""Gradients that are one operation of cuDNN."""

BRANCHING = GRADIENTS | {"hard_swish", "elu"}
"""Functions that read a tensor twice in some form, and gradients, on which cuDNN's norms fail."""

TWO_SIDED = frozenset(MIRRORED) | frozenset(SMALL_FIRST) | {"select"}
"""Functions whose first operand may be the smaller one, or the one from outside."""

DECLINED: dict[str, str] = {"atan2": "cuDNN has no operation for the angle of a point"}
"""Functions that are not lowered, and why."""

BOOLEAN = frozenset({"equal", "not_equal", "greater", "greater_equal", "less", "less_equal"})
LOGICAL = frozenset({"logical_and", "logical_or", "logical_not"})


def rank_of(handle: Handle) -> int:
    """Number of axes of a tensor; four where the frontend has not inferred them yet."""
    return len(handle.get_dim()) or 4


@rule(Pointwise, Bias)
def pointwise(emit: Emitter, node: Node) -> tuple[Handle, ...]:
    """One function of its operands, the one of full size first."""
    assert isinstance(node.op, Elementwise)
    function = node.op.function
    if function == "identity":
        return (copy(emit, node),)
    operands = [emit.operand(node, i) for i in range(len(node.operands))]
    if len(operands) == 2 and changes_places(emit, node):
        if function in SMALL_FIRST:
            return (SMALL_FIRST[function](emit, operands, ()),)
        method, operands = MODE[MIRRORED[function]], operands[::-1]
    elif function in COMPOSED:
        parameters = node.op.parameters if isinstance(node.op, Pointwise) else ()
        return (COMPOSED[function](emit, operands, parameters),)
    else:
        method = MODE[function]
    extra = {"compute_data_type": emit.cudnn.data_type.BOOLEAN} if function in LOGICAL else {}
    made = getattr(emit.graph, method)(*operands, name=node.name, **extra)
    if function in BOOLEAN or function in LOGICAL:
        made.set_data_type(emit.cudnn.data_type.BOOLEAN)
    return (made,)


def changes_places(emit: Emitter, node: Node) -> bool:
    """Whether the second operand must be told first: the first is the smaller one, or, in the chain of operations
    around a norm, the one that comes from outside.
    """
    if is_smaller(node, 0) != is_smaller(node, 1):
        return is_smaller(node, 0)
    return isinstance(emit.frame, Rows) and node.operands[0] not in emit.handles and node.operands[1] in emit.handles


@rule(Cast)
def cast(emit: Emitter, node: Node) -> tuple[Handle, ...]:
    """The operand stored in the other type, in memory or not: the rounding is part of the graph."""
    return (copy(emit, node).set_data_type(emit.dtype(node.result.type.dtype)),)


def copy(emit: Emitter, node: Node) -> Handle:
    """The operand as another tensor: by an identity, or as its product with 1 where the operand is needed again.

    Behind an identity to float32, engines 4 and 7 of products and convolutions lose the tensor that it reads: what else
    reads it gives NaN or numbers of something else.
    """
    x = emit.operand(node, 0)
    if is_needed_again(emit.region, node.operands[0]):
        return emit.graph.mul(x, emit.scalar(1.0, rank_of(x)), name=node.name)
    return emit.graph.identity(x, name=node.name)


def is_needed_again(region: Region, value: Value) -> bool:
    """Whether several places of a region read a value, or one does and it leaves the region too."""
    return sum(node.operands.count(value) for node in region.nodes) + (value in region.outputs) > 1


@rule(Select)
def select(emit: Emitter, node: Node) -> tuple[Handle, ...]:
    """The condition is the mask."""
    condition, a, b = (emit.operand(node, i) for i in range(3))
    return (emit.graph.binary_select(a, b, condition, name=node.name),)


def is_smaller(node: Node, index: int) -> bool:
    """Whether an operand of a pointwise node is broadcast."""
    assert isinstance(node.op, Elementwise)
    shape = node.result.type.shape
    value = node.operands[index]
    if value.literal is not None:
        return True
    return value.type.shape != shape and node.op.aligned(index, value.type.shape, len(shape)) != shape
