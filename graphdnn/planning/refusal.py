"""What is said of a graph that cannot run: the user's node that nobody takes, why, and what would let it run."""

from __future__ import annotations

from collections.abc import Sequence

from graphdnn.answer import OVERRULED, Code, Decline, renamed
from graphdnn.engines.choose import Selector
from graphdnn.engines.contract import Support
from graphdnn.engines.manifest import BY_KIND, load_engine
from graphdnn.errors import CompileError, SetupError
from graphdnn.ir.graph import Graph, Node
from graphdnn.ir.region import Region
from graphdnn.ir.views import is_free
from graphdnn.passes.fuse import Proposal


def nobody_takes(
    node: Node,
    graph: Graph,
    proposals: Sequence[Proposal],
    user_graph: Graph,
    selector: Selector,
    whole: Sequence[Region],
) -> CompileError:
    """The error for a node of the prepared `graph` that no engine takes: SetupError where a library is missing.

    `whole` are composite nodes that were spelled out, since no engine took them.  What is missing comes first, and what
    the user left out and would take it last.
    """
    region = Region.of(graph, [node])
    answers = selector.support.answers(region)
    lacking = [n for n, a in answers.items() if isinstance(a, Decline) and a.code is Code.SETUP]
    told = "; ".join(f"{name}: {answers[name]}" for name in sorted(answers, key=lambda n: n not in lacking))
    reasons = renamed(told, made_names(region, user_graph)) or "no engine is enabled"
    least = least_scratch(graph, [*(p.region for p in proposals), *whole], selector)
    enough = f"; every node has a plan from workspace_limit={least} on" if least else ""
    rest = f"{reasons}{as_whole(node, whole, user_graph, selector)}{enough}{left_out(region, selector)}"
    who = user_words(node, user_graph)
    return (SetupError if lacking else CompileError)(f"no engine takes {who} on {selector.target}: {rest}")


def user_words(node: Node, user_graph: Graph) -> str:
    """The user's node behind one of the prepared graph, and which part of its work it is where it is not all."""
    theirs = next((n for n in user_graph.nodes if n.name in node.origins[:1]), None)
    if theirs is None:
        return f"the conversion of {node.operands[0]} to another layout"
    return str(theirs) if theirs.op.label == node.op.label else f"{node.op.label}, a part of {theirs},"


def as_whole(node: Node, whole: Sequence[Region], user_graph: Graph, selector: Selector) -> str:
    """Engines that would take the user's node as it is, and the options or failures that kept them from it."""
    told = [
        f"; {engine} takes {user_words(composite.nodes[0], user_graph)} whole, but {answer}"
        for composite in whole
        if composite.origins == node.origins
        for engine, answer in selector.support.answers(composite).items()
        if isinstance(answer, Decline) and answer.code in OVERRULED
    ]
    return "".join(dict.fromkeys(told))


def made_names(region: Region, user_graph: Graph) -> dict[str, str]:
    """The user's node behind each node, result and constant of a region and around it that passes made."""
    graph = region.graph
    around = [*region.nodes, *(graph.producer[v] for v in region.inputs if v in graph.producer)]
    names = {
        n: node.origins[0] for node in around if node.origins for n in (node.name, *(v.name for v in node.results))
    }
    constants = (v.name for v in region.inputs if graph.is_constant(v))
    names.update(dict.fromkeys(constants, region.origins[0] if region.origins else ""))
    users = {v.name for n in user_graph.nodes for v in n.results} | set(user_graph.constants)
    return {name: meant for name, meant in names.items() if meant and name not in users}


def left_out(region: Region, selector: Selector) -> str:
    """Engines that an option rules out and that would take the region."""
    asked = {e.name for e in selector.engines}
    spare = [name for name in BY_KIND[selector.target.kind] if name not in asked]
    takes = [n for n in spare if isinstance(load_engine(n).supports(region, selector.target, selector.policy), Support)]
    verb = "takes" if len(takes) == 1 else "take"
    return f"; {' and '.join(takes)}, left out by disabled_engines, {verb} it" if takes else ""


def least_scratch(graph: Graph, regions: Sequence[Region], selector: Selector) -> int:
    """Bytes of scratch with which every computing node would have a plan; 0 where more scratch does not help.

    Of a region of another graph, of which this one is what passes made, nodes of the same origin count as its own.
    """
    needs: dict[Node, int] = {}
    for region in regions:
        nodes = region.nodes if region.graph is graph else [n for n in graph.nodes if n.origins == region.origins]
        for engine in selector.support.answers(region):
            need = selector.least_scratch(engine, region)
            if need is not None:
                needs.update((n, min(need, needs.get(n, need))) for n in nodes)
    wanted = [n for n in graph.nodes if not is_free(n)]
    return max(needs[n] for n in wanted) if all(n in needs for n in wanted) else 0
