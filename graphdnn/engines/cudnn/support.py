"""What cuDNN takes, as rules with reasons: a region is taken where no rule objects.

The rules say what the library says only while a plan is built, or not at all.  None of them names a whole pattern.
What is true of one family of anchors stands in limits.py and norm_limits.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from graphdnn.answer import Code, Decline, Fix
from graphdnn.engines.contract import Policy
from graphdnn.engines.cudnn import limits, norm_limits
from graphdnn.engines.cudnn.anatomy import ANCHORS, CONVOLUTIONS, ROW_NORMS, Anatomy
from graphdnn.engines.cudnn.rules.pointwise import DECLINED as DECLINED_FUNCTIONS
from graphdnn.engines.cudnn.rules.pointwise import OPERATIONS, TWO_SIDED, is_smaller
from graphdnn.engines.cudnn.tables import LEAST_CAPABILITY, VERSIONS
from graphdnn.ir.graph import Node, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.ops.linear import MatMul
from graphdnn.ir.ops.norm import BatchNorm, GroupNorm, InstanceNorm
from graphdnn.ir.ops.pointwise import Cast, Elementwise
from graphdnn.ir.ops.pool import AvgPool, MaxPool
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.ops.softmax import Softmax
from graphdnn.ir.region import ALIGNMENT, Region
from graphdnn.ir.types import IMAGE_RANKS
from graphdnn.ir.views import resolve
from graphdnn.target import Target

MOST_OPERATIONS = 50
"""cuDNN operations of one graph."""

FLOATS = ("float16", "bfloat16", "float32")
"""Element types that cuDNN computes on here."""

DECLINED: dict[type[Op], str] = {
    BatchNorm: "cuDNN has no plan for batch normalisation with known statistics: fold it into the weights before it",
    GroupNorm: "cuDNN has no operation for statistics over groups of channels",
    Softmax: "cuDNN's interface has no softmax of its own, only the one inside attention",
    MaxPool: "cuDNN's interface has no pooling",
    AvgPool: "cuDNN's interface has no pooling",
}
"""Ops that are never lowered, and why; others without a rule move data, which cuDNN does not."""

LOWERED: tuple[type, ...] = (*ANCHORS, Elementwise, Reduce)
"""Ops that have a rule in graphdnn.engines.cudnn.rules."""


@dataclass(frozen=True, eq=False)
class Question:
    """What an engine is asked: a region taken apart, a machine, the user's options."""

    anatomy: Anatomy
    target: Target
    policy: Policy

    @property
    def region(self) -> Region:
        return self.anatomy.region


Check = Callable[[Question], Decline | None]


def machine(question: Question) -> Decline | None:
    target = question.target
    if target.kind != "cuda":
        return Decline(Code.ARCHITECTURE, f"cuDNN runs on NVIDIA GPUs, and the target is {target}")
    if target.compute_capability < LEAST_CAPABILITY:
        return Decline(Code.ARCHITECTURE, f"cuDNN's fused engines need sm_80 or newer, and {target} is {target.arch}")
    version = target.versions.get("cudnn")
    if version is not None and tuple(int(n) for n in version.split(".")[:2]) not in VERSIONS:
        known = " and ".join(f"{a}.{b}" for a, b in VERSIONS)
        return Decline(Code.VERSION, f"these rules were checked with cuDNN {known}, and {target} has {version}")
    return None


def operations(question: Question) -> Decline | None:
    """Every op has a rule, and the whole stays within cuDNN's limit."""
    for node in question.region.nodes:
        if not isinstance(node.op, LOWERED):
            reason = DECLINED.get(type(node.op), f"cuDNN does not do {node.op.label}, which moves or makes data")
            return Decline(Code.OP, f"{node}: {reason}")
        if isinstance(node.op, Elementwise) and node.op.function in DECLINED_FUNCTIONS:
            return Decline(Code.OP, f"{node}: {DECLINED_FUNCTIONS[node.op.function]}")
    count = sum(weight(n) for n in question.region.nodes)
    if count > MOST_OPERATIONS:
        return Decline(Code.SIZE, f"the region is {count} cuDNN operations; one graph takes {MOST_OPERATIONS}")
    return None


def weight(node: Node) -> int:
    """Most cuDNN operations that a node becomes."""
    return OPERATIONS.get(node.op.function, 1) if isinstance(node.op, Elementwise) else 1


def element_types(question: Question) -> Decline | None:
    """Tensors in memory are floats of three kinds, apart from the lengths of attention."""
    region = question.region
    lengths = {v for n in region.nodes if isinstance(n.op, Attention) for v in n.operands[3:]}
    values = (*region.inputs, *region.outputs)
    wrong = [v for v in values if v.type.dtype.name not in FLOATS and v not in lengths]
    if wrong:
        first = next((v for v in wrong if not v.type.dtype.is_float), wrong[0])
        reason = f"{placed(first, region)} {first.type}; cuDNN takes {', '.join(FLOATS)} here"
        if not first.type.dtype.is_float:
            return Decline(Code.OP, reason)  # a condition or an index means something else as a float
        return Decline(Code.DTYPE, reason, Fix(wide(region), "dtype", first.type.dtype.name, "float16"))
    for node in region.nodes:
        if isinstance(node.op, Cast) and not (node.operands[0].type.dtype.is_float and node.op.target.is_float):
            fix = Fix(node.name, "dtype", node.op.dtype, "float16")
            return Decline(Code.DTYPE, f"{node}: cuDNN casts between float types only, not to {node.op.dtype}", fix)
        if isinstance(node.op, Cast) and node.op.dtype not in FLOATS:
            fix = Fix(node.name, "dtype", node.op.dtype, "float32")
            return Decline(Code.DTYPE, f"{node}: what follows is in {node.op.dtype}; cuDNN computes in float32", fix)
    return None


def placed(value: Value, region: Region) -> str:
    """The beginning of a sentence about an input or output, by the node that reads or gives it."""
    for node in region.nodes:
        if value in node.results:
            return f"{node} gives"
        if value in node.operands:
            return f"{node}: its {node.op.operand_name(node.operands.index(value))} {value} is"
    raise AssertionError(f"{value} is no value of {region.pattern}")


def wide(region: Region) -> str:
    """What is wider than cuDNN's floats and has to change: tensors that are read, and casts; the rest follows."""
    read = [v.name for v in region.inputs if v.type.dtype.is_float and v.type.dtype.name not in FLOATS]
    casts = [
        n.name for n in region.nodes if isinstance(n.op, Cast) and n.op.target.is_float and n.op.dtype not in FLOATS
    ]
    return " and ".join((*read, *casts))


def composition(question: Question) -> Decline | None:
    """One anchor with pointwise work around it; two matrix products only side by side."""
    anatomy = question.anatomy
    anchors = anatomy.anchors
    if anatomy.has(Attention) and len(question.region.nodes) > 1:
        return Decline(Code.PATTERN, f"{anchors[0]}: cuDNN's attention takes no other operation before or behind it")
    graph = question.region.graph
    for node in anchors:
        behind = next((a for a in anchors if graph.ancestors[a] >> graph.position[node] & 1), None)
        if behind is not None:
            return Decline(Code.PATTERN, f"{behind} needs the result of {node}; cuDNN takes one of them in a graph")
    if len(anchors) > 2 or (len(anchors) == 2 and not all(isinstance(a.op, MatMul) for a in anchors)):
        names = ", ".join(str(a) for a in anchors)
        return Decline(Code.PATTERN, f"cuDNN builds a graph around one of {names}, or around two matrix products")
    if len(anchors) == 2:
        return side_by_side(question)
    return None


def side_by_side(question: Question) -> Decline | None:
    """Two products of one A and equal extents, whose results meet in one value, without work before them."""
    first, second = question.anatomy.anchors
    if first.operands[0] is not second.operands[0] or first.result.type != second.result.type:
        return Decline(
            Code.PATTERN, f"{first} and {second} do not share A and their extents; cuDNN takes two only then"
        )
    if question.anatomy.before or len(question.region.outputs) != 1:
        return Decline(
            Code.PATTERN, f"{first} and {second}: cuDNN takes two products only with one result and no work before them"
        )
    return None


def axes(question: Question) -> Decline | None:
    """Every tensor can be told in the axes that cuDNN takes."""
    frame = question.anatomy.frame
    return frame if isinstance(frame, Decline) else None


def reductions(question: Question) -> Decline | None:
    """Sums over all axes but the channels, float32, at the end, channels-last; nothing else of the kind."""
    anatomy = question.anatomy
    for node in anatomy.reductions:
        op, x = node.op, node.operands[0].type
        assert isinstance(op, Reduce)
        if any(u in question.region.nodes for u in question.region.graph.users.get(node.result, ())):
            return Decline(Code.PATTERN, f"{node}: cuDNN takes a reduction only where nothing in the region needs it")
        if anatomy.has(MatMul, *ROW_NORMS, InstanceNorm):
            return Decline(Code.PATTERN, f"{node}: cuDNN takes reductions behind convolutions and pointwise work only")
        if x.rank not in IMAGE_RANKS or op.axes != (0, *range(2, x.rank)):
            return Decline(
                Code.PATTERN, f"{node}: reduces axes {op.axes} of {x}; cuDNN reduces all axes but the channels"
            )
        if node.result.type.dtype.name != "float32":
            fix = Fix(node.name, "dtype", node.result.type.dtype.name, "float32")
            return Decline(Code.DTYPE, f"{node}: gives {node.result.type}; cuDNN's reductions give float32", fix)
        if not limits.lies_channels_last(x):
            return Decline(Code.LAYOUT, f"{node}: {x} is not channels-last, which cuDNN's reductions need")
    return None


def broadcasts(question: Question) -> Decline | None:
    """What pointwise operands may look like against their result."""
    anatomy = question.anatomy
    spatial = anatomy.has(*CONVOLUTIONS, InstanceNorm) or not anatomy.anchors
    allowed = limits.CONVOLUTION_FORMS if anatomy.has(*CONVOLUTIONS) else limits.FORMS
    for node, index, shape in operands(anatomy) if question.region.common_form is None else ():
        full = node.result.type.shape
        value = node.operands[index]
        if value in anatomy.computed and len(shape) != value.type.rank:
            return Decline(
                Code.BROADCAST,
                f"{node}: {value} is computed here with {value.type.rank} axes and needed "
                f"with {len(shape)}; cuDNN keeps the axes of what it computes",
            )
        if spatial and limits.broadcast_of(shape, full) not in allowed:
            return Decline(
                Code.BROADCAST,
                f"{node}: {value} is {value.type} against a result of {full}; cuDNN takes {', '.join(allowed)} there",
            )
    for node in anatomy.pointwise:
        if smaller_first(node) and node.op.function not in TWO_SIDED:  # type: ignore[attr-defined]
            return Decline(
                Code.BROADCAST,
                f"{node}: its first operand is broadcast, which cuDNN takes only where the operands can change places",
            )
        if len(node.operands) > 1 and all(is_smaller(node, i) for i in range(len(node.operands))):
            return Decline(
                Code.BROADCAST, f"{node}: all operands are smaller than the result; cuDNN needs one of full size"
            )
    return None


def operands(anatomy: Anatomy) -> Iterator[tuple[Node, int, tuple[int, ...]]]:
    """Tensor operands of the pointwise nodes: node, index, shape aligned with the result."""
    for node in anatomy.pointwise:
        assert isinstance(node.op, Elementwise)
        for index, value in enumerate(node.operands):
            if value.literal is None:
                yield node, index, node.op.aligned(index, value.type.shape, node.result.type.rank)


def smaller_first(node: Node) -> bool:
    return len(node.operands) > 1 and is_smaller(node, 0)


def alignment(question: Question) -> Decline | None:
    """Every tensor starts where cuDNN is told that it does: the interface has no word for anything less."""
    region = question.region
    for value, bytes in zip(region.inputs, region.alignments, strict=True):
        if bytes < ALIGNMENT:
            root, offset = resolve(region.graph)[value]
            unit = ALIGNMENT // value.type.dtype.itemsize
            after = round(offset / unit) * unit
            return Decline(
                Code.ALIGNMENT,
                f"{value} is a view that starts {offset} elements of {value.type.dtype} into {root}; cuDNN needs "
                f"tensors that start at multiples of {ALIGNMENT} bytes",
                Fix(value.name, "start", f"{offset} elements into {root.name}", f"{after} elements"),
            )
    return None


def gaps(question: Question) -> Decline | None:
    """Images that lie with gaps, part of the channels of a wider one, step by multiples of 16 bytes.

    With others conv+add+silu's engine 4 built, ran and gave infinities on an H200, where packed images of any channel
    count were right.
    """
    region = question.region
    if not any(isinstance(n.op, CONVOLUTIONS) for n in region.nodes):
        return None
    for value in (*region.inputs, *region.outputs):
        type = value.type
        steps = [s for n, s in zip(type.shape, type.layout, strict=True) if n > 1 and s > 1]
        uneven = [s for s in steps if s * type.dtype.itemsize % ALIGNMENT]
        if uneven and not type.is_dense and 0 not in type.layout:
            unit, least = ALIGNMENT // type.dtype.itemsize, min(uneven)
            return Decline(
                Code.ALIGNMENT,
                f"{value} is {type}, with gaps between its elements; cuDNN needs such an image to step by multiples of "
                f"{ALIGNMENT} bytes",
                Fix(value.name, "strides", f"a step of {least} elements", f"{-(-least // unit) * unit} elements"),
            )
    return None


CHECKS: tuple[Check, ...] = (machine, operations, composition)
"""In order: what the region is at all, what it is made of.  The first objection is the answer."""

PLACED: tuple[Check, ...] = (axes, reductions, broadcasts, alignment, gaps)
"""How the region lies; asked in order after its types."""

FAMILIES: tuple[tuple[tuple[type[Op], ...], Callable[[Anatomy, Policy], Decline | None]], ...] = (
    (CONVOLUTIONS, limits.convolution),
    ((MatMul,), limits.matmul),
    (ROW_NORMS, norm_limits.row_norm),
    ((InstanceNorm,), norm_limits.instance_norm),
    ((Attention,), limits.attention),
)
"""Rules of one family of anchors, asked last."""


def objection(anatomy: Anatomy, target: Target, policy: Policy) -> Decline | None:
    """Why cuDNN does not take a region, or None where it does.

    Types come before how the region lies; a change of types is a fix where it suffices, so where nothing else objects.
    """
    question = Question(anatomy, target, policy)
    problem = first_objection(CHECKS, question)
    if problem is not None:
        return problem
    types = element_types(question)
    if types is not None and types.fix is None:
        return types
    problem = first_objection(PLACED, question)
    if problem is None or problem.fix is not None:
        problem = limits.alone(problem, family_objection(question))
    if types is None or (problem is not None and problem.code is Code.DTYPE):
        return problem
    if problem is None:
        return types
    return Decline(Code.OP, f"{types.reason}; and {problem.reason}")


def first_objection(checks: tuple[Check, ...], question: Question) -> Decline | None:
    return next((problem for check in checks if (problem := check(question)) is not None), None)


def family_objection(question: Question) -> Decline | None:
    """What the rules of the anchors' families say."""
    for kinds, limit in FAMILIES:
        if question.anatomy.has(*kinds):
            problem = limit(question.anatomy, question.policy)
            if problem is not None:
                return problem
    return None if question.anatomy.anchors else limits.no_anchor(question.anatomy)
