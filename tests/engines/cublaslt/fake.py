"""Stands in for the bindings of cuBLASLt: real names, real attribute types, and a matmul that numpy does on the host.

What it runs is read from descriptors alone, so a wrong attribute gives wrong numbers.
"""

from __future__ import annotations

import ctypes
import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from nvmath.bindings import cublas, cublasLt

from graphdnn.engines.cublaslt.library import DATA_TYPES, Library
from graphdnn.engines.cublaslt.problem import BiasVector, Matrix, Problem
from graphdnn.ir.types import Array, DType
from tests.engines.cublaslt.emulator import run

FMA, HMMA = 0x01, 0x02
ACC_16F, ACC_32F = 0x01 << 8, 0x02 << 8
IN_16F, IN_TF32, IN_32F = 0x01 << 16, 0x04 << 16, 0x08 << 16


class RefusedError(Exception):
    """What the library raises."""


@dataclass(frozen=True)
class Listed:
    """An algorithm of the fake library."""

    id: int
    split_k: int = 1
    reduction: int = 0
    workspace: int = 0
    alignment: int = 16
    flags: int = HMMA | ACC_32F | IN_16F


@dataclass
class Fake:
    """The bindings, with `listed` as the library's whole stock, best first."""

    listed: list[Listed]
    live: dict[int, dict[str, Any]] = field(default_factory=dict)
    calls: list[Listed] = field(default_factory=list)
    bias_writes: int = 0
    preferences: list[dict[str, int]] = field(default_factory=list)
    operations: list[int] = field(default_factory=list)
    refuse: str = ""

    def __post_init__(self) -> None:
        self._addresses = itertools.count(1000)
        self.cuBLASLtError = RefusedError

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_dtype") or name[0].isupper():
            return getattr(cublasLt, name)
        raise AttributeError(name)

    def library(self) -> Library:
        return Library(self, cublas.ComputeType)

    def get_version(self) -> int:
        return 130000

    def create(self) -> int:
        return 1

    def _made(self, **fields: Any) -> int:
        address = next(self._addresses)
        self.live[address] = fields
        return address

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        return self._made(
            compute=compute, scale=scale, TRANSA=0, TRANSB=0, EPILOGUE=1, BIAS_POINTER=0, BIAS_BATCH_STRIDE=0
        )

    def matrix_layout_create(self, type: int, rows: int, columns: int, ld: int) -> int:
        return self._made(type=type, rows=rows, columns=columns, ld=ld, BATCH_COUNT=1, STRIDED_BATCH_OFFSET=0)

    def matmul_preference_create(self) -> int:
        return self._made(MAX_WORKSPACE_BYTES=0, REDUCTION_SCHEME_MASK=7)

    def matmul_desc_destroy(self, address: int) -> None:
        del self.live[address]

    matrix_layout_destroy = matmul_preference_destroy = matmul_desc_destroy

    def _put(self, names: Any, dtype: Any, address: int, attribute: int, buffer: int, size: int) -> str:
        kind = np.dtype(dtype(attribute))
        assert size == kind.itemsize
        name = names(attribute).name
        self.live[address][name] = int(np.frombuffer(ctypes.string_at(buffer, size), kind)[0])
        return name

    def matmul_desc_set_attribute(self, address: int, attribute: int, buffer: int, size: int) -> None:
        lt = cublasLt
        name = self._put(lt.MatmulDescAttribute, lt.get_matmul_desc_attribute_dtype, address, attribute, buffer, size)
        self.bias_writes += name == "BIAS_POINTER"

    def matrix_layout_set_attribute(self, address: int, attribute: int, buffer: int, size: int) -> None:
        lt = cublasLt
        self._put(lt.MatrixLayoutAttribute, lt.get_matrix_layout_attribute_dtype, address, attribute, buffer, size)

    def matmul_preference_set_attribute(self, address: int, attribute: int, buffer: int, size: int) -> None:
        lt = cublasLt
        dtype = lt.get_matmul_preference_attribute_dtype
        self._put(lt.MatmulPreferenceAttribute, dtype, address, attribute, buffer, size)

    def matmul_algo_get_heuristic(
        self,
        handle: int,
        operation: int,
        a: int,
        b: int,
        c: int,
        d: int,
        preference: int,
        count: int,
        out: int,
        found: int,
    ) -> None:
        if self.refuse:
            raise RefusedError(self.refuse)
        wish = self.live[preference]
        self.preferences.append(dict(wish))
        alignment = min(wish[f"MIN_ALIGNMENT_{x}_BYTES"] for x in "ABCD")
        fit = [
            (i, x)
            for i, x in enumerate(self.listed)
            if x.workspace <= wish["MAX_WORKSPACE_BYTES"]
            and (x.reduction & wish["REDUCTION_SCHEME_MASK"]) == x.reduction
            and x.alignment <= alignment
        ][:count]
        rows = np.zeros(count, cublasLt.matmul_heuristic_result_dtype)
        for row, (i, x) in zip(rows, fit, strict=False):
            row["algo"]["data_"][0] = i
            row["workspace_size"], row["waves_count"] = x.workspace, 1.5
        ctypes.memmove(out, rows.ctypes.data, rows.nbytes)
        ctypes.cast(found, ctypes.POINTER(ctypes.c_int32))[0] = len(fit)

    def _listed(self, content: int) -> Listed:
        return self.listed[ctypes.cast(content, ctypes.POINTER(ctypes.c_uint64))[0]]

    def _answer(self, number: int, dtype: Any, buffer: int, size: int) -> None:
        answer = np.array([number], dtype)
        assert answer.nbytes == size
        ctypes.memmove(buffer, answer.ctypes.data, size)

    def matmul_algo_config_get_attribute(
        self, content: int, attribute: int, buffer: int, size: int, written: int
    ) -> None:
        x = self._listed(content)
        known = {"ID": x.id, "SPLITK_NUM": x.split_k, "REDUCTION_SCHEME": x.reduction, "TILE_ID": 20, "STAGES_ID": 35}
        name = cublasLt.MatmulAlgoConfigAttribute(attribute).name
        self._answer(known.get(name, 0), cublasLt.get_matmul_algo_config_attribute_dtype(attribute), buffer, size)

    def matmul_algo_cap_get_attribute(self, content: int, attribute: int, buffer: int, size: int, written: int) -> None:
        assert attribute == cublasLt.MatmulAlgoCapAttribute.NUMERICAL_IMPL_FLAGS
        flags = self._listed(content).flags
        self._answer(flags, cublasLt.get_matmul_algo_cap_attribute_dtype(attribute), buffer, size)

    def matmul(self, handle: int, operation: int, alpha: int, *rest: int) -> None:
        a, a_desc, b, b_desc, beta, c, c_desc, d, d_desc, content, _workspace, size, _stream = rest
        algorithm = self._listed(content)
        pointers = {"a": a, "b": b, "c": c, "d": d}
        op = self.live[operation]
        has_bias = bool(op["EPILOGUE"] & 4)
        if has_bias:
            pointers["bias"] = op["BIAS_POINTER"]
        if any(x % algorithm.alignment for x in pointers.values()):
            raise RefusedError("misaligned address")
        if size < algorithm.workspace:
            raise RefusedError("workspace too small")
        self.calls.append(algorithm)
        self.operations.append(operation)
        layouts = [self.live[x] for x in (a_desc, b_desc, c_desc, d_desc)]
        matrices = [matrix(i, x) for i, x in enumerate(layouts)]
        scale = type_of(op["scale"])
        m, n = matrices[3].rows, matrices[3].columns
        problem = Problem(
            m=m,
            n=n,
            k=matrices[0].rows if op["TRANSA"] else matrices[0].columns,
            batch=layouts[3]["BATCH_COUNT"],
            a=matrices[0],
            b=matrices[1],
            c=matrices[2],
            d=matrices[3],
            transpose_a=bool(op["TRANSA"]),
            transpose_b=bool(op["TRANSB"]),
            alpha=float(host(alpha, 1, scale)[0]),
            beta=float(host(beta, 1, scale)[0]),
            bias=BiasVector(4, matrices[3].dtype, op["BIAS_BATCH_STRIDE"]) if has_bias else None,
            activation={0: "", 2: "relu", 32: "gelu_tanh"}[op["EPILOGUE"] & 34],
        )
        memory = [host(p, span(x, problem.batch), x.dtype) for p, x in zip((a, b, c, d), matrices, strict=True)]
        if has_bias:
            step = op["BIAS_BATCH_STRIDE"] * (problem.batch - 1)
            memory.append(host(op["BIAS_POINTER"], m + step, matrices[3].dtype))
        run(problem, memory)


def type_of(number: int) -> DType:
    return next(t for t, n in DATA_TYPES.items() if n == number)


def matrix(index: int, layout: dict[str, Any]) -> Matrix:
    return Matrix(
        index, type_of(layout["type"]), layout["rows"], layout["columns"], layout["ld"], layout["STRIDED_BATCH_OFFSET"]
    )


def span(x: Matrix, batch: int) -> int:
    return x.rows + (x.columns - 1) * x.ld + (batch - 1) * x.batch_stride


def host(address: int, count: int, dtype: DType) -> Array:
    """Host memory as a flat array."""
    raw = (ctypes.c_byte * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, np.uint8).view(dtype.numpy)
