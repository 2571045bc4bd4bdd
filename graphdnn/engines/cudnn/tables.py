"""What was measured and is not told by cuDNN: which engines keep float32 float32, and which have run without a fault.

Engine numbers mean something within one class of operation graphs only, and one version of cuDNN.
"""

from __future__ import annotations

from graphdnn.target import Target

VERSIONS: tuple[tuple[int, int], ...] = ((9, 19), (9, 20))
"""Versions of cuDNN, major and minor, that the rules of support.py were checked against."""

LEAST_CAPABILITY = (8, 0)
"""Oldest compute capability whose runtime-compiled engines these rules know."""

IEEE: dict[str, frozenset[int]] = {
    "conv": frozenset({0, 28, 70}),
    "conv+bias": frozenset({0, 11, 12, 44}),
    "conv+pointwise": frozenset({8}),
}
"""Engines whose float32 convolutions have errors under 1e-5 of the peak, by class; the others compute in TF32.

No numeric note tells it.  Matrix products have none: engine 0, which is cuBLASLt, uses TF32 without saying so.
"""

WRONG: dict[tuple[str, int], frozenset[str]] = {
    ("matmul", 0): frozenset({"leaky_relu"}),
    ("conv+pointwise", 8): frozenset({"tanh_backward", "softplus_backward"}),
}
"""Functions that an engine builds, runs and computes wrongly, by class and engine: errors of 0.09 to 1.3 of the peak on
an H200 with cuDNN 9.19, while every other engine of the same lists was right."""

KNOWN: dict[str, frozenset[int]] = {
    "conv": frozenset({0, 1, 22, 28, 45, 62, 71}),
    "conv+bias": frozenset({0, 10, 11, 12, 26, 29, 33, 41, 44, 51, 52}),
    "conv+pointwise": frozenset({2, 4, 7, 8}),
    "pointwise+conv": frozenset({3}),
    "conv_transpose": frozenset({0, 1, 22, 25, 57, 67, 73, 78}),
    "matmul": frozenset({0, 4, 7}),
    "norm": frozenset({1, 4, 5, 6}),
    "attention": frozenset({1, 2, 8, 9}),
}
"""Engines that built and ran on an H200 (sm_90) with cuDNN 9.19, by class."""


def is_known(target: Target, kind: str, engine: int) -> bool:
    """Whether a committed run of this engine on this architecture stands behind it."""
    return target.arch == "sm_90" and engine in KNOWN.get(kind, frozenset())
