"""Shapes that vary on a real device: layouts in place, padding beside PyTorch, streams, tuned builds swapped in."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import graphdnn as gd
from graphdnn.ir.graph import Value
from graphdnn.ir.types import channels_last
from graphdnn.runtime.arrays import DeviceArray
from tests.processes import in_threads

pytestmark = pytest.mark.gpu

HIDDEN, HEADS = 64, 2
OPTIONS = gd.CompileOptions(cache_dir="")


def drawn(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def host(array: Any) -> np.ndarray:
    assert isinstance(array, DeviceArray)
    return array.numpy().astype(np.float32)


def near(found: Any, expected: torch.Tensor, tolerance: float = 4e-3) -> None:
    wanted = expected.float().cpu().numpy()
    assert found.shape == wanted.shape
    assert np.abs(host(found) - wanted).max() <= tolerance * np.abs(wanted).max()


def rows(g: gd.GraphBuilder, x: Value, w: Value) -> dict[str, Value]:
    return {"y": g.relu(g.matmul(g.rms_norm(x), w)), "x": x}


def test_a_padded_batch_gives_the_exact_results() -> None:
    f = gd.jit(rows, target="cuda", options=OPTIONS, buckets={"x": {0: (4, 16)}})
    w = drawn(HIDDEN, 48) / 8
    for n in (1, 3, 4, 3, 9, 16, 3):
        x = drawn(n, HIDDEN)
        found = f({"x": x, "w": w})
        near(found["y"], (torch.nn.functional.rms_norm(x, (HIDDEN,), eps=1e-5) @ w).relu())
        near(found["x"], x, 0)
        assert torch.from_dlpack(found["y"]).is_contiguous()
    assert (f.stats().builds, f.stats().hits) == (2, 5)


def test_rows_of_nan_stay_in_their_rows() -> None:
    f = gd.jit(rows, target="cuda", options=OPTIONS, buckets={"x": {0: 8}})
    x = drawn(5, HIDDEN)
    x[2] = torch.nan
    found = host(f({"x": x, "w": drawn(HIDDEN, 48)})["y"])
    assert np.isnan(found).any(axis=1).tolist() == [False, False, True, False, False]


def test_channels_last_images_are_read_in_place_and_padded_in_their_layout() -> None:
    weights = drawn(32, 16, 3, 3) / 12

    def images(g: gd.GraphBuilder, x: Value) -> gd.Graph:
        y = g.relu(g.conv(x, g.constant(weights.cpu().numpy(), name="w"), padding=1))
        return g.build({"y": y}, strides={"y": channels_last(y.type.shape)})

    f = gd.jit(images, target="cuda", options=OPTIONS, buckets={"x": {0: 4}})
    for n in (4, 3):
        x = drawn(n, 16, 14, 14).to(memory_format=torch.channels_last)
        found = f({"x": x})["y"]
        near(found, torch.nn.functional.conv2d(x, weights, padding=1).relu())
        assert torch.from_dlpack(found).is_contiguous(memory_format=torch.channels_last)
    (executable,) = f.executables.values()
    assert [r.pattern for r in executable.report.regions] == ["conv+relu"]


def encoder(g: gd.GraphBuilder, x: Value, n: Value) -> dict[str, Value]:
    """Causal attention over the positions that there are, and their mean."""
    b, s, h = x.type.shape
    q = g.transpose(g.reshape(x, (b, s, HEADS, h // HEADS)), (0, 2, 1, 3))
    o = g.attention(q, q, q, causal="top_left", kv_lengths=n)
    y = g.reshape(g.transpose(o, (0, 2, 1, 3)), (b, s, h)) + x
    live = g.less(g.reshape(g.iota(s), (1, s, 1)), g.reshape(n, (b, 1, 1)))
    total = g.reduce_sum(g.select(live, g.cast(y, gd.float32), 0.0), axes=1)
    return {"y": y, "mean": g.div(total, g.reshape(g.cast(n, gd.float32), (b, 1)))}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_padded_sequences_give_the_exact_results(dtype: torch.dtype) -> None:
    f = gd.jit(encoder, target="cuda", options=OPTIONS, buckets={"x": {0: 4, 1: 64}}, lengths={"n": ("x", 1)})
    for b, s in ((3, 37), (4, 64), (1, 5), (3, 37)):
        x = drawn(b, s, HIDDEN, dtype=dtype)
        found = f({"x": x})
        q = x.unflatten(-1, (HEADS, HIDDEN // HEADS)).transpose(1, 2)
        o = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        y = o.transpose(1, 2).flatten(2) + x
        near(found["y"], y)
        near(found["mean"], y.float().mean(1), 1e-2)
    assert f.stats().builds == 1


def unaware(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
    """Attention, softmax over the sequence and means, none of which speaks of lengths."""
    b, s, h = x.type.shape
    q = g.transpose(g.reshape(x, (b, s, HEADS, h // HEADS)), (0, 2, 1, 3))
    y = g.reshape(g.transpose(g.attention(q, q, q), (0, 2, 1, 3)), (b, s, h)) + x
    return {
        "weights": g.softmax(g.reduce_mean(y, axes=2), axis=1),
        "mean": g.reduce_mean(y, axes=1),
        "peak": g.reduce_max(y, axes=(0, 1)),
        "gram": g.matmul(g.transpose(x, (0, 2, 1)), x),
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("is_on_host", [False, True])
def test_what_does_not_speak_of_lengths_is_masked(dtype: torch.dtype, is_on_host: bool) -> None:
    f = gd.jit(unaware, target="cuda", options=OPTIONS, buckets={"x": {0: 4, 1: 64}})
    for b, s in ((4, 64), (3, 37), (1, 5), (4, 33), (2, 64), (3, 37)):
        x = drawn(b, s, HIDDEN, dtype=dtype)
        found = f({"x": x.cpu().numpy() if is_on_host else x})
        q = x.unflatten(-1, (HEADS, HIDDEN // HEADS)).transpose(1, 2)
        y = torch.nn.functional.scaled_dot_product_attention(q, q, q).transpose(1, 2).flatten(2) + x
        wide = y.double()
        expected = {
            "weights": wide.mean(2).softmax(1),
            "mean": wide.mean(1),
            "peak": wide.amax((0, 1)),
            "gram": x.double().mT @ x.double(),
        }
        for name, wanted in expected.items():
            array = found[name] if is_on_host else host(found[name])
            error = np.abs(array - wanted.cpu().numpy()).max() / wanted.abs().max().item()
            assert error <= (1e-2 if dtype is torch.float16 else 2e-5), (name, b, s)
    assert f.stats().builds == 1


def test_images_of_many_sizes_are_masked() -> None:
    weights = drawn(32, 16, 3, 3) / 12

    def images(g: gd.GraphBuilder, x: Value) -> dict[str, Value]:
        y = g.relu(g.conv(x, g.constant(weights.cpu().numpy(), name="w"), padding=1))
        return {"y": g.reduce_mean(g.max_pool(y, kernel=3, stride=2, padding=1), axes=(2, 3))}

    f = gd.jit(images, target="cuda", options=OPTIONS, buckets={"x": {2: 32, 3: 32}})
    for h, w in ((32, 32), (17, 32), (9, 21), (28, 5)):
        x = drawn(2, 16, h, w).to(memory_format=torch.channels_last)
        y = torch.nn.functional.conv2d(x, weights, padding=1).relu()
        near(f({"x": x})["y"], torch.nn.functional.max_pool2d(y, 3, 2, 1).float().mean((2, 3)), 1e-2)
    assert f.stats().builds == 1


def test_numpy_arrays_and_mixed_ones() -> None:
    f = gd.jit(rows, target="cuda", options=OPTIONS, buckets={"x": {0: 8}})
    x, w = drawn(5, HIDDEN), drawn(HIDDEN, 48)
    expected = (torch.nn.functional.rms_norm(x, (HIDDEN,), eps=1e-5) @ w).relu()
    near(f({"x": x.cpu().numpy(), "w": w})["y"], expected)
    near(f({"x": x, "w": w.cpu().numpy()})["y"], expected)
    found = f({"x": x.cpu().numpy(), "w": w.cpu().numpy()})["y"]
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found.astype(np.float32), expected.float().cpu().numpy(), rtol=1e-2, atol=1e-2)
    assert f.stats().builds == 1


def test_streams_in_turn_wait_for_each_other() -> None:
    """Each call's padded input lies where an earlier call's may still be read."""
    f = gd.jit(rows, target="cuda", options=OPTIONS, buckets={"x": {0: 512}})
    w = torch.eye(HIDDEN, device="cuda", dtype=torch.float16)
    streams = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for turn in range(30):
        stream = streams[turn % 3]
        with torch.cuda.stream(stream):
            if turn % 5 == 0:
                torch.cuda._sleep(5_000_000)
            x = torch.full((300, HIDDEN), float(turn % 7 + 1), device="cuda", dtype=torch.float16)
            results.append((turn % 7 + 1, f({"x": x, "w": w}, stream=stream.cuda_stream)["x"]))
            del x
    torch.cuda.synchronize()
    for value, found in results:
        assert (host(found) == value).all()


def test_a_tuned_build_is_swapped_in_while_calls_go_on() -> None:
    f = gd.jit(rows, target="cuda", options=OPTIONS, on_new_shape="heuristic_then_tune")
    x, w = drawn(256, HIDDEN), drawn(HIDDEN, 48) / 8
    expected = (torch.nn.functional.rms_norm(x, (HIDDEN,), eps=1e-5) @ w).relu()
    near(f({"x": x, "w": w})["y"], expected)
    calls = 0
    while not f.wait_for_tuning(0):
        near(f({"x": x, "w": w})["y"], expected)
        calls += 1
    near(f({"x": x, "w": w})["y"], expected)
    stats = f.stats()
    assert (stats.builds, stats.tuned, stats.tuning_failures) == (1, 1, 0)
    assert calls > 0
    assert [e.report.options["selection"] for e in f.executables.values()] == ["autotune"]


def test_threads_call_while_tuned_builds_are_swapped_in() -> None:
    """Work that waits on a stream when its build is replaced ends as it began, and so do outputs that are held."""
    f = gd.jit(rows, target="cuda", options=OPTIONS, on_new_shape="heuristic_then_tune")
    w = drawn(HIDDEN, 48) / 8
    inputs = {n: drawn(n, HIDDEN) for n in (64, 200, 777)}
    expected = {n: (torch.nn.functional.rms_norm(x, (HIDDEN,), eps=1e-5) @ w).relu() for n, x in inputs.items()}
    torch.cuda.synchronize()
    ready = threading.Barrier(4)

    def call(number: int) -> None:
        stream, held = torch.cuda.Stream(), []
        ready.wait(60)
        is_over = False
        while not is_over:
            is_over = f.wait_for_tuning(0) and len(f.executables) == len(inputs)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
            for n, x in inputs.items():
                held.append((n, f({"x": x, "w": w}, stream=stream.cuda_stream)["y"]))
            for n, y in held[-30:]:
                near(y, expected[n])
            del held[30:]

    in_threads(call, 4)
    assert f.wait_for_tuning(300)
    stats = f.stats()
    assert (stats.builds, stats.tuned, stats.tuning_failures) == (3, 3, 0)
    assert {e.report.options["selection"] for e in f.executables.values()} == {"autotune"}
