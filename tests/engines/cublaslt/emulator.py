"""cuBLASLt's column-major meaning of a Problem in numpy, on flat memory; every index is checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphdnn.engines.cublaslt.problem import Matrix, Problem
from graphdnn.ir.types import Array


def places(matrix: Matrix, entry: int) -> Array:
    """Where each element of a batch entry lies, as (rows, columns)."""
    rows, columns = np.arange(matrix.rows), np.arange(matrix.columns)
    assert matrix.ld >= matrix.rows
    return entry * matrix.batch_stride + rows[:, None] + columns[None, :] * matrix.ld


def activated(x: Array, name: str) -> Array:
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return x


def run(problem: Problem, memory: Sequence[Array]) -> None:
    """Writes D = act(alpha op(A) op(B) + beta C + bias), call by call and batch entry by batch entry, in float64."""
    p = problem
    for start in p.starts:
        for entry in range(p.batch):
            a = memory[p.a.index][start.a + places(p.a, entry)].astype(np.float64)
            b = memory[p.b.index][start.b + places(p.b, entry)].astype(np.float64)
            left, right = a.T if p.transpose_a else a, b.T if p.transpose_b else b
            assert (left.shape, right.shape) == ((p.m, p.k), (p.k, p.n))
            d = p.alpha * (left @ right)
            if p.beta:
                d = d + p.beta * memory[p.c.index][start.c + places(p.c, entry)].astype(np.float64)
            if p.bias is not None:
                vector = memory[p.bias.index][start.bias + entry * p.bias.batch_stride + np.arange(p.m)]
                d = d + vector.astype(np.float64)[:, None]
            assert d.shape == (p.d.rows, p.d.columns)
            result = memory[p.d.index]
            result[start.d + places(p.d, entry)] = activated(d, p.activation).astype(result.dtype)
