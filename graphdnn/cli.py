"""The command line: explain a saved graph for a target, and look at what this machine has."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from graphdnn.errors import GraphDnnError


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
    explain.add_argument("file", help="a graph written by Graph.save or Graph.to_json")
    explain.add_argument("--target", default="auto", help="auto, cpu, cuda, or a described device such as h200")
    explain.add_argument("--json", action="store_true", help="print the whole report as JSON")
    explain.add_argument("--disable-pass", action="append", default=[], metavar="PASS", help="leave a pass out")
    explain.set_defaults(run=run_explain)
    doctor = commands.add_parser("doctor", help="check driver, libraries and versions, and say what to install")
    doctor.set_defaults(run=run_doctor)
    return root


def run_explain(options: argparse.Namespace) -> int:
    import graphdnn as gd

    try:
        graph = gd.Graph.load(options.file)
    except gd.GraphError as error:
        raise gd.GraphError(error if options.file in str(error) else f"{options.file}: {error}") from None
    target = options.target if options.target in ("auto", "cpu", "cuda") else gd.Target.named(options.target)
    chosen = gd.CompileOptions(disabled_passes=tuple(options.disable_pass))
    exe = gd.compile(graph, target=target, options=chosen)
    print(exe.report.model_dump_json(indent=2) if options.json else exe.explain())
    return 0


def run_doctor(options: argparse.Namespace) -> int:
    from graphdnn.doctor import examine, healthy

    findings = examine()
    for finding in findings:
        print(finding)
    return 0 if healthy(findings) else 1
