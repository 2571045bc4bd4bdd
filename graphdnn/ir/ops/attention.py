"""Attention: softmax(scale * Q K^T + bias) V over the keys that each query may attend to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.graph import Value
from graphdnn.ir.op import Make, Op, op
from graphdnn.ir.ops.linear import MatMul
from graphdnn.ir.ops.movement import Iota, Reshape, Transpose, Unsqueeze
from graphdnn.ir.ops.pointwise import Pointwise, Select, cast_to, common_type, in_common_type
from graphdnn.ir.ops.reduction import Reduce
from graphdnn.ir.ops.softmax import SOFTMAX_OPERATIONS, Softmax
from graphdnn.ir.types import Array, TensorType, bool_, broadcast_shapes, float32, int32, promote
from graphdnn.spelling import quoted

T = TypeVar("T")

CAUSAL = (None, "top_left", "bottom_right")
EXTRAS = ("bias", "mask", "q_lengths", "kv_lengths")
"""Optional operands, in the order in which they follow q, k and v."""

NOTHING = -float(np.finfo(np.float32).max)
"""Score of a key that may not be attended to, below all others: finite, so that a row of such keys makes no NaN."""


@op("attention")
class Attention(Op):
    """o[b, h, i] = sum over j of p[j] v[b, h', j], p the softmax of scale * q[b, h, i] . k[b, h', j] + bias[i, j].

    q is (B, Hq, Sq, D), k (B, Hkv, Skv, D), v (B, Hkv, Skv, Dv); Hq is a multiple of Hkv, and h' = h // (Hq / Hkv).
    Query i may attend to key j when i < q_len, j < kv_len, mask[..., i, j], and with d = j - i - offset: d <= 0 if
    causal; d >= -left and d <= right if windowed (inclusive, None unbounded).  The offset is kv_len - q_len for
    "bottom_right" and 0 otherwise.  A row with no key (or with none of a score above minus infinity) gives 0, and
    log-sum-exp minus infinity.  `extras` names the optional operands that follow, in the order of EXTRAS: bias (float)
    and mask (bool) broadcast to (B, Hq, Sq, Skv), lengths are int32 (B,) and held between 0 and Sq or Skv.  Keys from
    kv_len on are never looked at; queries from q_len on give 0 whatever v holds.  Results: o (B, Hq, Sq, Dv) in the
    common type of q, k and v, and with `return_lse` the log of the softmax's denominator, float32 (B, Hq, Sq).  Raises
    GraphError when shapes or types do not fit.
    """

    scale: float
    causal: str | None = None
    window: tuple[int | None, int | None] | None = None
    extras: tuple[str, ...] = ()
    return_lse: bool = False

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("q", "k", "v", *self.extras)

    def optional(self, operands: Sequence[T]) -> dict[str, T]:
        """Of all operands in order (or their types, or arrays) those behind q, k and v, by name."""
        return dict(zip(self.extras, operands[3:], strict=True))

    def with_optional(self, given: Mapping[str, T]) -> tuple[Attention, tuple[T, ...]]:
        """The same attention with these optional operands, and them in the order in which it takes them."""
        extras = tuple(name for name in EXTRAS if name in given)
        return replace(self, extras=extras), tuple(given[name] for name in extras)

    def bounds(self, sq: int, skv: int) -> tuple[int | None, int | None]:
        """Least and greatest d = j - i - offset that is allowed, None unbounded: causal and window in one.

        A bound that no d reaches, whatever the lengths are, is none: |d| < Sq + Skv.
        """
        left, right = (None if n is None or n >= sq + skv else n for n in self.window or (None, None))
        if self.causal is not None:
            right = 0 if right is None else min(right, 0)
        return (None if left is None else -left, right)

    def infer(self, q: TensorType, k: TensorType, v: TensorType, *extras: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        self._check_attributes(len(extras))
        given = f"q is {q}, k is {k}, v is {v}"
        if not q.rank == k.rank == v.rank == 4:
            raise GraphError(f"attention: four axes are needed, batch, heads, positions, features: {given}")
        dtype = common_type("attention", ("q", "k", "v"), (q, k, v))
        if not dtype.is_float:
            raise GraphError(f"attention: a float type is needed: {given}")
        (b, hq, sq, d), (_, hkv, skv, dk) = q.shape, k.shape
        if k.shape[0] != b or v.shape[0] != b:
            raise GraphError(f"attention: batch extents differ: {given}")
        if d != dk:
            raise GraphError(f"attention: q has {d} features and k has {dk}: {given}")
        if v.shape[1:3] != (hkv, skv):
            raise GraphError(f"attention: k and v differ in heads or positions: {given}")
        if hq % hkv:
            raise GraphError(f"attention: {hq} heads of q are no multiple of {hkv} heads of k and v: {given}")
        for name, type in zip(self.extras, extras, strict=True):
            self._check_extra(name, type, (b, hq, sq, skv))
        o = TensorType((b, hq, sq, v.shape[3]), dtype)
        return (o, TensorType((b, hq, sq), float32)) if self.return_lse else (o,)

    def _check_attributes(self, extras: int) -> None:
        if self.causal not in CAUSAL:
            raise GraphError(
                f'attention: causal is {quoted(self.causal)}; None, "top_left" or "bottom_right" is needed'
            )
        if self.window is not None and any(n is not None and n < 0 for n in self.window):
            raise GraphError(f"attention: window is {quoted(self.window)}; each bound is None or at least 0")
        if tuple(n for n in EXTRAS if n in self.extras) != self.extras or len(self.extras) != extras:
            raise GraphError(
                f"attention: extras {quoted(self.extras)} name the {extras} operands after v; they must be some of "
                f"{EXTRAS}, in that order"
            )
        if not math.isfinite(self.scale):
            raise GraphError(f"attention: scale is {self.scale}; a finite number is needed")

    def _check_extra(self, name: str, type: TensorType, scores: tuple[int, ...]) -> None:
        if name in ("q_lengths", "kv_lengths"):
            if type.dtype != int32 or type.shape != scores[:1]:
                raise GraphError(f"attention: {name} is {type}; i32[{scores[0]}], one per batch, is needed")
            return
        if (name == "mask") != (type.dtype == bool_) or (name == "bias" and not type.dtype.is_float):
            raise GraphError(f"attention: {name} is {type}; a {'bool' if name == 'mask' else 'float'} type is needed")
        try:
            fits = broadcast_shapes(type.shape, scores) == scores
        except ValueError:
            fits = False
        if not fits:
            raise GraphError(f"attention: {name} is {type}, which does not broadcast to the scores' shape {scores}")

    def reference(self, q: Array, k: Array, v: Array, *extras: Array) -> tuple[Array, ...]:  # type: ignore[override]
        q, k, v = in_common_type((q, k, v))
        given = dict(zip(self.extras, extras, strict=True))
        (b, hq, sq, _), (_, hkv, skv, _) = q.shape, k.shape
        q_len = clamped_lengths(given.get("q_lengths"), b, sq)
        kv_len = clamped_lengths(given.get("kv_lengths"), b, skv)
        i, j = np.arange(sq)[:, None], np.arange(skv)
        low, high = self.bounds(sq, skv)
        distance = j - i - (kv_len - q_len if self.causal == "bottom_right" else 0)
        allowed = (i < q_len) & (j < kv_len)
        if low is not None:
            allowed = allowed & (distance >= low)
        if high is not None:
            allowed = allowed & (distance <= high)
        if "mask" in given:
            allowed = allowed & given["mask"]
        scores = np.matmul(q.reshape(b, hkv, -1, q.shape[3]), k.swapaxes(2, 3)).reshape(b, hq, sq, skv)
        scores = scores * np.asarray(self.scale, scores.dtype)
        if "bias" in given:
            scores = scores + given["bias"]
        nothing = np.asarray(NOTHING, scores.dtype)
        scores = np.where(allowed, scores, nothing)
        peak = np.maximum(scores.max(-1, keepdims=True), nothing)
        weights = np.where(allowed, np.exp(scores - peak), np.asarray(0, scores.dtype))
        total = weights.sum(-1, keepdims=True)
        live = np.where(np.arange(skv)[:, None] < kv_len, v, np.asarray(0, v.dtype))
        o = np.matmul(weights.reshape(b, hkv, -1, skv), live).reshape(b, hq, sq, v.shape[3])
        o = o / np.where(total == 0, np.asarray(1, total.dtype), total)
        o = np.where(i < q_len, o, np.asarray(0, o.dtype))
        return (o, (peak + np.log(total))[..., 0]) if self.return_lse else (o,)

    def expand(self, make: Make, *operands: Value) -> tuple[Value, ...]:
        """Two matrix products with the scores between them in memory, arithmetic in float32 (float64 in float64).

        Where attributes alone leave each query a key, they have a softmax between them, which gives NaN for a query of
        nothing but scores of minus infinity: infinite operands make such scores, and no mask does.
        """
        q, k, v, *rest = operands
        given = dict(zip(self.extras, rest, strict=True))
        (b, hq, sq, d), (_, hkv, skv, _) = q.type.shape, k.type.shape
        own = promote(*(x.type.dtype for x in (q, k, v)))
        wide = own.compute
        q, k, v = (cast_to(make, x, wide) for x in (q, k, v))
        allowed = self._allowed(make, given, b, sq, skv)
        # the heads of q that share a head of k and v lie one after the other, and so are more rows of one product
        folded = make(Reshape(shape=(b, hkv, hq // hkv * sq, d)), q)
        scores = make(MatMul(), folded, make(Transpose(axes=(0, 1, 3, 2)), k))
        scores = make(Pointwise(fn="mul"), make(Reshape(shape=(b, hq, sq, skv)), scores), self.scale)
        if "bias" in given:
            scores = make(Pointwise(fn="add"), scores, cast_to(make, given["bias"], wide))
        is_plain = self._every_row_has_keys(sq, skv) and not self.return_lse
        if allowed is not None:
            scores = make(Select(), allowed, scores, -math.inf if is_plain else NOTHING)
        if "kv_lengths" in given:
            v = zeroed_from(make, v, given["kv_lengths"])
        if is_plain:
            weights = make(Softmax(axis=3), scores)
            return (cast_to(make, self._weighted(make, weights, v), own),)
        peak = make(Reduce(fn="max", axes=(3,), keepdims=True), scores)
        peak = make(Pointwise(fn="maximum"), peak, NOTHING)
        weights = make(Pointwise(fn="exp"), make(Pointwise(fn="sub"), scores, peak))
        if allowed is not None:
            weights = make(Select(), allowed, weights, 0.0)
        total = make(Reduce(fn="sum", axes=(3,), keepdims=True), weights)
        divisor = make(Select(), make(Pointwise(fn="equal"), total, 0.0), 1.0, total)
        o = make(Pointwise(fn="div"), self._weighted(make, weights, v), divisor)
        if "q_lengths" in given:
            o = zeroed_from(make, o, given["q_lengths"])
        o = cast_to(make, o, own)
        if not self.return_lse:
            return (o,)
        lse = make(Pointwise(fn="add"), peak, make(Pointwise(fn="log"), total))
        return (o, make(Reshape(shape=(b, hq, sq)), cast_to(make, lse, float32)))

    def _weighted(self, make: Make, weights: Value, v: Value) -> Value:
        """Weights (B, Hq, Sq, Skv) times v (B, Hkv, Skv, Dv)."""
        (b, hq, sq, skv), (_, hkv, _, dv) = weights.type.shape, v.type.shape
        o = make(MatMul(), make(Reshape(shape=(b, hkv, hq // hkv * sq, skv)), weights), v)
        return make(Reshape(shape=(b, hq, sq, dv)), o)

    def _every_row_has_keys(self, sq: int, skv: int) -> bool:
        """Whether the attributes alone leave each query a key, so that a plain softmax is the same function."""
        offset = skv - sq if self.causal == "bottom_right" else 0
        return not self.extras and int(keys_per_query(sq, skv, *self.bounds(sq, skv), offset).min()) > 0

    def _allowed(self, make: Make, given: dict[str, Value], b: int, sq: int, skv: int) -> Value | None:
        """Which query may attend to which key, broadcasting to (B, Hq, Sq, Skv); None for every one to every one."""
        low, high = self.bounds(sq, skv)
        conditions = [given["mask"]] if "mask" in given else []
        if low is None and high is None and not {"q_lengths", "kv_lengths"} & set(given):
            return conditions[0] if conditions else None
        i, j = positions(make, sq, skv)
        extents = {"q_lengths": sq, "kv_lengths": skv}
        lengths = {n: per_batch(make, given[n], extent) for n, extent in extents.items() if n in given}
        for name, position in (("q_lengths", i), ("kv_lengths", j)):
            if name in lengths:
                conditions.append(make(Pointwise(fn="less"), position, lengths[name]))
        conditions += self.in_band(make, i, j, lengths)
        allowed = conditions[0]
        for condition in conditions[1:]:
            allowed = make(Pointwise(fn="logical_and"), allowed, condition)
        return allowed

    def in_band(self, make: Make, i: Value, j: Value, lengths: Mapping[str, Value]) -> list[Value]:
        """What causal flag and window ask of query i (Sq, 1) and key j (Skv,), each broadcasting to (B, 1, Sq, Skv).

        `lengths` are those that there are, as `per_batch` gives them.
        """
        sq, skv = i.type.shape[0], j.type.shape[0]
        low, high = self.bounds(sq, skv)
        if low is None and high is None:
            return []
        shifted = i
        if self.causal == "bottom_right":
            shifted = make(
                Pointwise(fn="sub"),
                make(Pointwise(fn="add"), i, lengths.get("kv_lengths", skv)),
                lengths.get("q_lengths", sq),
            )
        distance = make(Pointwise(fn="sub"), j, shifted)
        bounds = (("greater_equal", low), ("less_equal", high))
        return [make(Pointwise(fn=fn), distance, bound) for fn, bound in bounds if bound is not None]

    def flops(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        """Two products over the pairs that causal flag and window leave, and the softmax over each."""
        (b, hq, sq, d), skv = operands[0].shape, operands[1].shape[2]
        offset = skv - sq if self.causal == "bottom_right" else 0
        pairs = int(keys_per_query(sq, skv, *self.bounds(sq, skv), offset).sum())
        return b * hq * pairs * (2 * (d + operands[2].shape[3]) + SOFTMAX_OPERATIONS)


def clamped_lengths(lengths: Array | None, batch: int, extent: int) -> Array:
    """Lengths between 0 and `extent` as (B, 1, 1, 1); the extent itself where none are given."""
    given = np.full(batch, extent) if lengths is None else np.clip(lengths.astype(np.int64), 0, extent)
    return np.asarray(given).reshape(batch, 1, 1, 1)


def zeroed_from(make: Make, x: Value, lengths: Value) -> Value:
    """x (B, H, S, D) with 0 in the rows from each sequence's length on."""
    extent = x.type.shape[2]
    row = make(Reshape(shape=(extent, 1)), make(Iota(size=extent)))
    return make(Select(), make(Pointwise(fn="less"), row, per_batch(make, lengths, extent)), x, 0.0)


def positions(make: Make, sq: int, skv: int) -> tuple[Value, Value]:
    """i (Sq, 1) and j (Skv,)."""
    return make(Reshape(shape=(sq, 1)), make(Iota(size=sq))), make(Iota(size=skv))


def per_batch(make: Make, lengths: Value, extent: int) -> Value:
    """Lengths (B,), held between 0 and `extent`, as (B, 1, 1, 1)."""
    return make(Unsqueeze(axes=(1, 2, 3)), make(Pointwise(fn="clip", parameters=(0, extent)), lengths))


@lru_cache(maxsize=64)
def keys_per_query(sq: int, skv: int, low: int | None, high: int | None, offset: int) -> Array:
    """For each query i < sq the number of keys j < skv with low <= j - i - offset <= high."""
    i = np.arange(sq) + offset
    first = np.zeros(sq, np.int64) if low is None else np.clip(i + low, 0, skv)
    end = np.full(sq, skv) if high is None else np.clip(i + high + 1, 0, skv)
    return np.asarray(np.maximum(end - first, 0))
