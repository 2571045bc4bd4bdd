"""Locks in a forked child: the thread that held one does not exist there, so whoever has locks makes them anew."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Renewed(Protocol):
    """What has locks of its own."""

    def renew(self) -> None:
        """Makes the locks anew and forgets what other threads had begun."""


LIVING: WeakSet[Renewed] = WeakSet()


def renew_in_children(owner: Renewed) -> None:
    """Has the owner's locks made anew in each child that this process is forked into, for as long as it lives."""
    LIVING.add(owner)


def _after_fork() -> None:
    for owner in list(LIVING):
        owner.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
