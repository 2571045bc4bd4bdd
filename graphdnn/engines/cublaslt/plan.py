"""A built cuBLASLt plan: one call of the library a run, or a few, with descriptors made beforehand."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from graphdnn.engines.cublaslt.library import Algorithm, Library, lacks_memory
from graphdnn.engines.cublaslt.problem import VECTOR_BYTES, Problem
from graphdnn.engines.cublaslt.support import arithmetic_of
from graphdnn.engines.serialization import Identity
from graphdnn.errors import ExecutionError, OutOfMemoryError


class Operations(threading.local):
    """Each thread's own description of the product: the bias' address lies in it and changes from call to call."""

    def __init__(self, library: Library, problem: Problem, compute: str) -> None:
        self.mine = library.operation(problem, compute, VECTOR_BYTES)


class CublasLtPlan:
    """One product, run by the first of one or two algorithms, or by the second where an address is aligned to less than
    the first was asked for.  All calls of a run share algorithm, descriptors and scratch: a stream runs one after the
    other.  `identity` is what the plan is of, as saving it says."""

    def __init__(
        self,
        library: Library,
        ordinal: int,
        problem: Problem,
        compute: str,
        algorithms: Sequence[Algorithm],
        identity: Identity,
    ) -> None:
        self.name = algorithms[0].name
        self.workspace_bytes = max(a.workspace_bytes for a in algorithms)
        self.compute = compute
        self.algorithms = tuple(algorithms)
        self.identity = identity
        self._problem = problem
        self._handle = library.handle(ordinal)
        self._matmul = library.bindings.matmul
        self._errors = library.errors
        self._operations = Operations(library, problem, compute)
        self._layouts = library.layouts(problem)
        self._a, self._b, self._c, self._d = (m.index for m in (problem.a, problem.b, problem.c, problem.d))
        self._bias = None if problem.bias is None else problem.bias.index
        self._alignment = problem.alignment
        self._starts = [problem.bytes_behind(start) for start in problem.starts]
        scalars = arithmetic_of(problem).scalars.numpy
        self._numbers = np.array([problem.alpha, problem.beta], scalars)
        self._alpha = self._numbers.ctypes.data
        self._beta = self._alpha + self._numbers.itemsize
        self._contents = [np.frombuffer(x.content, np.uint8).copy() for x in algorithms]
        self._algorithm = self._contents[0].ctypes.data
        self._fallback = self._contents[1].ctypes.data if len(algorithms) > 1 else 0

    def enqueue(self, addresses: Sequence[int], stream: int, workspace: int) -> None:
        """Puts the product on a stream.  Raises ExecutionError where the library refuses it."""
        a, b, c, d = addresses[self._a], addresses[self._b], addresses[self._c], addresses[self._d]
        together = a | b | c | d
        bias = 0
        if self._bias is not None:
            bias = addresses[self._bias]
            together |= bias
        algorithm = self._algorithm
        if together % self._alignment:
            algorithm = self._fallback
            if not algorithm:
                raise ExecutionError(self._misaligned(addresses))
        layout_a, layout_b, layout_c, layout_d = self._layouts.addresses
        try:
            operation = self._operations.mine  # made by the first call of a thread, which the library may refuse too
            for to_a, to_b, to_c, to_d, to_bias in self._starts:
                if bias and bias + to_bias != operation.bias_address:
                    operation.set_bias(bias + to_bias)
                self._matmul(
                    self._handle,
                    operation.address,
                    self._alpha,
                    a + to_a,
                    layout_a,
                    b + to_b,
                    layout_b,
                    self._beta,
                    c + to_c,
                    layout_c,
                    d + to_d,
                    layout_d,
                    algorithm,
                    workspace,
                    self.workspace_bytes,
                    stream,
                )
        except self._errors as error:
            kind = OutOfMemoryError if lacks_memory(error) else ExecutionError
            raise kind(f"cuBLASLt plan {self.name} was refused: {error}") from None

    def _misaligned(self, addresses: Sequence[int]) -> str:
        words = ", ".join(hex(x) for x in addresses)
        return (
            f"cuBLASLt plan {self.name} got the addresses {words}; for {self._problem.a.dtype} operands it has no "
            f"algorithm that takes less than {self._alignment} bytes of alignment"
        )
