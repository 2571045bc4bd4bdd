"""Builder method for attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, overload

from graphdnn.errors import GraphError
from graphdnn.ir.builder.arguments import called, flag, number, one_of, whole_number
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.types import is_several
from graphdnn.spelling import quoted

Causal = Literal["top_left", "bottom_right"] | None
Bounds = Sequence[int | None] | None


class AttentionMethods(BuilderCore):
    """Attention over queries, keys and values."""

    @overload
    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        *,
        scale: float | None = None,
        causal: Causal = None,
        window: Bounds = None,
        bias: Value | None = None,
        mask: Value | None = None,
        q_lengths: Value | None = None,
        kv_lengths: Value | None = None,
        return_lse: Literal[False] = False,
        name: str | None = None,
    ) -> Value: ...

    @overload
    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        *,
        scale: float | None = None,
        causal: Causal = None,
        window: Bounds = None,
        bias: Value | None = None,
        mask: Value | None = None,
        q_lengths: Value | None = None,
        kv_lengths: Value | None = None,
        return_lse: Literal[True],
        name: str | None = None,
    ) -> tuple[Value, Value]: ...

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        *,
        scale: float | None = None,
        causal: Causal = None,
        window: Bounds = None,
        bias: Value | None = None,
        mask: Value | None = None,
        q_lengths: Value | None = None,
        kv_lengths: Value | None = None,
        return_lse: bool = False,
        name: str | None = None,
    ) -> Value | tuple[Value, Value]:
        """o[b, h, i] = sum over j of p[i, j] v[b, h', j], p[i] = softmax of scale * (q[b, h, i] . k[b, h', j]) + bias.

        The softmax is over the keys j that query i may attend to; the others have p[i, j] = 0.

        Shapes: q is (B, Hq, Sq, D), k (B, Hkv, Skv, D), v (B, Hkv, Skv, Dv), o (B, Hq, Sq, Dv).  Hq is a multiple of
        Hkv, and h' = h // (Hq / Hkv): query heads share key heads without a flag, as with PyTorch's enable_gqa.
        `scale` is 1 / sqrt(D) where it is None.  `bias` (floats) and `mask` (bools, True: may attend) broadcast to (B,
        Hq, Sq, Skv) and may be combined; `q_lengths` and `kv_lengths` are int32 (B,), those outside 0..Sq and 0..Skv
        count as the nearest end.

        Query i may attend to key j where i < q_len, j < kv_len, the mask is True, and, with d = j - i - offset, d <= 0
        if `causal` and -left <= d <= right in a `window` (left, right), of which None is unbounded.  The offset is
        kv_len - q_len for causal="bottom_right" and 0 for "top_left", which is PyTorch's is_causal, or without causal.

        A query that may attend to nothing gives 0, where PyTorch gives NaN for some of its kernels.  With `return_lse`
        the result is (o, lse): lse = log of the sum of e ** score over the allowed keys, float32 (B, Hq, Sq), -inf for
        none.  Scores are float32 for float16 and bfloat16.  Raises GraphError where shapes, types or attributes do not
        fit.
        """
        who = called(name, "attention")
        self._check_owned(f"{who}: q", q)
        one_of(who, "causal", causal, (None, "top_left", "bottom_right"))
        extras = {"bias": bias, "mask": mask, "q_lengths": q_lengths, "kv_lengths": kv_lengths}
        given = {key: value for key, value in extras.items() if value is not None}
        features = q.type.shape[-1] if q.type.rank else 1
        op = Attention(
            scale=1 / math.sqrt(features) if scale is None else number(who, "scale", scale),
            causal=causal,
            window=None if window is None else bounds(who, window),
            extras=tuple(given),
            return_lse=flag(who, "return_lse", return_lse),
        )
        results = self._add(op, q, k, v, *given.values(), name=name)
        return (results[0], results[1]) if return_lse else results[0]


def bounds(who: str, window: object) -> tuple[int | None, int | None]:
    """(left, right), each a whole number or None."""
    entries = tuple(window) if is_several(window) else ()
    if len(entries) != 2:
        raise GraphError(f"{who}: window is {quoted(window)}; a pair (left, right) is needed")
    left, right = (None if n is None else whole_number(who, "a bound of window", n) for n in entries)
    return (left, right)
