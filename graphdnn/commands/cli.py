"""The command line: explain saved graphs and executables, look at the cache and at what this machine has."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphdnn import __version__
from graphdnn.commands.arguments import add_options
from graphdnn.commands.cache import add_cache
from graphdnn.commands.explain import add_explain, add_plans
from graphdnn.errors import GraphDnnError

CLOSED_PIPE = 128 + 13
"""The status of a program that nobody reads any more, as a shell tells it: 128 and the number of SIGPIPE."""

INTERRUPTED = 128 + 2
"""The same for Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status, 1 where something is wrong, with one sentence on stderr."""
    options = parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # what cannot be written is said here, not while Python ends
    except BrokenPipeError:
        abandon_output()
        return CLOSED_PIPE
    except KeyboardInterrupt:
        print("graphdnn: interrupted", file=sys.stderr)
        return INTERRUPTED
    except UnicodeEncodeError as error:
        complain(
            f"standard output is {error.encoding}, which lacks {error.object[error.start]!r}; PYTHONIOENCODING=utf-8 "
            "in the environment has it written"
        )
        return trouble(options)
    except GraphDnnError as error:
        complain(str(error))
        return trouble(options)
    except OSError as error:
        abandon_output()
        complain(said(error))
        return trouble(options)
    return status


def complain(sentence: str) -> None:
    """What is wrong, on stderr; files and what they name may be called anything."""
    from graphdnn.report.explain import escaped

    print(f"graphdnn: {escaped(sentence)}", file=sys.stderr)


def trouble(options: argparse.Namespace) -> int:
    """The status where something is wrong; as for diff(1), whose 1 says that files differ, another one."""
    return 2 if getattr(options, "diff", None) is not None else 1


def said(error: OSError) -> str:
    """An error of the system as a sentence: the file where there is one, and what is wrong."""
    if error.strerror is None:
        return str(error)
    what = f"{error.strerror[:1].lower()}{error.strerror[1:]}"
    return what if error.filename is None else f"{error.filename}: {what}"


def abandon_output() -> None:
    """Has Python write nothing more to standard output, which it would try at its end, and complain."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="graphdnn", description=__doc__)
    root.add_argument("--version", action="version", version=f"graphdnn {__version__}")
    commands = root.add_subparsers(required=True, metavar="COMMAND")
    add_explain(commands, run_answer)
    add_plans(commands, run_answer)
    add_doctor(commands)
    add_cache(commands, run_answer)
    return root


def add_doctor(commands: argparse._SubParsersAction[Any]) -> None:
    """Adds the command, which prints as it goes."""
    doctor = commands.add_parser("doctor", help="check driver, libraries and versions, and say what to install")
    doctor.add_argument(
        "--replay", metavar="FILE", help="run a saved graph plan by plan in a child process, and say which plan fails"
    )
    doctor.add_argument("--inputs", metavar="NPZ", help="arrays by input name for --replay; drawn where absent")
    doctor.add_argument("--target", help="for --replay: auto (the default), cpu or cuda")
    add_options(doctor, "compile options for --replay, as a report has them", None)
    doctor.set_defaults(run=run_doctor)


def run_doctor(options: argparse.Namespace) -> int:
    if options.replay is not None:
        return run_replay(options)
    for name in ("inputs", "target", "options"):
        if getattr(options, name) is not None:
            raise GraphDnnError(f"doctor: --{name} is for a replay, and there is none; --replay FILE is needed with it")
    from graphdnn.commands.doctor import examine, healthy

    findings = examine()
    for finding in findings:
        print(finding)
    return 0 if healthy(findings) else 1


def run_replay(options: argparse.Namespace) -> int:
    from graphdnn.commands.explain import target_here
    from graphdnn.commands.replay import replay
    from graphdnn.report.explain import escaped
    from graphdnn.serialization.kinds import SAID, Kind, kind_of

    target = "auto" if options.target is None else target_here(options.target, options.replay)
    kind = kind_of(Path(options.replay))
    if kind not in (Kind.GRAPH, Kind.EXECUTABLE):
        raise GraphDnnError(f"{options.replay}: {SAID[kind]}; a graph (of Graph.save) or a saved executable is needed")
    outcome = replay(options.replay, options.inputs, target, options.options, lambda line: print(escaped(line)))
    print("every plan ran to its end" if outcome.is_healthy else outcome.advice or "no plan is known to be at fault")
    return 0 if outcome.is_healthy else 1


def run_answer(options: argparse.Namespace) -> int:
    """Prints what a command answers, and gives its status."""
    lines, status = options.answer(options)
    print("\n".join(lines))
    return int(status)
