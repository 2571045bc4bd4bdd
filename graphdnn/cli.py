"""The command line: explain a saved graph for a target, and look at what this machine has."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from graphdnn.cache_cli import add_cache
from graphdnn.errors import GraphDnnError

if TYPE_CHECKING:
    from graphdnn.ir.graph import Graph
    from graphdnn.target import Target


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status, 1 where something is wrong, with one sentence on stderr."""
    options = parser().parse_args(arguments)
    try:
        status: int = options.run(options)
    except (GraphDnnError, OSError) as error:
        print(f"graphdnn: {error}", file=sys.stderr)
        return 1
    return status


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="graphdnn", description=__doc__)
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    explain = commands.add_parser("explain", help="say how a saved graph would run, and why")
    explain.add_argument("file", nargs="?", help="a graph written by Graph.save or Graph.to_json")
    explain.add_argument(
        "--diff",
        nargs=2,
        metavar=("A", "B"),
        help="say what changed between two reports (--json prints one) or saved executables; the status is 0 where "
        "they are equal, 1 where they differ, 2 where one cannot be read",
    )
    explain.add_argument("--target", default="auto", help="auto, cpu, cuda, or a described device such as h200")
    explain.add_argument("--json", action="store_true", help="print the whole report as JSON")
    explain.add_argument("--disable-pass", action="append", default=[], metavar="PASS", help="leave a pass out")
    explain.set_defaults(run=run_explain)
    plans = commands.add_parser("plans", help="list the candidates of one region: engine, plan, scratch, time, verdict")
    plans.add_argument("file", help="a saved graph, which is compiled, or a report or executable, which is read")
    plans.add_argument("--region", required=True, metavar="NAME", help="name of the region, as explain prints it")
    plans.add_argument("--target", default="auto", help="for a graph: auto, cpu, cuda, or a described device")
    add_options(plans, "for a graph: compile options, as a report has them")
    plans.set_defaults(run=run_plans)
    doctor = commands.add_parser("doctor", help="check driver, libraries and versions, and say what to install")
    doctor.add_argument(
        "--replay", metavar="FILE", help="run a saved graph plan by plan in a child process, and say which plan fails"
    )
    doctor.add_argument("--inputs", metavar="NPZ", help="arrays by input name for --replay; drawn where absent")
    doctor.add_argument("--target", default="auto", help="for --replay: auto, cpu or cuda")
    add_options(doctor, "compile options for --replay, as a report has them")
    doctor.set_defaults(run=run_doctor)
    add_cache(commands, run_cache)
    return root


def add_options(command: argparse.ArgumentParser, help: str) -> None:
    """The argument by which a command takes compile options."""
    command.add_argument("--options", type=json_object, default={}, metavar="JSON", help=help)


def json_object(text: str) -> dict[str, object]:
    """An argument that is a JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"it is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text} is no JSON object")
    return found


def run_explain(options: argparse.Namespace) -> int:
    import graphdnn as gd

    if options.diff is not None:
        return run_diff(options)
    if options.file is None:
        raise gd.GraphDnnError("explain: a graph's file is needed, or --diff with two reports")
    chosen = gd.CompileOptions(disabled_passes=tuple(options.disable_pass))
    exe = gd.compile(graph_at(options.file), target=target_of(options.target), options=chosen)
    print(exe.report.model_dump_json(indent=2) if options.json else exe.explain())
    return 0


def graph_at(path: str) -> Graph:
    """A saved graph.  Raises GraphError naming the file."""
    import graphdnn as gd

    try:
        return gd.Graph.load(path)
    except gd.GraphError as error:
        raise gd.GraphError(error if path in str(error) else f"{path}: {error}") from None


def target_of(word: str) -> str | Target:
    """A target of the command line.  Raises CompileError naming those that are known."""
    import graphdnn as gd
    from graphdnn.target import WORDS, known_devices, meant

    if word in WORDS:
        return word
    if word not in known_devices():
        name = meant(word)
        asked = "" if name is None else f"; did you mean {name}?"
        raise gd.CompileError(f"--target is {word!r}; {', '.join((*WORDS, *known_devices()))} are known{asked}")
    return gd.Target.named(word)


def run_diff(options: argparse.Namespace) -> int:
    """Like diff(1): 0 for equal reports, 1 for others, 2 where there is trouble."""
    from graphdnn.diff import difference
    from graphdnn.saved.reports import read_report

    try:
        if options.file is not None:
            raise GraphDnnError(f"explain: --diff compares two reports, and {options.file} is a third file")
        old, new = (read_report(Path(name)) for name in options.diff)
    except (GraphDnnError, OSError) as error:
        print(f"graphdnn: {error}", file=sys.stderr)
        return 2
    text = difference(old, new)
    print(text or "the reports are equal")
    return 1 if text else 0


def run_plans(options: argparse.Namespace) -> int:
    import graphdnn as gd
    from graphdnn.plans_view import plans
    from graphdnn.saved.reports import is_report, read_report

    if is_report(Path(options.file)):
        report = read_report(Path(options.file))
    else:
        chosen = gd.CompileOptions(**options.options)
        report = gd.compile(graph_at(options.file), target=target_of(options.target), options=chosen).report
    if options.region not in [region.name for region in report.regions]:
        names = ", ".join(region.name for region in report.regions)
        raise gd.GraphDnnError(f"plans: there is no region {options.region}; regions are {names}")
    print(plans(report, options.region))
    return 0


def run_doctor(options: argparse.Namespace) -> int:
    if options.replay is not None:
        return run_replay(options)
    from graphdnn.doctor import examine, healthy

    findings = examine()
    for finding in findings:
        print(finding)
    return 0 if healthy(findings) else 1


def run_replay(options: argparse.Namespace) -> int:
    from graphdnn.replay import replay

    outcome = replay(options.replay, options.inputs, options.target, options.options, print)
    print("every plan ran to its end" if outcome.is_healthy else outcome.advice or "no plan is known to be at fault")
    return 0 if outcome.is_healthy else 1


def run_cache(options: argparse.Namespace) -> int:
    lines, status = options.answer(options)
    print("\n".join(lines))
    return int(status)
