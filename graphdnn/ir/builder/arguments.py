"""Callers' arguments as the plain Python numbers that ops hold; numpy's numbers are taken, anything else is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsFloat

import numpy as np

from graphdnn.errors import GraphError


def whole_number(who: str, what: str, value: Any) -> int:
    """A whole number.  Raises GraphError naming `who` and `what` for anything else, 2.0 included."""
    try:
        return int(value.__index__())
    except (TypeError, AttributeError):
        raise GraphError(f"{who}: {what} is {value!r}; a whole number is needed") from None


def whole_numbers(who: str, what: str, entries: Any) -> tuple[int, ...]:
    """The entries as a tuple.  Raises GraphError naming `who` and `what` for anything but whole numbers."""
    try:
        return tuple(int(n.__index__()) for n in entries)
    except (TypeError, AttributeError):
        raise GraphError(f"{who}: {what} is {entries!r}; a sequence of whole numbers is needed") from None


def number(who: str, what: str, value: SupportsFloat) -> float:
    """A number.  Raises GraphError naming `who` and `what` for anything else, text included."""
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise GraphError(f"{who}: {what} is {value!r}; a number is needed")


def one_of(who: str, what: str, value: object, words: Sequence[str | None]) -> None:
    """Raises GraphError naming `who` and `what` unless the value is one of these words or None; an array never is."""
    if not (value is None or isinstance(value, str)) or value not in words:
        *others, last = ("None" if word is None else f'"{word}"' for word in words)
        raise GraphError(f"{who}: {what} is {value!r}; {', '.join(others)} or {last} is needed")


def flag(who: str, what: str, value: bool) -> bool:
    """True or False.  Raises GraphError naming `who` and `what` for anything else: "no" would be true."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise GraphError(f"{who}: {what} is {value!r}; True or False is needed")
