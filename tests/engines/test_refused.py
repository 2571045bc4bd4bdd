"""What is said where plans that engines took on paper cannot be had, and nothing else takes the work."""

from __future__ import annotations

from typing import Any

import pytest

import graphdnn as gd
from tests.engines.compiled import compiled
from tests.engines.scripted import Act, Clock, Scripted


def norms() -> gd.Graph:
    g = gd.GraphBuilder("norms")
    x = g.softmax(g.input("x", (3, 9), gd.float32), name="first")
    return g.build({"y": g.softmax(g.layer_norm(x, name="norm"), name="last")})


OPTIONS: dict[str, tuple[Act, dict[str, Any], str]] = {
    "deterministic": (
        Act(deterministic=False),
        {"deterministic": True},
        "gives other bits from run to run; deterministic=True is asked for",
    ),
    "workspace_limit": (
        Act(workspace=5000),
        {"workspace_limit": 7},
        "needs 5000 bytes of scratch; workspace_limit is 7; change workspace_limit of options from 7 to 5000; "
        "every node has a plan from workspace_limit=5000 on",
    ),
    "build": (Act(fails="build"), {}, "one's only plan is not usable: a: a needs 300 registers"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_kept_an_op_from_being_taken_whole_is_told_where_nobody_takes_its_parts(
    name: str, clock: Clock, with_engines: Any
) -> None:
    act, options, words = OPTIONS[name]
    softmaxes = Scripted("other", {"b": Act()}, clock, takes=("softmax",))
    with_engines(Scripted("one", {"a": act}, clock, takes=("layer_norm",)), softmaxes)
    with pytest.raises(gd.CompileError) as caught:
        compiled(norms(), "heuristic", **options)
    said = str(caught.value)
    assert said.startswith("no engine takes reduce_mean, a part of layer_norm %norm, on cpu: one: ")
    assert "; one takes layer_norm %norm whole, but " in said
    assert words in said
    assert "\n" not in said


@pytest.mark.parametrize("selection", ["heuristic", "autotune", "measure"])
def test_a_node_is_named_where_what_is_left_of_larger_regions_does_not_fit_together(
    selection: str, clock: Clock, with_engines: Any
) -> None:
    """Every region is taken on paper, and found out to have no plan one cover after the other."""
    with_engines(Scripted("one", {"a": Act(fails="build"), "b": Act(factor=2, fails="run")}, clock))
    with pytest.raises(
        gd.CompileError, match=r"^no engine takes \w+, a part of \w+ %(first|norm|last), on cpu: one: "
    ) as caught:
        compiled(norms(), selection)
    assert "a needs 300 registers; b: failed on its first run" in str(caught.value)
