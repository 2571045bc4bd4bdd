"""The commands that show reports: of a graph, which is compiled for it, of a saved executable or of a report's file."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphdnn.commands.arguments import add_options
from graphdnn.commands.cache import Answer
from graphdnn.errors import CompileError, GraphDnnError
from graphdnn.spelling import counted, first_of, hint, quoted

if TYPE_CHECKING:
    from graphdnn.config import CompileOptions
    from graphdnn.report.model import CompileReport
    from graphdnn.target import Target

TAKEN = "a graph (of Graph.save), a saved executable (of Executable.save) or a report (of explain --json)"
DESCRIBED = " (described)"
"""What a report's target ends with where the device was not there."""


def add_explain(commands: argparse._SubParsersAction[Any], run: Callable[[argparse.Namespace], int]) -> None:
    """Adds the command; `run` prints what `options.answer(options)` gives and exits with its status."""
    explain = commands.add_parser("explain", help="say how a saved graph runs, and why")
    explain.add_argument(
        "file", nargs="?", help="a saved graph, which is compiled, or a saved executable or report, which is read"
    )
    explain.add_argument(
        "--diff",
        nargs=2,
        metavar=("A", "B"),
        help="say what changed between two reports (--json prints one), saved executables or graphs; a graph beside a "
        "report is compiled for its target and with its options; the status is 0 where they are equal, 1 where they "
        "differ, 2 where one cannot be read",
    )
    explain.add_argument(
        "--target",
        help="auto (the default), cpu, cuda, or a described device such as h200; a saved executable's graph is "
        "compiled anew for it",
    )
    explain.add_argument("--json", action="store_true", help="print the whole report as JSON")
    explain.add_argument("--disable-pass", action="append", default=[], metavar="PASS", help="leave a pass out")
    explain.set_defaults(run=run, answer=explained)


def add_plans(commands: argparse._SubParsersAction[Any], run: Callable[[argparse.Namespace], int]) -> None:
    """Adds the command, as `add_explain` does."""
    plans = commands.add_parser("plans", help="list the candidates of one region: engine, plan, scratch, time, verdict")
    plans.add_argument("file", help="a saved graph, which is compiled, or a report or executable, which is read")
    plans.add_argument(
        "--region", metavar="NAME", help="name of the region, as explain prints it; without it regions are listed"
    )
    plans.add_argument("--target", help="auto (the default), cpu, cuda, or a described device")
    add_options(plans, "compile options, as a report has them", {})
    plans.set_defaults(run=run, answer=planned)


def explained(options: argparse.Namespace) -> Answer:
    """What `graphdnn explain` prints.  Of two files as diff(1): status 0 where they are equal, 1 where they differ."""
    from graphdnn.report.diff import difference
    from graphdnn.report.explain import explain

    asked = asked_options(options)
    if options.diff is not None:
        if options.file is not None:
            raise GraphDnnError(f"explain: --diff compares two files, and {options.file} is a third one")
        if options.json:
            raise GraphDnnError("explain: --diff is text; without it --json prints one report")
        text = difference(*both(options.diff, options.target, asked))
        return [text or "the reports are equal"], 1 if text else 0
    if options.file is None:
        raise GraphDnnError(f"explain: FILE is needed, {TAKEN}, or --diff with two of them")
    report = report_of(options.file, options.target, asked)
    return [report.model_dump_json(indent=2) if options.json else explain(report)], 0


def asked_options(options: argparse.Namespace) -> dict[str, object]:
    """The compile options that the command line of explain asks for."""
    return {"disabled_passes": tuple(options.disable_pass)} if options.disable_pass else {}


def both(files: Sequence[str], target: str | None, asked: Mapping[str, object]) -> list[CompileReport]:
    """Two reports.  A graph beside a report is compiled for the same target with the same options."""
    from graphdnn.serialization.kinds import Kind, kind_of

    graphs = [name for name in files if kind_of(Path(name)) is Kind.GRAPH]
    found = {name: report_of(name, target, asked) for name in files if name not in graphs}
    for report in found.values():
        target, asked = target_word(report) if target is None else target, {**report.options, **asked}
    return [found[name] if name in found else report_of(name, target, asked) for name in files]


def target_word(report: CompileReport) -> str:
    """The target that a report is for, as --target takes it; a device that was there is the one that is here."""
    if report.target.endswith(DESCRIBED):
        return report.target.removesuffix(DESCRIBED)
    return report.target if report.target == "cpu" else "auto"


def planned(options: argparse.Namespace) -> Answer:
    """What `graphdnn plans` prints: the candidates of one region, or the regions there are."""
    from graphdnn.report.explain import escaped, printable, table
    from graphdnn.report.plans import plans

    report = report_of(options.file, options.target, options.options)
    names = [region.name for region in report.regions]
    name = names[0] if options.region is None and len(names) == 1 else options.region
    if name is None:
        return [
            table(printable(report)),
            f"\n{counted(len(names), 'region')}; --region NAME shows the candidates of one",
        ], 0
    if name not in names:
        raise GraphDnnError(
            f"plans: there is no region {quoted(name)}{hint(name, names)} "
            f"(regions are {first_of([*map(escaped, names)], 12)})"
        )
    return [plans(report, name)], 0


def report_of(name: str | Path, target: str | None, options: Mapping[str, object]) -> CompileReport:
    """The report that a file carries, or that compiling its graph gives.

    A saved executable's graph is compiled anew where a target or options are asked for.  Raises GraphDnnError naming
    the file.
    """
    import graphdnn as gd
    from graphdnn.serialization.kinds import SAID, Kind, kind_of
    from graphdnn.serialization.load import graph_in
    from graphdnn.serialization.reports import read_report

    path = Path(name)
    kind, is_asked = kind_of(path), target is not None or bool(options)
    if kind is Kind.REPORT and is_asked:
        raise GraphDnnError(
            f"{path}: it is a report, and says what was decided; a target or options need the graph or a saved "
            "executable of it"
        )
    if kind in (Kind.REPORT, Kind.EXECUTABLE) and not is_asked:
        return read_report(path, str(name))
    if kind not in (Kind.GRAPH, Kind.EXECUTABLE):
        raise GraphDnnError(f"{path}: {SAID[kind]}; {TAKEN} is needed")
    graph = graph_in(path) if kind is Kind.EXECUTABLE else gd.Graph.load(path)
    chosen: CompileOptions = gd.CompileOptions(**options)
    return gd.compile(graph, target=target_of("auto" if target is None else target), options=chosen).report


def target_of(word: str) -> str | Target:
    """A target of the command line.  Raises CompileError naming those that are known."""
    from graphdnn.target import WORDS, Target, known_devices, meant

    if word in WORDS:
        return word
    if word not in known_devices():
        name = meant(word)
        asked = "" if name is None else f"; did you mean {name}?"
        raise CompileError(f"--target is {quoted(word)}; {', '.join((*WORDS, *known_devices()))} are known{asked}")
    return Target.named(word)


def target_here(word: str, file: str) -> str:
    """A target that plans can run on.  Raises CompileError for another, with the command that plans for it."""
    from graphdnn.target import WORDS, meant

    if word in WORDS:
        return word
    described = meant(word)
    if described in WORDS:
        more = f"; did you mean {described}?"
    else:
        more = "" if described is None else f"; graphdnn explain {shlex.quote(file)} --target {described} plans for it"
    raise CompileError(f"--target is {quoted(word)}; a replay runs plans here, on {', '.join(WORDS)}{more}")
