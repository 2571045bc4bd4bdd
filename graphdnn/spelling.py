"""Words of sentences: the nearest known name for a misspelt one, and numbers of things."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

CLOSE = 0.6
"""Likeness, as difflib counts it, from which one name is taken for another."""


def nearest(given: object, known: Iterable[str]) -> str | None:
    """The known name that is most like what was given, whatever its case and the spaces around it; None where none
    is."""
    from difflib import get_close_matches

    if not isinstance(given, str):
        return None
    by_form = {name.casefold(): name for name in known}
    found = get_close_matches(given.strip().casefold(), by_form, n=1, cutoff=CLOSE)
    return by_form[found[0]] if found else None


def hint(given: object, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: which one may be meant; empty where none is near."""
    found = nearest(given, known)
    return f"; did you mean {found!r}?" if found is not None else ""


QUOTED = 200
"""Characters of what somebody gave that a message repeats."""

PLURALS = {"entry": "entries", "axis": "axes"}
"""Those that are not made with an s."""


def counted(number: int, noun: str) -> str:
    """A number of things: 1 kernel, 2 kernels."""
    return f"{number} {noun if number == 1 else PLURALS.get(noun, f'{noun}s')}"


def first_of(names: Collection[str], most: int) -> str:
    """The first `most` names, and how many more there are."""
    shown = ", ".join(islice(names, most))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def quoted(value: object) -> str:
    """What somebody gave, in one line as Python writes it: the beginning of it where that is long.

    Python writes no integer of more than 4300 digits, and other classes may fail to write themselves.
    """
    try:
        written = repr(value)
    except Exception:  # of anybody's code
        return f"a value of type {type(value).__name__} that cannot be written out"
    text = " ".join(line.strip() for line in written.splitlines())
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}..."


def named(name: object) -> str:
    """A name that somebody gave, within a sentence: as it is, or quoted where it is long, has several lines or is no
    text."""
    return name if isinstance(name, str) and name.isprintable() and len(name) <= QUOTED else quoted(name)


def byte_count(count: int) -> str:
    """Bytes in the largest unit that keeps a digit before the point: 512 B, 1.5 MiB."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


DIGITS = 19
"""Digits of the largest number of 64 bits: Python takes its time for texts of very many."""


def is_whole_number(text: str) -> bool:
    """Whether a text is a whole number that is not negative, in plain digits and of 64 bits or about as many."""
    return text.isascii() and text.isdigit() and len(text) <= DIGITS


def named_arguments(options: Collection[str] = ()) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The same function; an argument by a name that it lacks is a TypeError that says which name is meant.

    `options` are names that its argument `options`, a gd.CompileOptions, has.
    """

    def around(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name in options and name not in known:
                    raise TypeError(
                        f"{function.__name__}: {name!r} is an option; options=gd.CompileOptions({name}=...) is needed"
                    )
                if name not in known:
                    raise TypeError(
                        f"{function.__name__}: there is no argument {name!r}{hint(name, known)} "
                        f"(it takes {', '.join(known)})"
                    )
            return function(*args, **kwargs)

        return checked

    return around
