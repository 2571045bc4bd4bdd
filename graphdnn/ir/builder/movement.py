"""Builder methods that move or rename elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from graphdnn.errors import GraphError
from graphdnn.ir.builder.arguments import called, number, whole_number, whole_numbers
from graphdnn.ir.builder.core import BuilderCore
from graphdnn.ir.graph import Value
from graphdnn.ir.ops.movement import (
    Concat,
    Expand,
    Gather,
    Iota,
    Pad,
    Reshape,
    Slice,
    Split,
    Squeeze,
    Transpose,
    Unsqueeze,
    WriteSlice,
)
from graphdnn.ir.types import DType, as_dtype, int32, is_several, normalize_axes, normalize_axis
from graphdnn.spelling import quoted


class MovementMethods(BuilderCore):
    """Reshaping, reordering, joining, cutting, looking up and writing; elements keep their type and their bits.

    Nothing is moved where the result can be a view of x in memory.  Axes may be negative.  Raises GraphError naming the
    op's operands where shapes, axes or extents do not fit.
    """

    def reshape(self, x: Value, shape: Sequence[int], *, name: str | None = None) -> Value:
        """x's elements in the same row-major order in another shape; one extent may be -1: what the others leave."""
        who = called(name, "reshape")
        self._check_owned(f"{who}: x", x)
        return self._add(Reshape(shape=completed(who, shape, x.type.size)), x, name=name)[0]

    def transpose(self, x: Value, axes: Sequence[int], *, name: str | None = None) -> Value:
        """Axis a of the result is axis `axes[a]` of x, as torch.permute; `axes` names every axis of x once."""
        who = called(name, "transpose")
        self._check_owned(f"{who}: x", x)
        order = tuple(normalize_axis(a, x.type, who) for a in whole_numbers(who, "axes", axes))
        return self._add(Transpose(axes=order), x, name=name)[0]

    def expand(self, x: Value, shape: Sequence[int], *, name: str | None = None) -> Value:
        """x repeated along its size-1 axes and along new leading ones; -1 keeps an extent of x, as in PyTorch."""
        who = called(name, "expand")
        self._check_owned(f"{who}: x", x)
        wanted = whole_numbers(who, "shape", shape)
        kept = (1,) * (len(wanted) - x.type.rank) + x.type.shape
        if -1 in wanted[: max(len(wanted) - x.type.rank, 0)]:
            raise GraphError(f"{who}: shape {quoted(wanted)} has -1 for an axis that x lacks: x is {x.type}")
        shape = tuple(m if n == -1 else n for n, m in zip(wanted, kept, strict=False))
        return self._add(Expand(shape=shape), x, name=name)[0]

    def squeeze(self, x: Value, axes: int | Sequence[int], *, name: str | None = None) -> Value:
        """x without `axes`, each of which must have extent 1 (PyTorch leaves longer ones as they are)."""
        who = called(name, "squeeze")
        self._check_owned(f"{who}: x", x)
        return self._add(Squeeze(axes=normalize_axes(axes, x.type, who)), x, name=name)[0]

    def unsqueeze(self, x: Value, axes: int | Sequence[int], *, name: str | None = None) -> Value:
        """x with axes of extent 1 put in, so that they are `axes` of the result, as numpy.expand_dims."""
        who = called(name, "unsqueeze")
        self._check_owned(f"{who}: x", x)
        given = tuple(axes) if is_several(axes) else (axes,)
        return self._add(Unsqueeze(axes=normalize_axes(given, x.type.rank + len(given), who)), x, name=name)[0]

    def concat(self, xs: Sequence[Value], *, axis: int, name: str | None = None) -> Value:
        """The tensors `xs` one after the other along `axis`, as torch.cat; all other extents must be equal.

        Float types promote to the common one.
        """
        who = called(name, "concat")
        if isinstance(xs, Value) or not is_several(xs):
            raise GraphError(f"{who}: xs is a {type(xs).__name__}; a sequence of values is needed")
        xs = tuple(xs)
        if not xs:
            raise GraphError(f"{who}: there are no tensors; at least one is needed")
        for index, x in enumerate(xs):
            self._check_owned(f"{who}: operand {index}", x)
        return self._add(Concat(axis=normalize_axis(axis, xs[0].type, who)), *xs, name=name)[0]

    def split(self, x: Value, sizes: int | Sequence[int], *, axis: int, name: str | None = None) -> tuple[Value, ...]:
        """Consecutive parts of x along `axis`, which have the extents `sizes`, or are `sizes` equal parts of it.

        A number is how many parts there are, as for numpy.split; torch.split takes the extent of a part.
        """
        who = called(name, "split")
        self._check_owned(f"{who}: x", x)
        axis = normalize_axis(axis, x.type, who)
        if not is_several(sizes):
            sizes, extent = whole_number(who, "sizes", sizes), x.type.shape[axis]
            if sizes < 1 or extent % sizes:
                raise GraphError(f"{who}: {sizes} equal parts cannot be made of axis {axis}: x is {x.type}")
            sizes = (extent // sizes,) * sizes
        return self._add(Split(sizes=whole_numbers(who, "sizes", sizes), axis=axis), x, name=name)

    def slice(
        self,
        x: Value,
        starts: Sequence[int | None],
        stops: Sequence[int | None],
        steps: Sequence[int | None] | None = None,
        *,
        axes: Sequence[int] | None = None,
        name: str | None = None,
    ) -> Value:
        """x[start:stop:step, ...] with one start, stop and step for each axis of x, or for each of `axes`.

        None and negative starts and stops mean what they do in Python.  Raises GraphError for a step below 1, and where
        nothing is left of an axis.
        """
        who = called(name, "slice")
        self._check_owned(f"{who}: x", x)
        rank = x.type.rank
        places = (
            range(rank) if axes is None else [normalize_axis(a, x.type, who) for a in whole_numbers(who, "axes", axes)]
        )
        given = tuple(
            optional_numbers(who, what, entries)
            for what, entries in (
                ("starts", starts),
                ("stops", stops),
                ("steps", [None] * len(places) if steps is None else steps),
            )
        )
        if any(len(g) != len(places) for g in given) or len(set(places)) != len(places):
            raise GraphError(
                f"{who}: starts, stops and steps have {', '.join(str(len(g)) for g in given)} entries; "
                f"{len(places)} each, for distinct axes, are needed: x is {x.type}"
            )
        if any(step is not None and step < 1 for step in given[2]):
            raise GraphError(f"{who}: steps are {quoted(given[2])}; every one must be at least 1")
        cuts = [slice(None)] * rank
        for axis, start, stop, step in zip(places, *given, strict=True):
            cuts[axis] = slice(start, stop, step)
        bounds = [cut.indices(n) for cut, n in zip(cuts, x.type.shape, strict=True)]
        op = Slice(
            starts=tuple(b[0] for b in bounds), stops=tuple(b[1] for b in bounds), steps=tuple(b[2] for b in bounds)
        )
        return self._add(op, x, name=name)[0]

    def pad(
        self, x: Value, padding: Sequence[tuple[int, int]], *, value: float = 0.0, name: str | None = None
    ) -> Value:
        """x with `value` around it: lo elements before and hi behind it along each axis; `padding` is ((lo, hi), ...).

        Axes are in x's order, where torch.nn.functional.pad begins with the last.  Raises GraphError for negative
        padding, and for a value that an integer type does not hold.
        """
        who = called(name, "pad")
        self._check_owned(f"{who}: x", x)
        try:
            pairs = [whole_numbers(who, "padding", pair) for pair in padding]
        except TypeError:
            pairs = [()]
        if any(len(pair) != 2 for pair in pairs):
            raise GraphError(f"{who}: padding is {quoted(padding)}; one (lo, hi) pair per axis of x is needed")
        filler = number(who, "value", value)
        if (
            isinstance(value, int) and x.type.dtype.is_integer and filler != value
        ):  # a float ends at 2**53, int64 does not
            filler = value
        return self._add(Pad(padding=tuple((lo, hi) for lo, hi in pairs), value=filler), x, name=name)[0]

    def gather(self, x: Value, indices: Value, *, axis: int = 0, name: str | None = None) -> Value:
        """y[a, i, b] = x[a, indices[i], b]: `axis` of x replaced by the axes of `indices`, as numpy.take.

        With axis=0 it is an embedding's lookup.  `indices` are int32 or int64.  Negative ones count from the end; one
        outside x takes x's first or last entry, where PyTorch raises, since a kernel cannot.
        """
        who = called(name, "gather")
        self._check_owned(f"{who}: x", x)
        return self._add(Gather(axis=normalize_axis(axis, x.type, who)), x, indices, name=name)[0]

    def write_slice(self, x: Value, update: Value, start: Value | int, *, axis: int, name: str | None = None) -> Value:
        """x with `update` in place of its elements from `start` on along `axis`, as XLA's dynamic_update_slice.

        `update` has x's type and extents, but for `axis`, where it may be shorter.  `start` is a number, or an int32 or
        int64 tensor of one element known only at run time; one below 0, or so large that the update would leave x, is
        replaced by the nearest start that fits.
        """
        who = called(name, "write_slice")
        self._check_owned(f"{who}: x", x)
        axis = normalize_axis(axis, x.type, who)
        if isinstance(start, Value):
            return self._add(WriteSlice(axis=axis), x, update, start, name=name)[0]
        return self._add(WriteSlice(axis=axis, start=whole_number(who, "start", start)), x, update, name=name)[0]

    def iota(self, size: int, *, dtype: DType = int32, name: str | None = None) -> Value:
        """0, 1, ..., size - 1 as a tensor (size,), as torch.arange; `dtype` is an integer type that holds them."""
        who = called(name, "iota")
        op = Iota(size=whole_number(who, "size", size), dtype=as_dtype(dtype, who).name)
        return self._add(op, name=name)[0]


def optional_numbers(who: str, what: str, entries: Sequence[int | None]) -> tuple[int | None, ...]:
    """Whole numbers and None."""
    if not is_several(entries):
        raise GraphError(f"{who}: {what} is {quoted(entries)}; a sequence of whole numbers or None is needed")
    return tuple(None if n is None else whole_number(who, f"an entry of {what}", n) for n in entries)


def completed(who: str, shape: Sequence[int], size: int) -> tuple[int, ...]:
    """`shape` with its one -1 replaced by what is left of `size`."""
    wanted = whole_numbers(who, "shape", shape)
    if -1 not in wanted:
        return wanted
    known = prod(n for n in wanted if n != -1)
    if wanted.count(-1) > 1 or known < 1 or size % known:
        raise GraphError(
            f"{who}: shape {quoted(wanted)} does not fit {size} elements; at most one extent may be -1, and the "
            "others must divide the size"
        )
    return tuple(size // known if n == -1 else n for n in wanted)
