"""The proof that a build for padded shapes serves a call of exact shapes: that the exact graph's values are the leading
corners of the padded graph's.

The function is asked for both graphs, so that whatever it makes of an extent (a scale, a constant, another branch)
shows as a difference; no graph is trusted to be the same for another size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from graphdnn.answer import Code, Decline
from graphdnn.ir.graph import Graph, Node, Payload, Value
from graphdnn.ir.types import Array
from graphdnn.specialize.axes import Pair
from graphdnn.specialize.facts import Facts, Knowledge
from graphdnn.specialize.rules import RULES, SIZED
from graphdnn.spelling import counted


def prove(exact: Graph, padded: Graph, limits: Mapping[str, int]) -> Decline | None:
    """None where every output of `exact` is the leading corner of that of `padded`, whatever lies behind the corners of
    the inputs; else why not, naming the node.

    `limits` are inputs of lengths, the same on both sides, of which no entry exceeds the number.
    """
    reason = Walk(exact, padded, limits).reason()
    return None if reason is None else Decline(Code.SHAPE, reason)


class Walk:
    """Both graphs side by side, in their common order."""

    def __init__(self, exact: Graph, padded: Graph, limits: Mapping[str, int]) -> None:
        self._exact = exact
        self._padded = padded
        self._partner: dict[Value, Value] = {v: padded.inputs[n] for n, v in exact.inputs.items()}
        self._payloads = [{v: g.payloads[n] for n, v in g.constants.items()} for g in (exact, padded)]
        self._knowledge = Knowledge({padded.inputs[n]: Facts(limit=limit) for n, limit in limits.items()})

    def reason(self) -> str | None:
        """Why the padded graph does not serve; None where it does."""
        exact, padded = self._exact, self._padded
        for ours, theirs in zip(exact.nodes, padded.nodes, strict=False):
            pair = Pair(ours, theirs)
            if reason := self._difference(ours, theirs) or RULES[type(ours.op)](pair, self._knowledge):
                return reason
            self._knowledge.learn(pair)
            self._partner.update(zip(ours.results, theirs.results, strict=True))
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
    """Whether one constant is the leading corner of another, bit by bit."""
    corner = longer.array()[tuple(map(slice, shorter.type.shape))]
    return bool(np.array_equal(bits(corner), bits(shorter.array())))


def bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
