"""What cuBLASLt takes beyond the shape of the formula: types, alignments and machines, as rows with their reasons."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from graphdnn.answer import Code, Decline, Fix, missing
from graphdnn.engines.arithmetic import TF32
from graphdnn.engines.contract import Policy
from graphdnn.engines.cublaslt.problem import Problem
from graphdnn.ir.graph import Value
from graphdnn.ir.region import Region
from graphdnn.ir.types import DType, bfloat16, float16, float32, float64, int8, int32
from graphdnn.ir.views import resolve
from graphdnn.target import Target

BINDINGS, LIBRARY = "nvmath-python", "nvidia-cublas"
"""Package that brings the bindings, and the one that brings the library."""

DEFAULT_WORKSPACE = 32 << 20
"""Bytes of scratch offered where the user sets no limit; what NVIDIA recommends for Hopper."""

MOST = 2**31 - 1
"""Largest extent and leading dimension that every algorithm counts to."""


@dataclass(frozen=True)
class Arithmetic:
    """How the library computes: names of its compute type, without and with TF32, the type of alpha and beta, what the
    report says, and whether there is an epilogue."""

    compute: str
    relaxed: str
    scalars: DType
    words: str
    has_epilogue: bool = True


HALF = "{} in, float32 accumulate"

TYPES: dict[tuple[DType, DType], Arithmetic] = {
    (float16, float16): Arithmetic("COMPUTE_32F", "COMPUTE_32F", float32, HALF.format("float16")),
    (float16, float32): Arithmetic("COMPUTE_32F", "COMPUTE_32F", float32, HALF.format("float16")),
    (bfloat16, bfloat16): Arithmetic("COMPUTE_32F", "COMPUTE_32F", float32, HALF.format("bfloat16")),
    (bfloat16, float32): Arithmetic("COMPUTE_32F", "COMPUTE_32F", float32, HALF.format("bfloat16")),
    (float32, float32): Arithmetic("COMPUTE_32F", "COMPUTE_32F_FAST_TF32", float32, "float32"),
    (float64, float64): Arithmetic("COMPUTE_64F", "COMPUTE_64F", float64, "float64"),
    (int8, int32): Arithmetic("COMPUTE_32I", "COMPUTE_32I", int32, "int8 in, int32 accumulate", has_epilogue=False),
}
"""Arithmetic by the type of A and B and the type of C, D and the bias.  Any other pair is declined."""

LEAST_CAPABILITY: dict[DType, tuple[int, int]] = {
    float16: (7, 5),
    bfloat16: (8, 0),
    float32: (7, 5),
    float64: (7, 5),
    int8: (7, 5),
}
"""Compute capability from which a type of A and B is computed; CUDA 13 begins with 7.5."""

INT8_MULTIPLE = 4
"""Elements of int8 in which m, k, leading dimensions, batch steps and offsets count."""


def arithmetic_of(problem: Problem) -> Arithmetic:
    return TYPES[problem.a.dtype, problem.d.dtype]


def compute_type(problem: Problem, policy: Policy) -> str:
    """Name of the library's compute type; TF32 only where the user asked for it."""
    row = arithmetic_of(problem)
    return row.compute if policy.precision == "ieee" else row.relaxed


def precision_words(problem: Problem, policy: Policy) -> str:
    return TF32 if "TF32" in compute_type(problem, policy) else arithmetic_of(problem).words


def workspace_limit(policy: Policy) -> int:
    """Most bytes of scratch that the library is offered."""
    limit = policy.workspace_limit
    return DEFAULT_WORKSPACE if limit is None else min(limit, DEFAULT_WORKSPACE)


def machine_declines(target: Target) -> Decline | None:
    """Why such a machine cannot run the library."""
    if target.kind != "cuda":
        return Decline(Code.ARCHITECTURE, f"cuBLASLt runs on CUDA devices, and the target is {target}")
    return None


def bindings_decline(target: Target) -> Decline | None:
    """Why the library cannot be called today; installed packages are looked for only where the machine is here."""
    if target.present and importlib.util.find_spec("nvmath") is None:
        return missing(BINDINGS, "the module nvmath.bindings.cublasLt is not installed")
    return None


def problem_declines(problem: Problem, region: Region, target: Target) -> Decline | None:
    """Why the library does not take a product that fits its formula."""
    for rule in RULES:
        refusal = rule(problem, region, target)
        if refusal is not None:
            return refusal
    return None


def type_declines(problem: Problem, region: Region, target: Target) -> Decline | None:
    values = (*region.inputs, *region.outputs)
    a, b, d = values[problem.a.index], values[problem.b.index], values[problem.d.index]
    if a.type.dtype != b.type.dtype:
        return Decline(
            Code.DTYPE,
            f"{a} is {a.type.dtype} and {b} is {b.type.dtype}; cuBLASLt multiplies equal types",
            Fix(b.name, "dtype", b.type.dtype.name, a.type.dtype.name),
        )
    gives = [out for into, out in TYPES if into == a.type.dtype]
    if not gives:
        both = " and ".join(values[i].name for i in sorted({problem.a.index, problem.b.index}))
        takes = ", ".join(dict.fromkeys(into.name for into, _ in TYPES))
        nearest = int8 if a.type.dtype.is_integer else float32
        return Decline(
            Code.DTYPE,
            f"{both} are {a.type.dtype}; cuBLASLt multiplies {takes}",
            Fix(both, "dtype", a.type.dtype.name, nearest.name),
        )
    if d.type.dtype not in gives:
        return Decline(
            Code.DTYPE,
            f"{d} is {d.type.dtype}; from {a.type.dtype} cuBLASLt makes {' or '.join(t.name for t in gives)}",
            Fix(d.name, "dtype", d.type.dtype.name, gives[0].name),
        )
    if not arithmetic_of(problem).has_epilogue:
        return epilogue_declines(problem, d)
    for part in (problem.c, problem.bias):
        if part is not None and part.dtype != d.type.dtype:
            added = values[part.index]
            return Decline(
                Code.DTYPE,
                f"{added} is {added.type.dtype} and the result {d} is {d.type.dtype}; cuBLASLt adds tensors of the "
                "result's type",
                Fix(added.name, "dtype", added.type.dtype.name, d.type.dtype.name),
            )
    return None


def epilogue_declines(problem: Problem, d: Value) -> Decline | None:
    """Integer products are taken alone."""
    if problem.epilogue == "DEFAULT" and problem.beta == 0 and problem.alpha == 1:
        return None
    return Decline(Code.PATTERN, f"{d} is an integer product with work behind it; cuBLASLt takes the product alone")


def capability_declines(problem: Problem, region: Region, target: Target) -> Decline | None:
    need = LEAST_CAPABILITY[problem.a.dtype]
    if target.compute_capability >= need:
        return None
    need_text, found = (".".join(map(str, c)) for c in (need, target.compute_capability))
    return Decline(
        Code.ARCHITECTURE, f"{problem.a.dtype} products need compute capability {need_text}, and {target} has {found}"
    )


def size_declines(problem: Problem, region: Region, target: Target) -> Decline | None:
    largest = max(
        problem.m, problem.n, problem.k, problem.batch, *(x.ld for x in (problem.a, problem.b, problem.c, problem.d))
    )
    if largest <= MOST:
        return None
    return Decline(Code.SIZE, f"an extent or stride is {largest}; cuBLASLt counts to {MOST}")


def int8_declines(problem: Problem, region: Region, target: Target) -> Decline | None:
    """The integer units read four elements at a time along K, so both operands must have K contiguous."""
    if problem.a.dtype != int8:
        return None
    values = (*region.inputs, *region.outputs)
    for matrix, is_right, what in ((problem.a, problem.transpose_a, "A"), (problem.b, not problem.transpose_b, "B")):
        if not is_right:
            value = values[matrix.index]
            return Decline(
                Code.LAYOUT,
                f"{value} ({value.type}) has K not contiguous; of int8 operands ({what}) cuBLASLt needs that",
            )
    for extent, what in ((problem.m, "the result's contiguous axis"), (problem.k, "K")):
        if extent % INT8_MULTIPLE:
            return Decline(
                Code.SHAPE, f"{what} has {extent} elements; with int8 cuBLASLt needs a multiple of {INT8_MULTIPLE}"
            )
    return stride_declines(problem, region)


def stride_declines(problem: Problem, region: Region) -> Decline | None:
    """Strides and offsets of int8 operands: the library would refuse such addresses when it runs."""
    values = (*region.inputs, *region.outputs)
    memory = resolve(region.graph)
    starts_a, starts_b, _, starts_d, _ = zip(*problem.starts, strict=True)
    for matrix, starts in ((problem.a, starts_a), (problem.b, starts_b), (problem.d, starts_d)):
        value = values[matrix.index]
        found = {
            "ld": matrix.ld,
            "batch stride": matrix.batch_stride,
            "stride between calls": gcd(*starts),
            "offset": memory.get(value, (value, 0))[1],
        }
        for name, number in found.items():
            if number % INT8_MULTIPLE:
                need = f"a multiple of {INT8_MULTIPLE}"
                return Decline(
                    Code.ALIGNMENT,
                    f"{value} ({value.type}) has {name} {number}; with int8 cuBLASLt needs {need} elements",
                    Fix(value.name, name, str(number), need),
                )
    return None


def activation_declines(problem: Problem, region: Region, target: Target) -> Decline | None:
    a = (*region.inputs, *region.outputs)[problem.a.index]
    if problem.activation != "gelu_tanh" or a.type.dtype != float64:
        return None
    # Measured on an H200: errors of 2e-12 to 4e-12 of the peak where the plain product has under 1e-15.
    return Decline(
        Code.PRECISION,
        f"{a} is float64, and cuBLASLt's GELU is not as exact as that",
        Fix(a.name, "dtype", "float64", "float32"),
    )


RULES: tuple[Callable[[Problem, Region, Target], Decline | None], ...] = (
    type_declines,
    capability_declines,
    size_declines,
    int8_declines,
    activation_declines,
)
"""In this order: later rules rely on the types being in the table."""
