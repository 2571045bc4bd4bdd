"""Builder method for attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, overload

from graphdnn.errors import GraphError
from graphdnn.ir.builder.arguments import flag, number, one_of, whole_number
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.attention import Attention
from graphdnn.ir.types import is_several

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
        """softmax(scale * q k^T + bias) v, each query over the keys that it may attend to.

        q is (B, Hq, Sq, D), k (B, Hkv, Skv, D), v (B, Hkv, Skv, Dv), Hq a multiple of Hkv; `scale` is 1 / sqrt(D) by
        default.  Query i may attend to key j when i < q_len, j < kv_len, mask[..., i, j], and with
        d = j - i - offset: d <= 0 if causal; -left <= d <= right in a window (left, right), None unbounded.  The
        offset is kv_len - q_len for causal="bottom_right", else 0.  Lengths are int32 (B,), held between 0 and Sq or
        Skv.  A query without a key gives 0.  With `return_lse` also the log of the softmax's denominator, float32
        (B, Hq, Sq).
        """
        who = name or "attention"
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
        raise GraphError(f"{who}: window is {window!r}; a pair (left, right) is needed")
    left, right = (None if n is None else whole_number(who, "a bound of window", n) for n in entries)
    return (left, right)
