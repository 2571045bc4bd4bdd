"""A cache of one entry for analyses of a region: the families of kernels ask for the same ones in turn."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from graphdnn.ir.region import Region

P = ParamSpec("P")
T = TypeVar("T")


def cached_for_last(analysis: Callable[Concatenate[Region, P], T]) -> Callable[Concatenate[Region, P], T]:
    """The same analysis with its last result cached: it is returned again for the same region and equal arguments.

    Results are shared, so nobody may change them.  Safe in several threads, which at worst repeat the analysis.
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
