"""The argument by which several commands take compile options."""

from __future__ import annotations

import argparse
import json


def add_options(command: argparse.ArgumentParser, help: str, default: dict[str, object] | None) -> None:
    """The argument by which a command takes compile options."""
    command.add_argument("--options", type=json_object, default=default, metavar="JSON", help=help)


def json_object(text: str) -> dict[str, object]:
    """An argument that is a JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"it is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text} is no JSON object")
    return found
