"""Refusals in the user's words: engines name the nodes that they were asked about, a report names the user's own."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from graphdnn.answer import NAME_ALONE, OVERRULED, Code, Decline, Fix, renamed
from graphdnn.engines.choose import Selector
from graphdnn.engines.contract import Support
from graphdnn.ir.op import Op
from graphdnn.ir.region import Region
from graphdnn.lazy import cached_property
from graphdnn.planning.decisions import Decisions
from graphdnn.report.type_fixes import JOIN, TypeFix, UserTensors

WITHIN = re.compile(r"(%(\S+): its \w+) %\2(?= )")
"""An operand that bears the name of the node that reads it: both are parts of one node of the user's."""


def own_answer(selector: Selector, engine: str, region: Region, shared: Decline) -> Decline:
    """A refusal that names this region's nodes.

    Regions of equal structure share one answer, worded for whichever was asked about first.  The names in its reason
    are exchanged for this region's; where it has a fix, or names that cannot be told from the text around them, the
    engine is asked again.  The compiler's own refusals (an option, a failed plan) name no node and stay as they are.
    """
    if shared.code in OVERRULED or names_nothing(shared):
        return shared
    before = selector.support.names_asked(region)
    if before == region.names:
        return shared
    if shared.fix is None and all(map(NAME_ALONE.fullmatch, before)):
        return replace(shared, reason=renamed(shared.reason, dict(zip(before, region.names, strict=True))))
    by_name = {e.name: e for e in selector.engines}
    own = by_name[engine].supports(region, selector.target, selector.policy)
    return shared if isinstance(own, Support) else own


def names_nothing(answer: Decline) -> bool:
    """Whether a refusal reads the same for every region of equal structure."""
    return answer.fix is None and "%" not in answer.reason


@dataclass(frozen=True)
class UserNames:
    """Which of the user's nodes is behind each node and value that passes made of them."""

    made: Decisions

    def translated(self, answer: Decline, engine: str, region: Region) -> Decline:
        """An engine's refusal of a region of the prepared graph, naming the user's nodes.

        Its fix is dropped where no change of the user's graph brings it about: where it would change one of several
        nodes into which a composite op was expanded (the code is then `PATTERN`), or a constant that a pass made; so is
        a change of element types with which the engine would object to something else (`PATTERN` too).
        """
        if names_nothing(answer):
            return answer
        if answer.fix is not None and answer.fix.attribute == "dtype":
            fix = self._type_fix(answer.fix, engine, region)
            code = answer.code if fix is not None else Code.PATTERN
            return Decline(code, self._told(answer.reason), fix)
        targets = answer.fix.target.split(JOIN) if answer.fix is not None else []
        if any(self._is_part(name, region) for name in targets):
            answer = replace(answer, code=Code.PATTERN, fix=None)
        fix = answer.fix
        if fix is not None:
            known = dict.fromkeys(self._names.get(name, name) for name in targets)
            is_made = not self._made_constants.isdisjoint(targets)
            fix = None if is_made else replace(fix, target=JOIN.join(known))
        return replace(answer, reason=self._told(answer.reason), fix=fix)

    def _told(self, reason: str) -> str:
        """A reason that names the user's nodes.  What one part of such a node hands to another has no name of its own,
        and stays with what the reader calls it."""
        return WITHIN.sub(r"\1", renamed(reason, self._names))

    def _type_fix(self, fix: Fix, engine: str, region: Region) -> Fix | None:
        """A change of element types in the user's words; None where the engine takes the region no more than before,
        or the user has no such tensors."""
        change = TypeFix(region, fix)
        is_made = any(v.name in self._made_constants for v in change.changed)
        told = self._tensors.told(change) if change.is_of_whole_nodes and not is_made else None
        if told is None or change.made is None:
            return None
        selector = self.made.selector
        by_name = {e.name: e for e in selector.engines}
        return told if by_name[engine].supports(change.made, selector.target, selector.policy) else None

    @cached_property
    def _tensors(self) -> UserTensors:
        return UserTensors(self.made.graph)

    @cached_property
    def _names(self) -> dict[str, str]:
        """For nodes and values that passes made, the user's node whose work they do, or what they convert; for
        constants the user's node that reads them first."""
        graph = self.made.graph
        known = {v.name for n in graph.nodes for v in n.results} | {n.name for n in graph.nodes} | set(graph.constants)
        known -= {v.name for v in self.made.implied}
        names: dict[str, str] = {}
        for prepared in {self.made.prepared, *(r.graph for r in self.made.expanded)}:
            for node in prepared.nodes:
                source = node.operands[0].name if node.operands else node.name
                meant = node.origins[0] if node.origins else names.get(source, source)
                names.update((name, meant) for name in (node.name, *(v.name for v in node.results)))
                made = [v for v in node.operands if v.literal is None and prepared.is_constant(v)]
                names.update((v.name, meant) for v in made if v.name not in names)
        return {name: meant for name, meant in names.items() if name not in known}

    @cached_property
    def _ops(self) -> dict[str, type[Op]]:
        """The op of each of the user's nodes."""
        return {n.name: type(n.op) for n in self.made.graph.nodes if n.result not in self.made.implied}

    @cached_property
    def _spread(self) -> frozenset[str]:
        """The user's nodes whose work several nodes of the prepared graph do."""
        shares = Counter(origin for n in self.made.prepared.nodes for origin in n.origins)
        return frozenset(name for name, count in shares.items() if count > 1)

    @cached_property
    def _made_constants(self) -> set[str]:
        """Constants that passes made by folding or by spelling an op out."""
        graphs = {self.made.prepared, *(r.graph for r in self.made.expanded)}
        return {name for g in graphs for name in g.constants} - set(self.made.graph.constants)

    def _is_part(self, name: str, region: Region) -> bool:
        """Whether this names one of several nodes into which a user's node was expanded, or such a node's result."""
        makers = (region.graph.producer.get(v) for v in region.inputs)
        near = (*region.nodes, *(n for n in makers if n is not None))
        node = next((n for n in near if name in (n.name, *(v.name for v in n.results))), None)
        if node is None or type(node.op).expand is not Op.expand or self._ops.get(node.name) is type(node.op):
            return False
        return not self._spread.isdisjoint(node.origins)
