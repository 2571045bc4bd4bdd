"""numpy calls: what the device copies while the host copies the next array, by the order in which work is put."""

from __future__ import annotations

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.ir.types import Array
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
    stage, deliver = transfer.InputStaging.stage, transfer.OutputStaging.deliver

    def staged(staging: transfer.InputStaging, array: Array) -> None:
        device.notes.append(f"host copies {array.nbytes} bytes in")
        stage(staging, array)

    def delivered(staging: transfer.OutputStaging, target: Array) -> None:
        deliver(staging, target)
        device.notes.append(f"host copies {target.nbytes} bytes out")

    monkeypatch.setattr(transfer.InputStaging, "stage", staged)
    monkeypatch.setattr(transfer.OutputStaging, "deliver", delivered)
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
        staged = [note for n in sizes for note in (f"host copies {n} bytes in", f"device copies {n} bytes in")]
        fetched = [f"device copies {n} bytes out" for n in sizes]
        delivered = [note for n in sizes for note in ("host waits", f"host copies {n} bytes out")]
        # Before pinned memory is written again, the last call must have read it.
        assert device.notes == ["host waits"] * (call > 0) + staged + fetched + delivered
        for output, name in zip("xyz", "abc", strict=True):
            np.testing.assert_array_equal(found[output], -inputs[name])
