"""What engines answered, kept across compilations: the same question gets the same answer without asking twice."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Policy, Support
from graphdnn.forking import renew_in_children
from graphdnn.ir.region import Region, Wording
from graphdnn.target import Target

MOST = 16384
"""Answers kept, a kilobyte or so each; a ResNet-50 asks 1233 questions."""

E = TypeVar("E")
Supports = Callable[[E, Region, Target, Policy], Support | Decline]


class Answers:
    """Answers by question; those that were not asked for longest are forgotten.  Safe to use from several threads.

    A "yes" is about a structure.  A "no" is said in the words of one region, so it answers only where a region has the
    same names.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self.renew()
        renew_in_children(self)
        self._kept: OrderedDict[tuple[str, str, str], tuple[Support | Decline, Wording | None]] = OrderedDict()

    def renew(self) -> None:
        """Makes the lock anew."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, question: tuple[str, str, str], region: Region) -> Support | Decline | None:
        """The answer to a question, if it is known in this region's words."""
        with self._lock:
            found = self._kept.get(question)
            if found is None:
                return None
            self._kept.move_to_end(question)
        answer, words = found
        return answer if words is None or words == region.wording else None

    def keep(self, question: tuple[str, str, str], region: Region, answer: Support | Decline) -> None:
        """Keeps an answer, but not that something is missing here: it may be installed."""
        if isinstance(answer, Decline) and answer.code is Code.SETUP:
            return
        with self._lock:
            self._kept[question] = answer, None if isinstance(answer, Support) else region.wording
            self._kept.move_to_end(question)
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)

    def clear(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._kept.clear()


ANSWERS = Answers()
"""Those of this process."""


def remembered(supports: Supports[E]) -> Supports[E]:
    """The same method, which asks only what it does not know yet.

    For engines whose answers follow from the region's structure, the target and the policy alone.
    """
    who = f"{supports.__module__}.{supports.__qualname__}"

    @functools.wraps(supports)
    def asked(self: E, region: Region, target: Target, policy: Policy) -> Support | Decline:
        question = who, circumstances(target, policy), region.key
        answer = ANSWERS.get(question, region)
        if answer is None:
            answer = supports(self, region, target, policy)
            ANSWERS.keep(question, region, answer)
        return answer

    return asked


@functools.lru_cache(maxsize=64)
def circumstances(target: Target, policy: Policy) -> str:
    """Target and policy as part of a key; made once, since a key is looked up by its hash."""
    return repr((target, policy))
