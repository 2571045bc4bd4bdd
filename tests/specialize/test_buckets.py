"""Sizes rounded up: the same results from fewer builds, and refusals before anything is compiled."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn import compiler
from graphdnn.ir.graph import Value
from graphdnn.ir.types import TensorType, channels_last
from graphdnn.specialize.buckets import cut, padded, rounded_up

cpu = functools.partial(gd.jit, target="cpu")
HIDDEN = 8


@pytest.mark.parametrize(
    ("rule", "sizes"),
    [
        ("pow2", {1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 1000: 1024, 1025: 2048}),
        (64, {1: 64, 63: 64, 64: 64, 65: 128}),
        (1, {1: 1, 7: 7}),
        ((1, 8, 32), {1: 1, 2: 8, 8: 8, 9: 32, 32: 32, 33: 64, 65: 96}),
        ((5,), {1: 5, 6: 10}),
    ],
    ids=str,
)
def test_sizes_are_rounded_up(rule: Any, sizes: dict[int, int]) -> None:
    assert {n: rounded_up(n, rule) for n in sizes} == sizes


def test_padding_is_zero_and_keeps_the_layout() -> None:
    x = np.full((2, 3, 4, 5), 7, np.float32)
    larger = padded(x, TensorType((4, 3, 4, 8), gd.float32, channels_last((4, 3, 4, 8))))
    assert tuple(s // 4 for s in larger.strides) == channels_last((4, 3, 4, 8))
    assert (larger[:2, :, :, :5] == 7).all()
    assert larger.sum() == x.sum()
    assert np.shares_memory(cut(larger, x.shape), larger)
    assert padded(torch.ones(2, dtype=torch.bfloat16), TensorType((3,), gd.bfloat16)).tolist() == [1, 1, 0]


def layer(g: gd.GraphBuilder, x: Value, w: Value) -> dict[str, Value]:
    return {"y": g.softmax(g.matmul(g.rms_norm(x), w)), "last": g.slice(x, (0,), (1,), axes=(1,))}


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def test_a_batch_is_padded_and_results_are_those_of_the_exact_graph(rng: np.random.Generator) -> None:
    f = cpu(layer, buckets={"x": {0: "pow2"}})
    w = rng.standard_normal((HIDDEN, 5)).astype(np.float32)
    for n in (1, 2, 3, 4, 5, 8, 7, 3):
        x = rng.standard_normal((n, HIDDEN)).astype(np.float32)
        found = f({"x": x, "w": w})
        normed = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(found["y"], softmax(normed @ w), rtol=2e-5)
        np.testing.assert_array_equal(found["last"], x[:, :1])
    stats = f.stats()
    assert (stats.builds, stats.hits) == (4, 4)


def test_rows_of_nan_stay_in_their_rows() -> None:
    f = cpu(layer, buckets={"x": {0: 4}})
    x = np.ones((3, HIDDEN), np.float32)
    x[1] = np.nan
    found = f({"x": x, "w": np.ones((HIDDEN, 5), np.float32)})["y"]
    assert np.isnan(found).any(axis=1).tolist() == [False, True, False]


def test_images_keep_their_layout(rng: np.random.Generator) -> None:
    weights = rng.standard_normal((4, 3, 3, 3)).astype(np.float32)
    f = cpu(lambda g, x: {"y": g.relu(g.conv(x, g.constant(weights), padding=1))}, buckets={"x": {0: (4, 8)}})
    for n in (1, 3, 5):
        x = torch.randn(n, 3, 6, 5).to(memory_format=torch.channels_last)
        expected = torch.nn.functional.conv2d(x, torch.from_numpy(weights), padding=1).relu()
        np.testing.assert_allclose(f({"x": x})["y"], expected.numpy(), atol=1e-5)
    shapes = [(t.shape, t.is_channels_last) for e in f.executables.values() for t in [e.graph.inputs["x"].type]]
    assert shapes == [((4, 3, 6, 5), True), ((8, 3, 6, 5), True)]


def encoder(g: gd.GraphBuilder, x: Value, n: Value, causal: Any = None) -> dict[str, Value]:
    """One attention layer, and the mean of its positions: (B, S, H) -> (B, S, H) and (B, H)."""
    b, s, h = x.type.shape

    def heads(value: Value) -> Value:
        return g.transpose(g.reshape(value, (b, s, 2, h // 2)), (0, 2, 1, 3))

    q = heads(x)
    o = g.attention(q, q, q, causal=causal, kv_lengths=n, q_lengths=n)
    y = g.add(g.reshape(g.transpose(o, (0, 2, 1, 3)), (b, s, h)), x)
    live = g.less(g.reshape(g.iota(s), (1, s, 1)), g.reshape(n, (b, 1, 1)))
    total = g.reduce_sum(g.select(live, y, 0.0), axes=1)
    return {"y": y, "mean": g.div(total, g.reshape(g.cast(n, gd.float32), (b, 1)))}


def encoded(x: np.ndarray, causal: str | None) -> tuple[np.ndarray, np.ndarray]:
    q = torch.from_numpy(x).unflatten(-1, (2, HIDDEN // 2)).transpose(1, 2)
    o = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=causal is not None)
    y = o.transpose(1, 2).flatten(2).numpy() + x
    return y, y.mean(1)


@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
def test_sequences_are_padded_where_the_graph_masks_their_end(causal: str | None, rng: np.random.Generator) -> None:
    fn = functools.partial(encoder, causal=causal)
    f = cpu(fn, buckets={"x": {0: "pow2", 1: 4}}, lengths={"n": ("x", 1)})
    for b, s in ((1, 3), (3, 4), (3, 5), (4, 7), (4, 8), (2, 6), (3, 5)):
        x = rng.standard_normal((b, s, HIDDEN)).astype(np.float32)
        found, (y, mean) = f({"x": x}), encoded(x, causal)
        np.testing.assert_allclose(found["y"], y, atol=2e-6)
        np.testing.assert_allclose(found["mean"], mean, atol=2e-6)
    assert (f.stats().builds, f.stats().hits) == (4, 3)


def test_a_masked_softmax_and_maximum_are_those_of_the_exact_rows(rng: np.random.Generator) -> None:
    def pooled(g: gd.GraphBuilder, x: Value, n: Value) -> dict[str, Value]:
        batch, size = x.type.shape
        live = g.less(g.reshape(g.iota(size), (1, size)), g.reshape(n, (batch, 1)))
        kept = g.select(live, x, -np.inf)
        return {"p": g.softmax(kept), "m": g.reduce_max(kept, axes=1)}

    f = cpu(pooled, buckets={"x": {0: 4, 1: 16}}, lengths={"n": ("x", 1)})
    for shape in ((3, 5), (4, 9), (1, 16), (2, 1)):
        x = rng.standard_normal(shape).astype(np.float32) - 9  # zeros would be the largest
        out = f({"x": x})
        powers = np.exp(x - x.max(1, keepdims=True))
        np.testing.assert_allclose(out["p"], powers / powers.sum(1, keepdims=True), rtol=1e-5)
        np.testing.assert_array_equal(out["m"], x.max(1))
    assert f.stats().builds == 1


def test_lengths_without_buckets_are_the_extent() -> None:
    f = cpu(lambda g, x, n: {"n": g.add(n, 0)}, lengths={"n": ("x", -1)})
    assert f({"x": np.ones((2, 5), np.float32)})["n"].tolist() == [5, 5]
    with pytest.raises(gd.ExecutionError, match="input n of lambda is filled in"):
        f({"x": np.ones((2, 5), np.float32), "n": np.ones(2, np.int32)})
    with pytest.raises(gd.ExecutionError, match="input x has 0 axes; n holds lengths along its axis -1"):
        f({"x": np.float32(1)})


def test_a_warning_knows_that_lengths_mask_the_padding(rng: np.random.Generator) -> None:
    f = cpu(encoder, lengths={"n": ("x", 1)}, warn_after=3)
    for s in (3, 5):
        f({"x": rng.standard_normal((2, s, HIDDEN)).astype(np.float32)})
    with pytest.warns(UserWarning, match=r"axis 1 of x took 3, 5, 4; buckets=\{'x': \{1: 'pow2'\}\} pads to a few"):
        f({"x": rng.standard_normal((2, 4, HIDDEN)).astype(np.float32)})


def test_a_batch_that_is_not_independent_is_refused_at_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "compile", lambda *_: pytest.fail("compiled"))
    for n in (3, 4):
        f = cpu(lambda g, x: {"y": g.layer_norm(x, axes=0, name="norm")}, buckets={"x": {0: "pow2"}})
        for _ in range(2):
            with pytest.raises(gd.CompileError) as caught:
                f({"x": np.ones((n, 2), np.float32)})
            assert str(caught.value) == (
                "lambda cannot be padded from x: f32[3x2] to x: f32[4x2]: layer_norm %norm computes across axis 0 of "
                "its x, which is 3 long and padded to 4"
            )
        assert f.stats().builds == 0


def test_a_size_that_only_some_calls_refuse() -> None:
    """A graph by the number of rows: right for 4 and 8 rows, which are built, and refused for 7, which is another."""
    f = cpu(
        lambda g, x: {"y": g.relu(x) if x.type.shape[0] % 2 == 0 else g.tanh(x)},
        buckets={"x": {0: (4, 8)}},
        warn_after=99,
    )
    with pytest.raises(gd.CompileError, match="tanh %tanh of the exact shapes is relu %relu for the padded"):
        f({"x": np.ones((8, 2), np.float32)})
    with pytest.raises(gd.CompileError, match="tanh %tanh"):
        f({"x": np.ones((3, 2), np.float32)})


def test_what_nothing_reads_refuses_no_padding() -> None:
    """The last row is another one in the padded graph, and no output is made of it."""

    def rows(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
        g.slice(x, [-1], [None], axes=[0], name="last")
        return {"y": g.relu(x)}

    f = gd.jit(rows, target="cpu", buckets={"x": {0: (4,)}})
    np.testing.assert_array_equal(f({"x": np.full((3, 2), -1, np.float32)})["y"], np.zeros((3, 2), np.float32))


def test_each_exact_size_is_proved_for_itself() -> None:
    """The build for 8 rows is proved with 7 and 6; with 5 the function is another."""
    f = cpu(lambda g, x: {"y": g.mul(x, 2.0 if x.type.shape[0] == 5 else 1.0)}, buckets={"x": {0: (8,)}})
    for n in (8, 6):
        assert f({"x": np.ones((n, 2), np.float32)})["y"].sum() == 2 * n
    with pytest.raises(gd.CompileError, match=r"2\.0 for the exact shapes is 1\.0 for the padded"):
        f({"x": np.ones((5, 2), np.float32)})
    assert f.stats().builds == 1


def test_weights_drawn_anew_at_each_call_are_noticed(rng: np.random.Generator) -> None:
    def drawn(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
        return {"y": g.matmul(x, g.constant(rng.standard_normal((2, 2)).astype(np.float32), name="w"))}

    with pytest.raises(gd.CompileError, match="constant %w has another content"):
        cpu(drawn, buckets={"x": {0: 4}})({"x": np.ones((3, 2), np.float32)})


def test_inputs_that_do_not_fit_are_refused_as_they_are() -> None:
    f = cpu(lambda g, a, b: {"y": g.add(a, b)}, buckets={"a": {0: 8}, "b": {0: 8}})
    with pytest.raises(gd.GraphError, match="axis 0: 5 against 7"):
        f({"a": np.ones((5, 2), np.float32), "b": np.ones((7, 2), np.float32)})
    with pytest.raises(gd.CompileError, match="repeats operand 0 along axis 0"):
        f({"a": np.ones((1, 2), np.float32), "b": np.ones((7, 2), np.float32)})
    assert f({"a": np.ones((5, 2), np.float32), "b": np.ones((5, 2), np.float32)})["y"].sum() == 20


def test_rules_that_do_not_go_together_are_refused() -> None:
    f = cpu(lambda g, a, b: {"y": g.add(a, b)}, buckets={"a": {0: 8}, "b": {0: "pow2"}})
    with pytest.raises(
        gd.CompileError, match=r"lambda takes a: f32\[3x2\], b: f32\[3x2\], but not padded to a: f32\[8x2\]"
    ):
        f({"a": np.ones((3, 2), np.float32), "b": np.ones((3, 2), np.float32)})

    def small(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
        if x.type.shape[0] > 6:
            raise ValueError("at most\n6 rows")
        return {"y": g.relu(x)}

    said = r"^small takes x: f32\[3x2\], but not padded to x: f32\[8x2\]: at most 6 rows$"
    with pytest.raises(gd.CompileError, match=said) as caught:
        cpu(small, buckets={"x": {0: 8}})({"x": np.ones((3, 2), np.float32)})
    assert isinstance(caught.value.__cause__, ValueError)


def test_an_axis_that_an_array_lacks_is_refused() -> None:
    f = cpu(lambda g, x: {"y": g.relu(x)}, buckets={"x": {2: 8}})
    with pytest.raises(gd.ExecutionError, match="input x has 2 axes; buckets are given for its axis 2"):
        f({"x": np.ones((3, 2), np.float32)})


def test_an_axis_with_two_rules_is_refused() -> None:
    f = cpu(lambda g, x: {"y": g.relu(x)}, buckets={"x": {1: 8, -1: 4}})
    with pytest.raises(gd.ExecutionError, match="for its axis 1 and, counted from the end, again for axis -1"):
        f({"x": np.ones((3, 2), np.float32)})
    assert f({"x": np.ones((3, 2, 1), np.float32)})["y"].shape == (3, 2, 1)


def test_a_dropped_build_takes_its_ways_with_it() -> None:
    f = cpu(lambda g, x: {"y": g.relu(x)}, buckets={"x": {0: 4}}, max_entries=1)
    for n in (3, 7, 3, 2, 3):
        assert f({"x": np.ones((n, 2), np.float32)})["y"].shape == (n, 2)
    stats = f.stats()
    assert (stats.builds, stats.hits, stats.evictions) == (3, 2, 2)


def test_an_input_that_is_handed_through_is_cut_too() -> None:
    f = cpu(lambda g, x, m=None: {"x": x, "y": g.relu(x)}, buckets={"x": {0: 4}, "m": {0: 4}})
    x = -np.ones((3, 2), np.float32)
    found = f({"x": x})
    np.testing.assert_array_equal(found["x"], x)
    assert not np.shares_memory(found["x"], x)
