"""Padding on a device: a fake one whose streams run as late and as disorderly as their events allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import graphdnn as gd
from graphdnn import compiler
from graphdnn.ir.graph import Value
from graphdnn.runtime.arrays import DeviceArray
from graphdnn.specialize.jitted import Jitted
from tests.runtime.fake import FakeDevice, Foreign, fake_program, laid_out, on_device
from tests.specialize.test_buckets import HIDDEN, encoded, encoder

STREAMS = (None, 11, 12, 11)


class Fake:
    """What a compiled graph is to jit."""

    def __init__(self, graph: gd.Graph, device: FakeDevice, rng: np.random.Generator) -> None:
        self.graph = graph
        self._program = fake_program(laid_out(graph, rng), device, rng)

    def __call__(self, inputs: Any, *, stream: Any = None) -> dict[str, Any]:
        return self._program.run(inputs, stream)


@pytest.fixture
def device(seed: int) -> FakeDevice:
    return FakeDevice(seed)


@pytest.fixture
def there(device: FakeDevice) -> Callable[[np.ndarray], Foreign]:
    """Puts arrays on the device, where they stay until the test is over: work that reads them may still be due."""
    held: list[Foreign] = []

    def put(array: np.ndarray) -> Foreign:
        held.append(on_device(array, device))
        return held[-1]

    return put


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, device: FakeDevice, rng: np.random.Generator) -> list[str]:
    """Names of the graphs compiled for the fake device."""
    names: list[str] = []

    def compile(graph: gd.Graph, *_: Any) -> Fake:
        names.append(graph.name)
        return Fake(graph, device, rng)

    monkeypatch.setattr(compiler, "compile", compile)
    return names


def scaled(g: gd.GraphBuilder, x: Value, w: Value) -> dict[str, Value]:
    return {"y": g.relu(g.matmul(x, w)), "x": x}


def test_inputs_are_lengthened_where_they_lie(
    compiled: list[str], there: Callable[[np.ndarray], Foreign], rng: np.random.Generator
) -> None:
    f = gd.jit(scaled, buckets={"x": {0: 4}})
    w = rng.standard_normal((HIDDEN, 3), np.float32)
    expected, found = [], []
    for turn, n in enumerate((3, 2, 4, 3, 3, 2, 3, 3)):
        x = rng.standard_normal((n, HIDDEN), np.float32)
        expected.append({"y": np.maximum(x @ w, 0), "x": x})
        found.append(f({"x": there(x), "w": w}, stream=STREAMS[turn % 4]))
    for outputs, wanted in zip(found, expected, strict=True):
        for name, array in wanted.items():
            assert isinstance(outputs[name], DeviceArray)
            assert outputs[name].shape == array.shape
            np.testing.assert_allclose(outputs[name].numpy(), array, rtol=1e-5)
    assert compiled == ["scaled", "pad", "pad"]


def test_numpy_goes_in_and_comes_out(compiled: list[str], rng: np.random.Generator) -> None:
    f = gd.jit(scaled, buckets={"x": {0: 4}})
    w = rng.standard_normal((HIDDEN, 3), np.float32)
    for n in (3, 2, 3):
        x = rng.standard_normal((n, HIDDEN), np.float32)
        found = f({"x": x, "w": w})["y"]
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, np.maximum(x @ w, 0), rtol=1e-5)
    assert compiled == ["scaled"]


def test_only_what_lies_there_is_lengthened_there(
    compiled: list[str], there: Callable[[np.ndarray], Foreign], rng: np.random.Generator
) -> None:
    f = gd.jit(lambda g, a, b: {"y": g.add(a, b)}, buckets={"a": {0: 4}, "b": {0: 4}})
    a, b = (rng.standard_normal((3, 5), np.float32) for _ in range(2))
    for left, right in ((there(a), b), (a, there(b)), (a, b)):
        found = f({"a": left, "b": right})["y"]
        array = found if isinstance(found, np.ndarray) else found.numpy()
        np.testing.assert_array_equal(array, a + b)
    assert compiled == ["lambda", "pad", "pad"]


def test_sequences_and_their_lengths(
    compiled: list[str], there: Callable[[np.ndarray], Foreign], rng: np.random.Generator
) -> None:
    f: Jitted = gd.jit(encoder, buckets={"x": {0: 2, 1: 4}}, lengths={"n": ("x", 1)})
    expected, found = [], []
    for turn, (b, s) in enumerate([(1, 3), (2, 4), (1, 3), (2, 3), (1, 3), (2, 4)]):
        x = rng.standard_normal((b, s, HIDDEN), np.float32)
        expected.append(encoded(x, None))
        found.append(f({"x": there(x)}, stream=STREAMS[turn % 4]))
    for outputs, (y, mean) in zip(found, expected, strict=True):
        np.testing.assert_allclose(outputs["y"].numpy(), y, atol=2e-6)
        np.testing.assert_allclose(outputs["mean"].numpy(), mean, atol=2e-6)
    assert compiled.count("encoder") == 1
    assert compiled.count("lengths") == 3


def test_memory_of_a_lengthened_input_waits_for_its_reader(
    compiled: list[str], there: Callable[[np.ndarray], Foreign], device: FakeDevice
) -> None:
    """The second call writes where the first one's work, which has not begun yet, still has to read."""
    f = gd.jit(scaled, buckets={"x": {0: 4}})
    w = there(np.eye(HIDDEN, dtype=np.float32))
    f({"x": there(np.zeros((3, HIDDEN), np.float32)), "w": w}, stream=11)
    for turn in range(6):
        xs = [np.full((3, HIDDEN), 10 * turn + i, np.float32) for i in (1, 2)]
        found = [f({"x": there(x), "w": w}, stream=11 + i)["y"] for i, x in enumerate(xs)]
        device.drain()
        for outputs, x in zip(found, xs, strict=True):
            np.testing.assert_array_equal(outputs.numpy(), x)
