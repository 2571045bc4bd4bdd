"""The only importer of nvmath: opens cuBLASLt, makes its descriptors and asks its heuristics.

One handle serves all threads of a device: cuBLASLt is thread-safe, its handle has no settings, and making another one
in a thread that captures a stream would allocate.  Descriptors that change belong to one thread (see plan.py).
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphdnn.answer import Code, Decline, missing
from graphdnn.engines.cublaslt.problem import Matrix, Problem
from graphdnn.engines.cublaslt.support import BINDINGS, LIBRARY, arithmetic_of
from graphdnn.ir.types import DType, bfloat16, float16, float32, float64, int8, int32

DATA_TYPES: dict[DType, int] = {float32: 0, float64: 1, float16: 2, int8: 3, int32: 10, bfloat16: 14}
"""cudaDataType_t of the real types; the bindings have no names for them."""

REDUCTIONS = {"NONE": 0, "INPLACE": 1, "COMPUTE_TYPE": 2, "OUTPUT_TYPE": 4}
"""cublasLtReductionScheme_t: how the parts of a split K are added up.  INPLACE and OUTPUT_TYPE add them in the output's
type; INPLACE does so within the product's kernel, the other two in a second one."""


ALLOC_FAILED = 3
"""cublasStatus_t for a lack of memory."""


@dataclass(frozen=True)
class Request:
    """What algorithms must keep to: bytes of scratch, how split sums may be added, and the alignment of addresses,
    which is never below that of the type."""

    workspace_bytes: int
    alignment: int
    reductions: int
    count: int


@dataclass(frozen=True)
class Algorithm:
    """One algorithm of the library: its opaque content, and what it says of itself."""

    content: bytes
    name: str
    workspace_bytes: int
    split_k: int
    reduction: int
    flags: int
    waves: float

    @property
    def is_deterministic(self) -> bool:
        """Whether the order of additions is the same on each run; in-place reduction adds parts as they arrive."""
        return self.split_k <= 1 or self.reduction != REDUCTIONS["INPLACE"]


class Library:
    """The opened library."""

    def __init__(self, bindings: Any, compute_types: Any) -> None:
        self.bindings = bindings
        self.errors: tuple[type[Exception], ...] = (bindings.cuBLASLtError, RuntimeError)
        self.version = int(bindings.get_version())
        self._compute_types = compute_types
        self._handles: dict[int, int] = {}
        self._lock = threading.Lock()

    def handle(self, ordinal: int) -> int:
        """The handle of a device, which must be current.  It lives as long as the process."""
        with self._lock:
            if ordinal not in self._handles:
                self._handles[ordinal] = self.bindings.create()
            return self._handles[ordinal]

    @property
    def algorithm_bytes(self) -> int:
        """Size of an algorithm's content."""
        return int(self.bindings.matmul_heuristic_result_dtype["algo"].itemsize)

    def operation(self, problem: Problem, compute: str, bias_address: int) -> Operation:
        return Operation(self, problem, int(self._compute_types[compute]), bias_address)

    def layouts(self, problem: Problem) -> Layouts:
        return Layouts(self, problem)

    def algorithms(self, ordinal: int, problem: Problem, compute: str, request: Request) -> list[Algorithm]:
        """The library's own choice, best first.  Raises one of `errors` where it has nothing."""
        lt = self.bindings
        # The heuristics read the bias' alignment off its address, which they do not look into.
        operation = self.operation(problem, compute, max(request.alignment, problem.d.dtype.itemsize))
        layouts = self.layouts(problem)
        preference = lt.matmul_preference_create()
        try:
            self._prefer(preference, problem, request)
            results = np.zeros(request.count, lt.matmul_heuristic_result_dtype)
            found = np.zeros(1, np.int32)
            lt.matmul_algo_get_heuristic(
                self.handle(ordinal),
                operation.address,
                *layouts.addresses,
                preference,
                request.count,
                results.ctypes.data,
                found.ctypes.data,
            )
        finally:
            lt.matmul_preference_destroy(preference)
        return unique([self._read(row) for row in results[: int(found[0])] if row["state"] == 0])

    def _prefer(self, preference: int, problem: Problem, request: Request) -> None:
        lt = self.bindings
        wanted = {"MAX_WORKSPACE_BYTES": request.workspace_bytes, "REDUCTION_SCHEME_MASK": request.reductions}
        for letter, matrix in zip("ABCD", (problem.a, problem.b, problem.c, problem.d), strict=True):
            wanted[f"MIN_ALIGNMENT_{letter}_BYTES"] = max(request.alignment, matrix.dtype.itemsize)
        for name, value in wanted.items():
            attribute = lt.MatmulPreferenceAttribute[name]
            dtype = lt.get_matmul_preference_attribute_dtype(attribute)
            put(lt.matmul_preference_set_attribute, preference, attribute, dtype, value)

    def _read(self, row: Any) -> Algorithm:
        lt = self.bindings
        content = np.frombuffer(row["algo"].tobytes(), np.uint8).copy()
        config = functools.partial(self._ask, content, "config")
        names = [f"algo{config('ID')}"]
        names.append("tile" + worded(lt.MatmulTile, config("TILE_ID"), "TILE_"))
        names.append("stages" + worded(lt.MatmulStages, config("STAGES_ID"), "STAGES_"))
        names.append(f"splitk{config('SPLITK_NUM')}")
        names.append(f"swizzle{config('CTA_SWIZZLING')}")
        if cluster := config("CLUSTER_SHAPE_ID"):
            names.append("cluster" + worded(lt.ClusterShape, cluster, "SHAPE_"))
        for word, attribute in (("inner", "INNER_SHAPE_ID"), ("custom", "CUSTOM_OPTION")):
            if value := config(attribute):
                names.append(f"{word}{value}")
        if config("SPLITK_NUM") > 1:  # how the parts are added decides the bits
            names.append("sum" + worded(lt.ReductionScheme, config("REDUCTION_SCHEME"), "").replace("_", ""))
        return Algorithm(
            content=content.tobytes(),
            name="_".join(names),
            workspace_bytes=int(row["workspace_size"]),
            split_k=config("SPLITK_NUM"),
            reduction=config("REDUCTION_SCHEME"),
            flags=self._ask(content, "cap", "NUMERICAL_IMPL_FLAGS"),
            waves=float(row["waves_count"]),
        )

    def _ask(self, content: Any, kind: str, name: str) -> int:
        """One number that an algorithm says of its configuration ("config") or of what it can do ("cap")."""
        lt = self.bindings
        enum = lt.MatmulAlgoConfigAttribute if kind == "config" else lt.MatmulAlgoCapAttribute
        attribute = enum[name]
        buffer = np.zeros(1, getattr(lt, f"get_matmul_algo_{kind}_attribute_dtype")(attribute))
        written = np.zeros(1, np.uint64)
        get = getattr(lt, f"matmul_algo_{kind}_get_attribute")
        get(content.ctypes.data, attribute, buffer.ctypes.data, buffer.nbytes, written.ctypes.data)
        return int(buffer[0])


def lacks_memory(error: Exception) -> bool:
    """Whether one of the library's errors says that there was not enough memory, and nothing of its algorithms."""
    return getattr(error, "status", None) == ALLOC_FAILED


def refusal(error: Exception, what: str) -> Decline:
    """The decline that one of the library's errors stands for."""
    return Decline(Code.TRANSIENT if lacks_memory(error) else Code.BUILD, f"{what}: {error}")


def put(setter: Callable[..., None], descriptor: int, attribute: Any, dtype: Any, value: int) -> None:
    """Sets one attribute of a descriptor."""
    buffer = np.array([value], dtype)
    setter(descriptor, attribute, buffer.ctypes.data, buffer.nbytes)


def worded(names: Any, number: int, prefix: str) -> str:
    """The library's name of a number, or the number where the bindings are older than the library."""
    try:
        return str(names(number).name).removeprefix(prefix)
    except ValueError:
        return str(number)


def unique(algorithms: list[Algorithm]) -> list[Algorithm]:
    """The same algorithms, each once by name; configurations that differ in nothing named are the same to us."""
    return list({a.name: a for a in reversed(algorithms)}.values())[::-1]


class Operation:
    """A description of the product's arithmetic and epilogue; the address of the bias lies in it."""

    def __init__(self, library: Library, problem: Problem, compute: int, bias_address: int) -> None:
        lt = library.bindings
        scalars = DATA_TYPES[arithmetic_of(problem).scalars]
        self.address: int = lt.matmul_desc_create(compute, scalars)
        weakref.finalize(self, lt.matmul_desc_destroy, self.address).atexit = False
        self._set = lt.matmul_desc_set_attribute
        wanted = {
            "TRANSA": int(problem.transpose_a),
            "TRANSB": int(problem.transpose_b),
            "EPILOGUE": int(lt.Epilogue[problem.epilogue]),
        }
        if problem.bias is not None and problem.batch > 1:
            wanted["BIAS_BATCH_STRIDE"] = problem.bias.batch_stride
        for name, value in wanted.items():
            attribute = lt.MatmulDescAttribute[name]
            put(self._set, self.address, attribute, lt.get_matmul_desc_attribute_dtype(attribute), value)
        self._attribute = int(lt.MatmulDescAttribute.BIAS_POINTER)
        self._pointer = np.zeros(1, np.int64)
        self._pointer_address = self._pointer.ctypes.data
        self.bias_address = 0
        if problem.bias is not None:
            self.set_bias(bias_address)

    def set_bias(self, address: int) -> None:
        """From now on the bias is read from this device address."""
        self._pointer[0] = address
        self._set(self.address, self._attribute, self._pointer_address, 8)
        self.bias_address = address


class Layouts:
    """Descriptions of A, B, C and D, in this order; they never change."""

    def __init__(self, library: Library, problem: Problem) -> None:
        self._bindings = library.bindings
        self.addresses = tuple(self._layout(m, problem.batch) for m in (problem.a, problem.b, problem.c, problem.d))

    def _layout(self, matrix: Matrix, batch: int) -> int:
        lt = self._bindings
        address: int = lt.matrix_layout_create(DATA_TYPES[matrix.dtype], matrix.rows, matrix.columns, matrix.ld)
        weakref.finalize(self, lt.matrix_layout_destroy, address).atexit = False
        if batch > 1:
            for name, value in (("BATCH_COUNT", batch), ("STRIDED_BATCH_OFFSET", matrix.batch_stride)):
                attribute = lt.MatrixLayoutAttribute[name]
                dtype = lt.get_matrix_layout_attribute_dtype(attribute)
                put(lt.matrix_layout_set_attribute, address, attribute, dtype, value)
        return address


OPENING = threading.Lock()


def open_library() -> Library | Decline:
    """The library, opened once, or which package is missing."""
    with OPENING:
        return opened()


@functools.cache
def opened() -> Library | Decline:
    try:
        from nvmath.bindings import cublas, cublasLt
    except ImportError as error:
        return missing(BINDINGS, f"nvmath.bindings.cublasLt cannot be imported ({error})")
    try:
        return Library(cublasLt, cublas.ComputeType)
    except RuntimeError as error:
        return missing(LIBRARY, f"the library cuBLASLt cannot be loaded ({error})")
