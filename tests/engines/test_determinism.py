"""What engines claim about bits: generated kernels add in a fixed order, and options leave out what does not."""

import re
from pathlib import Path

import pytest

import graphdnn.engines.nvrtc
from graphdnn.engines.contract import Policy
from graphdnn.engines.cublaslt.engine import allowed_reductions
from graphdnn.engines.cublaslt.library import REDUCTIONS, Algorithm

NVRTC = Path(graphdnn.engines.nvrtc.__file__).parent
ATOMIC = re.compile(r"atomic[A-Z]\w*\s*\(|__nv_atomic|\batom\.|\bred\.(global|async|shared)|reduce_add_async")
"""CUDA C++ functions and PTX instructions that add in the order in which threads arrive."""


@pytest.mark.parametrize(
    "text", ["atomicAdd(y, 1.0f);", 'asm("red.global.add.f32")', "__nv_atomic_add(y)", "atomicCAS (a, b, c)"]
)
def test_atomics_are_recognised(text: str) -> None:
    assert ATOMIC.search(text)


@pytest.mark.parametrize(
    "path", sorted(p for p in NVRTC.rglob("*") if p.suffix in (".py", ".cu")), ids=lambda p: p.name
)
def test_no_generated_kernel_is_atomic(path: Path) -> None:
    assert not ATOMIC.search(path.read_text())


def algorithm(split_k: int, reduction: str) -> Algorithm:
    fields = dict.fromkeys(Algorithm.__dataclass_fields__, 0)
    return Algorithm(**{**fields, "split_k": split_k, "reduction": REDUCTIONS[reduction]})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("split_k", "reduction", "steady"),
    [
        (1, "NONE", True),
        (0, "INPLACE", True),
        (4, "COMPUTE_TYPE", True),
        (4, "OUTPUT_TYPE", True),
        (4, "INPLACE", False),
    ],
)
def test_sums_that_are_split_and_added_in_place_vary(split_k: int, reduction: str, steady: bool) -> None:
    assert algorithm(split_k, reduction).is_deterministic is steady


@pytest.mark.parametrize("precision", ["ieee", "tf32", "reduced"])
def test_adding_in_place_is_not_asked_for_where_bits_must_repeat(precision: str) -> None:
    mask = allowed_reductions(Policy(precision=precision, deterministic=True))  # type: ignore[arg-type]
    assert not mask & REDUCTIONS["INPLACE"]
    assert mask & REDUCTIONS["COMPUTE_TYPE"]
