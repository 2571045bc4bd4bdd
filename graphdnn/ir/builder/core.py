"""What every family of builder methods stands on: sources of values, and the one call that adds a node."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphdnn.errors import GraphError, in_words
from graphdnn.ir.builder.arguments import called, whole_numbers
from graphdnn.ir.builder.promotion import promoted
from graphdnn.ir.graph import Graph, Value
from graphdnn.ir.op import Op
from graphdnn.ir.ops.linear import MatMul
from graphdnn.ir.ops.pointwise import Elementwise, Pointwise
from graphdnn.ir.payload import Payload
from graphdnn.ir.types import Array, DType, TensorType, as_dtype, bfloat16
from graphdnn.ir.verify import checked_span
from graphdnn.ir.writer import GraphWriter, Operand, checked_name, checked_output_name, checked_size, in_context
from graphdnn.spelling import counted, named, quoted


class BuilderCore:
    """Sources and outputs of a graph in the making."""

    def __init__(self, name: str = "graph") -> None:
        self._writer = GraphWriter(checked_name("graph", name), weakref.ref(self))

    def __repr__(self) -> str:
        made = self._writer
        parts = (("input", made.inputs), ("constant", made.constants), ("state", made.states), ("node", made.nodes))
        counts = ", ".join(counted(len(found), noun) for noun, found in parts if found)
        return f"<GraphBuilder {made.name}: {counts or 'empty'}>"

    def input(self, name: str, shape: Sequence[int], dtype: DType, *, strides: Sequence[int] | None = None) -> Value:
        """A tensor that the caller hands in: shape in logical order (N, C, spatial), strides in elements.

        Absent strides mean row-major.  Raises GraphError for a taken name, an extent below 1, or negative strides.
        """
        who = f"input {named(checked_name('input', name))}"
        return self._writer.input(name, checked_type(who, shape, dtype, strides))

    def state(self, name: str, shape: Sequence[int], dtype: DType) -> Value:
        """A tensor that lives on between calls (a key/value cache, a running statistic); zero at first.

        It is read like an input, and lies row-major; `build(updates={name: new})` gives its value in the next call.
        Raises GraphError for a taken name or an extent below 1.
        """
        who = f"state {named(checked_name('state', name))}"
        return self._writer.state(name, checked_type(who, shape, dtype, None))

    def constant(self, array: Any, *, name: str | None = None) -> Value:
        """A tensor with known content, from a numpy array (bfloat16 through ml_dtypes), a PyTorch tensor in host memory
        or anything else that numpy makes an array of; it is copied.

        Raises GraphError for what numpy cannot read, quoting why, and for types and shapes that a tensor cannot have.
        """
        who = f"constant {called(name, '')}".strip()
        try:
            data = host_copy(array)
        except Exception as error:  # of the array's own code, which is anybody's
            raise GraphError(
                f"{who} is a {type(array).__name__} that numpy cannot read; numbers in host memory are needed: "
                f"{in_words(error)}"
            ) from error
        if data.dtype == np.float64 and not hasattr(array, "dtype"):
            with np.errstate(all="ignore"):  # what is too large for float32 is infinite, as beside a tensor
                data = data.astype(np.float32)
        made = checked_type(who, data.shape, as_dtype(data.dtype, who), None)
        data.setflags(write=False)
        return self._writer.constant(Payload(made, data), name)

    def build(
        self,
        outputs: Mapping[str, Value],
        updates: Mapping[str, Value] | None = None,
        *,
        strides: Mapping[str, Sequence[int]] | None = None,
    ) -> Graph:
        """The immutable, verified graph that computes these outputs, by name.

        `updates` gives, by name of a state, the value that it has in the next call.  `strides` declares the layout of
        outputs by name, in elements; others are row-major.  Raises GraphError where there is neither an output nor an
        update, for values of another builder, updates whose type is not their state's, and strides that do not fit.
        """
        given: tuple[tuple[str, object], ...] = (
            ("outputs", outputs),
            ("updates", {} if updates is None else updates),
            ("strides", {} if strides is None else strides),
        )
        for what, entries in given:
            if not isinstance(entries, Mapping):
                raise GraphError(f"build: {what} is a {type(entries).__name__}; a mapping by name is needed")
        for name, value in {**outputs, **(updates or {})}.items():
            self._check_owned(f"output {named(checked_output_name(name))}", value)
        layouts = {
            name: whole_numbers(f"output {named(checked_output_name(name))}", "strides", steps)
            for name, steps in (strides or {}).items()
        }
        for name, steps in layouts.items():
            made = outputs[name].type if name in outputs else None
            if made is not None and (len(steps) != made.rank or min(steps, default=0) < 0):
                raise GraphError(
                    f"output {named(name)}: strides are {quoted(steps)}; {made.rank} numbers, none negative, are "
                    f"needed for {made}"
                )
        return self._writer.finish(outputs, updates, layouts)

    def _add(self, op: Op, *operands: Operand, name: str | None, whole: bool = False) -> tuple[Value, ...]:
        """Adds one user's node; Python's and numpy's numbers among the operands become immediates.

        Operands of pointwise ops are promoted; with `whole`, integers are divided as integers.
        """
        who = called(name, op.label)
        operands = tuple(v.item() if isinstance(v, np.generic) else v for v in operands)
        for index, value in enumerate(operands):
            if not (isinstance(value, bool | int | float) and isinstance(op, Elementwise)):
                self._check_owned(f"{who}: {op.operand_name(index)}", value)
        if not isinstance(op, Elementwise):
            return self._writer.emit(op, operands, name=name)
        try:
            made = promoted(op, operands, whole=whole)
        except GraphError as error:
            raise in_context(error, who, operands) from None
        return self._writer.emit(made.op, made.operands, name=name, stem=op.label, first=made.casts)

    def _operate(self, fn: str, *operands: Operand) -> Value:
        """What `+ - * /`, unary minus and `@` between values do."""
        return self._add(MatMul() if fn == "matmul" else Pointwise(fn=fn), *operands, name=None)[0]

    def _check_owned(self, who: str, value: object) -> None:
        if not isinstance(value, Value):
            raise GraphError(
                f"{who} is a {type(value).__name__}; a value of this builder is needed (wrap arrays with constant())"
            )
        if value.owner is None or value.owner() is not self:
            raise GraphError(f"{who} is {value}, which belongs to another builder than {self._writer.name}")


def host_copy(array: Any) -> Array:
    """A row-major copy.  PyTorch gives numpy no bfloat16, and widens it to floats of the same leading bits.

    numpy looks before it copies: it warns about arrays, PyTorch's among them, that cannot copy themselves for it.
    """
    if str(getattr(array, "dtype", None)) == "torch.bfloat16":
        return (np.asarray(array.float()).view(np.uint32) >> 16).astype(np.uint16, order="C").view(bfloat16.numpy)
    return np.array(np.asarray(array), order="C", copy=True)


def checked_type(who: str, shape: Sequence[int], dtype: DType, strides: Sequence[int] | None) -> TensorType:
    """A tensor type from a caller's words.  Raises GraphError naming `who` for extents or strides that cannot be."""
    extents = whole_numbers(who, "shape", shape)
    if min(extents, default=1) < 1:
        raise GraphError(f"{who}: shape is {quoted(extents)}; every extent must be at least 1")
    steps = None if strides is None else whole_numbers(who, "strides", strides)
    if steps is not None and (len(steps) != len(extents) or min(steps, default=0) < 0):
        raise GraphError(f"{who}: strides are {quoted(steps)}; {len(extents)} numbers, none negative, are needed")
    return checked_span(who, checked_size(who, TensorType(extents, as_dtype(dtype, who), steps)))
