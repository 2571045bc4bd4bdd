"""Data types and tensor types: what a value is, apart from its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod
from operator import index
from typing import Any, Literal, TypeGuard

import numpy as np
import numpy.typing as npt

from graphdnn.errors import GraphError
from graphdnn.lazy import cached_property
from graphdnn.spelling import quoted

Array = npt.NDArray[Any]
Kind = Literal["float", "int", "uint", "bool"]


@dataclass(frozen=True)
class DType:
    """A data type of tensor elements; `text` is its short form in printed graphs."""

    name: str
    kind: Kind
    bits: int
    text: str

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return (self.bits + 7) // 8

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy data type; bfloat16 comes from ml_dtypes, imported when first asked for."""
        if self.name == "bfloat16":
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(self.name)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_half(self) -> bool:
        """Whether this is a float of 16 bits."""
        return self.is_float and self.bits == 16

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    def holds(self, number: float) -> bool:
        """Whether an integer or bool type holds this number exactly."""
        low, high = (0, 1) if self.kind == "bool" else (np.iinfo(self.numpy).min, np.iinfo(self.numpy).max)
        return low <= number <= high and number == int(number)

    @property
    def compute(self) -> DType:
        """The type that arithmetic on this one is done in: float32 for the halves, else the type itself."""
        return float32 if self.is_float and self.bits < 32 else self

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"graphdnn.{self.name}"


float64 = DType("float64", "float", 64, "f64")
float32 = DType("float32", "float", 32, "f32")
float16 = DType("float16", "float", 16, "f16")
bfloat16 = DType("bfloat16", "float", 16, "bf16")
int64 = DType("int64", "int", 64, "i64")
int32 = DType("int32", "int", 32, "i32")
int8 = DType("int8", "int", 8, "i8")
uint8 = DType("uint8", "uint", 8, "u8")
bool_ = DType("bool", "bool", 8, "b8")

DTYPES: dict[str, DType] = {t.name: t for t in (float64, float32, float16, bfloat16, int64, int32, int8, uint8, bool_)}
"""Every data type by name, widest float first."""

BY_TEXT: dict[str, DType] = {t.text: t for t in DTYPES.values()}
"""Every data type by its short form."""

IMAGE_RANKS = (4, 5)
"""Ranks of images (N, C, *spatial): with two or three spatial axes."""

LARGEST_RANK = 32
"""Axes of a tensor, as many as any library of arrays takes."""

LARGEST_SIZE = 2**48
"""Elements of a tensor; more fits no machine, and products of extents stay exact in 64 bits."""

WHOLE = range(-(2**127), 2**127)
"""Whole numbers that an attribute may be: beyond all that a tensor has of anything, and short enough to be told."""

LARGEST_SPAN = 2**40
"""Elements between the first and the last one under declared strides, gaps included: memory that only its gaps make
larger than any device's is a slip of the pen."""


def as_dtype(spec: object, who: str = "") -> DType:
    """The DType that a DType, a name or a numpy data type stands for.  Raises GraphError, naming `who` where it is
    given, for anything else."""
    if isinstance(spec, DType):
        return spec
    start = f"{who}: " if who else ""
    if spec is None:  # numpy takes it for float64
        raise GraphError(f"{start}data type is None; one of {', '.join(DTYPES)} is needed")
    name = spec if isinstance(spec, str) else getattr(spec, "name", None) or getattr(spec, "__name__", None)
    if name in DTYPES:
        return DTYPES[name]
    try:  # of a number of numpy's it would give the number's type
        name = quoted(spec) if isinstance(spec, np.generic) else np.dtype(spec).name  # type: ignore[call-overload]
    except Exception:  # of anybody's code: numpy writes out what it does not know
        name = quoted(spec)
    if name in DTYPES:
        return DTYPES[name]
    raise GraphError(f"{start}data type {name} is not one of {', '.join(DTYPES)}")


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a dense array whose last axis is innermost."""
    return dense_strides(shape, range(len(shape)))


def channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of (N, C, *spatial) stored densely as N, *spatial, C."""
    return dense_strides(shape, (0, *range(2, len(shape)), 1))


def dense_strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a dense array whose axes, outermost first, are `order`."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def normalized_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The same layout with the meaningless strides of size-1 axes set to what a row-major array would have.

    A size-1 axis is never stepped along, so producers leave anything there; without one spelling, equal layouts
    would look different to comparisons and to cache keys.
    """
    out, step = list(strides), 1
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            out[axis] = step
        else:
            step = max(step, abs(strides[axis]) * shape[axis])
    return tuple(out)


def are_apart(shape: Sequence[int], strides: Sequence[int], size: int = 1) -> bool:
    """Whether each axis steps over all that the axes inside it reach, so that no two elements of `size` meet."""
    reach = size
    for step, n in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1):
        if step < reach:
            return False
        reach += (n - 1) * step
    return True


def aligned_strides(type: TensorType, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor along the axes of `shape`, its own with size-1 axes put in or left out; 0 along those."""
    wide = iter([s for n, s in zip(type.shape, type.layout, strict=True) if n != 1])
    return tuple(next(wide) if n != 1 else 0 for n in shape)


@dataclass(frozen=True)
class TensorType:
    """Shape in logical order, data type, and strides in elements.

    `strides=None` means row-major for a graph's inputs and outputs, and "not decided yet" for what lies between.
    Strides of size-1 axes are normalised on the way in, so equal layouts compare equal.
    """

    shape: tuple[int, ...]
    dtype: DType
    strides: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        if self.strides is None:
            return
        strides = tuple(int(s) for s in self.strides)
        if len(strides) != len(self.shape):
            raise GraphError(f"strides {strides} of shape {self.shape}: {len(self.shape)} are needed")
        object.__setattr__(self, "strides", normalized_strides(self.shape, strides))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @cached_property
    def key(self) -> str:
        """Type, shape and strides as one text, alike for types that lie alike."""
        return f"{self.dtype.name}{self.shape}{self.layout}"

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, without any gaps that strides leave."""
        return self.size * self.dtype.itemsize

    @property
    def span_bytes(self) -> int:
        """Bytes from the first element to the end of the last, gaps of the strides included."""
        return self.extent * self.dtype.itemsize

    @cached_property
    def layout(self) -> tuple[int, ...]:
        """The strides, row-major where none are set."""
        return row_major(self.shape) if self.strides is None else self.strides

    @property
    def extent(self) -> int:
        """Elements between the first and one past the last that the strides reach."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.layout, strict=True))

    @cached_property
    def is_row_major(self) -> bool:
        return self.layout == normalized_strides(self.shape, row_major(self.shape))

    @cached_property
    def is_channels_last(self) -> bool:
        """Whether (N, C, *spatial) is dense with channels innermost; false below rank 3."""
        return self.rank >= 3 and self.layout == normalized_strides(self.shape, channels_last(self.shape))

    @property
    def repeats(self) -> bool:
        """Whether an axis longer than one has stride 0, so that its elements share memory, as those of an expand do."""
        return 0 in (s for n, s in zip(self.shape, self.layout, strict=True) if n > 1)

    @property
    def is_dense(self) -> bool:
        """Whether every element of the extent belongs to the tensor exactly once."""
        return self.extent == self.size and are_apart(self.shape, self.layout)

    def strided(self, flat: Array) -> Array:
        """Flat memory, whose first element is the tensor's, seen by this shape and these strides."""
        return np.lib.stride_tricks.as_strided(flat, self.shape, [s * flat.itemsize for s in self.layout])

    def with_strides(self, strides: Sequence[int] | None) -> TensorType:
        wanted = None if strides is None else tuple(strides)
        return self if wanted == self.strides else TensorType(self.shape, self.dtype, wanted)

    def __str__(self) -> str:
        dims = "x".join(map(str, self.shape))
        strides = "" if self.strides is None else f":{','.join(map(str, self.strides))}"
        return f"{self.dtype.text}[{dims}{strides}]"


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that numpy broadcasting gives.  Raises ValueError with the axis (from the left) and both extents."""
    if all(s == shapes[0] for s in shapes):
        return shapes[0]
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    out: list[int] = []
    for axis, extents in enumerate(zip(*padded, strict=True)):
        wide = sorted({n for n in extents if n != 1})
        if len(wide) > 1:
            raise ValueError(f"axis {axis}: {wide[0]} against {wide[1]}")
        out.append(wide[0] if wide else 1)
    return tuple(out)


FLOAT_ORDER = (float64, float32)
INTEGER_ORDER = (int64, int32)


def promote(*dtypes: DType) -> DType:
    """The common type of operands, as PyTorch has it: the wider float; float32 for float16 with bfloat16;
    for integers the wider, and int32's smaller sibling int16 does not exist here, so uint8 with int8 gives int32.

    Raises ValueError where a float meets an integer or a bool, naming the two.
    """
    distinct = list(dict.fromkeys(dtypes))
    if len(distinct) == 1:
        return distinct[0]
    floats = [t for t in distinct if t.is_float]
    if floats and len(floats) != len(distinct):
        other = next(t for t in distinct if not t.is_float)
        raise ValueError(f"{floats[0]} with {other}")
    if floats:
        return next((t for t in FLOAT_ORDER if t in floats), float32)
    integers = [t for t in distinct if t.is_integer]
    if len(integers) != len(distinct):
        raise ValueError(f"{integers[0]} with bool")
    return next((t for t in INTEGER_ORDER if t in integers), int32)


def is_several(given: object) -> TypeGuard[Iterable[Any]]:
    """Whether a caller gave entries in an order, and not one number, as an array of numpy's or PyTorch's without axes
    is."""
    if isinstance(given, str | bytes | Set | Mapping):
        return False
    return isinstance(given, Iterable) and getattr(given, "ndim", 1) != 0


def whole(number: Any) -> int:
    """A whole number of Python's, numpy's or anybody's.  Raises TypeError for all else, True and False included."""
    if isinstance(number, bool):
        raise TypeError("a bool is no number of things")
    return int(index(number))


def normalize_axis(axis: int, of: TensorType | int, who: str) -> int:
    """`axis` of a tensor, or of one of that rank, counted from the front.  Raises GraphError, naming `who` and the
    tensor, when it is outside."""
    rank = of if isinstance(of, int) else of.rank
    try:
        axis = whole(axis)
    except TypeError:
        raise GraphError(f"{who}: axis is {quoted(axis)}; a whole number is needed") from None
    if not -rank <= axis < rank:
        tensor = "a tensor" if isinstance(of, int) else str(of)
        raise GraphError(f"{who}: axis {quoted(axis)} is outside {tensor} of rank {rank}")
    return axis % rank


def normalize_axes(axes: int | Sequence[int], of: TensorType | int, who: str) -> tuple[int, ...]:
    """Distinct axes counted from the front, ascending.  Raises GraphError for a repeated or outside one."""
    given = tuple(axes) if is_several(axes) else (axes,)
    found = tuple(sorted(normalize_axis(a, of, who) for a in given))
    if len(set(found)) != len(found):
        raise GraphError(f"{who}: axes {quoted(given)} name one axis twice")
    return found
