"""numpy calls: what the device copies while the host copies the next array, by the order in which work is put."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.types import Array, TensorType, channels_last
from graphdnn.runtime import transfer
from tests.runtime.fake import FakeDevice, FakeEvent, fake_program


class Noting(FakeDevice):
    """A device that notes which copies were put on a stream, and what the host waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def upload(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.notes.append(f"device copies {nbytes} bytes in")
        super().upload(target, source, nbytes, stream)

    def download(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.notes.append(f"device copies {nbytes} bytes out")
        super().download(target, source, nbytes, stream)

    def wait_on_host(self, event: FakeEvent) -> None:
        self.notes.append("host waits")
        super().wait_on_host(event)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Noting:
    """Notes the host's own copies to and from pinned memory too."""
    device = Noting()

    def copied(target: Array, source: Array) -> None:
        device.notes.append(f"host copies {target.nbytes} bytes")
        np.copyto(target, source)

    monkeypatch.setattr(transfer, "np", SimpleNamespace(copyto=copied))
    return device


def test_copies_of_the_device_and_of_the_host_overlap(device: Noting, rng: np.random.Generator) -> None:
    """Each input is on its way before the host touches the next, all outputs before the host waits for the first."""
    g = gd.GraphBuilder()
    a, b, c = (g.input(name, (n,), gd.float32) for name, n in (("a", 10), ("b", 20), ("c", 30)))
    program = fake_program(g.build({"x": g.neg(a), "y": g.neg(b), "z": g.neg(c)}), device, rng, 1)
    sizes = (40, 80, 120)
    for call in range(3):
        inputs = {name: rng.standard_normal(n).astype(np.float32) for name, n in (("a", 10), ("b", 20), ("c", 30))}
        device.notes.clear()
        found = program.run(inputs)
        staged = [note for n in sizes for note in (f"host copies {n} bytes", f"device copies {n} bytes in")]
        fetched = [f"device copies {n} bytes out" for n in sizes]
        delivered = [note for n in sizes for note in ("host waits", f"host copies {n} bytes")]
        # Before pinned memory is written again, the last call must have read it.
        assert device.notes == ["host waits"] * (call > 0) + staged + fetched + delivered
        for output, name in zip("xyz", "abc", strict=True):
            np.testing.assert_array_equal(found[output], -inputs[name])


SHAPE, PARTS = (1, 6, 5, 7), 3


@pytest.mark.parametrize("strides", [None, channels_last(SHAPE), (1, 40, 8, 1)], ids=["rows", "channels last", "gaps"])
@pytest.mark.parametrize("is_turned", [False, True])
def test_parts_of_one_array_overlap(
    strides: tuple[int, ...] | None,
    is_turned: bool,
    device: Noting,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each part is on its way before the host touches the next; memory with gaps goes in one piece."""
    monkeypatch.setattr(transfer, "PART_BYTES", 250)
    g = gd.GraphBuilder()
    x = g.input("x", SHAPE, gd.float32, strides=strides)
    program = fake_program(g.build({"y": g.neg(x)}), device, rng, 1)
    parts = len(transfer.parts_of(TensorType(SHAPE, gd.float32, strides)))
    assert parts == (1 if strides == (1, 40, 8, 1) else PARTS)
    for call in range(3):
        drawn = rng.standard_normal(SHAPE[::-1] if is_turned else SHAPE).astype(np.float32)
        value = drawn.T if is_turned else drawn
        device.notes.clear()
        np.testing.assert_array_equal(program.run({"x": value})["y"], -value)
        kinds = [note.split(" ")[0] for note in device.notes]
        there, back = ["host", "device"] * parts, ["device"] * PARTS + ["host", "host"] * PARTS
        assert kinds == ["host"] * (call > 0) + there + back


@pytest.mark.parametrize("shape", [(1,), (3, 1000, 1000), (4096, 1024), (1, 1, 2**23), ()])
def test_parts_are_all_of_a_tensor_and_few(shape: tuple[int, ...]) -> None:
    type = TensorType(shape, gd.float32)
    parts = transfer.parts_of(type)
    assert 1 <= len(parts) <= transfer.PARTS
    assert parts[0].start == 0
    assert sum(p.nbytes for p in parts) == type.span_bytes
    assert all(a.start + a.nbytes == b.start for a, b in pairwise(parts))


def test_arrays_without_axes_and_with_axes_of_one(rng: np.random.Generator) -> None:
    g = gd.GraphBuilder()
    a, b = g.input("a", (), gd.float32), g.input("b", (1, 1), gd.float32)
    program = fake_program(g.build({"x": g.neg(a), "y": g.neg(b)}), FakeDevice(), rng, 1)
    found = program.run({"a": np.array(2, np.float32), "b": np.full((1, 1), 3, np.float32)})
    assert (found["x"].shape, found["x"], found["y"].tolist()) == ((), -2, [[-3]])
