"""Reports that are kept as text, and that every change which they propose is accepted when it is made."""

import pytest

from graphdnn.report.model import CandidateReport, CompileReport, FixReport
from tests.planned import answers, h200_report
from tests.report.golden import FOLDER, GOLDEN, Wishes, rendered

REPORTS: dict[str, CompileReport] = {name: h200_report(build(Wishes())) for name, build in GOLDEN.items()}
FIXES = {
    (name, c.engine, c.pattern, c.fix.sentence): (c, c.fix)
    for name, report in REPORTS.items()
    for c in report.candidates
    if c.fix is not None
}
"""Each change once for each set of nodes, and the answer that proposes it."""


@pytest.mark.parametrize("name", GOLDEN)
def test_report_is_as_it_was(name: str) -> None:
    """`python -m tests.report.golden --update` writes them anew."""
    assert rendered(REPORTS[name]) == (FOLDER / f"{name}.txt").read_text()


def test_every_file_has_its_graph() -> None:
    assert {p.stem for p in FOLDER.iterdir()} == set(GOLDEN)


def test_golden_reports_propose_changes_of_several_kinds() -> None:
    assert {fix.attribute for _, fix in FIXES.values()} >= {"precision", "dtype", "row length", "head features"}


@pytest.mark.parametrize("key", FIXES, ids=" ".join)
def test_the_proposed_change_is_accepted(key: tuple[str, str, str, str]) -> None:
    declined, fix = FIXES[key]
    changed = applied(key[0], fix)
    found = answers(changed, declined.engine, *declined.nodes)
    same = [c for c in found if c.pattern == declined.pattern] or found
    assert same, "nobody was asked about these nodes any more"
    assert any(c.verdict in ("chosen", "slower") for c in same), told(same)


def applied(name: str, fix: FixReport) -> CompileReport:
    """The report of the same graph with a change made."""
    wish = Wishes(fix)
    graph = GOLDEN[name](wish)
    options = wish.options()
    assert wish.met, f"{name} has no {fix.attribute} of {fix.target} to change"
    return h200_report(graph, **options)


def told(answers: list[CandidateReport]) -> str:
    return "; ".join(f"{c.verdict} [{c.code}] {c.reason}" for c in answers)
