"""What an operation is: a frozen dataclass whose fields are its attributes, with types and one numpy meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import prod
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, TypeVar, dataclass_transform

from graphdnn.errors import GraphError
from graphdnn.ir.types import Array, TensorType

if TYPE_CHECKING:
    from graphdnn.ir.graph import Value


class View(NamedTuple):
    """How a result lies in the memory of its op's first operand: strides and offset in elements."""

    strides: tuple[int, ...]
    offset: int = 0


class Make(Protocol):
    """Emits one node and returns its first result; `make.all` returns every result.

    Python numbers among the operands become immediates of the other operands' type.
    """

    def __call__(self, op: Op, /, *operands: Value | float) -> Value: ...

    def all(self, op: Op, /, *operands: Value | float) -> tuple[Value, ...]: ...


C = TypeVar("C", bound="Op")


class Op:
    """Base of all operations, each of which defines `infer` and `reference`.

    Two ops with equal attributes are equal; the values they give are not.

    `reference` receives arrays in compute precision (float16 and bfloat16 widened to float32; everything float64 when
    a float64 evaluation is asked for) and returns arrays that the caller rounds once to the inferred types.  It
    accumulates in the precision it is given, never lower.

    It is no ABC: `isinstance` of one takes several times as long, and engines ask that a hundred thousand times.
    """

    kind: ClassVar[str]
    """Name of the class of operations, as in documents; unique."""
    promotes: ClassVar[bool] = True
    """Whether float operands of different types must first be cast to the common one (see passes/promote.py)."""

    @property
    def label(self) -> str:
        """What people call it, in text, patterns and reports: the kind, or the function of a pointwise op."""
        return self.kind

    @property
    def operand_names(self) -> tuple[str, ...]:
        """What each operand is called in messages, in order; shorter than the operands for variadic ops."""
        return ()

    def operand_name(self, index: int) -> str:
        """What messages call operand `index`: its name, or its place where it has none."""
        names = self.operand_names
        return names[index] if index < len(names) else f"operand {index}"

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        """Types of the results, strides unset.  Raises GraphError naming both types when operands do not fit."""
        raise NotImplementedError

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        """The numpy definition."""
        raise NotImplementedError

    def expand(self, make: Make, *operands: Value) -> tuple[Value, ...] | None:
        """The same function in smaller ops, exact; None where the op is not composite."""
        return None

    def flops(self, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        """Arithmetic operations, a multiply-add counted as two; one per result element unless an op says otherwise."""
        return sum(r.size for r in results)

    def bytes_read(self, index: int, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> int:
        """Bytes of operand `index` that a kernel reads, each once: all of it unless an op says otherwise.

        What strides of 0 repeat counts once.
        """
        type = operands[index]
        return type.dtype.itemsize * prod(n for n, s in zip(type.shape, type.layout, strict=True) if s or n == 1)

    def view(self, operand: TensorType) -> tuple[View, ...] | None:
        """How each result aliases the first operand, whose strides are `operand.layout`; None where it must be copied.

        Ops that only rename elements (reshape, transpose, expand, squeeze, slice, split) answer; others give None.
        """
        return None

    @property
    def is_renaming(self) -> bool:
        """Whether the op can be a view for some layout of its operand, and so counts as no computation."""
        return False

    @property
    def keeps_elements(self) -> bool:
        """Whether results hold elements of the operand as they are, so that no arithmetic is done in any precision."""
        return self.is_renaming

    def attributes(self) -> dict[str, object]:
        """Attribute values by name, in declaration order."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.label


OPS: dict[str, type[Op]] = {}
"""Every op class by kind.  Filled by `@op` as graphdnn.ir.ops is imported."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def op(kind: str) -> Callable[[type[C]], type[C]]:
    """Makes a class a frozen, keyword-only dataclass and registers it under `kind`.

    Raises GraphError for a second use of a kind, and for a class that lacks one of `infer` and `reference`.
    """

    def declare(cls: type[C]) -> type[C]:
        if kind in OPS:
            raise GraphError(f"op {kind} is declared twice: in {OPS[kind].__module__} and in {cls.__module__}")
        missing = [name for name in ("infer", "reference") if getattr(cls, name) is getattr(Op, name)]
        if missing:
            raise GraphError(f"op {kind}: {cls.__name__} defines no {' and no '.join(missing)}")
        made = dataclass(frozen=True, kw_only=True, repr=True)(cls)
        made.kind = kind
        OPS[kind] = made
        return made

    return declare
