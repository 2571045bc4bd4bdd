"""Attention against PyTorch, against its equation in plain loops, and against its own expansion."""

import itertools
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.ir.ops.attention import keys_per_query
from graphdnn.ir.types import Array
from graphdnn.passes.promote import promote
from tests.ir.expansion import expanded
from tests.ir.samples import SAMPLES, Sample

Rng = np.random.Generator
EXTRAS = {"bias": None, "mask": gd.bool, "q_lengths": gd.int32, "kv_lengths": gd.int32}


def graph_of(arrays: dict[str, Array], dtype: gd.DType | None = None, **attributes: Any) -> gd.Graph:
    """Attention on inputs like these arrays; q, k, v and bias have `dtype` where it is given."""
    g = gd.GraphBuilder()
    values = {n: g.input(n, a.shape, (EXTRAS.get(n) or dtype or a.dtype)) for n, a in arrays.items()}
    built = g.attention(values.pop("q"), values.pop("k"), values.pop("v"), **values, **attributes)
    return g.build(dict(zip(("o", "lse"), built, strict=True)) if isinstance(built, tuple) else {"o": built})


def attend(arrays: dict[str, Array], **attributes: Any) -> dict[str, Array]:
    return gd.evaluate(graph_of(arrays, **attributes), arrays)


def qkv(rng: Rng, b: int, hq: int, hkv: int, sq: int, skv: int, d: int, dv: int) -> dict[str, Array]:
    shapes = {"q": (b, hq, sq, d), "k": (b, hkv, skv, d), "v": (b, hkv, skv, dv)}
    return {n: rng.standard_normal(s) for n, s in shapes.items()}


def by_the_equation(
    arrays: dict[str, Array],
    *,
    scale: float | None = None,
    causal: str | None = None,
    window: tuple[int | None, int | None] | None = None,
) -> tuple[Array, Array]:
    """The definition in loops, one query at a time, in float64."""
    q, k, v = (arrays[n].astype(np.float64) for n in "qkv")
    (b, hq, sq, d), (_, hkv, skv, _) = q.shape, k.shape
    scale = 1 / math.sqrt(d) if scale is None else scale
    full = (b, hq, sq, skv)
    bias = np.broadcast_to(arrays.get("bias", np.zeros(())), full)
    mask = np.broadcast_to(arrays.get("mask", np.ones((), bool)), full)
    q_lengths = np.clip(arrays.get("q_lengths", np.full(b, sq)), 0, sq)
    kv_lengths = np.clip(arrays.get("kv_lengths", np.full(b, skv)), 0, skv)
    o, lse = np.zeros((b, hq, sq, v.shape[3])), np.full((b, hq, sq), -np.inf)
    for n, h, i in itertools.product(range(b), range(hq), range(sq)):
        head = h // (hq // hkv)
        offset = int(kv_lengths[n]) - int(q_lengths[n]) if causal == "bottom_right" else 0
        keys = []
        for j in range(skv):
            distance = j - i - offset
            seen = i < q_lengths[n] and j < kv_lengths[n] and mask[n, h, i, j]
            seen = seen and (causal is None or distance <= 0)
            if window is not None:
                seen = seen and (window[0] is None or distance >= -window[0])
                seen = seen and (window[1] is None or distance <= window[1])
            if seen:
                keys.append(j)
        if not keys:
            continue
        scores = np.array([scale * (q[n, h, i] @ k[n, head, j]) + bias[n, h, i, j] for j in keys])
        lse[n, h, i] = np.logaddexp.reduce(scores)
        o[n, h, i] = np.exp(scores - lse[n, h, i]) @ v[n, head, keys]
    return o, lse


def zeros(sq: int, skv: int) -> dict[str, Array]:
    v = np.arange(skv, dtype=np.float32).reshape(1, 1, skv, 1)
    return {"q": np.zeros((1, 1, sq, 1), np.float32), "k": np.zeros((1, 1, skv, 1), np.float32), "v": v}


@pytest.mark.parametrize(
    ("sq", "skv", "attributes", "expected"),
    [
        (2, 4, {"causal": "top_left"}, [0, 0.5]),
        (2, 4, {"causal": "bottom_right"}, [1, 1.5]),
        (4, 2, {"causal": "top_left"}, [0, 0.5, 0.5, 0.5]),
        (4, 2, {"causal": "bottom_right"}, [0, 0, 0, 0.5]),
        (4, 4, {"causal": "top_left", "window": (1, 0)}, [0, 0.5, 1.5, 2.5]),
        (4, 4, {"causal": "bottom_right", "window": (1, 0)}, [0, 0.5, 1.5, 2.5]),
        (4, 4, {"window": (1, 0)}, [0, 0.5, 1.5, 2.5]),
        (3, 4, {"window": (0, 1)}, [0.5, 1.5, 2.5]),
        (3, 4, {"window": (None, 1)}, [0.5, 1, 1.5]),
        (3, 4, {"window": (None, None)}, [1.5, 1.5, 1.5]),
    ],
)
@pytest.mark.parametrize("decomposed", [False, True])
def test_alignment_and_windows_are_exact(sq: int, skv: int, attributes, expected, decomposed: bool) -> None:
    """Cases N1, N2 and N3, and windows without the causal flag."""
    arrays = zeros(sq, skv)
    graph = graph_of(arrays, return_lse=True, **attributes)
    found = gd.evaluate(expanded(graph) if decomposed else graph, arrays)
    np.testing.assert_array_equal(found["o"].reshape(-1), np.array(expected, np.float32))
    counts = keys_per_query(
        sq, skv, *graph.nodes[0].op.bounds(sq, skv), skv - sq if attributes.get("causal") == "bottom_right" else 0
    )
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(found["lse"].reshape(-1), np.log(counts), rtol=1e-6)


@pytest.mark.parametrize("sizes", [(2, 3, 3, 5, 7, 8, 8), (1, 2, 2, 33, 65, 16, 24), (3, 1, 1, 1, 129, 4, 5)])
@pytest.mark.parametrize("causal", [False, True])
def test_plain_forms_agree_with_torch(sizes, causal: bool, rng: Rng) -> None:
    arrays = qkv(rng, *sizes)
    found = attend(arrays, causal="top_left" if causal else None)["o"]
    given = [torch.tensor(arrays[n]) for n in "qkv"]
    expected = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=causal)
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (5, 7), (2, 1, 1, 7), (1, 6, 5, 1)])
def test_bias_mask_and_shared_heads_agree_with_torch(shape, rng: Rng) -> None:
    arrays = {**qkv(rng, 2, 6, 2, 5, 7, 8, 4), "bias": rng.standard_normal(shape)}
    given = [torch.tensor(arrays[n]) for n in "qkv"]
    scaled = torch.nn.functional.scaled_dot_product_attention
    expected = scaled(*given, attn_mask=torch.tensor(arrays["bias"]), scale=0.7, enable_gqa=True)
    np.testing.assert_allclose(attend(arrays, scale=0.7)["o"], expected.numpy(), rtol=0, atol=1e-12)
    del arrays["bias"]
    arrays["mask"] = rng.integers(0, 2, shape).astype(bool) | (np.arange(shape[-1]) == 0)
    expected = scaled(*given, attn_mask=torch.tensor(arrays["mask"]), enable_gqa=True)
    np.testing.assert_allclose(attend(arrays)["o"], expected.numpy(), rtol=0, atol=1e-12)


COMBINATIONS = [
    (causal, window, extras, (sq, skv))
    for causal in (None, "top_left", "bottom_right")
    for window in (None, (2, 0), (1, 3), (None, 0), (3, None))
    for extras in ((), ("bias", "mask"), ("q_lengths",), ("kv_lengths",), ("bias", "mask", "q_lengths", "kv_lengths"))
    for sq, skv in ((3, 5), (5, 3))
]


@pytest.mark.parametrize(("causal", "window", "extras", "sizes"), COMBINATIONS)
def test_every_combination_follows_the_equation(causal, window, extras, sizes, rng: Rng) -> None:
    sq, skv = sizes
    arrays = qkv(rng, 3, 4, 2, sq, skv, 4, 5)
    choices: dict[str, Array] = {
        "bias": rng.standard_normal((4, 1, skv)),
        "mask": rng.integers(0, 3, (3, 1, sq, skv)) > 0,
        "q_lengths": rng.permutation([0, sq, int(rng.integers(0, sq))]).astype(np.int32),
        "kv_lengths": rng.permutation([0, skv, int(rng.integers(1, skv))]).astype(np.int32),
    }
    arrays.update({n: choices[n] for n in extras})
    graph = graph_of(arrays, causal=causal, window=window, return_lse=True)
    expected = by_the_equation(arrays, causal=causal, window=window)
    for variant in (graph, expanded(graph)):
        found = gd.evaluate(variant, arrays)
        np.testing.assert_allclose(found["o"], expected[0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found["lse"], expected[1].astype(np.float32), rtol=1e-6, atol=1e-6)
        assert not found["o"][np.isneginf(expected[1])].any()


@pytest.mark.parametrize(("dtype", "limit"), [(gd.float32, 1e-5), (gd.float16, 2e-3), (gd.bfloat16, 1.6e-2)])
@pytest.mark.parametrize("causal", [None, "bottom_right"])
def test_precision_and_expansion(dtype: gd.DType, limit: float, causal: str | None, rng: Rng) -> None:
    arrays = {n: a.astype(dtype.numpy) for n, a in qkv(rng, 1, 4, 2, 33, 65, 16, 24).items()}
    expected = by_the_equation(arrays, causal=causal)[0]
    graph = graph_of(arrays, causal=causal)
    for variant in (graph, expanded(graph)):
        found = gd.evaluate(variant, arrays)["o"]
        assert found.dtype == dtype.numpy
        assert np.abs(found.astype(np.float64) - expected).max() <= limit * np.abs(arrays["v"].astype(np.float64)).max()


@pytest.mark.parametrize("decomposed", [False, True])
def test_large_scores_do_not_overflow(decomposed: bool, rng: Rng) -> None:
    arrays = {n: (a * 60).astype(np.float16) for n, a in qkv(rng, 1, 2, 2, 5, 9, 16, 8).items()}
    graph = graph_of(arrays, return_lse=True)
    found = gd.evaluate(expanded(graph) if decomposed else graph, arrays)
    expected = by_the_equation(arrays)
    np.testing.assert_allclose(found["lse"], expected[1], rtol=1e-5)
    np.testing.assert_allclose(found["o"].astype(np.float64), expected[0], rtol=0, atol=2e-3 * 300)


@pytest.mark.parametrize("decomposed", [False, True])
def test_rows_of_minus_infinity_are_empty(decomposed: bool, rng: Rng) -> None:
    arrays = {**qkv(rng, 1, 1, 1, 3, 4, 2, 2), "bias": np.zeros((3, 4))}
    arrays["bias"][1] = -np.inf
    arrays["bias"][2, :3] = -np.inf
    graph = graph_of(arrays, return_lse=True)
    found = gd.evaluate(expanded(graph) if decomposed else graph, arrays)
    assert not found["o"][0, 0, 1].any()
    assert found["lse"][0, 0, 1] == -np.inf
    np.testing.assert_allclose(found["o"][0, 0, 2], arrays["v"][0, 0, 3], rtol=1e-12)


@pytest.mark.parametrize("decomposed", [False, True])
def test_keys_beyond_the_length_are_not_looked_at(decomposed: bool, rng: Rng) -> None:
    arrays = {**qkv(rng, 2, 2, 1, 3, 5, 4, 4), "kv_lengths": np.array([2, 0], np.int32)}
    expected = by_the_equation(arrays)[0]
    for n in "kv":
        arrays[n][0, :, 2:] = np.nan
        arrays[n][1] = np.nan
    graph = graph_of(arrays)
    found = gd.evaluate(expanded(graph) if decomposed else graph, arrays)["o"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
def test_lengths_are_held_inside(causal: str | None, rng: Rng) -> None:
    limits = np.iinfo(np.int32)
    arrays = {
        **qkv(rng, 4, 2, 1, 3, 5, 4, 4),
        "q_lengths": np.array([limits.max, 3, -1, 2], np.int32),
        "kv_lengths": np.array([5, 1000, 4, limits.min], np.int32),
    }
    expected = by_the_equation(arrays, causal=causal)[0]
    graph = graph_of(arrays, causal=causal)
    for variant in (graph, expanded(graph)):
        np.testing.assert_allclose(gd.evaluate(variant, arrays)["o"], expected, rtol=0, atol=1e-12)


def test_nan_in_a_key_that_counts_shows(rng: Rng) -> None:
    arrays = qkv(rng, 1, 1, 1, 2, 3, 4, 4)
    arrays["k"][0, 0, 2, 0] = np.nan
    graph = graph_of(arrays, causal="bottom_right")
    for variant in (graph, expanded(graph)):
        found = gd.evaluate(variant, arrays)["o"]
        assert not np.isnan(found[0, 0, 0]).any()
        assert np.isnan(found[0, 0, 1]).all()


@pytest.mark.parametrize(
    "attributes", [{"causal": "top_left"}, {"causal": "bottom_right"}, {"window": (0, 1)}], ids=str
)
@pytest.mark.parametrize("lse", [False, True])
def test_keys_out_of_reach_never_count(attributes: dict[str, Any], lse: bool) -> None:
    """Also where every score that counts is minus infinity, of which a softmax makes NaN."""
    arrays = zeros(3, 5)
    arrays["q"][0, 0, 1] = -np.inf
    arrays["k"] += 1
    graph = graph_of(arrays, return_lse=lse, **attributes)
    found, smaller = (gd.evaluate(variant, arrays)["o"][0, 0, :, 0] for variant in (graph, expanded(graph)))
    assert found[1] == 0
    np.testing.assert_array_equal(smaller, found if lse else [found[0], np.nan, found[2]])


@pytest.mark.parametrize("types", list(itertools.product([gd.float16, gd.float32, gd.float64], repeat=3)), ids=str)
def test_operands_of_several_types_expand_to_the_common_one(types: tuple[gd.DType, ...], rng: Rng) -> None:
    arrays = qkv(rng, 1, 2, 1, 3, 5, 4, 4)
    arrays = {n: a.astype(t.numpy) for (n, a), t in zip(arrays.items(), types, strict=True)}
    graph = graph_of(arrays, causal="bottom_right")
    found, wanted = (gd.evaluate(variant, arrays)["o"] for variant in (expanded(graph), graph))
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 if found.dtype == np.float64 else 2e-3)


def test_a_bias_of_another_type_promotes_nothing(rng: Rng) -> None:
    g = gd.GraphBuilder()
    q = g.input("q", (1, 1, 3, 8), gd.float16)
    o = g.attention(q, q, q, bias=g.input("bias", (3, 3), gd.float32))
    assert o.type.dtype == gd.float16
    assert [n.op.label for n in promote(g.build({"o": o})).graph.nodes] == ["attention"]
    k = g.input("k", (1, 1, 3, 8), gd.float32)
    assert g.attention(q, k, k).type.dtype == gd.float32


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.name.startswith(("attention", "cache"))], ids=str)
def test_expansion_of_samples(sample: Sample, rng: Rng) -> None:
    graph = sample.graph(rng)
    smaller = expanded(graph)
    assert "attention" not in {n.op.kind for n in smaller.nodes}
    inputs = sample.inputs(graph, rng)
    found, expected = (gd.evaluate(g, inputs) for g in (smaller, graph))
    for name, value in graph.outputs.items():
        limit = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-3, "bfloat16": 8e-3}[value.type.dtype.name]
        assert found[name].dtype == expected[name].dtype
        np.testing.assert_allclose(
            found[name].astype(np.float64), expected[name].astype(np.float64), rtol=0, atol=4 * limit
        )


@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
@pytest.mark.parametrize("window", [(12, 12), (2**31, 2**31), (sys.maxsize, None), (None, 2**63), (2**63, 2**63)])
def test_a_bound_beyond_all_distances_is_none(causal, window, rng: Rng) -> None:
    arrays = {**qkv(rng, 2, 4, 2, 5, 7, 8, 8), "q_lengths": np.int32([5, 0]), "kv_lengths": np.int32([0, 7])}
    arrays = {n: a.astype(np.float16) if a.dtype == np.float64 else a for n, a in arrays.items()}
    graph, plain = (graph_of(arrays, causal=causal, window=w) for w in (window, None))
    assert gd.parse(str(graph)).nodes[0].op == graph.nodes[0].op
    assert graph.nodes[0].flops == plain.nodes[0].flops
    wanted = gd.evaluate(plain, arrays)["o"]
    np.testing.assert_array_equal(gd.evaluate(graph, arrays)["o"], wanted)
    np.testing.assert_array_equal(gd.evaluate(expanded(graph), arrays)["o"], gd.evaluate(expanded(plain), arrays)["o"])
    np.testing.assert_array_equal(gd.compile(graph, target="cpu")(arrays)["o"], wanted)
    described = gd.Target.named("h200")
    assert gd.compile(graph, target=described).report.regions == gd.compile(plain, target=described).report.regions


@pytest.mark.parametrize("causal", [None, "bottom_right"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("bound", [3, 4, 5, 6, 11, 12])
def test_bounds_that_are_reached_matter(causal, side, bound, rng: Rng) -> None:
    arrays = {**qkv(rng, 2, 1, 1, 5, 7, 2, 2), "q_lengths": np.int32([5, 1]), "kv_lengths": np.int32([1, 7])}
    window = (bound, None) if side == 0 else (None, bound)
    o, lse = by_the_equation(arrays, causal=causal, window=window)
    found = gd.evaluate(graph_of(arrays, causal=causal, window=window, return_lse=True), arrays)
    np.testing.assert_allclose(found["o"], o, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["lse"], lse, rtol=1e-6)


def test_plain_attention_expands_to_softmax() -> None:
    arrays = zeros(3, 5)
    labels = {n.op.label for n in expanded(graph_of(arrays, causal="top_left")).nodes}
    assert "softmax" in labels
    assert "reduce_max" not in labels
    labels = {n.op.label for n in expanded(graph_of(zeros(5, 3), causal="bottom_right")).nodes}
    assert "softmax" not in labels, "rows 0 and 1 have no key"


def test_flops_count_the_pairs_that_are_left() -> None:
    def flops(sq: int, skv: int, **attributes: Any) -> int:
        return graph_of(zeros(sq, skv), **attributes).nodes[0].flops

    assert flops(4, 6) == 24 * (2 * 2 + 5)
    assert flops(4, 4, causal="top_left") == 10 * 9
    assert flops(2, 4, causal="bottom_right") == 7 * 9
    assert flops(4, 4, window=(1, 0)) == 7 * 9


REFUSED: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, Any]]] = {
    "batch extents differ": ({"k": (1, 2, 7, 8)}, {}),
    "q has 8 features and k has 9": ({"k": (2, 2, 7, 9)}, {}),
    "k and v differ": ({"v": (2, 2, 6, 4)}, {}),
    "4 heads of q are no multiple of 3": ({"k": (2, 3, 7, 8), "v": (2, 3, 7, 4)}, {}),
    "four axes are needed": ({"q": (4, 5, 8)}, {}),
    "bias is f64[2x4x5x8], which does not broadcast": ({"bias": (2, 4, 5, 8)}, {}),
    "mask is b8[3x5x7], which does not broadcast": ({"mask": (3, 5, 7)}, {}),
    "q_lengths is i32[3]; i32[2]": ({"q_lengths": (3,)}, {}),
    "kv_lengths is i32[1]; i32[2]": ({"kv_lengths": (1,)}, {}),
    'causal is True; None, "top_left" or "bottom_right"': ({}, {"causal": True}),
    "window is (-1, 0)": ({}, {"window": (-1, 0)}),
    "window is (1, 2, 3)": ({}, {"window": (1, 2, 3)}),
    "scale is inf": ({}, {"scale": math.inf}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals(message: str) -> None:
    shapes, attributes = REFUSED[message]
    sizes = {"q": (2, 4, 5, 8), "k": (2, 2, 7, 8), "v": (2, 2, 7, 4), **shapes}
    with pytest.raises(gd.GraphError) as raised:
        graph_of({n: np.zeros(s) for n, s in sizes.items()}, **attributes)
    assert message in str(raised.value)


def test_a_mask_must_be_bool_and_a_bias_float() -> None:
    g = gd.GraphBuilder()
    q, other = g.input("q", (1, 1, 3, 8), gd.float32), g.input("other", (3, 3), gd.float32)
    with pytest.raises(gd.GraphError, match=r"mask is f32\[3x3\]; a bool type is needed"):
        g.attention(q, q, q, mask=other)
    with pytest.raises(gd.GraphError, match=r"bias is b8\[3x3\]; a float type is needed"):
        g.attention(q, q, q, bias=g.less(other, 0.0))


@pytest.mark.parametrize("wide", list("qkv"))
def test_types_meet_before_anything_is_computed(wide: str, rng: Rng) -> None:
    """A float64 operand makes the scores float64 too, also where it is v alone."""
    arrays = {n: a.astype(np.float64 if n == wide else np.float32) for n, a in qkv(rng, 2, 4, 2, 5, 7, 3, 4).items()}
    graph = graph_of(arrays, causal="top_left", return_lse=True)
    o, lse = by_the_equation(arrays, causal="top_left")
    for found in (gd.evaluate(graph, arrays), gd.compile(graph, target="cpu")(arrays)):
        np.testing.assert_allclose(found["o"], o, rtol=0, atol=1e-13)
        np.testing.assert_allclose(found["lse"], lse, rtol=1e-6)


@pytest.mark.parametrize("length", [0, 1, 4])
def test_rows_from_the_length_on_are_zero_though_v_is_not_finite(length: int, rng: Rng) -> None:
    arrays = {**qkv(rng, 1, 2, 1, 5, 3, 2, 4), "q_lengths": np.array([length], np.int32)}
    arrays["v"][:] = np.nan
    found = attend(arrays)["o"]
    assert not found[:, :, length:].any()
    assert np.isnan(found[:, :, :length]).all()
