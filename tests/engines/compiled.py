"""Small graphs compiled with the engines of a test, and what their reports say."""

from __future__ import annotations

from typing import Any

import graphdnn as gd
from graphdnn.report.model import CandidateReport, CompileReport


def double() -> gd.Graph:
    g = gd.GraphBuilder("double")
    return g.build({"y": g.mul(g.input("x", (3, 5), gd.float32), 2.0, name="double")})


def compiled(graph: gd.Graph, selection: str = "autotune", **options: Any) -> gd.Executable:
    return gd.compile(graph, "cpu", gd.CompileOptions(selection=selection, **options))


def answer(report: CompileReport, engine: str, pattern: str = "mul") -> CandidateReport:
    (found,) = [c for c in report.candidates if c.engine == engine and c.pattern == pattern]
    return found


def told(report: CompileReport, engine: str, pattern: str = "mul") -> dict[str, str]:
    return {p.name: p.verdict for p in answer(report, engine, pattern).plans}


def chain() -> gd.Graph:
    g = gd.GraphBuilder("chain")
    x = g.input("x", (3, 5), gd.float32)
    return g.build({"y": g.softmax(g.relu(x, name="relu"), name="soft")})
