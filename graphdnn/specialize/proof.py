"""The proof that a build for padded shapes serves a call of exact shapes: that the exact graph's values are the leading
corners of the padded graph's, or what would have to be masked for them to be.

The function is asked for both graphs, so that whatever it makes of an extent (a scale, a constant, another branch)
shows as a difference; no graph is trusted to be the same for another size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphdnn.answer import Code, Decline
from graphdnn.ir.graph import Graph, Node, Value
from graphdnn.ir.payload import Payload
from graphdnn.ir.types import Array
from graphdnn.specialize.axes import Pair
from graphdnn.specialize.facts import Facts, Knowledge
from graphdnn.specialize.rules import RULES, SIZED, Refusal
from graphdnn.spelling import counted


def prove(exact: Graph, padded: Graph, limits: Mapping[str, int]) -> Decline | None:
    """None where every output of `exact` is the leading corner of that of `padded`, whatever lies behind the corners of
    the inputs; else why not, naming the node.

    `limits` are inputs of lengths, the same on both sides, of which no entry exceeds the number.
    """
    found = next(Walk(exact, padded, limits).refusals(), None)
    return None if found is None else Decline(Code.SHAPE, found[1].reason)


@dataclass(frozen=True)
class Mask:
    """A place where padding matters: what operand `operand` of node number `node` holds behind the exact extent of its
    axis `axis`."""

    node: int
    operand: int
    axis: int


def masks_needed(exact: Graph, padded: Graph, limits: Mapping[str, int]) -> tuple[Mask, ...] | Decline:
    """The places that have to be masked for `prove` to accept the graphs; a refusal where that is not enough."""
    masks: list[Mask] = []
    for node, refusal in Walk(exact, padded, limits).refusals():
        if not refusal.maskable:
            return Decline(Code.SHAPE, refusal.reason)
        masks.extend(Mask(node, operand, axis) for operand, axis in refusal.maskable)
    return tuple(masks)


class Walk:
    """Both graphs side by side, in their common order."""

    def __init__(self, exact: Graph, padded: Graph, limits: Mapping[str, int]) -> None:
        self._exact = exact
        self._padded = padded
        self._partner: dict[Value, Value] = {v: padded.inputs[n] for n, v in exact.inputs.items()}
        self._payloads = [{v: g.payloads[n] for n, v in g.constants.items()} for g in (exact, padded)]
        self._knowledge = Knowledge({padded.inputs[n]: Facts(limit=limit) for n, limit in limits.items()})

    def refusals(self) -> Iterator[tuple[int, Refusal]]:
        """Why the padded graph does not serve, each with the number of the node; the last is one that masks would not
        help, if there is any such."""
        for index, (ours, theirs) in enumerate(zip(self._exact.nodes, self._padded.nodes, strict=False)):
            pair = Pair(ours, theirs)
            if reason := self._difference(ours, theirs):
                yield index, Refusal(reason)
                return
            if refusal := RULES[type(ours.op)](pair, self._knowledge):
                yield index, refusal
                if not refusal.maskable:
                    return
            self._knowledge.learn(pair)
            self._partner.update(zip(ours.results, theirs.results, strict=True))
        if reason := self._ending():
            yield len(self._exact.nodes), Refusal(reason)

    def _ending(self) -> str | None:
        """Why the graphs differ in how many nodes they have, or in their outputs."""
        exact, padded = self._exact, self._padded
        if len(exact.nodes) != len(padded.nodes):
            found = counted(len(exact.nodes), "node")
            return f"the graph has {found} for the exact shapes and {len(padded.nodes)} for the padded"
        if list(exact.outputs) != list(padded.outputs):
            return (
                f"the outputs are {list(exact.outputs)} for the exact shapes and {list(padded.outputs)} for the padded"
            )
        outputs = zip(exact.outputs.items(), padded.outputs.values(), strict=True)
        return next((f"output {n}: {why}" for (n, v), w in outputs if (why := self._mismatch(v, w))), None)

    def _difference(self, exact: Node, padded: Node) -> str | None:
        """Why two nodes do not do the same on the same operands."""
        op, other = exact.op, padded.op
        if type(op) is not type(other) or op.label != other.label or len(exact.operands) != len(padded.operands):
            return f"{exact} of the exact shapes is {padded} for the padded"
        if type(op) not in RULES:
            return f"of {exact} it is not known which elements it computes from which"
        sized = SIZED.get(type(op), ())
        mine, its = op.attributes(), other.attributes()
        for name, value in mine.items():
            if name not in sized and repr(value) != repr(its[name]):
                return f"{name} of {exact} is {value} for the exact shapes and {its[name]} for the padded"
        operands = zip(exact.operands, padded.operands, strict=True)
        return next((f"{exact}: {why}" for v, w in operands if (why := self._mismatch(v, w))), None)

    def _mismatch(self, exact: Value, padded: Value) -> str | None:
        """Why one value is not the corner of the other, as far as where they come from tells."""
        if exact.literal is not None or padded.literal is not None:
            if repr(exact.literal) == repr(padded.literal) and exact.type.dtype == padded.type.dtype:
                return None
            return f"{exact} for the exact shapes is {padded} for the padded"
        if exact.type.dtype != padded.type.dtype or not is_corner(exact.type.shape, padded.type.shape):
            return f"{exact} is {exact.type} for the exact shapes and {padded.type} for the padded"
        if exact in self._partner:
            return None if self._partner[exact] is padded else f"{exact} is {padded} for the padded shapes"
        ours, theirs = (payloads.get(v) for payloads, v in zip(self._payloads, (exact, padded), strict=True))
        if ours is None or theirs is None or not begins_with(theirs, ours):
            return f"constant {exact} has another content for the exact shapes than for the padded"
        self._partner[exact] = padded
        return None


def is_corner(exact: Sequence[int], padded: Sequence[int]) -> bool:
    return len(exact) == len(padded) and all(n <= m for n, m in zip(exact, padded, strict=True))


def begins_with(longer: Payload, shorter: Payload) -> bool:
    """Whether one constant is the leading corner of another, bit by bit.  One and the same is not read for that."""
    if longer is shorter:
        return True
    corner = longer.array()[tuple(map(slice, shorter.type.shape))]
    return bool(np.array_equal(bits(corner), bits(shorter.array())))


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
