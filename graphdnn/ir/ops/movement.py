"""Operations that move or rename elements and compute nothing: views where strides allow it, copies elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.op import Op, View, op
from graphdnn.ir.ops.pointwise import common_type
from graphdnn.ir.types import DTYPES, Array, TensorType, int32, int64
from graphdnn.spelling import quoted


class Renaming(Op):
    """Base of the ops whose results are the first operand's elements under other indices, where strides allow it."""

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x",)

    @property
    def is_renaming(self) -> bool:
        return True


def reshaped_strides(shape: Sequence[int], strides: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...] | None:
    """Strides under which memory of `shape` and `strides` reads as `wanted`, in the same order; None where none exist.

    Runs of axes that have equal extents on both sides are matched from the left; a run is a view when its old axes lie
    in memory as one axis would.
    """
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n > 1]
    out = [0] * len(wanted)
    first, new = 0, 0
    while first < len(old):
        last, have = first + 1, old[first][0]
        begin, want = new, 1
        while have != want:
            if want < have:
                want *= wanted[new]
                new += 1
            else:
                have *= old[last][0]
                last += 1
        if any(old[i][1] != old[i + 1][0] * old[i + 1][1] for i in range(first, last - 1)):
            return None
        step = old[last - 1][1]
        for axis in reversed(range(begin, new)):
            out[axis] = step
            step *= wanted[axis]
        first = last
    return tuple(out)


@op("reshape")
class Reshape(Renaming):
    """y has `shape` and x's elements in the same row-major order.  Raises GraphError when the sizes differ."""

    shape: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if min(self.shape, default=1) < 1:
            raise GraphError(f"reshape: shape is {quoted(self.shape)}; every extent must be at least 1")
        if prod(self.shape) != x.size:
            raise GraphError(
                f"reshape: x is {x} with {x.size} elements; shape {quoted(self.shape)} needs {prod(self.shape)}"
            )
        return (TensorType(self.shape, x.dtype),)

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        return (x.reshape(self.shape),)

    def view(self, operand: TensorType) -> tuple[View, ...] | None:
        strides = reshaped_strides(operand.shape, operand.layout, self.shape)
        return None if strides is None else (View(strides),)


@op("transpose")
class Transpose(Renaming):
    """y[..., i at a, ...] = x[..., i at axes[a], ...]: axis a of y is axis `axes[a]` of x.

    Raises GraphError unless `axes` are all axes of x, each once.
    """

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if sorted(self.axes) != list(range(x.rank)):
            raise GraphError(
                f"transpose: axes {quoted(self.axes)} are no order of the {x.rank} axes of x, which is {x}"
            )
        return (TensorType(tuple(x.shape[a] for a in self.axes), x.dtype),)

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        return (x.transpose(self.axes),)

    def view(self, operand: TensorType) -> tuple[View, ...] | None:
        return (View(tuple(operand.layout[a] for a in self.axes)),)


@op("expand")
class Expand(Renaming):
    """y of `shape` repeats x along its size-1 axes and along new leading axes, as numpy.broadcast_to.

    Raises GraphError for a shape that x does not broadcast to, and for an extent below 1.
    """

    shape: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        tail = self.shape[len(self.shape) - x.rank :]
        if len(self.shape) < x.rank or any(n not in (1, m) for n, m in zip(x.shape, tail, strict=True)):
            raise GraphError(f"expand: x is {x}, which does not broadcast to shape {quoted(self.shape)}")
        if min(self.shape, default=1) < 1:
            raise GraphError(f"expand: shape is {quoted(self.shape)}; every extent must be at least 1")
        return (TensorType(self.shape, x.dtype),)

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        return (np.broadcast_to(x, self.shape),)

    def view(self, operand: TensorType) -> tuple[View, ...] | None:
        new = len(self.shape) - operand.rank
        kept = (s if n > 1 else 0 for n, s in zip(operand.shape, operand.layout, strict=True))
        return (View((*(0,) * new, *kept)),)


@op("squeeze")
class Squeeze(Renaming):
    """y is x without its size-1 `axes`.  Raises GraphError when one of them is longer."""

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if len(set(self.axes)) != len(self.axes) or any(not 0 <= a < x.rank or x.shape[a] != 1 for a in self.axes):
            raise GraphError(f"squeeze: axes {quoted(self.axes)} must be size-1 axes of x, each named once: x is {x}")
        return (TensorType(tuple(n for a, n in enumerate(x.shape) if a not in self.axes), x.dtype),)

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        return (np.squeeze(x, self.axes),)

    def view(self, operand: TensorType) -> tuple[View, ...] | None:
        return (View(tuple(s for a, s in enumerate(operand.layout) if a not in self.axes)),)


@op("unsqueeze")
class Unsqueeze(Renaming):
    """y is x with size-1 axes put in, so that they stand at `axes` of y.

    Raises GraphError for axes that y does not have, and for one that stands there twice.
    """

    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        rank = x.rank + len(self.axes)
        if len(set(self.axes)) != len(self.axes) or any(not 0 <= a < rank for a in self.axes):
            raise GraphError(
                f"unsqueeze: axes {quoted(self.axes)} must be distinct axes of a result of rank {rank}: x is {x}"
            )
        return (TensorType(self._insert(x.shape, 1), x.dtype),)

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        return (np.expand_dims(x, self.axes),)

    def view(self, operand: TensorType) -> tuple[View, ...] | None:
        return (View(self._insert(operand.layout, 0)),)

    def _insert(self, entries: tuple[int, ...], filler: int) -> tuple[int, ...]:
        rest = iter(entries)
        return tuple(filler if a in self.axes else next(rest) for a in range(len(entries) + len(self.axes)))


@op("split")
class Split(Renaming):
    """Consecutive parts of x along `axis`, of the extents `sizes`.  Raises GraphError when they do not add up."""

    sizes: tuple[int, ...]
    axis: int

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if not 0 <= self.axis < x.rank:
            raise GraphError(f"split: axis {self.axis} is outside x, which is {x}")
        if not self.sizes or min(self.sizes) < 1 or sum(self.sizes) != x.shape[self.axis]:
            raise GraphError(
                f"split: sizes {quoted(self.sizes)} must be at least 1 each and add up to {x.shape[self.axis]}, "
                f"the extent of axis {self.axis} of x, which is {x}"
            )
        return tuple(TensorType((*x.shape[: self.axis], n, *x.shape[self.axis + 1 :]), x.dtype) for n in self.sizes)

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        return tuple(np.split(x, np.cumsum(self.sizes)[:-1], self.axis))

    def view(self, operand: TensorType) -> tuple[View, ...] | None:
        starts = (sum(self.sizes[:i]) for i in range(len(self.sizes)))
        return tuple(View(operand.layout, start * operand.layout[self.axis]) for start in starts)


@op("slice")
class Slice(Renaming):
    """y[i, ...] = x[starts + i * steps, ...], i * steps < stops - starts: one start, stop, step per axis of x.

    Starts and stops count from the front here (the builder takes Python's negative ones); steps are at least 1.  Raises
    GraphError for entries that leave x, take nothing, or are not one per axis.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if not len(self.starts) == len(self.stops) == len(self.steps) == x.rank:
            raise GraphError(
                f"slice: starts {quoted(self.starts)}, stops {quoted(self.stops)} and steps {quoted(self.steps)} "
                f"need {x.rank} entries each: x is {x}"
            )
        for axis, (start, stop, step) in enumerate(zip(self.starts, self.stops, self.steps, strict=True)):
            if step < 1 or not 0 <= start < stop <= x.shape[axis]:
                raise GraphError(f"slice: {start}:{stop}:{step} of axis {axis} takes nothing or leaves x, which is {x}")
        return (TensorType(tuple(map(len, map(range, self.starts, self.stops, self.steps))), x.dtype),)

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        return (x[tuple(map(slice, self.starts, self.stops, self.steps))],)

    def bytes_read(self, index: int, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        return min(results[0].nbytes, super().bytes_read(index, operands, results))

    def view(self, operand: TensorType) -> tuple[View, ...] | None:
        strides = tuple(s * step for s, step in zip(operand.layout, self.steps, strict=True))
        return (View(strides, sum(s * start for s, start in zip(operand.layout, self.starts, strict=True))),)


@op("concat")
class Concat(Op):
    """The operands one after the other along `axis`.  Raises GraphError when other extents or the ranks differ."""

    axis: int

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        if not operands:
            raise GraphError("concat: there are no operands; at least one is needed")
        names = tuple(f"x{i}" for i in range(len(operands)))
        first = operands[0]
        if not 0 <= self.axis < first.rank:
            raise GraphError(f"concat: axis {self.axis} is outside x0, which is {first}")
        for index, other in enumerate(operands):
            differ = [
                a for a in range(first.rank) if a != self.axis and other.shape[a : a + 1] != first.shape[a : a + 1]
            ]
            if other.rank != first.rank or differ:
                where = f"at axis {differ[0]}" if other.rank == first.rank else "in rank"
                raise GraphError(
                    f"concat: operands differ {where}: x0 is {first}, x{index} is {other}; only axis {self.axis} may"
                )
        extent = sum(t.shape[self.axis] for t in operands)
        shape = (*first.shape[: self.axis], extent, *first.shape[self.axis + 1 :])
        return (TensorType(shape, common_type("concat", names, operands)),)

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        return (np.concatenate(operands, self.axis),)


@op("pad")
class Pad(Op):
    """x with `padding` ((lo, hi) per axis) more elements of `value` on both sides of each axis.

    Raises GraphError for negative padding, for entries that are not one per axis, and for a value that x's integer type
    does not hold.
    """

    padding: tuple[tuple[int, int], ...]
    value: float = 0.0

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x",)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if len(self.padding) != x.rank or min((p for pair in self.padding for p in pair), default=0) < 0:
            raise GraphError(
                f"pad: padding {quoted(self.padding)} needs one (lo, hi) pair, none negative, for each of the "
                f"{x.rank} axes of x, which is {x}"
            )
        if not x.dtype.is_float and not x.dtype.holds(self.value):
            raise GraphError(f"pad: value {quoted(self.value)} is no {x.dtype}, the type of x, which is {x}")
        return (TensorType(tuple(lo + n + hi for n, (lo, hi) in zip(x.shape, self.padding, strict=True)), x.dtype),)

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        if not self.padding:  # numpy finds no type in an empty tuple
            return (x,)
        return (np.pad(x, self.padding, constant_values=np.asarray(self.value).astype(x.dtype)),)


INDEX_TYPES = (int32, int64)
"""Types of positions that are only known at run time."""


@op("gather")
class Gather(Op):
    """y[a, i, b] = x[a, indices[i], b]: `axis` of x replaced by the axes of `indices`, as numpy.take.

    A negative index counts from the end.  An index outside [-n, n) is held at the nearest end: a kernel cannot raise,
    reading outside memory is never right, and NaN exists for some types only, so this is the one behaviour that can be
    the same for every type on every target; XLA has the same.  Raises GraphError for an axis that x lacks, and for
    indices that are neither int32 nor int64.
    """

    axis: int = 0

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x", "indices")

    def infer(self, x: TensorType, indices: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if not 0 <= self.axis < x.rank:
            raise GraphError(f"gather: axis {self.axis} is outside x, which is {x}")
        if indices.dtype not in INDEX_TYPES:
            raise GraphError(f"gather: indices are {indices}; int32 or int64 is needed")
        return (TensorType((*x.shape[: self.axis], *indices.shape, *x.shape[self.axis + 1 :]), x.dtype),)

    def bytes_read(self, index: int, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        """Of x the elements taken, and not more than there are."""
        whole = super().bytes_read(index, operands, results)
        return whole if index else min(results[0].nbytes, whole)

    def reference(self, x: Array, indices: Array) -> tuple[Array, ...]:  # type: ignore[override]
        n = x.shape[self.axis]
        return (np.take(x, np.clip(np.where(indices < 0, indices + n, indices), 0, n - 1), self.axis),)


@op("write_slice")
class WriteSlice(Op):
    """x with `update` in place of its elements from `start` on along `axis`; all other extents are equal.

    `start` is the third operand (int32 or int64, one element), or a fixed number.  It is held between 0 and the last
    place where the update fits, as XLA's dynamic_update_slice does: nothing outside x is ever written.  Raises
    GraphError for an axis that x lacks, an update of another type or that does not fit, and a start of another kind.
    """

    axis: int
    start: int | None = None

    promotes = False

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x", "update", "start")[: 3 if self.start is None else 2]

    def infer(self, x: TensorType, update: TensorType, *start: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        if len(start) != (self.start is None):
            raise GraphError("write_slice: start is either the third operand or an attribute, and exactly one of them")
        if not 0 <= self.axis < x.rank:
            raise GraphError(f"write_slice: axis {self.axis} is outside x, which is {x}")
        if update.dtype != x.dtype:
            raise GraphError(f"write_slice: update is {update} and x is {x}; cast the update to {x.dtype}")
        fits = update.rank == x.rank and all(
            m <= n if a == self.axis else m == n for a, (m, n) in enumerate(zip(update.shape, x.shape, strict=True))
        )
        if not fits:
            raise GraphError(
                f"write_slice: update is {update} and x is {x}; all extents but that of axis {self.axis}, "
                "where the update's may be smaller, must be equal"
            )
        for type in start:
            if type.size != 1 or type.dtype not in INDEX_TYPES:
                raise GraphError(f"write_slice: start is {type}; one int32 or int64 element is needed")
        return (TensorType(x.shape, x.dtype),)

    def bytes_read(self, index: int, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        """Of x what the update leaves, which is copied where the result has memory of its own."""
        covered = operands[1].nbytes if index == 0 else 0
        return max(0, super().bytes_read(index, operands, results) - covered)

    def bytes_in_place(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> tuple[int, int]:
        """Bytes that are read and written where the result has x's memory, and all but the window stays as it is."""
        others = range(1, len(operands))
        return sum(self.bytes_read(i, operands, results) for i in others), operands[1].nbytes

    def reference(self, x: Array, update: Array, *start: Array) -> tuple[Array, ...]:  # type: ignore[override]
        wanted = int(start[0].reshape(())) if self.start is None else self.start
        first = min(max(wanted, 0), x.shape[self.axis] - update.shape[self.axis])
        out = x.copy()
        window = slice(first, first + update.shape[self.axis])
        out[(slice(None),) * self.axis + (window,)] = update
        return (out,)


@op("iota")
class Iota(Op):
    """y[i] = i for i < `size`: positions, from which masks are computed.

    Raises GraphError for a size below 1, and for a `dtype` that is no integer type or does not hold the last position.
    """

    size: int
    dtype: str = "int32"

    def infer(self) -> tuple[TensorType, ...]:  # type: ignore[override]
        if self.size < 1 or self.dtype not in DTYPES or not DTYPES[self.dtype].is_integer:
            raise GraphError(
                f"iota: size {self.size} must be at least 1 and the type {quoted(self.dtype)} an integer type"
            )
        if not DTYPES[self.dtype].holds(self.size - 1):
            raise GraphError(
                f"iota: {self.dtype} does not hold {self.size - 1}, the last element; a wider type is needed"
            )
        return (TensorType((self.size,), DTYPES[self.dtype]),)

    def reference(self) -> tuple[Array, ...]:  # type: ignore[override]
        return (np.arange(self.size, dtype=DTYPES[self.dtype].numpy),)


@op("convert")
class Convert(Op):
    """y = x, laid out as the strides of y's type say.  The layout pass emits it; a user's graph has none."""

    @property
    def keeps_elements(self) -> bool:
        return True

    @property
    def operand_names(self) -> tuple[str, ...]:
        return ("x",)

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:  # type: ignore[override]
        return (TensorType(x.shape, x.dtype),)

    def reference(self, x: Array) -> tuple[Array, ...]:  # type: ignore[override]
        return (x,)
