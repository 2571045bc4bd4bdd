"""What was measured and is not told by cuDNN: which engines keep float32, which are wrong, which vary, which have run.

Engine numbers mean something within one class of operation graphs only, and one version of cuDNN.  The figures are of
an H200 (sm_90) with cuDNN 9.19; tests/gpu/test_precision.py and test_determinism.py print them anew.
"""

from __future__ import annotations

from graphdnn.engines.arithmetic import TF32
from graphdnn.target import Target

VERSIONS: tuple[tuple[int, int], ...] = ((9, 19), (9, 20))
"""Versions of cuDNN, major and minor, that the rules of support.py were checked against."""

LEAST_CAPABILITY = (8, 0)
"""Oldest compute capability whose runtime-compiled engines these rules know."""

FLOAT32_LIMIT = 1e-5
"""Largest error, relative to the peak, of what may call itself float32."""

FLOAT32_ERRORS: dict[str, dict[int, float]] = {
    "conv": {0: 9.4e-7, 1: 9.4e-7, 3: 2.3e-7, 28: 1e-6, 70: 9.4e-7, 67: 3.4e-4, 71: 3.4e-4},
    "conv+bias": {0: 1.9e-6, 11: 2e-6, 12: 1.7e-7, 44: 1.9e-6, 39: 2.6e-4, 51: 3.1e-4, 52: 3.1e-4},
    "conv+pointwise": {8: 1e-6, 2: 3e-4, 4: 3e-4, 7: 3.3e-4},
    "conv_transpose": {0: 3.2e-7, 1: 3.2e-7, 25: 1.1e-7, 50: 1.3e-7, 74: 3.2e-7, 28: 3e-4, 56: 3e-4, 76: 3e-4},
}
"""Largest error of each engine's float32 convolutions, by class; those near 1e-4 compute in TF32, and no numeric note
tells it.  Matrix products have no row: engine 0, which is cuBLASLt, uses TF32 without saying so."""

IEEE: dict[str, frozenset[int]] = {
    kind: frozenset(engine for engine, error in errors.items() if error <= FLOAT32_LIMIT)
    for kind, errors in FLOAT32_ERRORS.items()
}
"""Engines that keep float32, by class.  One that was not measured is taken for TF32."""

WRONG: dict[tuple[str, int], frozenset[str]] = {("matmul", 0): frozenset({"leaky_relu"})}
"""Functions that an engine builds, runs and computes wrongly, by class and engine: an error of 0.09 of the peak, while
every other engine of the same lists was right."""

MISPLACING = frozenset({("conv+pointwise", 8), ("conv_transpose+pointwise", 8)})
"""Engines, with their classes, that read the inputs of an operation of two at other places than its result's where none
of them follows from the convolution: in `conv(x, w) * (z / 4)` they take z from the entry that stands at the window's
beginning, or from none.  So they do with z in cuDNN's own gradients, `silu_backward(z, conv(x, w))`.  An input that is
read alone is read rightly, in every type."""

CUTTING: dict[tuple[str, int], frozenset[tuple[int, int]]] = {("conv+pointwise", 7): frozenset({(24, 29)})}
"""Knobs (number, value) with which an engine cuts float32 operands off to TF32 instead of rounding them, by class and
engine.  Each error is within TF32's, but all have one sign: of three draws every result was 8.7e-4 too small, where the
other plans' results were within 7e-6 in the mean, so that layers would add it up.  Such plans are not offered."""

SHORT_KEYS = 128
"""Most keys of an attention that its plans for short sequences win."""

SHORT_ATTENTION = frozenset({"eng1_k24=3", "eng8_k24=3"})
"""Plans of attention that win where there are few keys and at most one thread block for each processor, and that
cuDNN's heuristics put behind engines 2 and 9.  Of 24 such shapes (heads of 32 to 128, masks, biases, causal, shared
keys) they took 0.60 to 0.73 of the first plan's time at 16 to 64 keys, 0.83 to 0.94 at 96 and 128; with 512 blocks 1.0
to 1.45, with 160 keys and more 0.83 to 2."""

VARYING: dict[str, frozenset[int]] = {"attention": frozenset({8})}
"""Engines that gave other bits on some of ten runs although no note says so, by class: attention of one query with knob
24 at 35 did on 4 of 10, in one of several runs of that test.

cuDNN documents that its routines repeat their bits on one architecture but for those that add atomically, and marks
these with the note NONDETERMINISTIC; so an engine is believed until it was seen to vary.
"""

KNOWN: dict[tuple[str, str], dict[str, frozenset[int]]] = {
    ("sm_90", "9.19"): {
        "conv": frozenset({0, 1, 3, 22, 23, 28, 45, 62, 67, 70, 71}),
        "conv+bias": frozenset({0, 10, 11, 12, 23, 26, 29, 33, 39, 41, 44, 48, 51, 52}),
        "conv+pointwise": frozenset({2, 4, 7, 8}),
        "pointwise+conv": frozenset({3}),
        "conv_transpose": frozenset({0, 1, 22, 25, 28, 40, 46, 50, 56, 57, 67, 73, 74, 76, 78}),
        "matmul": frozenset({0, 4, 7}),
        "norm": frozenset({1, 4, 5, 6}),
        "attention": frozenset({1, 2, 8, 9}),
    }
}
"""Engines that built and ran, by architecture and version of cuDNN, then class.  Others are tried in a child first."""


def is_known(target: Target, kind: str, engine: int) -> bool:
    """Whether a committed run of this engine, on this architecture and version of cuDNN, stands behind it."""
    version = ".".join(target.versions.get("cudnn", "").split(".")[:2])
    return engine in KNOWN.get((target.arch, version), {}).get(kind, frozenset())


def is_steady(kind: str, engine: int) -> bool:
    """Whether an engine without the note NONDETERMINISTIC may be believed to repeat its bits."""
    return engine not in VARYING.get(kind, frozenset())


def float32_precision(kind: str, engine: int) -> str:
    """What a float32 convolution or matrix product of this engine really computes in."""
    return "float32" if engine in IEEE.get(kind, frozenset()) else TF32
