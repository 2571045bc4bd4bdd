"""The patterns of the H200's surface through the public api: what cuDNN took there is offered, the rest declined."""

import json
from pathlib import Path

import pytest

from graphdnn.report.model import CompileReport
from tests.engines.cudnn.surface_graphs import GRAPHS
from tests.planned import answers, h200_report

SURFACE = Path(__file__).parents[1] / "data" / "h200_surface.json"
PATTERNS = {p["pattern"]: p for p in json.loads(SURFACE.read_text())["patterns"]}
AS_SPELLED = ("raise", "fold")
OFFERED = ("chosen", "slower")


def names(pattern: str) -> list[str]:
    return [n.name for n in GRAPHS[pattern]().nodes]


def plan(pattern: str, **options: object) -> CompileReport:
    return h200_report(GRAPHS[pattern](), **options)


def test_twenty_four_patterns_are_built() -> None:
    assert len(GRAPHS) == 24
    assert {True, False} == {PATTERNS[name]["accepted"] for name in GRAPHS}


@pytest.mark.parametrize("pattern", [n for n in GRAPHS if PATTERNS[n]["accepted"]])
def test_what_cudnn_took_is_offered(pattern: str) -> None:
    report = plan(pattern, disabled_passes=AS_SPELLED)
    whole = [c for c in answers(report, "cudnn", *names(pattern)) if c.verdict in OFFERED]
    assert whole, [(c.verdict, c.reason) for c in report.candidates if c.engine == "cudnn"]
    assert all(c.estimated_us is not None and c.code is None and c.fix is None for c in whole)


@pytest.mark.parametrize("pattern", [n for n in GRAPHS if not PATTERNS[n]["accepted"]])
def test_what_cudnn_refused_is_declined_with_its_reason(pattern: str) -> None:
    report = plan(pattern, disabled_passes=AS_SPELLED)
    whole = answers(report, "cudnn", *names(pattern))
    assert whole
    for answer in whole:
        assert answer.verdict == "declined"
        assert answer.code
        assert len(answer.reason) > 20
        assert answer.estimated_us is None


@pytest.mark.parametrize("pattern", ["batchnorm_inference_relu", "matmul_softmax_matmul_manual"])
def test_raising_and_folding_make_more_of_it_offered(pattern: str) -> None:
    """The largest of cuDNN's candidates over all of the user's nodes is offered: no part of the work is left out."""
    report = plan(pattern)
    whole = max(answers(report, "cudnn", *names(pattern)), key=lambda c: c.pattern.count("+"))
    assert whole.verdict in OFFERED, whole.reason
    done = [r for r in report.regions if r.nodes]
    assert sum(r.pattern.count("+") + 1 for r in done) == whole.pattern.count("+") + 1


@pytest.mark.parametrize("pattern", GRAPHS)
def test_every_pattern_is_covered(pattern: str) -> None:
    report = plan(pattern)
    assert {n for r in report.regions for n in r.nodes} == set(names(pattern))
