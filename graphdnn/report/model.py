"""What the compiler decided, as data: one model a kind of fact, readable by people and by programs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from graphdnn.spelling import counted

PLAIN = 2048
"""Candidates up to which a report's JSON has them as objects, each again at every region that it overlaps."""

Item = TypeVar("Item")
Several = Annotated[tuple[Item, ...], Field(strict=False)]
"""A tuple; a list will do, which is what JSON has, and what is in it is strict."""

Verdict = Literal["chosen", "slower", "declined", "conflict", "excluded", "failed", "wrong"]


class Record(BaseModel):
    """What all parts of a report share: frozen, strict types, and no field that is not named here."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class FixReport(Record):
    """The nearest change of the graph that would be accepted."""

    target: str
    attribute: str
    before: str
    after: str
    sentence: str


class PlanReport(Record):
    """One concrete plan of a candidate; times in microseconds."""

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
    """One engine's answer for one set of nodes."""

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

    `last_resort` says that a kernel that is correct but not tuned runs it; of float32 without TF32 not where another
    engine takes what it is built around, be it alone, for a higher price.
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
    """An operand of another float type than its op computes in."""

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
    """What one pass changed."""

    name: str
    changes: Several[str]
    refusals: Several[RefusalReport] = ()
    nodes_before: int
    nodes_after: int


class CompileReport(Record):
    """Every decision about one graph.  Bytes count each region's inputs and outputs once."""

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
    """What the options for choosing did: what was timed, remembered, interrupted, left out."""

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
