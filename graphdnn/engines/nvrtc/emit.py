"""Pointwise nodes to CUDA C++: what every generated kernel uses for its prologue and epilogue.

A value in memory has its dtype's short name as C++ type (f16, bf16, f32, f64, i8, u8, i32, i64, b8); in a register it
is float for the halves, bool for b8, and itself otherwise.  `load(p)` and `store(p, v)` convert (templates/prelude.cu).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from importlib import resources

import numpy as np

from graphdnn.engines.nvrtc.functions import EXPRESSIONS
from graphdnn.ir.graph import Node
from graphdnn.ir.ops.pointwise import Cast, Elementwise, Pointwise, Select
from graphdnn.ir.types import DType, promote

REGISTER: dict[str, str] = {
    "float16": "float",
    "bfloat16": "float",
    "float32": "float",
    "float64": "double",
    "bool": "bool",
}
"""C++ register types that are not the dtype's short name."""

BOUNDS: dict[str, tuple[int, int]] = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
"""Smallest and largest number of each integer type."""


@functools.cache
def template(name: str) -> str:
    """Text of a file in templates/."""
    return (resources.files("graphdnn.engines.nvrtc") / "templates" / name).read_text()


def prelude() -> str:
    """What a kernel's source starts with: types, conversions, packs, and what pointwise expressions call."""
    return template("prelude.cu") + template("pointwise.cu")


def opening(threads: int, entry: str, parameters: str) -> str:
    """How every kernel's function begins: its signature, and the wait that `Launch` relies on."""
    return f'extern "C" __global__ void __launch_bounds__({threads}) {entry}({parameters}) {{\nwait_for_predecessors();'


def storage(dtype: DType) -> str:
    """C++ type of an element in memory."""
    return dtype.text


def register(dtype: DType) -> str:
    """C++ type of a value in a register."""
    return REGISTER.get(dtype.name, dtype.text)


def literal(number: bool | int | float, dtype: DType) -> str:
    """A number as a C++ expression of the register type of `dtype`, in parentheses where it could be misread."""
    if dtype.kind == "bool":
        return "true" if number else "false"
    if dtype.is_integer:
        suffix = "ll" if dtype.bits == 64 else ""
        # The least integer has no literal of its own: its digits without the sign are out of range.
        digits = f"{number + 1}{suffix} - 1" if number == BOUNDS[dtype.name][0] else f"{int(number)}{suffix}"
        return f"(({dtype.text})({digits}))"
    wide = dtype.compute.bits == 64
    with np.errstate(over="ignore"):
        value = float(number) if wide else float(np.float32(number))
    if not math.isfinite(value):
        bits = "0x7ff8000000000000ll" if math.isnan(value) else "0x7ff0000000000000ll"
        text = f"__longlong_as_double({bits})" if wide else f"(float)__longlong_as_double({bits})"
        return f"(-{text})" if value < 0 else f"({text})"
    text = f"{value!r}" if wide else f"{np.float32(value)!s}"
    text = text if any(c in text for c in ".en") else f"{text}.0"
    return f"({text}{'' if wide else 'f'})"


def convert(text: str, source: DType, target: DType) -> str:
    """A register value of one type as the register type of another, where operands of two types meet."""
    return text if register(source) == register(target) else f"narrow<{register(target)}>({text})"


def emit_node(node: Node, operands: Sequence[str], name: str) -> list[str]:
    """Statements that compute a pointwise node from C++ expressions of its operands into a new variable `name`."""
    op, result = node.op, node.result.type.dtype
    types = [v.type.dtype for v in node.operands]
    declared = f"const {register(result)} {name} = "
    if isinstance(op, Cast):
        return [f"{declared}widen(narrow<{storage(result)}>({operands[0]}));"]
    if isinstance(op, Select):
        a, b = (convert(t, d, result) for t, d in zip(operands[1:], types[1:], strict=True))
        return [f"{declared}{operands[0]} ? {a} : {b};"]
    assert isinstance(op, Elementwise)
    common = promote(*types)
    found = EXPRESSIONS[op.function]
    values = [convert(t, d, common) for t, d in zip(operands, types, strict=True)]
    fields = {
        "T": register(common),
        "f": "f" if common.compute.bits == 32 else "",
        "t": f"{name}_t",
        **parameters(op, common),
    }
    expression = found.integers if common.is_integer and found.integers is not None else found.floats
    prepare = [found.prepare.format(*values, **fields)] if found.prepare else []
    return [*prepare, f"{declared}({register(result)})({expression.format(*values, **fields)});"]


def parameters(op: Elementwise, dtype: DType) -> dict[str, str]:
    """Literals of a function's parameters by field name; an absent bound is the type's own."""
    numbers = op.parameters if isinstance(op, Pointwise) else ()
    ends = (-math.inf, math.inf) if dtype.is_float else BOUNDS.get(dtype.name, (0, 1))
    return {f"p{i}": literal(ends[i] if p is None else p, dtype) for i, p in enumerate(numbers)}
