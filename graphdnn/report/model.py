"""What the compiler decided, as data: one model a kind of fact, readable by people and by programs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from graphdnn.spelling import counted
from graphdnn.strict_json import Record

PLAIN = 2048
"""Candidates up to which a report's JSON has them as objects, each again at every region that it overlaps."""

Item = TypeVar("Item")
Several = Annotated[tuple[Item, ...], Field(strict=False)]
"""A tuple; a list will do, which is what JSON has, and what is in it is strict."""

Verdict = Literal["chosen", "slower", "declined", "conflict", "excluded", "failed", "wrong"]
"""What became of an engine's answer, or of one plan of it:

- chosen: it runs in the executable (of an answer that was not chosen, the plan that would have);
- slower: the engine takes it, and something else is cheaper, or it was not tried;
- declined: the engine does not take it; `reason` says why, and `fix` what would change that;
- conflict: it would be cheaper, and with the other regions of that cover it would wait for its own result;
- excluded: an option of the compilation forbids it;
- failed: it could not be built or run;
- wrong: it ran and gave wrong numbers.
"""


class FixReport(Record):
    """The nearest change that would be accepted: `attribute` of `target` from `before` to `after`.

    `target` is a value or node of the graph, "options" or "environment"; `sentence` says the change in words.
    """

    target: str
    attribute: str
    before: str
    after: str
    sentence: str


class PlanReport(Record):
    """One concrete plan of an engine for a set of nodes: a kernel or a few, with all their settings.

    `name` is what `disabled_plans` takes, behind the engine and a colon.  `workspace_bytes` is its scratch memory.
    `deterministic` says that every run gives the same bits.  `precision` is what the arithmetic is really done in.
    `estimated_us` and `measured_us` are microseconds of one run, absent where nobody estimated or timed it.
    """

    name: str
    workspace_bytes: int
    deterministic: bool
    precision: str
    notes: Several[str] = ()
    estimated_us: float | None = None
    measured_us: float | None = None
    verdict: Verdict
    reason: str = ""


class CandidateReport(Record):
    """One engine's answer for one set of nodes.

    `pattern` are the labels of the nodes' ops joined with "+", after all passes; `nodes` are the user's nodes whose
    work they do, none for a conversion of a layout.  `code` is a value of gd.Code where the answer is no.
    `estimated_us` and `measured_us` are microseconds of the best plan; `plans` are those that were tried, none without
    a device.
    """

    id: str
    engine: str
    pattern: str
    nodes: Several[str]
    verdict: Verdict
    code: str | None = None
    reason: str = ""
    fix: FixReport | None = None
    estimated_us: float | None = None
    measured_us: float | None = None
    plans: Several[PlanReport] = ()
    ruled_out: str = ""
    """What an option costs here, where the engine would have something better without it."""


class RegionReport(Record):
    """One region of the chosen cover: what runs it, what it costs, and what else could have.

    `name` is that of the user's node that it is built around, numbered where that is taken.  `nodes`, `pattern` and the
    fields of its plan are as in CandidateReport and PlanReport; `plan` is "" for a device that is only described.
    `kernels` is the number of launches.  `read_bytes` and `written_bytes` count each input and output once, of a slice
    that is written in place only the window; `estimated_us` is of that too.
    `last_resort` says that it runs on a kernel that is correct but not tuned, for want of another: it is not set in
    IEEE float32 where another engine takes the op that it is built around, and costs more.  `ruled_out` is as in
    CandidateReport; `alternatives` are all answers for sets of nodes that share one with it, the chosen ones left out.
    """

    name: str
    nodes: Several[str]
    pattern: str
    engine: str
    plan: str
    kernels: int
    precision: str
    estimated_us: float
    measured_us: float | None = None
    workspace_bytes: int
    read_bytes: int
    written_bytes: int
    deterministic: bool
    last_resort: bool
    ruled_out: str = ""
    notes: Several[str] = ()
    alternatives: Several[CandidateReport] = Field(default=(), repr=False)


class PromotionReport(Record):
    """An operand whose float type `before` is narrower than `after`, the type that its node computes in."""

    node: str
    operand: str
    before: str
    after: str


class RefusalReport(Record):
    """A rewrite that nearly applied, and why it did not."""

    rule: str
    nodes: Several[str]
    reason: str


class PassReport(Record):
    """What one pass changed, in sentences, and which rewrites it refused; nodes of the graph before and after it."""

    name: str
    changes: Several[str]
    refusals: Several[RefusalReport] = ()
    nodes_before: int
    nodes_after: int


class CompileReport(Record):
    """Every decision about one graph.

    `regions` stand in the order they run; `candidates` are the engines' answers for all sets of nodes that were asked
    about.  Sums over the regions: `kernel_count` (launches, conversions of layouts included), `read_bytes` and
    `written_bytes`, `last_resort_count`.  `unfused_kernel_count` and `unfused_bytes` are what one kernel for each of
    the user's nodes, views aside, would launch and move.  `arena_bytes` holds intermediates and scratch memory;
    `peak_bytes` is that with inputs, outputs, constants and states.  `exact_cover` says that no cheaper cover exists by
    the estimates (or timings) that were compared; otherwise the search was cut short.  `versions` are those of
    libraries and device, `options` the options of `compile` by name.
    """

    graph: str
    target: str
    regions: Several[RegionReport]
    candidates: Several[CandidateReport]
    kernel_count: int
    unfused_kernel_count: int
    read_bytes: int
    written_bytes: int
    unfused_bytes: int
    arena_bytes: int
    peak_bytes: int
    last_resort_count: int
    exact_cover: bool
    promotions: Several[PromotionReport] = ()
    passes: Several[PassReport] = ()
    versions: dict[str, str]
    options: dict[str, object]
    effects: Several[str] = ()
    """What the options for choosing did: what was timed, remembered, interrupted, ruled out, left out, less exact."""

    @model_serializer(mode="wrap", when_used="json")
    def _document(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """JSON: the fields as they are, or tables where there are many candidates."""
        from graphdnn.report.tables import tabled

        fields: dict[str, Any] = plain(self) if len(self.candidates) <= PLAIN else tabled(self)
        return fields

    @model_validator(mode="before")
    @classmethod
    def _fields(cls, document: Any) -> Any:
        """The fields of a document with tables; all else as it is."""
        from graphdnn.report.tables import untabled

        return untabled(document) if isinstance(document, dict) and "format" in document else document

    def __repr__(self) -> str:
        """One line; explain and model_dump_json have all of it."""
        return (
            f"<CompileReport {self.graph} for {self.target}: {counted(self.kernel_count, 'kernel')} "
            f"(unfused {self.unfused_kernel_count}) in {counted(len(self.regions), 'region')}, "
            f"{counted(len(self.candidates), 'candidate')}, estimated {self.estimated_us:.1f} us>"
        )

    def __str__(self) -> str:
        return repr(self)

    @property
    def estimated_us(self) -> float:
        """Sum of the regions' estimates, in microseconds."""
        return sum(r.estimated_us for r in self.regions)

    def region(self, name: str) -> RegionReport:
        """The region of that name.  Raises KeyError listing the names."""
        for region in self.regions:
            if region.name == name:
                return region
        raise KeyError(f"no region {name}; regions are {', '.join(r.name for r in self.regions)}")
