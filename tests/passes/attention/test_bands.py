"""Bottom-right alignment that another flag says as well goes, and what it means stays."""

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.passes.attention.bands import plain_bands
from tests.planned import h200_report

B, D = 3, 8


def attention(sq: int, skv: int, *, extras: tuple[str, ...] = (), same: bool = False, **attributes: object) -> gd.Graph:
    g = gd.GraphBuilder()
    q, k, v = (g.input(n, (B, 4, s, D), gd.float64) for n, s in (("q", sq), ("k", skv), ("v", skv)))
    given = {n: g.input(n, (B,), gd.int32) for n in extras}
    if same:
        given["q_lengths"] = given["kv_lengths"]
    o, lse = g.attention(q, k, v, return_lse=True, name="att", **given, **attributes)
    return g.build({"o": o, "lse": lse})


def is_the_same(before: gd.Graph, after: gd.Graph, rng: np.random.Generator) -> None:
    inputs = {n: rng.normal(size=v.type.shape) for n, v in before.inputs.items()}
    for drawn in ((1, 3, 2), (0, 5, 1), (-1, 4, 99)):
        inputs |= {n: np.array(drawn, np.int32) for n, v in before.inputs.items() if v.type.dtype == gd.int32}
        wanted, found = (gd.evaluate(x, inputs, gd.float64) for x in (before, after))
        for name in wanted:
            np.testing.assert_array_equal(found[name], wanted[name])


@pytest.mark.parametrize("extras", [(), ("kv_lengths",), ("q_lengths",), ("q_lengths", "kv_lengths")])
@pytest.mark.parametrize("window", [None, (None, 0), (None, 2), (9, None)])
def test_one_query_at_the_last_key_sees_all(
    extras: tuple[str, ...], window: tuple[int | None, int | None] | None, rng: np.random.Generator
) -> None:
    graph = attention(1, 5, extras=extras, causal="bottom_right", window=window)
    done = plain_bands(graph)
    (node,) = done.graph.nodes
    assert (node.op.causal, node.op.window, node.origins) == (None, None, ("att",))
    assert done.changes == ("att: one query at the last key sees all keys without a causal flag",)
    is_the_same(graph, done.graph, rng)


@pytest.mark.parametrize("window", [None, (1, None)])
@pytest.mark.parametrize(("extras", "same"), [((), False), (("kv_lengths",), True)])
def test_as_many_queries_as_keys_are_aligned_from_the_top_left_too(
    extras: tuple[str, ...], same: bool, window: tuple[int, None] | None, rng: np.random.Generator
) -> None:
    graph = attention(5, 5, extras=extras, same=same, causal="bottom_right", window=window)
    done = plain_bands(graph)
    (node,) = done.graph.nodes
    assert (node.op.causal, node.op.window) == ("top_left", window)
    is_the_same(graph, done.graph, rng)
    assert plain_bands(done.graph).graph is done.graph


@pytest.mark.parametrize(
    ("sq", "skv", "extras", "attributes"),
    [
        (1, 5, ("kv_lengths",), {"causal": "bottom_right", "window": (2, None)}),
        (1, 5, (), {"causal": "top_left"}),
        (2, 5, (), {"causal": "bottom_right"}),
        (5, 5, ("kv_lengths",), {"causal": "bottom_right"}),
        (5, 5, ("q_lengths", "kv_lengths"), {"causal": "bottom_right"}),
    ],
)
def test_what_the_alignment_shifts_stays(
    sq: int, skv: int, extras: tuple[str, ...], attributes: dict[str, object]
) -> None:
    graph = attention(sq, skv, extras=extras, **attributes)
    assert plain_bands(graph).graph is graph


def test_a_step_of_decoding_beside_a_cache_is_one_attention() -> None:
    """The causal flag hid nothing, and cost eight kernels that read the cache in float32."""
    g = gd.GraphBuilder("decoding")
    q, n = g.input("q", (1, 32, 1, 128), gd.float16), g.input("n", (1,), gd.int32)
    k, v = (g.input(name, (1, 8, 4096, 128), gd.float16) for name in "kv")
    o = g.attention(q, k, v, causal="bottom_right", kv_lengths=g.clip(n, min=1, max=4096), name="att")
    report = h200_report(g.build({"o": o}))
    assert [r.pattern for r in report.regions] == ["clip", "attention"]
    (said,) = (p.changes for p in report.passes if p.name == "complete")
    assert "att: q_lengths spelled out as the full extent, 1" in said
