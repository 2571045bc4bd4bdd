"""Callers' arguments of the calls that read, write and evaluate graphs: text, and arrays by name."""

from __future__ import annotations

from collections.abc import Mapping

from graphdnn.errors import GraphError


def text_of(who: str, given: object) -> str:
    """The text that a caller gave.  Raises GraphError for anything else."""
    if isinstance(given, str):
        return given
    raise GraphError(f"{who}: text is a {type(given).__name__}; a str is needed")


def check_arrays(who: str, what: str, given: object) -> None:
    """Raises GraphError for what is no mapping of arrays by name."""
    if not isinstance(given, Mapping):
        raise GraphError(f"{who}: {what} is a {type(given).__name__}; a mapping of names to arrays is needed")
