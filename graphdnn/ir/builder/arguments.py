"""Callers' arguments as the plain Python numbers that ops hold; numpy's numbers are taken, anything else is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsFloat

import numpy as np

from graphdnn.errors import GraphError
from graphdnn.ir.types import WHOLE, is_several, whole
from graphdnn.ir.writer import checked_name
from graphdnn.spelling import named, quoted


def called(name: object, otherwise: str) -> str:
    """What messages call a node: its name, or `otherwise` where it has none.  Raises GraphError for what is no name."""
    return otherwise if name is None else named(checked_name("a value or node", name))


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number of any size; 2.0 and True are none."""
    try:
        whole(value)
    except TypeError:
        return False
    return True


def whole_number(who: str, what: str, value: Any) -> int:
    """A whole number of 128 bits.  Raises GraphError naming `who` and `what` for all else, 2.0 and True included."""
    try:
        found = whole(value)
    except TypeError:
        raise GraphError(f"{who}: {what} is {quoted(value)}; a whole number is needed") from None
    if found not in WHOLE:
        raise GraphError(f"{who}: {what} is {quoted(value)}; a whole number of 128 bits is needed")
    return found


def whole_numbers(who: str, what: str, entries: Any) -> tuple[int, ...]:
    """The entries as a tuple.  Raises GraphError naming `who` and `what` for anything but whole numbers of 128 bits."""
    try:
        found = tuple(map(whole, entries)) if is_several(entries) else None
    except TypeError:
        found = None
    if found is None:
        raise GraphError(f"{who}: {what} is {quoted(entries)}; a sequence of whole numbers is needed")
    if any(n not in WHOLE for n in found):
        raise GraphError(f"{who}: {what} is {quoted(entries)}; whole numbers of 128 bits are needed")
    return found


def number(who: str, what: str, value: SupportsFloat) -> float:
    """A number.  Raises GraphError naming `who` and `what` for anything else, text included."""
    try:
        if not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise GraphError(f"{who}: {what} is {quoted(value)}; a number is needed")


def one_of(who: str, what: str, value: object, words: Sequence[str | None]) -> None:
    """Raises GraphError naming `who` and `what` unless the value is one of these words or None; an array never is."""
    if not (value is None or isinstance(value, str)) or value not in words:
        *others, last = ("None" if word is None else f'"{word}"' for word in words)
        raise GraphError(f"{who}: {what} is {quoted(value)}; {', '.join(others)} or {last} is needed")


def flag(who: str, what: str, value: bool) -> bool:
    """True or False.  Raises GraphError naming `who` and `what` for anything else: "no" would be true."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise GraphError(f"{who}: {what} is {quoted(value)}; True or False is needed")
