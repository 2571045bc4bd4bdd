"""What the compiler would do on a described H200."""

from typing import Any

import graphdnn as gd
from graphdnn.report.model import CandidateReport, CompileReport

H200 = gd.Target.named("h200")


def h200_report(graph: gd.Graph, **options: Any) -> CompileReport:
    return gd.compile(graph, target=H200, options=gd.CompileOptions(**options)).report


def answers(report: CompileReport, engine: str, *nodes: str) -> list[CandidateReport]:
    """An engine's answers for exactly these nodes of the user."""
    return [c for c in report.candidates if c.engine == engine and set(c.nodes) == set(nodes)]


def ops(report: CompileReport) -> list[str]:
    """Labels of all ops that run, region by region."""
    return [label for region in report.regions for label in region.pattern.split("+")]
