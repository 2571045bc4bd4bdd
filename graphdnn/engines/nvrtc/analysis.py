"""What is found of a region, kept while one region is being asked about: its families look at it several times over."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from graphdnn.ir.region import Region

P = ParamSpec("P")
T = TypeVar("T")


def kept(analysis: Callable[Concatenate[Region, P], T]) -> Callable[Concatenate[Region, P], T]:
    """The same analysis, which remembers what it saw last and what it found, and gives that to whoever asks again.

    Nobody may change what is found.  Safe in several threads, which at worst find the same anew.
    """
    last: tuple[weakref.ref[Region], object, T] | None = None

    @functools.wraps(analysis)
    def asked(region: Region, /, *more: P.args, **named: P.kwargs) -> T:
        nonlocal last
        known = last
        if known is not None and known[0]() is region and known[1] == (more, named):
            return known[2]
        found = analysis(region, *more, **named)
        last = weakref.ref(region), (more, named), found
        return found

    return asked
