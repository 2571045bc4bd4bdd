"""What each engine says of each region, under the limits that hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from graphdnn.answer import Code, Decline
from graphdnn.engines.contract import Engine, Policy, Support
from graphdnn.engines.trial import Limits, within_limits
from graphdnn.ir.region import Region
from graphdnn.target import Target


class SupportTable:
    """Asks every engine once about every structure (`Region.key`), and again where `limits` change.

    A "yes" that an option rules out is a "no" here; `offered` gives the "yes".
    """

    def __init__(self, engines: Sequence[Engine], target: Target, policy: Policy, limits: Limits) -> None:
        self.limits = limits
        self._engines = {e.name: e for e in engines}
        self._target = target
        self._policy = policy
        self._answers: dict[str, dict[str, Support | Decline]] = {}
        self._asked: dict[str, Region] = {}
        self._offered: dict[tuple[str, str], Support] = {}
        self._unlimited: dict[tuple[str, str], Support | None] = {}

    def answers(self, region: Region) -> dict[str, Support | Decline]:
        """Each engine's answer, in the engines' order."""
        key = region.key
        if key not in self._answers:
            self._answers[key] = {name: self._ask(name, region) for name in self._engines}
            self._asked[key] = region
        return self._answers[key]

    def all_answers(self) -> list[Support | Decline]:
        """Every answer of every engine."""
        return [a for row in self._answers.values() for a in row.values()]

    def names_asked(self, region: Region) -> tuple[str, ...]:
        """`Region.names` of the region that was asked about, whose answers this one shares."""
        return self._asked.get(region.key, region).names

    @property
    def policy(self) -> Policy:
        """The policy with no more scratch than is left: engines that can do with less are to say what that costs."""
        most = self.limits.most_scratch
        return self._policy if most == self._policy.workspace_limit else replace(self._policy, workspace_limit=most)

    def _ask(self, engine: str, region: Region) -> Support | Decline:
        answer = self._engines[engine].supports(region, self._target, self.policy)
        if isinstance(answer, Decline):
            return answer
        self._offered[engine, region.key] = answer
        return within_limits(answer, engine, self.limits)

    def offered(self, engine: str, region: Region) -> Support | None:
        """An engine's "yes" to a region, whatever became of it: an option may have ruled it out, its plans failed."""
        return self._offered.get((engine, region.key))

    def without_scratch_limit(self, engine: str, region: Region) -> Support | None:
        """An engine's "yes" to a region under no limit on scratch memory; None where it says no even then."""
        asked = engine, region.key
        if asked not in self._unlimited:
            answer = self._engines[engine].supports(region, self._target, replace(self._policy, workspace_limit=None))
            self._unlimited[asked] = answer if isinstance(answer, Support) else None
        return self._unlimited[asked]

    def overrule(self, region: Region, answers: Mapping[str, Support | Decline]) -> None:
        """What the engines' plans turned out to be, in place of what the engines said of this region."""
        self._answers[region.key] = dict(answers)

    def refuse(self, key: str, refusals: Mapping[str, Decline]) -> None:
        """What these engines' plans of a structure turned out not to do, in place of what the engines said of it."""
        self._answers[key].update(refusals)

    def ask_again(self) -> list[tuple[str, str]]:
        """Asks anew about what limits may decide: each "yes", and each "no" for an option.  Gives engines and keys."""
        changed = []
        for engine, key in list(self._offered):
            now = self._answers[key].get(engine)
            if isinstance(now, Support) or (now is not None and now.code is Code.OPTION):
                self._answers[key][engine] = self._ask(engine, self._asked[key])
                changed.append((engine, key))
        return changed
