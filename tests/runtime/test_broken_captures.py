"""Captures of ours that end from outside: another thread that waits for the whole device ends all of its process."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pytest

import graphdnn as gd
from graphdnn.errors import ExecutionError
from tests.runtime.fake import FakeDevice, fake_program, on_device
from tests.runtime.test_program import SIDE, affine, check, draw

Breaking = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def device() -> FakeDevice:
    return FakeDevice()


@pytest.fixture
def breaking(device: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> Breaking:
    """Within, no capture is left whole."""

    def broken(issue: Callable[[int], None]) -> None:
        raise ExecutionError("the capture was invalidated")

    @contextmanager
    def within() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(device, "capture", broken)
            yield

    return within


def test_a_plain_call_loses_no_result(device: FakeDevice, breaking: Breaking, rng: np.random.Generator) -> None:
    program = fake_program(affine(), device, rng, 1)
    x = on_device(draw(rng), device)
    with breaking():
        for _ in range(3):
            check(program.run({"x": x}), x.array)
        assert device.launches == 0
    check(program.run({"x": x}), x.array)
    assert device.launches == 1


def test_a_bound_call_loses_no_result(device: FakeDevice, breaking: Breaking, rng: np.random.Generator) -> None:
    """The work is on the stream already when its capture is tried: it is done once, and captured by a later call."""
    g = gd.GraphBuilder("total")
    total = g.add(g.state("total", (3, 5), gd.float32), g.input("x", (3, 5), gd.float32))
    x = on_device(draw(rng), device)
    bound = fake_program(g.build({"y": total}, {"total": total}), device, rng).bind({"x": x})
    with breaking():
        for call in (1, 2):
            found = bound(stream=SIDE if call == 2 else None)
            np.testing.assert_allclose(found["y"].numpy(), call * x.array, rtol=1e-6)
        with pytest.raises(ExecutionError, match="captured by its first call"):
            bound.kernels  # noqa: B018
    for call in (3, 4):
        np.testing.assert_allclose(bound()["y"].numpy(), call * x.array, rtol=1e-6)
    assert device.launches == 1
