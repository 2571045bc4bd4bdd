"""The cublaslt engine: answers by rules, proposes the library's algorithms, builds one as a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphdnn.answer import Code, Decline
from graphdnn.engines.answers import remembered
from graphdnn.engines.arithmetic import HALF_PARTS, HALF_SUMS, TF32
from graphdnn.engines.contract import Candidate, Device, Plan, Policy, Support
from graphdnn.engines.cublaslt.estimate import estimate
from graphdnn.engines.cublaslt.library import REDUCTIONS, Algorithm, Library, Request, open_library, refusal
from graphdnn.engines.cublaslt.plan import CublasLtPlan
from graphdnn.engines.cublaslt.problem import Problem, describe
from graphdnn.engines.cublaslt.serialization import decode_algorithms, encode_algorithms
from graphdnn.engines.cublaslt.support import (
    INT8_MULTIPLE,
    bindings_decline,
    compute_type,
    machine_declines,
    precision_words,
    problem_declines,
    workspace_limit,
)
from graphdnn.engines.environment import environment
from graphdnn.engines.serialization import identity_of, pack, unknown_plan, unpack
from graphdnn.ir.region import Region
from graphdnn.ir.types import float32, int8
from graphdnn.target import Target

COUNT = 16
"""Algorithms asked for; the library's order is good, and its best is rarely far down."""

ACCUMULATES_IN_HALF = 0x01 << 8
READS_LESS = (0x01 | 0x02 | 0x04) << 16
"""Bits of cublasLtNumericalImplFlags_t: sums kept in float16; operands rounded to float16, bfloat16 or TF32."""


@dataclass(frozen=True)
class Recipe:
    """What `build` needs of a candidate."""

    problem: Problem
    compute: str
    precision: str
    reductions: int
    algorithm: Algorithm


class CublasLtEngine:
    """Matrix products with alpha, a bias, a residual, ReLU or tanh-GELU, and a last cast."""

    name = "cublaslt"

    def supports(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        answer = self._answer(region, target, policy)
        absent = bindings_decline(target) if isinstance(answer, Support) else None
        return answer if absent is None else absent

    @remembered
    def _answer(self, region: Region, target: Target, policy: Policy) -> Support | Decline:
        """By the rules, where the library is installed."""
        problem = accept(region, target)
        if isinstance(problem, Decline):
            return problem
        words = precision_words(problem, policy)
        unit = "tf32" if words == TF32 else problem.a.dtype.name
        best = estimate(problem, region, target, unit, workspace_limit(policy))
        return Support(
            best.us, words, kernels=best.kernels, workspace_bytes=best.workspace_bytes, notes=repeats(problem)
        )

    def candidates(self, region: Region, device: Device, policy: Policy) -> Sequence[Candidate] | Decline:
        problem = accept(region, device.target)
        if isinstance(problem, Decline):
            return problem
        library = open_library()
        if isinstance(library, Decline):
            return library
        compute = compute_type(problem, policy)
        found: dict[str, tuple[int, Algorithm]] = {}
        refused: Decline | None = None
        # What no option rules out comes first, so that the report says what options cost; last, where all else needs
        # scratch, what needs none: the memory of a whole graph may leave none.
        bare = replace(policy, workspace_limit=0)
        for asked in dict.fromkeys((unbounded(policy), policy, bare)):
            if asked is bare and any(not a.workspace_bytes for _, a in found.values()):
                break
            request = Request(workspace_limit(asked), problem.alignment, allowed_reductions(asked), COUNT)
            algorithms = search(library, device, problem, compute, request, policy.precision)
            if isinstance(algorithms, Decline):
                refused = algorithms
                continue
            found.update((a.name, (request.reductions, a)) for a in algorithms if a.name not in found)
        if refused is not None and (not found or refused.code is Code.TRANSIENT):
            return refused
        words = precision_words(problem, policy)
        return [
            Candidate(
                self.name,
                region,
                algorithm.name,
                algorithm.workspace_bytes,
                ran_in(algorithm, problem, words),
                deterministic=algorithm.is_deterministic,
                notes=(f"{algorithm.waves:.2f} waves", *repeats(problem)),
                recipe=Recipe(problem, compute, policy.precision, reductions, algorithm),
            )
            for reductions, algorithm in found.values()
        ]

    def named(self, region: Region, name: str, device: Device, policy: Policy) -> Candidate | Decline:
        """The algorithm of this name among those that the library proposes: it makes none by a name."""
        found = self.candidates(region, device, policy)
        if isinstance(found, Decline):
            return found
        return next((c for c in found if c.name == name), unknown_plan(self.name, name, region))

    def build(self, candidate: Candidate, device: Device) -> CublasLtPlan | Decline:
        recipe = candidate.recipe
        assert isinstance(recipe, Recipe)
        library = open_library()
        if isinstance(library, Decline):
            return library
        problem, algorithm = recipe.problem, recipe.algorithm
        # Views start anywhere, so a second algorithm stands by that asks of addresses what their type has anyway.
        least = INT8_MULTIPLE if problem.a.dtype == int8 else 1
        request = Request(algorithm.workspace_bytes, least, recipe.reductions, COUNT)
        fallback = search(library, device, problem, recipe.compute, request, recipe.precision)
        if isinstance(fallback, Decline) and fallback.code is Code.TRANSIENT:
            return fallback
        steady = [] if isinstance(fallback, Decline) else [x for x in fallback if x.is_deterministic]
        return prepared(library, candidate, device, problem, recipe.compute, [algorithm, *steady[:1]])

    def save(self, candidate: Candidate, plan: Plan) -> bytes:
        """The algorithm and the one that stands by, as the library has them."""
        assert isinstance(plan, CublasLtPlan)
        return pack(plan.identity, *encode_algorithms(plan.compute, plan.algorithms))

    def restore(self, candidate: Candidate, content: bytes, device: Device) -> CublasLtPlan | Decline:
        """The same algorithms on descriptors of the region; the library's heuristics are not asked."""
        problem = accept(candidate.region, device.target)
        if isinstance(problem, Decline):
            return problem
        library = open_library()
        if isinstance(library, Decline):
            return library
        parts = unpack(content, identity_here(candidate, device, library))
        if isinstance(parts, Decline):
            return parts
        read = decode_algorithms(parts, problem, library.algorithm_bytes)
        if isinstance(read, Decline):
            return read
        compute, algorithms = read
        return prepared(library, candidate, device, problem, compute, algorithms)


def identity_here(candidate: Candidate, device: Device, library: Library) -> dict[str, str]:
    """What a plan is of: the library's version counts, since it alone understands an algorithm's content."""
    return identity_of(candidate, environment(device.target, "cublaslt", cublaslt=str(library.version)))


def prepared(
    library: Library,
    candidate: Candidate,
    device: Device,
    problem: Problem,
    compute: str,
    algorithms: Sequence[Algorithm],
) -> CublasLtPlan | Decline:
    """The plan of one algorithm, or of one and another that stands by for addresses off a vector."""
    try:
        return CublasLtPlan(
            library, device.target.ordinal, problem, compute, algorithms, identity_here(candidate, device, library)
        )
    except library.errors as error:
        return refusal(error, f"cuBLASLt could not prepare {candidate.name}")


def accept(region: Region, target: Target) -> Problem | Decline:
    """The region as a product that the library takes on such a machine, or why not."""
    problem = describe(region)
    if isinstance(problem, Decline):
        return problem
    objection = machine_declines(target)
    if objection is None:
        objection = problem_declines(problem, region, target)
    return problem if objection is None else objection


def repeats(problem: Problem) -> tuple[str, ...]:
    """What the report says of several calls."""
    return (f"{problem.calls} calls",) if problem.calls > 1 else ()


def unbounded(policy: Policy) -> Policy:
    """The same without the options that only rule plans out."""
    return replace(policy, workspace_limit=None, deterministic=False)


def allowed_reductions(policy: Policy) -> int:
    """How split sums may be added up: in the compute type, which is as exact as not splitting; in the output's type
    only where the user allows reduced precision."""
    if policy.precision != "reduced":
        return REDUCTIONS["COMPUTE_TYPE"]
    every = sum(REDUCTIONS.values())
    return every - REDUCTIONS["INPLACE"] if policy.deterministic else every


def search(
    library: Library, device: Device, problem: Problem, compute: str, request: Request, precision: str
) -> list[Algorithm] | Decline:
    """The library's algorithms that keep to the precision, best first; at least one, or the library's words."""
    try:
        found = library.algorithms(device.target.ordinal, problem, compute, request)
    except library.errors as error:
        return refusal(error, "cuBLASLt has no algorithm for this product")
    exact = [a for a in found if keeps(a, problem, precision)]
    if not exact:
        return Decline(
            Code.BUILD,
            f"cuBLASLt has no algorithm for this product: of {len(found)} none keeps to precision={precision!r}",
        )
    return exact


def ran_in(algorithm: Algorithm, problem: Problem, words: str) -> str:
    """What an algorithm computes in, where `words` are those of the compute type: precision="reduced" lets in some that
    keep their sums, or add up the parts of split ones, in half precision."""
    if algorithm.flags & ACCUMULATES_IN_HALF:
        words = f"{problem.a.dtype} in, {HALF_SUMS}"
    is_split = algorithm.split_k > 1 and algorithm.reduction in (REDUCTIONS["INPLACE"], REDUCTIONS["OUTPUT_TYPE"])
    return f"{words}, {HALF_PARTS} {problem.d.dtype}" if is_split and problem.d.dtype.is_half else words


def keeps(algorithm: Algorithm, problem: Problem, precision: str) -> bool:
    """Whether an algorithm's own flags say that it computes no less exactly than the user asked."""
    if precision == "reduced":
        return True
    if algorithm.flags & ACCUMULATES_IN_HALF:
        return False
    return not (precision == "ieee" and problem.a.dtype == float32 and algorithm.flags & READS_LESS)
